"""Creates a value once for each key, or one that is closed at the end, also if two threads need it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Once(Generic[K, V]):
    """Values by key. The first caller creates a value, and callers with the same key wait for it.

    An error is raised in all callers that waited. It is not stored, so the next caller tries again.
    """

    def __init__(self) -> None:
        self._made: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: K) -> bool:
        return key in self._made

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            future = self._made.get(key)
            first = future is None
            if future is None:
                future = self._made[key] = Future()
        if first:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._made.pop(key, None)
                future.set_exception(error)
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._made.clear()


class Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


class Opened(Generic[C]):
    """One value, opened when it is first needed. After an error, or once it is closed, the next caller opens it anew."""

    def __init__(self, opens: Callable[[], C]) -> None:
        self._opens = opens
        self._opening = threading.Lock()
        self._opened: C | None = None

    def get(self) -> C:
        with self._opening:
            if self._opened is None:
                self._opened = self._opens()
            return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
