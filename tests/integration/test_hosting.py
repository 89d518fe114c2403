"""Devices that come to a host and vanish from it, and servers that are away: on real Postgres and Redis."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, make_url, text

import farm
from farm.db import devices
from farm.db.engine import make_engine
from farm.devices import Backend, DeviceIdentity, host_name
from farm.services import ServiceUrls
from farm.services.processes import is_alive
from farm.variables import WORKER_DEVICE_ID
from support.homes import environment, eventually
from support.samples import cpu
from workers.device_watcher import DeviceWatcher, Scan
from workers.devices import discover
from workers.hosting import Host

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"

FARM_WORKER = "from workers import main; main.RESCAN_SECONDS = 0.3; main.main()"
"""`python -m workers.main`, which looks for devices more often."""


def card(uuid: str) -> DeviceIdentity:
    return replace(cpu(), uuid=uuid, type="nvidia-x", backend=Backend.CUDA)


def vanished(engine: Engine) -> dict[str, bool]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT uuid, vanished_at IS NOT NULL AS vanished FROM devices"))
        return {row.uuid: row.vanished for row in found}


@pytest.fixture
def connections(database_url: str, farm_services: ServiceUrls) -> Iterator[Callable[[bool], None]]:
    """Takes the database away, for new connections and old ones, and brings it back."""
    made = make_engine(farm_services.database_url, application="test", pool_size=1)
    elsewhere = made.execution_options(isolation_level="AUTOCOMMIT")
    name = make_url(database_url).database

    def allow(allowed: bool) -> None:
        with elsewhere.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}"))
            if not allowed:
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
                connection.execute(text(ended), {"name": name})

    yield allow
    allow(True)
    made.dispose()


# --- real processes ------------------------------------------------------------------------------------


class FarmWorker:
    """`farm-worker` as a process, and the processes of its devices."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def serving(self) -> dict[int, int]:
        """By device id: the Celery process that serves the device."""
        found = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                if process.cmdline()[1:] == ["-P", "-m", "workers.process"]:
                    found[int(process.environ()[WORKER_DEVICE_ID])] = process.pid
            except psutil.Error:
                continue
        return found

    def below(self) -> list[list[str]]:
        """For each device that is served by a child of this process: what is below that child."""
        parents = [psutil.Process(pid) for pid in self.serving().values()]
        return [
            ["measures" if "spawn_main(" in " ".join(p.cmdline()) else "other" for p in parent.children(recursive=True)]
            for parent in parents
            if parent.ppid() == self.pid
        ]

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)


@pytest.fixture
def farm_worker(tmp_path: Path, database_url: str, farm_services: ServiceUrls) -> Iterator[Callable[..., FarmWorker]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **variables: str) -> FarmWorker:
        urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
        log = tmp_path / "farm-worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", FARM_WORKER, "--devices", ",".join(words)],
                env=environment(tmp_path / ".farm", **{**urls, **variables}),
                stderr=output,
            )
        started.append(process)
        return FarmWorker(process, log)

    yield start
    for process in started:
        process.kill()  # what it started ends with it
        process.wait()


@pytest.mark.long
def test_a_device_that_vanishes_is_marked_and_stopped_and_served_again_when_it_is_back(
    engine: Engine, farm_worker: Callable[..., FarmWorker], tmp_path: Path
) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    shutil.copyfile(RECORDING, one)
    pq.write_table(pq.read_table(one).slice(0, 100), two)
    uuids = [identity.uuid for file in (one, two) for identity in discover(f"recorded:{file}")]

    worker = farm_worker(f"recorded:{one}", f"recorded:{two}")
    eventually(lambda: len(worker.serving()) == 2)
    with engine.connect() as connection:
        first, second = (
            connection.execute(text("SELECT id FROM devices WHERE uuid = :uuid"), {"uuid": uuid}).scalar_one()
            for uuid in uuids
        )
    pids = worker.serving()
    assert pids.keys() == {first, second}

    one.rename(tmp_path / "away")
    eventually(lambda: vanished(engine) == {uuids[0]: True, uuids[1]: False})
    eventually(lambda: worker.serving() == {second: pids[second]})
    assert uuids[0] in worker.log()

    (tmp_path / "away").rename(one)
    eventually(lambda: vanished(engine) == {uuids[0]: False, uuids[1]: False})
    eventually(lambda: worker.serving().keys() == {first, second})
    assert worker.serving()[second] == pids[second]

    # A device has a parent and the child that measures, and no process that only watches them.
    eventually(lambda: worker.below() == [["measures"], ["measures"]])

    # A process that dies though its device is there is started again.
    psutil.Process(pids[second]).kill()
    eventually(lambda: worker.serving().get(second, pids[second]) != pids[second])
    assert "again in 1 s" in worker.log()
    family = psutil.Process(worker.pid).children(recursive=True)
    assert worker.stop() == 0
    eventually(lambda: not any(is_alive(process.pid) for process in family))


