"""Checks whether only the owner and root can change or replace a folder."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MAX_LINKS = 40
"""As many symbolic links as Linux follows in one path."""


def why_untrusted(folder: Path) -> str | None:
    """Why another account could have created this folder, or can replace or change it; None if none can.

    Looks at the folder and at every folder and link above it. A folder that does not exist is judged by those above. Its own
    write access for its group is left out: `farm.services.home` takes that away. Access control lists are not read, except as
    the group's permissions that stand for them.
    """
    uid, path = os.getuid(), Path(os.path.abspath(folder))  # noqa: PTH100 - the home may be gone, and links stay
    try:
        found = path.stat()
    except OSError:
        found = None
    if found is not None and found.st_uid != uid and (uid == 0 or found.st_uid != 0):
        return f"it belongs to {_account(found.st_uid)}, and you are {_account(uid)}. Run the farm as its owner"
    if found is not None and found.st_mode & stat.S_IWOTH:
        return f"every account can write to it. Check what it holds, then run: chmod go-w {path}"
    real = os.path.realpath(path)
    # In a user namespace the owner of / may be no account at all. Whoever owns / has the machine.
    trusted = {0, uid, Path("/").stat().st_uid}
    for place, its in _places(path):
        if its.st_uid not in trusted:
            return f"{place} belongs to {_account(its.st_uid)}, who could replace it, and you are {_account(uid)}"
        if os.fspath(place) != real and stat.S_ISDIR(its.st_mode) and not its.st_mode & stat.S_ISVTX:
            if its.st_mode & stat.S_IWOTH:
                return f"every account can write to {place}, and could replace it there. Run: chmod o-w {place}"
            if its.st_mode & stat.S_IWGRP and not is_private_group(its.st_gid):
                group = _group(its.st_gid)
                return f"the group {group} can write to {place}, and could replace it there. Run: chmod g-w {place}"
    return None


@cache
def is_private_group(gid: int) -> bool:
    """Whether this account, apart from root, is the only one in a group, as where each account has a group of its own."""
    own = {"root", _name(os.getuid())}
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        members = set()
    return {*members, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid)} <= own


def _places(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folders and links that the system passes on its way to `path`, and what is there; as far as they exist."""
    at, rest, links = Path("/"), list(path.parts[1:]), 0
    yield at, at.lstat()
    while rest:
        name = rest.pop(0)
        if name == "..":
            at = at.parent
            continue
        try:
            found = (at / name).lstat()
            yield at / name, found
            if stat.S_ISLNK(found.st_mode):
                to = (at / name).readlink()
                at, rest, links = (
                    Path("/") if to.is_absolute() else at,
                    [*to.parts[to.is_absolute() :], *rest],
                    links + 1,
                )
            else:
                at /= name
        except OSError:
            return
        if links > MAX_LINKS:
            return


def _account(uid: int) -> str:
    return "root" if uid == 0 else f"{_name(uid)} (uid {uid})" if _name(uid) else f"uid {uid}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
