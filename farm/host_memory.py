"""Memory of this host, and the limits of this process's control groups (Linux, cgroup v1 and v2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC = Path("/proc")
SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """The names of a version of control groups: the files of a group, and the entries of `memory.stat` that the kernel can drop."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_V1 = _Hierarchy("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_V2 = _Hierarchy("memory.max", "memory.current", ("active_file", "inactive_file"))


def total_bytes() -> int:
    """Memory of the host, or the lowest limit of this process's control groups."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def available_bytes() -> int:
    """What processes can still take without swapping: `MemAvailable` of the host, or the least that a limit leaves.

    A control group uses memory for files too, which the kernel drops for a process that needs it.
    """
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _limits())]))


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that has one, and the bytes in use that the kernel cannot drop."""
    for folder, names in _groups():
        limit, used = (_number(folder / name) for name in (names.limit, names.used))
        if limit is not None:
            yield limit, max(0, (used or 0) - _reclaimable(folder, names))


def _groups() -> Iterator[tuple[Path, _Hierarchy]]:
    """The control groups of this process and those above them. A container may see its own as the topmost one."""
    v1, v2 = SYS / "fs/cgroup/memory", SYS / "fs/cgroup"
    yield v2, _V2
    yield v1, _V1
    lines = (line.split(":", 2) for line in (_text(PROC / "self/cgroup") or "").splitlines())
    for _, controllers, path in (line for line in lines if len(line) == 3):
        top, names = (v1, _V1) if "memory" in controllers.split(",") else (v2, _V2)
        here = Path(path.lstrip("/"))
        yield from ((top / part, names) for part in (here, *here.parents) if part != Path())


def _reclaimable(folder: Path, names: _Hierarchy) -> int:
    entries = (line.split() for line in (_text(folder / "memory.stat") or "").splitlines())
    return sum(int(entry[1]) for entry in entries if len(entry) == 2 and entry[0] in names.reclaimable)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