def test_a_device_is_left_in_good_order_though_its_process_is_still_starting(
    engine: Engine, farm_worker: Callable[..., FarmWorker]
) -> None:
    worker = farm_worker("cpu")
    eventually(worker.serving)
    assert worker.stop() == 0
    with engine.connect() as connection:
        (device,) = devices.overview(connection, silent_after=30.0)
    assert (device["live"], device["silent_s"]) == (False, None)


@pytest.mark.long
def test_farm_worker_waits_for_a_database_that_does_not_answer(
    engine: Engine, farm_worker: Callable[..., FarmWorker], connections: Callable[[bool], None], database_url: str
) -> None:
    connections(False)
    worker = farm_worker("cpu")
    eventually(lambda: worker.log().count("waiting for the database at") >= 2)
    password = make_url(database_url).password
    assert password
    assert password not in worker.log()
    connections(True)
    eventually(worker.serving)
    assert vanished(engine) == {discover("cpu")[0].uuid: False}
    assert worker.stop() == 0


def test_farm_worker_waits_for_a_broker_until_it_is_told_to_stop(farm_worker: Callable[..., FarmWorker]) -> None:
    worker = farm_worker("cpu", FARM_BROKER_URL="redis://:geheim@127.0.0.1:1/0")
    eventually(lambda: "waiting for the broker at redis://:***@127.0.0.1:1/0" in worker.log())
    assert worker.stop() == 0
    assert "geheim" not in worker.log()


# --- one look after another ----------------------------------------------------------------------------


class Hosted:
    """A `Host` on a real database, shown one look after another. It starts no process."""

    def __init__(self, engine: Engine, selection: str) -> None:
        self.engine = engine
        self._host = Host(DeviceWatcher(selection), engine, {}, rescan_s=3600)

    def see(
        self, *found: DeviceIdentity, unknown: Sequence[str] = (), cards_known: bool = True, **problems: str
    ) -> None:
        self._host.apply(Scan(found=found, unknown=frozenset(unknown), cards_known=cards_known, problems=problems))

    @property
    def served(self) -> set[str]:
        return set(self._host._workers)

    def give_process(self, uuid: str, process: Lingering) -> None:
        self._host._workers[uuid]._process = cast(Any, process)


