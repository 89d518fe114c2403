"""Writes files atomically: to a draft in the same folder, which then replaces the file.

A full disk, an error or Ctrl-C leaves the old file unchanged.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farm.errors import BadInput, FileThere, UnsafeName

_NOT_FILES = ("/dev/", "/proc/")
_NOT_BESIDE = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Errors for a folder in which no file can be created, although an existing file may be written."""


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Converts errors of the operating system to `BadInput`."""
    try:
        yield
    except OSError as error:
        raise BadInput(detail=f"{path} cannot be written: {error.strerror or error}") from None


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


def own_name(name: str, *, suffix: str = "", option: str) -> str:
    """Checks a name from a response, for a file or folder in the current one: no path, not hidden, and with that suffix.

    Raises:
        UnsafeName: for any other name. `option` is the option that names the file instead.
    """
    if not (_NAME.fullmatch(name) and name.endswith(suffix)):
        raise UnsafeName(name=name[:80], option=option)
    return name


def require_new(path: Path, *, force: bool) -> None:
    """Raises `FileThere` if writing would replace a file, unless `force`. A pipe or device is written to."""
    if force or not os.path.lexists(path):
        return
    try:
        found = path.stat()
    except OSError:  # a link to nowhere, which writing would follow
        raise FileThere(path=path) from None
    if _can_be_replaced(path, found):
        raise FileThere(path=path)


@contextmanager
def replacing(path: Path, *, force: bool = True) -> Iterator[Path]:
    """Yields the path of a draft. At the end of the block, the draft replaces `path`.

    The draft lies in the same folder and has the same suffix. A file that is replaced keeps its permissions and, where the
    system allows, its owner; a new one has those of the umask. A symbolic link stays, and what it points to is replaced.
    Pipes, devices, and files in folders where nothing can be made get the content of the draft when it is complete.

    Raises:
        BadInput: it cannot be written. What was there before is unchanged.
        FileThere: without `force`, a file is there, before or after the block.
    """
    require_new(path, force=force)
    with writable(path):
        target, before = _target(path)
        draft, beside = _draft(target, before)
        try:
            yield draft
            if beside:
                _put_in_place(draft, target, before, force=force)
            else:
                _copy(draft, target)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()


def write_text(path: Path, text: str, *, force: bool = True) -> None:
    """Writes a file as UTF-8, atomically. Raises as `replacing`."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"), force=force)


def write_bytes(path: Path, content: bytes, *, force: bool = True) -> None:
    """Writes a file atomically. Raises as `replacing`."""
    with replacing(path, force=force) as draft:
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
    name = str(path.absolute())
    if not stat.S_ISREG(before.st_mode) or (name.startswith(_NOT_FILES) and not name.startswith("/dev/shm/")):
        return False
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), before):
                return False
    return True


def _draft(target: Path, before: os.stat_result | None) -> tuple[Path, bool]:
    """An empty file to write, and whether it is in the folder of its place."""
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


def _put_in_place(draft: Path, target: Path, before: os.stat_result | None, *, force: bool) -> None:
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
        if force or before is not None or not _linked(draft, target):
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


def _linked(draft: Path, target: Path) -> bool:
    """Gives the draft its name as well, where nothing has that name. False where the file system has no links.

    Raises `FileThere` where something has it: another program made it meanwhile.
    """
    try:
        os.link(draft, target)
    except FileExistsError:
        raise FileThere(path=target) from None
    except OSError:
        require_new(target, force=False)
        return False
    return True


def _copy(draft: Path, target: Path) -> None:
    with draft.open("rb") as content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
