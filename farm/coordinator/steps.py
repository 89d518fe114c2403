"""Steps of a coordinator's turn. A step that fails or waits for a lock does not block the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from farm.coordinator.exported import STEP_ERRORS
from farm.coordinator.metrics import StepFailure, Watch
from farm.db.engine import Fault, fault_of
from farm.errors import NotLeading, first_line

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LOG_SECONDS = 30.0
"""Time between two log lines about a step that keeps failing."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 5.0
"""A failed step is skipped for this long, doubled each time, so it does not delay the others."""

MAX_ERROR_CHARACTERS = 300


class PartlyFailed(Exception):
    """A step failed for some of its job groups, rounds or devices."""


class OneByOne:
    """Runs actions independently: a failure of one does not stop the others."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def each(self) -> Iterator[None]:
        """Runs one action. Raises only errors that concern all: the database is unreachable, or the term is over."""
        try:
            yield
        except Exception as error:
            self._keep(error)

    def attempt(self, action: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
        """The same for a function; None if it failed."""
        try:
            return action(*given, **named)
        except Exception as error:
            self._keep(error)
            return None

    def _keep(self, error: Exception) -> None:
        if _concerns_all(error):
            raise error
        self._first = self._first or error

    def end(self) -> None:
        """Raises `PartlyFailed` from the first error, if there was one. Call it after the last action."""
        if self._first is not None:
            raise PartlyFailed from self._first


@dataclass
class _Failure:
    since_s: float
    times: int = 0
    due_s: float = 0.0
    logged_s: float | None = None


@dataclass
class Steps:
    """Runs steps, and reports failing ones to the watch."""

    watch: Watch
    clock: Callable[[], float] = time.monotonic
    _failures: dict[str, _Failure] = field(default_factory=dict, init=False)

    def run(self, name: str, step: Callable[[], object]) -> None:
        """Runs the step, unless it failed a moment ago.

        Raises `NotLeading`, and `DBAPIError` where the database is out of reach. Every other error is logged and counted.
        """
        failure = self._failures.get(name)
        if failure is not None and self.clock() < failure.due_s:
            return
        self.watch.begin(name)
        try:
            step()
        except Exception as error:
            if _concerns_all(error):
                raise
            self._failed(name, error)
        else:
            if self._failures.pop(name, None) is not None:
                self.watch.works_again(name)
                log.info("the step %s of the coordinator works again", name)
        finally:
            self.watch.begin(None)

    def _failed(self, name: str, error: Exception) -> None:
        partly = isinstance(error, PartlyFailed)
        cause = error.__cause__ if partly and isinstance(error.__cause__, Exception) else error
        now = self.clock()
        failure = self._failures.setdefault(name, _Failure(now))
        pause_s = 0.0 if partly else min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failure.times, 8))
        failure.times += 1
        failure.due_s = now + pause_s
        text = error_text(cause)
        self.watch.metrics.count(STEP_ERRORS, value=name)
        self.watch.fails(StepFailure(step=name, error=text, since_s=failure.since_s))
        if failure.logged_s is None or now - failure.logged_s >= LOG_SECONDS:
            failure.logged_s = now
            trace = None if isinstance(cause, DBAPIError) else cause
            log.warning("the step %s of the coordinator failed: %s; the others go on", name, text, exc_info=trace)


def _concerns_all(error: Exception) -> bool:
    return isinstance(error, NotLeading) or fault_of(error) is Fault.UNREACHABLE


def error_text(error: Exception) -> str:
    """The error as one line that any database can store, with the context of a database error."""
    if isinstance(error, DBAPIError):
        context = getattr(getattr(error.orig, "diag", None), "context", None) or ""
        message = first_line(error.orig) + (f" ({context.splitlines()[0]})" if context else "")
    else:
        message = f"{type(error).__name__}: {first_line(error)}"
    return message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:MAX_ERROR_CHARACTERS]
