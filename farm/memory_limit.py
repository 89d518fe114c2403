"""A bound on the memory that this process takes while it reads a file that somebody else may have written.

A small file can unpack to any size, and what it says of its size can be wrong. So the memory itself is limited, whatever reads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READING_BYTES = 2**30
"""Some 8,000 rows of a dataset, with every column, take 50 MB."""

_THREAD_BYTES = 16 * 2**20
"""Of each thread that a reader may start: its stack, and what its allocator takes at once."""


class _Limit:
    """Of this process, as long as a block needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before = (0, 0)

    def begin(self) -> bool:
        """Whether this system has such limits."""
        import resource

        with self._lock:
            if self._blocks == 0:
                taken = _taken_bytes()
                if taken is None:
                    return False
                self._before = resource.getrlimit(resource.RLIMIT_DATA)
                wanted = taken + READING_BYTES + _THREAD_BYTES * (os.cpu_count() or 1)
                bounds = [bound for bound in (wanted, *self._before) if bound != resource.RLIM_INFINITY]
                resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), self._before[1]))
            self._blocks += 1
            return True

    def end(self) -> None:
        import resource

        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)


_LIMIT = _Limit()


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Until the block ends, this process may have `READING_BYTES` more than it has now; beyond that, `MemoryError` is raised.

    The bound is that of the first of several blocks that overlap. Systems other than Linux have none.
    """
    if not _LIMIT.begin():
        yield
        return
    try:
        yield
    finally:
        _LIMIT.end()


def _taken_bytes() -> int | None:
    """What RLIMIT_DATA counts: private memory that can be written to. None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
