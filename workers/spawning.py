"""How Celery's parent starts the child process of a device: by `spawn`, and without billiard's semaphore tracker.

The tracker is a Python process for each parent. It unlinks semaphores that are left when the parent is killed. A
prefork pool makes one for each child: the lock of a counter that the parent alone writes and the child reads. Here that
lock is one of the parent's threads, so nothing is left to track.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from billiard import context, semaphore_tracker


class _LocalLock:
    """A lock of this process. In a child it is another one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._lock.__exit__(*exception)

    def __reduce__(self) -> tuple[type[_LocalLock], tuple[()]]:
        return _LocalLock, ()


def spawn_without_tracker() -> None:
    """To be called in a parent before its pool starts. A semaphore that is created nevertheless would start the tracker."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    semaphore_tracker.getfd = lambda: nowhere
    value = context.BaseContext.Value

    def value_with_local_lock(self: Any, typecode: str, *arguments: Any) -> Any:
        return value(self, typecode, *arguments, lock=_LocalLock())

    context.BaseContext.Value = value_with_local_lock
