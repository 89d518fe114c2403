"""Files of backups: copied with their SHA-256, and read without following links.

Every path is opened folder by folder, relative to an open folder, and a link on the way is an error. So neither a registry
nor a backup can name a file outside its folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

BLOCK = 1 << 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_inside(path: str) -> bool:
    """Whether a relative path with `/` leads to a place inside the folder that it is relative to."""
    parts = path.split("/")
    return "\0" not in path and len(path) < 4096 and all(part not in ("", ".", "..") for part in parts)


@contextmanager
def open_inside(folder: Path, path: str) -> Iterator[IO[bytes]]:
    """Opens a regular file in a folder. Raises `OSError`, also for a link anywhere on the path below the folder."""
    if not is_inside(path):
        raise OSError(errno.EINVAL, "it is no path inside the folder", path)
    *above, name = PurePosixPath(path).parts
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        file = _open_regular(at, name)
    finally:
        os.close(at)
    with file:
        yield file


def _open_regular(folder: int, name: str) -> IO[bytes]:
    number = os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", name)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def regular_files(folder: Path) -> tuple[list[str], list[str]]:
    """Paths of the regular files below a folder, in order, and of what else is there: links, pipes, devices.

    A name that is no UTF-8 counts as something else. A folder that is a link is not entered.
    """
    found: list[str] = []
    other: list[str] = []
    try:
        for root, folders, names, at in os.fwalk(folder, follow_symlinks=False):
            below = Path(root).relative_to(folder).as_posix()
            prefix = "" if below == "." else f"{below}/"
            for name in (*folders, *names):
                path = f"{prefix}{name}"
                with suppress(FileNotFoundError):  # removed meanwhile
                    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                    if stat.S_ISREG(mode) and _is_text(path) and is_inside(path):
                        found.append(path)
                    elif not stat.S_ISDIR(mode):
                        other.append(path.encode(errors="backslashreplace").decode())
    except FileNotFoundError:
        pass
    return sorted(found), sorted(other)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def copied(source: Iterable[bytes], target: Path) -> tuple[int, str]:
    """Writes blocks to a new file, on disk when this returns. Returns its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        for block in source:
            file.write(block)
            digest.update(block)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def blocks_of(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def digest_of(folder: Path, path: str) -> tuple[int, str]:
    """The size and SHA-256 of a file in a folder. Raises as `open_inside`."""
    digest, size = hashlib.sha256(), 0
    with open_inside(folder, path) as file:
        for block in blocks_of(file):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def linked(old: Path, new: Path) -> bool:
    """Replaces the file `new` by another name of `old`, where the file system can."""
    draft = new.with_name(f".{new.name}.link")
    try:
        os.link(old, draft, follow_symlinks=False)
        draft.replace(new)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        return False
    return True
