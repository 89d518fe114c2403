"""Keeps logs of a home small: a log that grows too large is set aside, with a bounded number of earlier ones.

| log | who writes it | who rotates it |
| --- | --- | --- |
| of a program of `farm up` or `farm run` | its guardian, which reads the output of all its processes from a pipe | the guardian |
| of the supervisor | itself alone | itself |
| of Redis, which opens it for each line | Redis | the supervisor |
| of Postgres, whose processes share it | Postgres | the supervisor: it copies and empties the file, and a line of that moment can be lost |
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from farm.services.guardian import LOG_FILES


def rotated(log: Path, number: int) -> Path:
    """The file of an earlier part of a log; 1 is the latest."""
    return log.with_name(f"{log.name}.{number}")


def make_room(log: Path) -> None:
    """Renames the earlier parts of a log, so that `.1` is free. The oldest is replaced."""
    for number in range(LOG_FILES - 1, 0, -1):
        with suppress(FileNotFoundError):
            rotated(log, number).replace(rotated(log, number + 1))


def set_aside(log: Path, max_bytes: int) -> None:
    """Renames a log above the limit. For one that no process holds open."""
    if _size(log) > max_bytes:
        make_room(log)
        log.replace(rotated(log, 1))


def copy_and_empty(log: Path, max_bytes: int) -> None:
    """The same for a log that processes hold open for appending. Where the disk has no room for a copy, it keeps its lines."""
    if _size(log) <= max_bytes:
        return
    draft = rotated(log, 0)
    try:
        shutil.copy2(log, draft)
    except OSError:
        draft.unlink(missing_ok=True)
        return
    make_room(log)
    draft.replace(rotated(log, 1))
    os.truncate(log, 0)


def rotate_own_output(log: Path, max_bytes: int) -> None:
    """Rotates the log that is the standard output and error of this process alone, if it is that."""
    with suppress(OSError):
        own = os.fstat(2)
        if own.st_size <= max_bytes or not os.path.samestat(own, log.stat()):
            return
        make_room(log)
        log.replace(rotated(log, 1))
        fresh = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for descriptor in (1, 2):
            os.dup2(fresh, descriptor)
        os.close(fresh)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
