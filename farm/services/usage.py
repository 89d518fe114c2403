"""Usage of embedded services: the first process starts a service, and the last one stops it.

Each service has two kernel locks, which end with the process that holds them:

- `<key>.users` is held shared by every process that uses the service;
- `<key>.lock` is held by the one that starts or stops it, so that two cannot do so at once.

A killed process leaves its service running. The next process uses it, and stops it at its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from farm.errors import EmbeddedServiceFailed, ServiceInUse
from farm.services.home import Home


class EmbeddedService(Protocol):
    """A server of this machine that lives under the farm's home."""

    @property
    def name(self) -> str:
        """Its name for people."""

    @property
    def key(self) -> str:
        """Its name in files."""

    @property
    def url(self) -> str: ...

    def running(self) -> bool:
        """Whether it runs and takes connections."""

    def start(self) -> None:
        """Starts it, also after a crash. Raises `EmbeddedServiceFailed`."""

    def stop(self) -> None:
        """Stops it and waits for its end. Nothing happens where it does not run."""


@contextmanager
def in_use(service: EmbeddedService, home: Home) -> Iterator[None]:
    """The service runs inside the block, and beyond it only if another process uses it."""
    with (home.run / f"{service.key}.users").open("a") as users:
        with home.locked(service.key):
            alone = _sole(users)
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                _ensure(service, home, alone=alone)
            except BaseException:
                _leave(service, home, users, after_failure=True)
                raise
        try:
            yield
        finally:
            with home.locked(service.key):
                _leave(service, home, users)


@contextmanager
def sole_use(service: EmbeddedService, home: Home) -> Iterator[None]:
    """The service runs inside the block, for this program alone. Others wait until the end of the block.

    A service that a killed program left running stays so, unless the block stops it.

    Raises `ServiceInUse`.
    """
    home.run.mkdir(mode=0o700, exist_ok=True)
    with home.locked(service.key), (home.run / f"{service.key}.users").open("a") as users:
        if not _sole(users):
            raise ServiceInUse(service=service.name, home=home.path)
        left_running = service.running()
        try:
            _ensure(service, home, alone=True)
            yield
        finally:
            if not left_running:
                service.stop()
                (home.run / f"{service.key}.host").unlink(missing_ok=True)


def revive(service: EmbeddedService, home: Home) -> bool:
    """Starts a service that is in use again if it died. Returns whether it did."""
    if service.running():
        return False
    with home.locked(service.key):
        if service.running():
            return False
        service.start()
        return True


def stop_if_unused(service: EmbeddedService, home: Home) -> bool:
    """Stops a service that a killed process left running. Returns whether there was one."""
    if not home.run.is_dir():
        return False
    with home.locked(service.key), (home.run / f"{service.key}.users").open("a") as users:
        if not service.running() or not _sole(users):
            return False
        service.stop()
        return True


def _ensure(service: EmbeddedService, home: Home, *, alone: bool) -> None:
    if service.running():
        return
    note = home.run / f"{service.key}.host"
    here = socket.gethostname()
    host = note.read_text().strip() if note.exists() else here
    if not alone and host != here:
        # A home on a network drive, or shared with a container: a second server on the same files would ruin them.
        raise EmbeddedServiceFailed(
            service=service.name,
            why=f"this home, {home.path}, is in use on {host}. Give each machine its own FARM_HOME, or name "
            "a server that both reach",
            log=home.log(service.key),
        )
    try:
        note.write_text(here)
        service.start()
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        raise EmbeddedServiceFailed(service=service.name, why=why, log=home.log(service.key)) from error


def _leave(service: EmbeddedService, home: Home, users: IO[str], *, after_failure: bool = False) -> None:
    fcntl.flock(users, fcntl.LOCK_UN)
    if not _sole(users):
        return
    with contextlib.suppress(EmbeddedServiceFailed) if after_failure else contextlib.nullcontext():
        service.stop()
    (home.run / f"{service.key}.host").unlink(missing_ok=True)


def _sole(users: IO[str]) -> bool:
    """Whether no other program uses the service. If so, takes the lock until it is changed or the file is closed."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
