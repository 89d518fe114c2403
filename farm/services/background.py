"""`farm up` and `farm down`: starting the supervisor in the background, finding it, and stopping it."""

from __future__ import annotations

import fcntl
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm import python_program
from farm.db import live_programs, migrate
from farm.db.engine import make_engine
from farm.errors import EmbeddedServiceFailed
from farm.services.embedded import ServiceUrls, embedded_services, services, stop_unused_services
from farm.services.home import Home, read_json
from farm.services.log_rotation import set_aside
from farm.services.processes import end_tree, end_with, is_alive, last_lines, start_detached, wait_gone
from farm.services.stack import GRACE_S
from farm.settings import Settings, environment_for_children

UP_LOCK = "stack.up.lock"
"""The lock of the supervisor, for its lifetime."""

UP_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 4 * (GRACE_S + 10.0) + 60.0
"""Each program with its grace time, and then the services."""


SUPERVISOR = tuple(python_program.program("farm.services.supervisor"))


@dataclass(frozen=True, slots=True)
class RunningStack:
    """State of a running supervisor, from its note."""

    pid: int
    state: str  # starting | ready | stopping
    home: Path
    # Shown without passwords: database, broker, tracking.
    urls: dict[str, str]
    # name -> state (running; waiting for work; ended, to be started again; elsewhere: another command runs it), pid,
    # restarts, log
    programs: dict[str, dict[str, Any]]


def running_stack(settings: Settings) -> RunningStack | None:
    """What `farm up` runs in this home; None if it is not up. The note of a killed supervisor is ignored."""
    found = read_json(Home.of(settings).state_file)
    if found is None or not is_alive(int(found["pid"]), found["stamp"]):
        return None
    return RunningStack(
        pid=found["pid"],
        state=found["state"],
        home=Path(found["home"]),
        urls=found["urls"],
        programs=found["programs"],
    )


def prepare_database(settings: Settings, urls: ServiceUrls) -> None:
    """Upgrades the embedded database to this version's revision, and checks the revision of any other.

    A database at a newer revision stays, where it serves this version. Raises `WrongRevision`.
    """
    engine = make_engine(urls.database_url, application="farm migrate")
    try:
        if settings.embedded_database:
            # Two commands may start at once.
            with Home.of(settings).locked("migrate"):
                if (migrate.current(engine) or "") < migrate.head():
                    migrate.upgrade(engine, check=live_programs.require_served_after)
        migrate.require_for_service(engine)
    finally:
        engine.dispose()


def start_in_background(
    settings: Settings,
    *,
    workers: bool = True,
    trainer: bool = True,
    builder: bool = True,
    supervisor: Sequence[str] = SUPERVISOR,
) -> tuple[RunningStack, bool]:
    """Starts the supervisor and waits until its programs run. The second value is False if it was already up.

    Raises what `services` raises, `WrongRevision`, or `EmbeddedServiceFailed` with the supervisor's last words.
    """
    if (found := running_stack(settings)) is not None:
        if found.state == "ready":
            return found, False
        if found.state == "stopping":
            wait_gone([found.pid], DOWN_TIMEOUT_S)
    home = Home.open(settings)
    # Kept until the supervisor uses them too, so that their errors are raised here.
    with services(settings, broker=True) as urls:
        prepare_database(settings, urls)
        log = home.log("supervisor")
        set_aside(log, settings.log_max_bytes)
        since = log.stat().st_size if log.exists() else 0
        chosen = {"--no-workers": workers, "--no-trainer": trainer, "--no-builder": builder}
        options = [option for option, wanted in chosen.items() if not wanted]
        pid = start_detached(
            [*supervisor, *options],
            log=log,
            environment=environment_for_children(FARM_HOME=str(home.path)),
            folder=Path.cwd(),
        )
        return _wait_ready(settings, pid, log, since)


def _wait_ready(settings: Settings, pid: int, log: Path, since: int) -> tuple[RunningStack, bool]:
    end = time.monotonic() + UP_TIMEOUT_S
    while time.monotonic() < end:
        if (found := running_stack(settings)) is not None and found.state == "ready":
            return found, found.pid == pid
        if not is_alive(pid) and not _is_held(Home.of(settings).run / UP_LOCK):
            break  # ours ended, and it did not make way for another
        time.sleep(0.05)
    else:
        end_tree(pid)
    raise EmbeddedServiceFailed(service="The farm", why=last_lines(log, since=since), log=log)


@dataclass(frozen=True, slots=True)
class Stopped:
    """Result of `farm down`."""

    # Programs and services that ended because of it.
    stopped: list[str]
    # Embedded services that go on, because another command uses them.
    still_used: list[str]


def stop_in_background(settings: Settings) -> Stopped:
    """Stops what `farm up` started, and services of killed commands. Waits until they have ended."""
    services_before = _running_services(settings)
    stopped: list[str] = []
    if (found := running_stack(settings)) is not None:
        if not end_with([found.pid], [(signal.SIGTERM, DOWN_TIMEOUT_S)]):
            end_tree(found.pid)
        stopped = [*reversed(found.programs), "supervisor"]
    Home.of(settings).state_file.unlink(missing_ok=True)
    stop_unused_services(settings)
    services_after = _running_services(settings)
    stopped += [name for name in services_before if name not in services_after]
    return Stopped(stopped=stopped, still_used=services_after)


def _running_services(settings: Settings) -> list[str]:
    return [service.name for service in embedded_services(settings) if service.running()]


def _is_held(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
