"""Spans of a task, a training or a build: from its request to its result, in a trace whose id follows from the task.

The program that runs the task records them. What an attempt does inside `TaskSpans.attempt` becomes a part of its first span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Engine

from farm.db.farm_key import farm_key
from farm.tracing import ActiveSpan, Kind, Span, SpanIds, new_ids, tracing
from farm.tracing.span import MAX_ERROR_CHARACTERS, PREFIX, Value

S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpans(Generic[S, R]):
    """The spans of tasks of one kind.

    Attributes:
        name: the first span of an attempt, from the request of the task to the end of the attempt.
        waiting: its first part, until this program started the task.
        ids_of: the trace of a task, by the key of the farm and the id of the task.
        engine: of the database, for the key of the farm.
        queued_s: seconds that the task waited until this attempt, by the clock of the database.
        attributes: those of an attempt.
        result: the error of a result, where it is one, and the attributes of the result.
    """

    name: str
    waiting: str
    ids_of: Callable[[str, int], SpanIds]
    engine: Callable[[], Engine]
    queued_s: Callable[[S], float]
    attributes: Callable[[S], Mapping[str, Value]]
    result: Callable[[R], tuple[str | None, Mapping[str, Value]]]

    @contextmanager
    def attempt(self, task_id: int, started: S) -> Iterator[ActiveSpan | None]:
        """Records the block as an attempt at the task. None: tracing is off, or the database does not answer."""
        recorder = tracing()
        if not recorder.on or (farm := farm_key(self.engine())) is None:
            yield None
            return
        now_ns = time.time_ns()
        began_ns = now_ns - round(1e9 * max(0.0, self.queued_s(started)))
        ids = recorder.new_ids(self.ids_of(farm, task_id))
        attributes = {f"{PREFIX}{name}": value for name, value in self.attributes(started).items()}
        recorder.record(
            Span(
                name=self.waiting,
                ids=new_ids(ids),
                parent=ids,
                began_ns=began_ns,
                ended_ns=now_ns,
                attributes=attributes,
            )
        )
        with recorder.first_span(self.name, ids, began_ns=began_ns, kind=Kind.CONSUMER, **attributes) as active:
            yield active

    def ended(self, active: ActiveSpan | None, result: R) -> None:
        """Adds the result of an attempt to its span."""
        if active is None:
            return
        error, attributes = self.result(result)
        active.error = None if error is None else error[:MAX_ERROR_CHARACTERS]
        active.attributes |= {f"{PREFIX}{name}": value for name, value in attributes.items()}
