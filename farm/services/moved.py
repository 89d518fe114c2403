"""The note of a home whose embedded database was moved to a server. The embedded server does not start again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from farm.errors import HomeMoved
from farm.services.home import Home, read_json, write_json


def note_of(home: Home) -> Path:
    return home.path / "moved.json"


def note_move(home: Home, url: str) -> None:
    """Notes that the database is at that URL now. `url` has no password."""
    write_json(note_of(home), {"database": url, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}, mode=0o600)


def require_not_moved(home: Home) -> None:
    """Raises `HomeMoved` for a home whose database was moved."""
    if (found := read_json(note_of(home))) is not None:
        raise HomeMoved(home=home.path, url=found.get("database"), at=found.get("at"), note=note_of(home))
