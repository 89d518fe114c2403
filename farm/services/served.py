"""Web servers of this home: each `farm serve` stores its address in the home while it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.addresses import port_of
from farm.errors import HomeUnusable
from farm.services.home import Home, read_json, write_json
from farm.services.processes import is_alive, start_stamp
from farm.settings import Settings

CONNECT_SECONDS = 2.0
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A running `farm serve`: `url` for programs, `page` for browsers, and the key that lets its login in, if it has one."""

    url: str
    page: str
    key: str | None


@contextmanager
def announced(settings: Settings, url: str, *, page: str | None = None, key: str | None = None) -> Iterator[bool]:
    """Stores the address and the key of a server of this process until it ends. Only the home's owner can read them.

    Yields whether they are stored: a home that is not writable has no note.
    """
    note: Path | None = None
    try:
        note = Home.open(settings).run / f"serve-{os.getpid()}.json"
        found = {"url": _reachable(url), "page": page or _reachable(url), "key": key}
        write_json(note, {**found, "pid": os.getpid(), "stamp": start_stamp(os.getpid())}, mode=0o600)
    except (HomeUnusable, OSError):
        note = None
    try:
        yield note is not None
    finally:
        if note is not None:
            note.unlink(missing_ok=True)


def served(settings: Settings) -> RunningServer | None:
    """The newest server of this home that accepts connections, or None."""
    return next((found for found in _running(settings) if _answers(found.url)), None)


def served_at(settings: Settings, url: str) -> RunningServer | None:
    """The server of this home with that address, or None.

    `localhost` stands for the address that the server has: another account may listen on another address of that name.
    """
    return next((found for found in _running(settings) if _is_at(found.url, url)), None)


def _is_at(known: str, url: str) -> bool:
    try:
        there, given = urlsplit(known), urlsplit(url)
        same_port = port_of(there) == port_of(given)
    except ValueError:
        return False
    return same_port and there.scheme == given.scheme and given.hostname in (there.hostname, "localhost")


def _running(settings: Settings) -> Iterator[RunningServer]:
    try:
        notes = sorted(Home.of(settings).run.glob("serve-*.json"), key=lambda note: -note.stat().st_mtime)
    except OSError:
        return
    for note in notes:
        found = read_json(note)
        if found is not None and is_alive(int(found["pid"]), found["stamp"]):
            yield _as_served(found)


def _as_served(note: dict[str, Any]) -> RunningServer:
    return RunningServer(url=str(note["url"]), page=str(note.get("page") or note["url"]), key=note.get("key"))


def own_name(settings: Settings, new: str) -> str:
    """The name that this home's pages have on loopback: `new`, kept in the home from the first time on.

    Only the home's owner can read it. A home that cannot be written keeps none.
    """
    try:
        home = Home.open(settings)
        file = home.path / "web.json"
        with home.locked("web"):
            if (known := read_json(file)) is None:
                known = {"name": new}
                write_json(file, known, mode=0o600)
        return str(known["name"])
    except (HomeUnusable, OSError):
        return new


def _reachable(url: str) -> str:
    """The address as this machine reaches it: a server on every address is on the loopback address too."""
    for every, loopback in _EVERY_ADDRESS.items():
        url = url.replace(f"//{every}:", f"//{loopback}:")
    return url


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False
