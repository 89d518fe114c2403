"""Built kernels on this host: a folder for each, named by the hash of what it was compiled from.

A folder appears and disappears by one rename, so any number of processes may read, write and prune the same cache
without a lock, and one that is killed leaves nothing that looks like a kernel. A binary is given out only where its SHA-256
and its record agree with its name. A user who can write to the folder can forge both: before a kernel is loaded, its signature is
checked, and its SHA-256 is compared with what the farm recorded (`workers.kernels.sources`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from farm.builds.record import Built, Record

log = logging.getLogger(__name__)

_CODE, _RECORD, _SIGNATURE = "kernel.cubin", "kernel.json", "kernel.sig"
_HASH = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".unfinished-"

ABANDONED_SECONDS = 3600.0
"""An unfinished folder that is older is abandoned, because writing one takes milliseconds."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    used: float  # seconds since 1970
    bytes: int


class KernelCache:
    """The cache in a folder, which is made when the first kernel is put."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, hash_: str) -> Built | None:
        """The kernel of that name, which now counts as used. None without a trusted kernel."""
        place = self._place(hash_)
        try:
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            self._refuse(place, "it is a file")
            return None
        try:
            # Both files belong to one folder, also if it is renamed meanwhile.
            record = Record.model_validate_json(_read(folder, _RECORD))
            built = Built(_read(folder, _CODE), record, _signature(folder))
            with contextlib.suppress(OSError):  # a cache that may only be read is not pruned either
                os.utime(folder)
        except FileNotFoundError as error:
            if _same(folder, place):  # and not one that is being removed
                self._refuse(place, f"it lacks {error.filename}")
            return None
        except ValidationError as error:
            self._refuse(place, f"its record cannot be read: {error.errors()[0]['msg']}")
            return None
        finally:
            os.close(folder)
        if built.record.hash != hash_:
            self._refuse(place, f"it was built as {built.record.hash}")
            return None
        if not built.intact:
            self._refuse(place, "its SHA-256 is not the recorded one")
            return None
        return built

    def put(self, built: Built) -> None:
        """Keeps a kernel, in place of another one of the same name."""
        if not built.intact:
            raise ValueError(f"the record of {built.record.hash} is not of this code")
        if (found := self.get(built.record.hash)) == built:
            return
        if found is not None:
            self._remove(self._place(built.record.hash))
        self._root.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
        try:
            unfinished.chmod(0o755)
            (unfinished / _CODE).write_bytes(built.code)
            (unfinished / _RECORD).write_text(built.record.model_dump_json(indent=1) + "\n")
            if built.signature:
                (unfinished / _SIGNATURE).write_text(built.signature + "\n")
            try:
                unfinished.rename(self._place(built.record.hash))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was first
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def records(self) -> Iterator[Record]:
        """What is known of every kernel here, the latest used first. Those that `get` would refuse are left out."""
        for entry in sorted(self._entries(), key=lambda e: e.used, reverse=True):
            with contextlib.suppress(OSError, ValidationError):
                yield Record.model_validate_json((entry.path / _RECORD).read_bytes())

    def prune(self, max_bytes: int) -> int:
        """Removes what was not used for longest until the rest fits; tells how many kernels went."""
        entries = sorted(self._entries(), key=lambda e: e.used)
        total, removed = sum(e.bytes for e in entries), 0
        for entry in entries:
            if total <= max_bytes:
                break
            self._remove(entry.path)
            total -= entry.bytes
            removed += 1
        self._sweep()
        return removed

    def unused_for(self, seconds: float) -> list[tuple[str, int]]:
        """The name and size of each kernel that was not used for that long, the least recently used first."""
        limit = time.time() - seconds
        return [(e.path.name, e.bytes) for e in sorted(self._entries(), key=lambda e: e.used) if e.used < limit]

    def remove(self, hash_: str) -> None:
        """Removes a kernel, where there is one."""
        self._remove(self._place(hash_))

    def _place(self, hash_: str) -> Path:
        if not _HASH.fullmatch(hash_):
            raise ValueError(f"{hash_!r} is no SHA-256")
        return self._root / hash_

    def _entries(self) -> Iterator[_Entry]:
        for path in self._root.glob("*") if self._root.is_dir() else ():
            if not _HASH.fullmatch(path.name):
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                size = sum(file.stat().st_size for file in path.iterdir())
                yield _Entry(path, path.stat().st_mtime, size)

    def _refuse(self, place: Path, why: str) -> None:
        log.warning("the kernel %s is refused and removed: %s", place, why)
        try:
            self._remove(place)
        except OSError as error:
            log.warning("%s could not be removed: %s", place, error)

    def _remove(self, place: Path) -> None:
        """Renames the folder first, so that no process sees a part of it."""
        away = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
        try:
            with contextlib.suppress(FileNotFoundError):  # another process was first
                place.rename(away / place.name)
        finally:
            shutil.rmtree(away, ignore_errors=True)

    def _sweep(self) -> None:
        """What processes left that were killed while they wrote."""
        for path in self._root.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def _same(folder: int, place: Path) -> bool:
    """Whether an open folder is still the one at that place."""
    try:
        return os.path.samestat(os.fstat(folder), place.stat())
    except FileNotFoundError:
        return False


def _signature(folder: int) -> str:
    try:
        return _read(folder, _SIGNATURE).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def _read(folder: int, name: str) -> bytes:
    with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as file:
        return file.read()
