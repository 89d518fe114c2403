"""Making a thing once for each key, when two threads may want it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Once(Generic[K, V]):
    """What was made, by key. Whoever asks first makes it; who asks for the same waits, and who asks for others does not.

    What could not be made is not kept: everybody who waited gets the error, and the next one tries again.
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
