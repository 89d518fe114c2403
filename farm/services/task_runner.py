"""Runs a task, a training or a build: takes it, sends heartbeats, and stores the result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from farm.errors import FarmError, TaskLost, first_line
from farm.services.task_spans import TaskSpans

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Between two heartbeats of a trainer or a builder."""

S = TypeVar("S")
R = TypeVar("R")


def run_task(
    task_id: object,
    what: str,
    *,
    start: Callable[[int], S | None],
    beat: Callable[[S], bool],
    attempt: Callable[[S], R],
    write_down: Callable[[S, R], bool],
    spans: TaskSpans[S, R],
) -> None:
    """Runs the task of that id, unless another program has it. `what` names its kind, such as `training`.

    `beat` and `write_down` return whether this program still has the task. If it does not, or the database or the process goes
    away, nothing is written, and the task is taken back and started again.
    """
    if type(task_id) is not int:
        log.error("a message without a %s id was ignored", what)
        return
    ids = {f"{what}_id": task_id}

    def held(whether: bool) -> None:
        if not whether:
            raise TaskLost(what=what, number=task_id)

    try:
        started = start(task_id)
        if started is None:
            return
        with spans.attempt(task_id, started) as span:
            with heartbeats(lambda: held(beat(started)), **ids):
                result = attempt(started)
            spans.ended(span, result)
            held(write_down(started, result))
    except TaskLost as error:
        log.warning("%s", error, extra=ids)
    except OperationalError as error:
        log.warning("the database does not answer (%s); the %s is given up", first_line(error), what, extra=ids)


@contextmanager
def heartbeats(beat: Callable[[], None], *, every_s: float | None = None, **ids: int) -> Iterator[None]:
    """Calls `beat` in a thread every few seconds inside the block, until it raises a `FarmError`: the task is lost then."""
    over, pause_s = threading.Event(), HEARTBEAT_SECONDS if every_s is None else every_s

    def beat_on() -> None:
        while not over.wait(pause_s):
            try:
                beat()
            except FarmError as error:
                log.warning("%s", error, extra=ids)
                return
            except DBAPIError as error:
                log.warning("the database did not take a heartbeat: %s", first_line(error))

    threading.Thread(target=beat_on, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        over.set()
