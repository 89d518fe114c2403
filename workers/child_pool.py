"""Celery's prefork pool for the one measuring process of a device: a process that ended is replaced at once.

Celery looks for ended processes when their end of a pipe closes, and then every 5 s. A process closes its files before it
can be waited for, so that the first look often comes too early, and the device stands still until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.concurrency import asynpool, prefork

LOOK_SECONDS = 0.2
"""Time between two looks for an ended process."""


class _Processes(asynpool.AsynPool):  # type: ignore[misc]  # of a package without types
    @property
    def timers(self) -> Mapping[Callable[[], Any], float]:
        """What the event loop calls, and how often in seconds."""
        return {self.maintain_pool: LOOK_SECONDS}


class ChildPool(prefork.TaskPool):  # type: ignore[misc]  # of a package without types
    """`prefork`, with that."""

    Pool = _Processes
