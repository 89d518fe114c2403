"""Answers that pages share: one reading of the database serves all pages that refresh the same part at the same moment.

An event makes every page that listens request its part again. The answer of the first request is that of the others too, until the
next event, and not longer than `SHARED_SECONDS`. Nothing is shared while no page listens to events. A person who opens a page never gets a
shared answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

R = TypeVar("R")

SHARED_SECONDS = 1.0
"""How long an answer is shared, from the moment at which its first request began."""


@dataclass(frozen=True, slots=True)
class _Shared:
    began: float
    event: int | None
    answer: Future[Any] = field(default_factory=Future)


class SharedAnswers:
    """Answers by what was asked. Threads of requests use it."""

    def __init__(self, event: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`event` returns the number of the latest event: an answer from before it is not shared after it. None: nothing is shared."""
        self._event = event
        self._clock = clock
        self._lock = threading.Lock()
        self._shared = dict[Hashable, _Shared]()

    def answer(self, key: Hashable, read: Callable[[], R]) -> R:
        """The shared answer, or that of `read`, which others share from now on. Waits while another thread reads it.

        Raises what `read` raises. Errors are not kept.
        """
        with self._lock:
            now, event = self._clock(), self._event()
            self._shared = {
                one: kept
                for one, kept in self._shared.items()
                if now - kept.began < SHARED_SECONDS and kept.event == event
            }
            others = self._shared.get(key)
            own = _Shared(now, event)
            if others is None and event is not None:
                self._shared[key] = own
        if others is not None:
            found: R = others.answer.result()
            return found
        try:
            read_now = read()
        except BaseException as error:
            with self._lock:
                if self._shared.get(key) is own:
                    del self._shared[key]
            own.answer.set_exception(error)
            raise
        own.answer.set_result(read_now)
        return read_now

    def clear(self) -> None:
        """Nothing that was read before is shared any more: something was changed."""
        with self._lock:
            self._shared.clear()
