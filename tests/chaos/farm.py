"""The farm under chaos: its services, coordinators and workers as real processes in a home of its own, on one machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import redis
from sqlalchemy import Engine

import chaos
from chaos.mischief import CLOCK, FOLDER, HURRY
from chaos.workload import Workload
from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import Campaign, plan
from farm.db import campaigns, devices, leadership
from farm.db.engine import DURABLE, make_engine
from farm.services import ServiceUrls, prepare_database, services
from farm.services.cluster import find_cluster
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.services.processes import end_tree, last_lines, start_guarded, wait_gone
from farm.services.redis import EmbeddedRedis
from farm.services.urls import redis_client_url
from farm.services.usage import revive
from farm.settings import Settings
from farm.variables import WORKER_DEVICE_ID
from support.homes import embedded_settings

log = logging.getLogger("chaos")

TIMES = {
    HURRY: "1",
    "FARM_LEASE_SECONDS": "3",
    "FARM_HEARTBEAT_SECONDS": "0.5",
    "FARM_SILENT_AFTER_SECONDS": "3",
    "FARM_RESEND_AFTER_SECONDS": "2",
    "FARM_BATCH_SECONDS": "1",
}
"""The farm's times, about a tenth of its defaults."""

PATIENT = {**DURABLE, "lock_timeout": "2s", "statement_timeout": "30s"}
"""Sessions of this process. What it waits for may be held by a fault that it is to make good itself."""

OWN_TIMES = {"FARM_BATCH_SECONDS": "1"}
"""The farm's defaults, but for batches, whose landings show when a device measures again."""

SILENT_AFTER_S = 3.0
"""How fresh the heartbeat of a device must be that counts as one that lives."""

GRACE_S = 60.0
"""What a program has to end in good order: the half minute that a worker may take, and a farewell over a link that is cut."""

PAUSE_S = 1.0
"""Between two starts of a coordinator."""

HOSTS_OF = (2, 2)
"""Devices of each `farm-worker`."""

WRONG_CLOCK_S = 3700.0
"""By how much the clock of the last host is ahead: more than the hour after which Celery takes messages for lost."""

COORDINATOR = (sys.executable, "-m", "chaos.coordinator")
WORKER = (sys.executable, "-m", "chaos.worker")


class Program:
    """A program of the farm under its guardian, so that nothing of it is left however this process ends."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, host: str
    ) -> None:
        self.name = name
        self.host = host
        self.log = folder / ".farm" / "logs" / f"{name}.log"
        self._words = list(command[1:])
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._guardian = start_guarded(
                command, environment=environment, grace_s=GRACE_S, cwd=folder, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def running(self) -> bool:
        return self._guardian.poll() is None

    @property
    def process(self) -> psutil.Process | None:
        """The program itself; None where it has ended, or has not come up yet."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._guardian.pid).children():
                if child.cmdline()[1 : 1 + len(self._words)] == self._words:
                    return child
        return None

    def family(self) -> list[psutil.Process]:
        """The program and everything below it."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._guardian.pid).children(recursive=True)
        return []

    def said(self) -> str:
        """What it has logged since it started."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def signal(self, number: signal.Signals) -> bool:
        """False where it does not run."""
        found = self.process
        with contextlib.suppress(psutil.Error):
            if found is not None:
                found.send_signal(number)
                return True
        return False

    def wait(self) -> int:
        """Until nothing of it is left. Returns its exit code, 128 + n for signal n."""
        try:
            return self._guardian.wait(GRACE_S + 30)
        finally:
            end_tree(self._guardian.pid)
            if self._guardian.stdin is not None:
                self._guardian.stdin.close()

    def ask_to_stop(self) -> None:
        self._guardian.terminate()


