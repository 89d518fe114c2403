"""Keeps one worker process running for each device that this host has, while devices come and vanish."""

from __future__ import annotations

import logging
import os
import platform
import queue
import threading
import time
from collections.abc import Mapping, Sequence

import psutil
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from farm import python_program
from farm.db import device_sessions, devices, worker_versions
from farm.db.device_sessions import DeviceSession, Server
from farm.devices import DeviceIdentity, host_name
from farm.errors import DeviceContended, DeviceLocked, DeviceLockUnusable, FarmError
from farm.services.backoff import BackOff
from farm.services.process_groups import ProcessGroup
from farm.settings import settings
from farm.variables import WORKER_DEVICE_ID, WORKER_SESSION
from farm.vendors import VENDORS
from workers import metrics
from workers.device_lock import EXIT_SESSION_LOST, DeviceLock, lock_folder
from workers.device_watcher import DeviceWatcher, Scan

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
"""How long a worker may take to finish its batch after SIGTERM."""

MISSES = 2
"""Scans in a row that must miss a device before it counts as gone. A file may be being replaced, or a driver reloaded."""

RECONCILE_SECONDS = 0.5

CONTENDED_SECONDS = 5.0
"""Between two tries to take up a device that another `farm-worker` serves."""


class _Worker:
    """One device and the process that serves it."""

    def __init__(
        self, identity: DeviceIdentity, session: DeviceSession, lock: DeviceLock, environment: Mapping[str, str]
    ) -> None:
        self.identity = identity
        self.session = session
        self.lock = lock
        self.misses = 0  # looks in a row
        self.lost_session = False
        self._environment = environment
        self._process: ProcessGroup | None = None
        self._back_off = BackOff()

    def reconcile(self) -> None:
        """Starts the process if it should run and does not."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() == EXIT_SESSION_LOST:
            self.lost_session = True
            return
        if self._process is not None and (status := self._process.poll()) is not None and self._back_off.ended(now):
            log.error(
                "the worker of %s ended with status %d; again in %g s",
                self.identity.name,
                status,
                self._back_off.pause_s,
                extra={"device": self.identity.uuid},
            )
        if self._process is None or self._back_off.is_due(now):
            self._back_off.started(now)
            command = python_program.program("workers.process")
            self._process = ProcessGroup(command, environment=self._environment, grace_s=GRACE_SECONDS)

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """Until the batch in hand is finished, or what did not stop in time is killed."""
        if self._process is not None:
            self._process.wait()


class Host:
    """The devices of this host and their workers. Used from one thread. Another thread scans, because a driver may hang.

    `environment` is passed to every worker process, together with the variables that name its device.
    """

    def __init__(
        self, watcher: DeviceWatcher, engine: Engine, environment: Mapping[str, str], *, rescan_s: float
    ) -> None:
        self._watcher = watcher
        self._engine = engine
        self._environment = environment
        self._rescan_s = rescan_s
        self._workers: dict[str, _Worker] = {}  # by UUID
        self._leaving: dict[str, _Worker] = {}  # stopping, because their devices are gone
        self._unmarked: set[str] = set()  # devices that are gone, which the database does not know yet
        self._absent_marked = False
        self._refused: dict[str, FarmError] = {}  # by UUID: devices that are here, and that another farm-worker serves
        self._look: Scan | None = None  # the last one
        self._problems: Mapping[str, str] = {}
        self._looks: queue.SimpleQueue[Scan] = queue.SimpleQueue()

    def serve(self, first: Scan, stop: threading.Event) -> None:
        """Runs a worker for each device until `stop`, and looks for others every `rescan_s` seconds.

        Raises `DeviceLocked` or `DeviceLockUnusable` where none of the first look's devices can be locked for this process.
        """
        self.apply(first)
        if len(self._refused) == len(first.found) and not any(
            isinstance(error, DeviceContended) for error in self._refused.values()
        ):
            raise next(iter(self._refused.values()))
        refused_s = time.monotonic()
        threading.Thread(target=self._keep_looking, args=(stop,), name="device watcher", daemon=True).start()
        try:
            while not stop.is_set():
                while not self._looks.empty():
                    self.apply(self._looks.get())
                if self._refused and self._look is not None and time.monotonic() - refused_s > CONTENDED_SECONDS:
                    self._take_up(self._look)
                    refused_s = time.monotonic()
                for uuid, worker in list(self._workers.items()):
                    worker.reconcile()
                    if worker.lost_session:
                        self._put_down(uuid)
                stop.wait(RECONCILE_SECONDS)
        finally:
            for worker in self._workers.values():
                worker.ask_to_stop()
            for worker in (*self._workers.values(), *self._leaving.values()):
                worker.wait()
            self._leave()

    def _leave(self) -> None:
        """Deregisters all devices. Workers do so too, except those that were still starting or had to be killed, and the
        last heartbeat of a worker may arrive after that."""
        try:
            with self._engine.begin() as connection:
                for worker in self._workers.values():
                    devices.leave(connection, worker.session.device_id, session=worker.session.epoch)
        except SQLAlchemyError as error:
            log.warning("the devices could not be deregistered: %s", _first_line(error))

    def _keep_looking(self, stop: threading.Event) -> None:
        while not stop.wait(self._rescan_s):
            self._looks.put(self._watcher.scan())

    def apply(self, look: Scan) -> None:
        """Serves what came, and stops serving what `MISSES` looks in a row have missed.

        If the database is unreachable, it is updated after the next scan. A device is not served before it is registered.
        """
        self._say(look.problems)
        self._count_misses(look)
        self._look = look
        self._take_up(look)

    def _take_up(self, look: Scan) -> None:
        """Serves the devices of the scan that no worker serves yet, and marks devices that are gone in the database."""
        for uuid, worker in list(self._leaving.items()):
            if worker.has_ended():
                worker.lock.release()
                del self._leaving[uuid]
        served = self._workers.keys() | self._leaving.keys()  # a process that still ends has its device still
        refused: dict[str, FarmError] = {}
        came = self._locked([identity for identity in look.found if identity.uuid not in served], refused)
        absent_now = look.cards_known and not self._absent_marked
        if not (came or self._unmarked or absent_now):
            self._refuse(refused)
            return
        try:
            with self._engine.begin() as connection:
                gone = self._unmarked | (self._absent(connection, look) if absent_now else set())
                vanished = devices.vanish(connection, host=host_name(), uuids=sorted(gone))
                sessions = _announce(connection, came, refused)
        except SQLAlchemyError as error:
            log.warning("this host's devices are registered after the next scan: %s", _first_line(error))
            for _, lock in came:
                lock.release()
            return
        finally:
            self._engine.dispose()  # what is needed once in days holds no connection
        self._absent_marked |= absent_now
        self._unmarked.clear()
        for uuid in vanished:
            log.warning("marked as vanished from this host", extra={"device": uuid})
        for identity, lock in came:
            session = sessions.get(identity.uuid)
            if session is None:
                lock.release()
                continue
            log.info("serving %s (%s, %s)", identity.name, identity.type, identity.uuid)
            environment = self._environment_of(identity, session)
            self._workers[identity.uuid] = _Worker(identity, session, lock, environment)
        self._refuse(refused)

    def _locked(
        self, wanted: Sequence[DeviceIdentity], refused: dict[str, FarmError]
    ) -> list[tuple[DeviceIdentity, DeviceLock]]:
        """Those of the devices that could be locked for this process, with their locks. Others are added to `refused`."""
        folder = lock_folder()
        locked = []
        for identity in wanted:
            try:
                locked.append((identity, DeviceLock.take(identity.uuid, folder)))
            except (DeviceLocked, DeviceLockUnusable) as error:
                refused[identity.uuid] = error
        return locked

    def _refuse(self, refused: dict[str, FarmError]) -> None:
        """Logs once for each device why it is not served."""
        for uuid, error in refused.items():
            if type(self._refused.get(uuid)) is not type(error):
                log.error("%s", error)
        self._refused = refused

    def _put_down(self, uuid: str) -> None:
        """Stops serving a device whose session is lost. It is registered again when no other `farm-worker` serves it."""
        worker = self._workers.pop(uuid)
        worker.lock.release()
        self._refused[uuid] = DeviceContended(
            device=uuid, holder="another farm-worker", ago="a moment", silent_after=settings().silent_after_seconds
        )

    def _say(self, problems: Mapping[str, str]) -> None:
        """Logs each problem once, not after every scan."""
        for word, problem in problems.items():
            if self._problems.get(word) != problem:
                log.warning("%s: %s", word, problem)
        self._problems = problems

    def _count_misses(self, look: Scan) -> None:
        found = {identity.uuid for identity in look.found}
        for uuid, worker in list(self._workers.items()):
            if uuid in found:
                worker.misses = 0
            elif uuid not in look.unknown:
                worker.misses += 1
            if worker.misses == MISSES:
                log.error(
                    "%s is not found any more; its worker is stopped", worker.identity.name, extra={"device": uuid}
                )
                worker.ask_to_stop()
                self._leaving[uuid] = self._workers.pop(uuid)
                self._unmarked.add(uuid)

    def _absent(self, connection: Connection, look: Scan) -> set[str]:
        """What this host announced before it was started again, is to serve, and does not show.

        Not what another `farm-worker` of this host serves, to whom other cards may be visible.
        """
        here = {identity.uuid for identity in look.found}
        here |= {uuid for _, uuid, _ in devices.live(connection, silent_after=settings().silent_after_seconds)}
        known = devices.of_host(connection, host_name())
        return {uuid for uuid, backend in known if uuid not in here and self._watcher.asks_for(uuid, backend)}

    def _environment_of(self, identity: DeviceIdentity, session: DeviceSession) -> dict[str, str]:
        own = {WORKER_DEVICE_ID: str(session.device_id), WORKER_SESSION: str(session.epoch)}
        own |= metrics.labels_of(identity, settings())
        own |= VENDORS[identity.backend].environment(identity.uuid)
        return {**self._environment, **own}


def _announce(
    connection: Connection, came: Sequence[tuple[DeviceIdentity, DeviceLock]], refused: dict[str, FarmError]
) -> dict[str, DeviceSession]:
    """Begins a session of each device, by UUID. Those that another `farm-worker` serves are added to `refused`."""
    facts = {
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    silent_after = settings().silent_after_seconds
    sessions = dict[str, DeviceSession]()
    for identity, lock in came:
        server = Server(host=host_name(), pid=os.getpid(), lock=lock.name)
        try:
            session = device_sessions.begin(connection, identity, server, host_facts=facts, silent_after=silent_after)
        except DeviceContended as error:
            refused[identity.uuid] = error
            continue
        worker_versions.announce(connection, session.device_id)
        sessions[identity.uuid] = session
    return sessions


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
