"""Facts of this host: processor, caches and clocks, read from Linux's /proc and /sys.

If a file is missing, as in containers and on other systems, each function returns a safe default.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")

ASSUMED_CACHE_BYTES = 32 * 2**20
"""The last-level cache of a host that does not say: larger than most, so that operands are cold there too."""


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def processor_name() -> str:
    """The product name of the processor, as its vendor writes it."""
    found = re.search(r"^model name\s*:\s*(\S.*)$", _read(PROC / "cpuinfo") or "", re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown"


def usable_threads() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_id() -> str:
    """The machine id. Without one, as in many containers, the host name."""
    return _read(Path("/etc/machine-id")) or platform.node() or "localhost"


def last_level_cache_bytes() -> int:
    """The sum of the last-level caches of the processors that this process may use."""
    caches: dict[tuple[int, str], int] = {}
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for processor in usable:
        for index in (SYS / f"devices/system/cpu/cpu{processor}/cache").glob("index*"):
            level, size, shared = (_read(index / name) for name in ("level", "size", "shared_cpu_list"))
            found = re.fullmatch(r"(\d+)([KMG]?)", size or "")
            if level is not None and found is not None and _read(index / "type") != "Instruction":
                unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found[2]]
                caches[int(level), shared or str(processor)] = int(found[1]) * unit
    if not caches:
        return ASSUMED_CACHE_BYTES
    last = max(level for level, _ in caches)
    return sum(size for (level, _), size in caches.items() if level == last)


def clock_governor() -> str | None:
    """The frequency governor of the processor, None where the host does not say."""
    return _read(SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor")