class DeviceProcesses:
    """The Celery parent of a device, and the child that measures."""

    def __init__(self, parent: psutil.Process) -> None:
        self.parent = parent

    def child(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            for process in self.parent.children():
                if any("spawn_main(" in word for word in process.cmdline()):
                    return process
        return None


class Farm:
    """Everything that one machine runs for a farm, each part of which can be broken and mended alone."""

    services_host = "database"
    """The host of Postgres and Redis."""

    hosts_of_coordinators: Sequence[str] = ("coordinator",)

    def __init__(
        self,
        folder: Path,
        workload: Workload,
        *,
        devices_of: Sequence[int] = HOSTS_OF,
        times: Mapping[str, str] = TIMES,
    ) -> None:
        """`devices_of`: how many devices each `farm-worker` has; `times`: variables of every program."""
        self.folder = folder
        self.workload = workload
        self.devices_of = devices_of
        self.times = times
        self.settings = embedded_settings(folder / ".farm")
        self.home = Home.of(self.settings)
        self.hosts: dict[int, Program] = {}
        self.down: set[int] = set()
        """Hosts whose `farm-worker` a fault has ended, and starts again."""
        self.coordinators: list[Program] = []
        self.others: list[Program] = []
        """What a fault has started for a time."""
        self.submitted: dict[int, Campaign] = {}
        """By id, in the order in which they were submitted first."""
        self.device_ids: list[int] = []
        self.exit_codes: list[tuple[str, int]] = []
        self.supervised = True
        """Whether a coordinator that ends is to be started again."""
        self._started, self._started_at = 0, 0.0
        self._hosts_started_at: dict[int, float] = {}
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            self.urls: ServiceUrls = held.enter_context(self._services())
            prepare_database(self.settings, self.urls)
            self.engine: Engine = make_engine(self.urls.database_url, application="chaos", pool_size=2, session=PATIENT)
            held.callback(self.engine.dispose)
            held.callback(self._stop_programs)
            held.callback(self._everything_up)
            for _ in self.hosts_of_coordinators:
                self.start_coordinator()
            for host in range(len(self.devices_of)):
                self.set_clock(self.name_of(host), WRONG_CLOCK_S if host == len(self.devices_of) - 1 else 0.0)
                self.start_host(host)
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def lease_s(self) -> float:
        return float(self.times.get("FARM_LEASE_SECONDS", Settings().lease_seconds))

    # --- hosts -----------------------------------------------------------------------------------

    def at(self, host: str) -> AbstractContextManager[None]:
        """What is started in the block runs on that host. Here all hosts are this machine."""
        return nullcontext()

    @contextmanager
    def _services(self) -> Iterator[ServiceUrls]:
        """Postgres and Redis; their URLs for this process."""
        with services(self.settings, broker=True) as urls:
            yield urls

    def urls_of_programs(self) -> ServiceUrls:
        """Postgres and Redis as programs reach them."""
        return self.urls

    @staticmethod
    def name_of(host: int) -> str:
        """The name of a host of devices."""
        return f"devices-{host + 1}"

    def devices_at(self, host: int) -> range:
        """The numbers of the devices of that host."""
        first = sum(self.devices_of[:host])
        return range(first, first + self.devices_of[host])

    def set_clock(self, host: str, ahead_s: float) -> None:
        """The clock of that host is ahead by so many seconds from now on."""
        self._clock(host).write_text(str(ahead_s))

    def clock_ahead_s(self, host: str) -> float:
        return float(self._clock(host).read_text())

    def _clock(self, host: str) -> Path:
        return self.folder / f"clock-{host}"

    def _everything_up(self) -> None:
        """Services are stopped in good order by whoever holds them, which a stopped server would not hear."""
        for pid in (self.postgres_pid(), self.redis_pid()):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self.start_postgres()
        self.start_redis()

    def _stop_programs(self) -> None:
        programs = [*self.hosts.values(), *self.coordinators, *self.others]
        for program in programs:
            for process in program.family():
                with contextlib.suppress(psutil.Error):
                    process.resume()
            program.ask_to_stop()
        self.exit_codes = [(program.name, program.wait()) for program in programs]

    # --- programs --------------------------------------------------------------------------------

    def environment(self, host: str, **more: str) -> dict[str, str]:
        """That of a program on that host."""
        urls = self.urls_of_programs()
        if not self._clock(host).exists():
            self.set_clock(host, 0.0)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FARM_")}
        return {
            **kept,
            **self.times,
            "FARM_HOME": str(self.home.path),
            # Runs of one seed have the same devices.
            "FARM_DEVICE_LOCKS": str(self.folder / "locks"),
            "FARM_DATABASE_URL": urls.database_url,
            "FARM_BROKER_URL": urls.broker_url or "",
            "PYTHONPATH": str(Path(chaos.__file__).parent.parent),
            FOLDER: str(self.folder),
            CLOCK: str(self._clock(host)),
            **more,
        }

    def start(self, name: str, command: Sequence[str], host: str, **more: str) -> Program:
        """Starts a program on that host."""
        with self.at(host):
            return Program(name, command, self.environment(host, **more), self.folder, host)

    def start_coordinator(self) -> Program:
        """On the host that has the fewest."""
        self._started, self._started_at = self._started + 1, time.monotonic()
        busy = [program.host for program in self.coordinators]
        host = min(self.hosts_of_coordinators, key=busy.count)
        started = self.start(f"coordinator-{self._started}", COORDINATOR, host)
        self.coordinators.append(started)
        return started

    def leader(self) -> Program | None:
        """The only coordinator that runs, or of several the one that has the term."""
        running = [(program, found) for program in self.coordinators if (found := program.process) is not None]
        if len(running) == 1:
            return running[0][0]
        with self.engine.connect() as connection:
            term = leadership.read(connection)
        return next((program for program, found in running if term.leads and found.pid == term.pid), None)

    def tend(self) -> None:
        """Starts coordinators and `farm-worker`s that ended, as `farm up` or a service manager does.

        A `farm-worker` ends by itself where another one serves its devices.
        """
        for program in [p for p in self.coordinators if not p.running]:
            program.wait()
            self.coordinators.remove(program)
        missing = len(self.coordinators) < len(self.hosts_of_coordinators)
        if self.supervised and missing and time.monotonic() - self._started_at > PAUSE_S:
            self.start_coordinator()
        for host, program in list(self.hosts.items()):
            if (
                host not in self.down
                and not program.running
                and time.monotonic() - self._hosts_started_at[host] > PAUSE_S
            ):
                program.wait()
                self.start_host(host)

    def start_host(self, host: int, **more: str) -> None:
        self._hosts_started_at[host] = time.monotonic()
        self.hosts[host] = self.start_worker(f"host-{host}", host, **more)

    def start_worker(self, name: str, host: int, **more: str) -> Program:
        """A `farm-worker` of all devices of that host."""
        recordings = [self.workload.recordings[device] for device in self.devices_at(host)]
        selection = ",".join(f"recorded:{file}?scale=1" for file in recordings)
        return self.start(name, (*WORKER, "--devices", selection), self.name_of(host), **more)

    def learn_device_ids(self) -> None:
        """Once all are announced."""
        with self.engine.connect() as connection:
            of_uuid = {uuid: i for i, uuid, _ in devices.live(connection, silent_after=3600)}
        self.device_ids = [of_uuid[identity.uuid] for identity in self.workload.devices]

    def processes_of(self, device: int) -> DeviceProcesses | None:
        """Those of a device, by its number; None where its Celery parent does not run now."""
        number = str(self.device_ids[device])
        for program in self.hosts.values():
            for process in program.family():
                with contextlib.suppress(psutil.Error):
                    ours = process.cmdline()[1:] == ["-P", "-m", "chaos.process"]
                    if ours and process.environ().get(WORKER_DEVICE_ID) == number:
                        return DeviceProcesses(process)
        return None

    # --- services --------------------------------------------------------------------------------

    def postgres_pid(self) -> int | None:
        """The postmaster's number; None where its note is gone."""
        cluster = find_cluster(self.home)
        if cluster is None:
            return None
        try:
            return int((cluster.data / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None

    def redis_pid(self) -> int | None:
        try:
            return int((self.home.path / "redis" / "redis.pid").read_text())
        except (OSError, ValueError):
            return None

    def end_service(self, pid: int | None, number: signal.Signals) -> None:
        """Sends the signal and waits for the end."""
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if not wait_gone([pid], 60):
                raise AssertionError(f"process {pid} does not end on {number.name}")

    def start_postgres(self) -> None:
        """As the supervisor of `farm up` does."""
        with self.at(self.services_host):
            revive(EmbeddedPostgres(self.home), self.home)

    def start_redis(self) -> None:
        with self.at(self.services_host):
            revive(EmbeddedRedis(self.home), self.home)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(redis_client_url(self.urls.broker_url or ""), socket_timeout=5)

    def queues(self) -> list[str]:
        """The names of the queues that its devices serve."""
        kinds = dict.fromkeys(queue_of_type(identity.type) for identity in self.workload.devices)
        return [*kinds, *(queue_of_device(identity.uuid) for identity in self.workload.devices)]

    # --- work ------------------------------------------------------------------------------------

    def submit(self, campaign: Campaign) -> campaigns.Stored:
        with self.engine.begin() as connection:
            known = campaigns.known_devices(connection)
            stored = campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())
        self.submitted[stored.campaign_id] = campaign
        return stored

    def last_words(self) -> str:
        """What every program said last, for one who must find out why the farm stands still."""
        programs = [*self.coordinators, *self.hosts.values()]
        return "; ".join(f"{program.name}: {last_lines(program.log)}" for program in programs)

    def live_devices(self) -> int:
        with self.engine.connect() as connection:
            return len(devices.live(connection, silent_after=SILENT_AFTER_S))


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Fails by saying what it waited for."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.1)
