"""One program of a host for each device: a lock on a file in a folder that all users of the host share.

`farm-worker` holds it while it serves the device, in every state of the device. `farm measure` holds it while it measures.
If two programs measured at the same time, the results of both would be wrong. The kernel releases the lock when the process that
holds it ends. For containers that do not share the folder, the database separates the programs: see `farm.db.device_sessions`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import weakref
from contextlib import suppress
from pathlib import Path

from farm.errors import DeviceLocked, DeviceLockUnusable, FarmError
from farm.settings import settings

EXIT_SESSION_LOST = 89
"""Exit status of a device's parent process whose session is over, as another `farm-worker` serves the device."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SYSTEM = Path("/var/lock")
_EVERYBODYS = stat.S_ISVTX | stat.S_IWOTH


def default_folder() -> Path:
    """A folder in which every user of this host may create files and only remove their own: /var/lock, or else /tmp.

    In a container with a read-only root, /var/lock cannot be written to, although its mode says so.
    """
    with suppress(OSError):
        if _SYSTEM.stat().st_mode & _EVERYBODYS == _EVERYBODYS and os.access(_SYSTEM, os.W_OK):
            return _SYSTEM
    return Path("/tmp")  # not TMPDIR, which may be one user's


def lock_folder() -> Path:
    """The folder of the locks of this host's devices: FARM_DEVICE_LOCKS, or the default."""
    return settings().device_locks or default_folder()


class DeviceLock:
    """The lock of a device, held until `release` or until the object is garbage collected."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)
        found = os.fstat(descriptor)
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        # Who holds the lock of the same name knows that its last holder is gone.
        self.name = f"{boot}:{found.st_dev}:{found.st_ino}"

    @classmethod
    def take(cls, uuid: str, folder: Path) -> DeviceLock:
        """Locks the device.

        Raises:
            DeviceLocked: another process of this host serves the device, or measures on it.
            DeviceLockUnusable: the file cannot be made or opened, or is no plain file.
        """
        path = folder / _file_name(uuid)
        try:
            descriptor = _opened(path)
        except OSError as error:
            why = "it is a symbolic link" if path.is_symlink() else error.strerror or str(error)
            raise DeviceLockUnusable(device=uuid, path=path, why=why) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DeviceLockUnusable(device=uuid, path=path, why="it is no plain file")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DeviceLocked(device=uuid, holder=_holder(descriptor), path=path) from None
            lock = cls(descriptor)
            with suppress(OSError):  # opened for reading alone: another user made the file
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except FarmError:
            os.close(descriptor)
            raise
        return lock

    def release(self) -> None:
        """Releases the lock. The file stays, because processes that wait for the lock have opened this file."""
        self._close()


def _file_name(uuid: str) -> str:
    """A name for the file, the same for all users. It is never a path, also if the UUID contains a slash."""
    plain = re.sub(r"[^A-Za-z0-9-]", "_", uuid)
    if plain == uuid and len(uuid) <= 100:
        return f"gemm-farm-{uuid}.lock"
    return f"gemm-farm-{plain[:60]}-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}.lock"


def _opened(path: Path) -> int:
    """The file, made where it is not there, and never one that a link leads to.

    It is opened without O_CREAT first: in a sticky folder Linux refuses that for a file of another user, even to root.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(10):
        with suppress(FileNotFoundError):
            try:
                return os.open(path, os.O_RDWR | flags)
            except PermissionError:
                return os.open(path, os.O_RDONLY | flags)
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
            os.fchmod(made, 0o666)  # independent of the umask, because another user's farm-worker locks it too
            return made
    raise FileNotFoundError(2, "it is made and removed again and again", str(path))


def _holder(descriptor: int) -> str:
    """The process that holds the lock, if it wrote its id and still runs."""
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    if not text.isdecimal() or not Path(f"/proc/{text}").exists():
        return "another process"
    return f"process {text}"