class Lingering:
    """A process that takes its time to end once it is told to."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.told = 0

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.told += 1


Hosts = Callable[[str], Hosted]


@pytest.fixture
def host(engine: Engine) -> Hosts:
    return lambda selection: Hosted(engine, selection)


def test_two_looks_in_a_row_must_miss_a_device(host: Hosts) -> None:
    hosted, processes = host("cuda"), {"GPU-a": Lingering(), "GPU-b": Lingering()}
    a, b = card("GPU-a"), card("GPU-b")
    hosted.see(a, b)
    for uuid, process in processes.items():
        hosted.give_process(uuid, process)
    for _ in range(3):
        hosted.see(b)
        hosted.see(a, b)
    hosted.see(b)
    hosted.see(b, unknown=["GPU-a"])  # the driver could not be asked: this is no look that misses it
    assert [process.told for process in processes.values()] == [0, 0]
    assert vanished(hosted.engine) == {"GPU-a": False, "GPU-b": False}
    hosted.see(b)
    assert [process.told for process in processes.values()] == [1, 0]
    assert hosted.served == {"GPU-b"}
    assert vanished(hosted.engine) == {"GPU-a": True, "GPU-b": False}
    processes["GPU-a"].status = 0
    for _ in range(2):
        hosted.see(a, b)
        assert hosted.served == {"GPU-a", "GPU-b"}
        assert vanished(hosted.engine) == {"GPU-a": False, "GPU-b": False}


def test_a_device_that_is_back_is_served_once_its_old_process_has_ended(host: Hosts) -> None:
    hosted, process = host("cuda"), Lingering()
    hosted.see(card("GPU-a"))
    hosted.give_process("GPU-a", process)
    hosted.see()
    assert process.told == 0
    hosted.see()
    hosted.see(card("GPU-a"))
    assert (hosted.served, process.told) == (set(), 1)
    assert vanished(hosted.engine) == {"GPU-a": True}
    process.status = 0
    hosted.see(card("GPU-a"))
    assert hosted.served == {"GPU-a"}
    assert vanished(hosted.engine) == {"GPU-a": False}


def test_what_changed_while_the_database_was_away_is_told_later(
    host: Hosts, connections: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    hosted = host("cuda")
    a, b, c = card("GPU-a"), card("GPU-b"), card("GPU-c")
    hosted.see(a, b)
    connections(False)
    hosted.see(c)
    hosted.see(c)
    assert hosted.served == set()  # what is gone is stopped, what came must be announced first
    assert "after the next scan" in caplog.text
    hosted.see(b, c)
    connections(True)
    for _ in range(2):
        hosted.see(b, c)
    assert hosted.served == {"GPU-b", "GPU-c"}
    assert vanished(hosted.engine) == {"GPU-a": True, "GPU-b": False, "GPU-c": False}


def test_cards_that_a_host_had_before_it_started_are_marked_as_vanished(
    host: Hosts, engine: Engine, farm_services: ServiceUrls
) -> None:
    with engine.begin() as connection:
        for identity in (card("GPU-a"), card("GPU-b"), card("GPU-live"), cpu(7)):
            number = devices.register(connection, host=host_name(), host_facts={}, device=identity)
            if identity.uuid != "GPU-live":  # another farm-worker serves it, to which other cards are visible
                devices.leave(connection, number)
        devices.leave(connection, devices.register(connection, host="another", host_facts={}, device=card("GPU-far")))
    nobody = {"GPU-a": False, "GPU-b": False, "GPU-live": False, "GPU-far": False, "CPU-7": False}

    host("cpu").see(cpu(7))
    assert vanished(engine) == nobody
    hosted = host("auto")
    hosted.see(cpu(8), cards_known=False)  # the driver does not answer: this says nothing of the cards
    assert vanished(engine) == nobody | {"CPU-8": False}
    hosted.see(cpu(8), card("GPU-b"))
    assert vanished(engine) == nobody | {"CPU-8": False, "GPU-a": True}


def test_a_problem_is_said_once_and_again_when_it_changes(host: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    hosted = host("cuda")
    with caplog.at_level(logging.WARNING):
        for problem in ("no driver", "no driver", "error 999", "no driver"):
            hosted.see(cuda=problem)
        hosted.see()
        hosted.see(cuda="no driver")
    assert [record.getMessage() for record in caplog.records] == [
        "cuda: no driver",
        "cuda: error 999",
        "cuda: no driver",
        "cuda: no driver",
    ]


def test_a_card_is_the_only_one_that_its_process_sees(host: Hosts) -> None:
    hosted = host("cuda,cpu")
    hosted.see(card("GPU-a"), cpu())
    variables = {uuid: worker._environment for uuid, worker in hosted._host._workers.items()}
    assert variables["GPU-a"]["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert "CUDA_VISIBLE_DEVICES" not in variables["CPU-1"]
    assert len({variables[uuid][WORKER_DEVICE_ID] for uuid in variables}) == 2
