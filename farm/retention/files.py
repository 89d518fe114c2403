"""Files of this machine's home: logs of programs, and the cache of built kernels."""

from __future__ import annotations

import fcntl
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from farm.builds.cache import KernelCache
from farm.retention.rule import BATCH, Old, Place
from farm.services.home import Home
from farm.services.stack import KNOWN


class Logs:
    name = "logs"
    what = "logs in FARM_HOME that no program writes to any more"

    def find(self, place: Place, age: timedelta) -> Old:
        return sum((Old(1, size) for _, size in self._old(place, age)), Old())

    def remove(self, place: Place, age: timedelta) -> Old:
        removed = Old()
        for path, size in self._old(place, age):
            with suppress(FileNotFoundError):  # another process was first
                path.unlink()
                removed += Old(1, size)
        return removed

    def _old(self, place: Place, age: timedelta) -> Iterator[tuple[Path, int]]:
        """Regular files that were not written to for that long. Links are left alone, as is a file that a program may hold open."""
        home, limit = Home.of(place.settings), time.time() - age.total_seconds()
        if not home.logs.is_dir():
            return
        held = {home.log(name) for name in (*_SERVICES, *(name for name in KNOWN if _runs(home, name)))}
        for path in sorted(home.logs.iterdir()):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_mtime < limit and path not in held:
                    yield path, found.st_size


_SERVICES = ("postgres", "redis")
"""Their logs are trimmed when they start."""


def _runs(home: Home, name: str) -> bool:
    """Whether a program runs under `farm up` or `farm run`: its lock is held."""
    with suppress(FileNotFoundError), (home.run / f"{name}.up.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Cache:
    name = "cache"
    what = "built kernels in this host's folder, which are fetched again when they are needed"

    def find(self, place: Place, age: timedelta) -> Old:
        return sum((Old(1, size) for _, size in self._cache(place).unused_for(age.total_seconds())), Old())

    def remove(self, place: Place, age: timedelta) -> Old:
        cache, removed = self._cache(place), Old()
        for hash_, size in cache.unused_for(age.total_seconds())[:BATCH]:
            cache.remove(hash_)
            removed += Old(1, size)
        return removed

    def _cache(self, place: Place) -> KernelCache:
        return KernelCache(place.settings.kernel_cache)
