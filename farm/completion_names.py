"""Names for shell completion, in a file of the farm's home.

Completion must be fast and must not start a service, so it does not use the database. Commands that use the database store the names
here. The file belongs to one database, and is ignored for another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.errors import BadSettings

FILE = "names.json"

Names = Mapping[str, Sequence[str]]
"""Kind (campaigns, devices, types, models) -> names, the newest first."""


def default_home() -> Path:
    """`.farm` of the current folder or of the nearest parent folder that has it, as git finds `.git`."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise BadSettings(
            problems="FARM_HOME is not set, and the current folder no longer exists. Change to a folder that does."
        ) from None
    for folder in (here, *here.parents):
        if os.path.isdir(folder / ".farm"):  # noqa: PTH112 - unlike Path.is_dir, False where it cannot be read
            return folder / ".farm"
    return here / ".farm"


def remember(home: Path, database_url: str | None, names: Names) -> None:
    """Writes changed names. Does nothing for a missing or read-only home."""
    known = {"database": _digest(database_url), **{kind: list(of) for kind, of in names.items()}}
    if not home.is_dir() or _read(home) == known:
        return
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile("w", dir=home, prefix=".names-", delete=False, encoding="utf-8") as beside:
            json.dump(known, beside)
        Path(beside.name).replace(home / FILE)


def recall(home: Path, database_url: str | None) -> Names:
    """The names of that database; empty if unknown."""
    known = _read(home)
    if known.pop("database", None) != _digest(database_url):
        return {}
    return {kind: [name for name in of if isinstance(name, str)] for kind, of in known.items() if isinstance(of, list)}


def _read(home: Path) -> dict[str, object]:
    try:
        known = json.loads((home / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(database_url: str | None) -> str:
    """Names a database without its password."""
    return hashlib.sha256((database_url or os.devnull).encode()).hexdigest()[:16]
