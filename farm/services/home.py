"""The farm's home: the folder (`.farm`) with the embedded services' data, logs, sockets, locks and passwords."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import HomeUntrusted, HomeUnusable
from farm.ownership import is_private_group, why_untrusted
from farm.services.processes import Account
from farm.settings import Settings

log = logging.getLogger(__name__)

PRIVATE, PASSABLE = 0o700, 0o711
"""Modes of folders. Embedded Postgres runs as another account for root, which passes through root's home to its data."""

READABLE = ("logs", "reports", "kernels", "mlartifacts", "mlflow.db", "stack.json", "postgres.json")
"""Files with the permissions of the umask. They must not be readable in a home that other accounts can enter."""

SOCKET_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket on Linux: `sun_path` has 108, one of them for the closing zero."""

SHORT_FOLDERS = Path("/tmp")
"""Place of sockets whose own folder has a too long path. Not TMPDIR, which may differ between processes of a home."""


@dataclass(frozen=True, slots=True)
class Home:
    """A farm's home. `open` makes what is missing; without it nothing is touched."""

    path: Path

    @classmethod
    def of(cls, settings: Settings) -> Home:
        """The home of the settings. Links are resolved, so one folder has one name."""
        return cls(settings.home.resolve())

    @classmethod
    def open(cls, settings: Settings) -> Home:
        """The home, created if it is missing, and closed to other accounts.

        Raises `HomeUnusable` if it cannot be written, and `HomeUntrusted` if another account could have written it.
        """
        return cls.at(settings.home)

    @classmethod
    def at(cls, path: Path) -> Home:
        """As `open`, for the home in that folder."""
        home = cls(path.resolve())
        if (why := why_untrusted(path)) is not None:
            raise HomeUntrusted(home=path, why=why)
        try:
            home.path.mkdir(mode=PASSABLE if os.getuid() == 0 else PRIVATE, parents=True, exist_ok=True)
            home._close()
            home.logs.mkdir(mode=0o700, exist_ok=True)
            home.run.mkdir(mode=0o700, exist_ok=True)
            if not (ignore := home.path / ".gitignore").exists():
                ignore.write_text("*\n")
            home.passwords()
        except OSError as error:
            why = f"{error.filename or home.path}: {error.strerror}"
            raise HomeUnusable(home=home.path, why=why) from None
        return home

    def _close(self) -> None:
        """Removes the rights of other accounts in an existing home."""
        before = self.path.stat()
        if before.st_mode & stat.S_IWGRP and not is_private_group(before.st_gid):
            log.warning(
                "%s could be written by its group. Now only you can write to it. Check what it holds.", self.path
            )
        allowed = PASSABLE if os.getuid() == 0 else PRIVATE
        for place in (self.path, *(self.path / name for name in READABLE)):
            with contextlib.suppress(FileNotFoundError):
                found = place.lstat()
                if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
                    continue
                kept = stat.S_IMODE(found.st_mode) & (allowed if place == self.path else PRIVATE)
                if kept != stat.S_IMODE(found.st_mode):
                    place.chmod(kept)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """Locks, and notes on what runs."""
        return self.path / "run"

    @property
    def state_file(self) -> Path:
        """The note of `farm up`, which exists while it runs."""
        return self.path / "stack.json"

    @property
    def key(self) -> str:
        """A short name of this home, the same in every process."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def passwords(self) -> dict[str, str]:
        """Passwords of the embedded services, created once and readable only by the home's owner."""
        file = self.path / "secrets.json"
        with self.locked("secrets"):
            if (known := read_json(file)) is not None:
                return {name: str(value) for name, value in known.items()}
            made = {"postgres": secrets.token_urlsafe(24), "redis": secrets.token_urlsafe(24)}
            write_json(file, made, mode=0o600)
            return made

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Holds the lock of that name. The kernel releases it when the process dies."""
        with (self.run / f"{name}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def short_folder(self, folder: Path, socket: str, owner: Account | None) -> Path:
        """`folder`, or a private one with a short path where a socket of that name would have too long a path there."""
        if len(os.fsencode(folder / socket)) <= SOCKET_PATH_LIMIT:
            return folder
        return SHORT_FOLDERS / f"gemm-farm-{owner.uid if owner else os.getuid()}-{self.key}"

    def make_private(self, folder: Path, owner: Account | None) -> None:
        """Makes a folder that only `owner` (None: ourselves) can enter, or checks one that is there.

        Others can write to `/tmp`, so a folder found there is trusted only if it is exactly that.
        """
        uid, gid = (owner.uid, owner.gid) if owner else (os.getuid(), os.getgid())
        try:
            folder.mkdir(mode=0o700)
            if owner is not None:
                os.chown(folder, uid, gid)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
                why = f"{folder} is there already and is not a folder that only user {uid} can enter"
                raise HomeUnusable(home=self.path, why=why) from None


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if the file is missing or has other content."""
    try:
        found = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def write_json(file: Path, content: dict[str, Any], *, mode: int = 0o644) -> None:
    """Writes a JSON object atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as out:
        json.dump(content, out, indent=2)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
