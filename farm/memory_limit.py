"""Bounds the memory of this process while it reads a file from an untrusted source.

A small file can unpack to any size, and the size that it states can be wrong. So the memory itself is limited.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

READING_BYTES = 2**30
"""Some 8,000 rows of a dataset, with every column, take 50 MB."""

_THREAD_BYTES = 16 * 2**20
"""For each thread that a reader may start: its stack, and the memory that its allocator reserves."""


class _Limit:
    """The limit of this process, in force while at least one block needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before = (0, 0)

    def begin(self, wanted: int | None) -> int | None:
        """Sets the limit to that many bytes, or by what the process has now. Returns the bytes; None: the system has no limits."""
        import resource

        with self._lock:
            if wanted is None and (taken := _taken_bytes()) is not None:
                wanted = taken + READING_BYTES + _THREAD_BYTES * (os.cpu_count() or 1)
            if wanted is None:
                return None
            if self._blocks == 0:
                self._before = resource.getrlimit(resource.RLIMIT_DATA)
                bounds = [bound for bound in (wanted, *self._before) if bound != resource.RLIM_INFINITY]
                resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), self._before[1]))
            self._blocks += 1
            return wanted

    def end(self) -> None:
        import resource

        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)


_LIMIT = _Limit()


class MemoryBound:
    """Inside the block, this process may have `READING_BYTES` more than it had at the first entry; then `MemoryError` is raised.

    A reader that yields enters the same bound again for each step, so that no bound is in force while the reader is suspended.
    Blocks that overlap have the bound of the first. Systems other than Linux have none.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None

    def __enter__(self) -> None:
        self._bytes = _LIMIT.begin(self._bytes)

    def __exit__(self, *_: object) -> None:
        if self._bytes is not None:
            _LIMIT.end()


def _taken_bytes() -> int | None:
    """What RLIMIT_DATA counts: private memory that can be written to. None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
