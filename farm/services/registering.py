"""Registers a running program of the farm, so that `farm doctor` and `farm db upgrade` know its host and version.

Nothing waits for it: where the database refuses, as on a full disk or before the upgrade, the program runs on and tries again
at the next heartbeat.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from farm import __version__
from farm.db import live_programs, migrate
from farm.db.engine import ANNOUNCING, make_engine
from farm.db.live_programs import HEARTBEAT_SECONDS, RunningProgram
from farm.db.states import ProgramKind
from farm.devices import host_name
from farm.errors import first_line

log = logging.getLogger(__name__)

_SESSION = {**ANNOUNCING, "statement_timeout": "5s"}
_END_SECONDS = 5.0


@contextmanager
def registered(database_url: str, kind: ProgramKind) -> Iterator[None]:
    """Inside the block, the farm lists this process as a live program of that kind."""
    over = threading.Event()
    thread = threading.Thread(
        target=_keep_registered, args=(database_url, kind, over), name="registration", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_SECONDS)


def _keep_registered(database_url: str, kind: ProgramKind, over: threading.Event) -> None:
    program = RunningProgram(
        id=uuid.uuid4(),
        host=host_name(),
        program=kind,
        pid=os.getpid(),
        version=__version__,
        revision=migrate.head(),
        build=build(),
    )
    engine = make_engine(database_url, application=f"{kind} registration", pool_size=1, session=_SESSION)
    why = None
    while True:
        failed = _announce(engine, program)
        if failed is not None and failed != why:
            log.warning("this program is not registered (%s); it runs on and tries again", failed)
        why = failed
        if over.wait(HEARTBEAT_SECONDS):
            break
    try:
        with engine.begin() as connection:
            live_programs.leave(connection, program)
    except SQLAlchemyError as error:
        log.warning("this program was not deregistered: %s", first_line(getattr(error, "orig", None) or error))
    engine.dispose()


def _announce(engine: Engine, program: RunningProgram) -> str | None:
    """Announces the program. Returns why that failed."""
    try:
        with engine.begin() as connection:
            live_programs.announce(connection, program)
    except SQLAlchemyError as error:
        return first_line(getattr(error, "orig", None) or error)
    finally:
        engine.dispose()  # what is needed twice a minute holds no connection
    return None


@cache
def build() -> str | None:
    """What `git describe` prints for the checkout that this program runs from; None for an installed package."""
    root = migrate.MIGRATIONS.parent
    if not (root / ".git").exists():
        return None
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_OPTIONAL_LOCKS"] = "0"  # so that a commit at the same time does not fail
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--tags", "--long"]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
