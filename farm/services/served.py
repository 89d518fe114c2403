"""The web pages that this home serves: each `farm serve` notes its address in the home while it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from farm.errors import HomeUnusable
from farm.services.home import Home, read_json, write_json
from farm.services.processes import is_alive, start_stamp
from farm.settings import Settings

CONNECT_SECONDS = 2.0
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@contextmanager
def announced(settings: Settings, url: str) -> Iterator[None]:
    """Notes the address of a server of this process until it ends. A home that cannot be written has no note."""
    note: Path | None = None
    try:
        note = Home.open(settings).run / f"serve-{os.getpid()}.json"
        write_json(note, {"url": _reachable(url), "pid": os.getpid(), "stamp": start_stamp(os.getpid())})
    except (HomeUnusable, OSError):
        note = None
    try:
        yield
    finally:
        if note is not None:
            note.unlink(missing_ok=True)


def served_url(settings: Settings) -> str | None:
    """The address of a server of this home that accepts connections, the newest first; None where there is none."""
    try:
        notes = sorted(Home.of(settings).run.glob("serve-*.json"), key=lambda note: -note.stat().st_mtime)
    except OSError:
        return None
    for note in notes:
        found = read_json(note)
        if found is not None and is_alive(int(found["pid"]), found["stamp"]) and _answers(found["url"]):
            return str(found["url"])
    return None


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
