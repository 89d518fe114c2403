"""Writing a file for a user whole or not at all: beside its place, then in its place.

A disk that is full, a mistake or Ctrl-C on the way leave the file that was there before.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farm.errors import BadInput

_NOT_FILES = ("/dev/", "/proc/")
_NOT_BESIDE = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Why no file can be made in a folder of which a file may be written."""


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turns what the operating system raises while it is written into `BadInput`."""
    try:
        yield
    except OSError as error:
        raise BadInput(detail=f"{path} cannot be written: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a draft to write; at the end of the block the draft takes the place of `path`.

    The draft lies in the same folder and has the same suffix. A file that is replaced keeps its permissions and, where the
    system allows, its owner; a new one has those of the umask. A symbolic link stays, and what it points to is replaced.
    Pipes, devices, and files in folders where nothing can be made get the content of the draft when it is complete.

    Raises:
        BadInput: it cannot be written. What was there before is unchanged.
    """
    with writable(path):
        target, before = _target(path)
        draft, beside = _draft(target, before)
        try:
            yield draft
            if beside:
                _put_in_place(draft, target, before)
            else:
                _copy(draft, target)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()


def write_text(path: Path, text: str) -> None:
    """Writes a file as UTF-8, whole or not at all. Raises `BadInput`."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises `BadInput`."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def _target(path: Path) -> tuple[Path, os.stat_result | None]:
    """What is to be written when links are followed, and what is there."""
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if before is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if before is not None and not _can_be_replaced(path, before):
        return path, before
    return Path(os.path.realpath(path)), before


def _can_be_replaced(path: Path, before: os.stat_result) -> bool:
    """Whether it is a file of its own, and not what standard output or error writes to."""
    if not stat.S_ISREG(before.st_mode) or str(path.absolute()).startswith(_NOT_FILES):
        return False
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), before):
                return False
    return True


def _draft(target: Path, before: os.stat_result | None) -> tuple[Path, bool]:
    """An empty file to write, and whether it lies beside its place."""
    if before is None or _can_be_replaced(target, before):
        try:
            return _made_in(target.parent, target.suffix), True
        except OSError as error:
            if before is None or error.errno not in _NOT_BESIDE:
                raise
    return _made_in(Path(tempfile.gettempdir()), target.suffix), False


def _made_in(folder: Path, suffix: str) -> Path:
    number, name = tempfile.mkstemp(prefix=".farm-", suffix=suffix, dir=folder)
    os.close(number)
    return Path(name)


def _put_in_place(draft: Path, target: Path, before: os.stat_result | None) -> None:
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    if before is None:
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)
    else:
        with suppress(PermissionError):
            os.chown(draft, before.st_uid, before.st_gid)
        draft.chmod(stat.S_IMODE(before.st_mode))
    try:
        draft.replace(target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _copy(draft, target)  # a file that is mounted into a container
        return
    with suppress(OSError):  # not every file system can
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _copy(draft: Path, target: Path) -> None:
    with draft.open("rb") as content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
