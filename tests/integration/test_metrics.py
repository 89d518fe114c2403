"""What Prometheus scrapes from a coordinator and from a host agrees with the database, whatever dies in between."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

import farm
from farm.campaign import Campaign, load
from farm.coordinator import exported, metrics
from farm.coordinator.estimates import Cause
from farm.coordinator.metrics import FarmCollector, Watch
from farm.db import batches, devices, gauges, kernels, leadership
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.gauges import FarmGauges
from farm.db.states import BatchState, DeviceState, FailureKind, JobState, KernelState
from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.metrics import PREFIX, Count, Duration, Metrics
from farm.services import ServiceUrls
from farm.settings import Settings
from support.batch_steps import claim, form, land, leased
from support.homes import environment, eventually
from support.kernel_builds import TOOLCHAINS_HERE
from support.programs import COORDINATOR, FARM_WORKER, Start, free_port, kill_in_a_batch, programs
from support.samples import ahead, card, cpu, document, row
from support.scripted_device import Measure, Scripted
from workers import runner
from workers.metrics import DEVICE_TYPE, DEVICE_UUID, FOLDER
from workers.runner import Runner

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"


@pytest.fixture
def start(tmp_path: Path, database_url: str, farm_services: ServiceUrls) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    with programs(tmp_path, **urls) as starting:
        yield starting


class Scrape:
    """What a program says at one moment."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            self.families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        self._samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The value of the one sample of that name, without its prefix, and those labels."""
        return self._samples["gemm_farm_" + name, *sorted(labels.items())]

    def has(self, name: str) -> bool:
        return any(sample[0] == "gemm_farm_" + name for sample in self._samples)


def answers(port: int) -> bool:
    try:
        Scrape(port)
    except OSError:
        return False
    return True


def number(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one() or 0)


def labels(engine: Engine) -> dict[str, str]:
    """Those of every metric of the one device."""
    with engine.connect() as connection:
        row = connection.execute(text("SELECT uuid, type FROM devices")).one()
    return {"device": row.uuid, "device_type": row.type}


HANDED_BACK = "SELECT count(*) FROM batches WHERE end_reason LIKE '%killed by signal SIGKILL%'"


# --- real processes ------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_is_scraped_agrees_with_the_database_though_a_child_dies(
    engine: Engine, submit: Submit, start: Start, tmp_path: Path
) -> None:
    coordinator_port, worker_port = free_port(), free_port()
    start(COORDINATOR, FARM_COORDINATOR_METRICS=f"127.0.0.1:{coordinator_port}")
    selection = f"recorded:{RECORDING}?scale=0.04"
    worker = start(FARM_WORKER, "--devices", selection, FARM_WORKER_METRICS=str(worker_port))
    eventually(lambda: number(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
    submit(load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000))
    kill_in_a_batch(engine, worker.children_that_measure)
    eventually(lambda: number(engine, HANDED_BACK))
    eventually(lambda: number(engine, "SELECT count(*) FROM campaigns WHERE state = 'done'"))

    found, own = Scrape(worker_port), labels(engine)
    rows = number(engine, "SELECT count(*) FROM measurements")
    assert rows == 270
    assert found("worker_jobs_total", **own, outcome="measured") == rows
    for kind in ("invalid", "failed", "killed"):
        failures = number(engine, f"SELECT count(*) FROM failures WHERE kind = '{kind}'")
        assert found("worker_jobs_total", **own, outcome=kind) == failures
    assert found("worker_jobs_total", **own, outcome="killed") == 1
    assert found("worker_child_deaths_total", **own, cause="SIGKILL") == 1
    done = number(engine, "SELECT count(*) FROM batches WHERE state = 'done'")
    for step in ("batch", "land"):
        assert found(f"worker_{step}_seconds_count", **own) == done
        assert found(f"worker_{step}_seconds_bucket", **own, le="+Inf") == done
    assert found("worker_claim_seconds_count", **own) >= done + 1
    assert found("worker_mark_seconds_count", **own) >= found("worker_measuring_seconds_count", **own) >= rows
    assert found("worker_measuring_seconds_sum", **own) > 0
    assert found("worker_leases_lost_total", **own) == 0
    assert found("worker_canary_failures_total", **own) == 0
    assert found("worker_database_errors_total", **own) == 0
    # However many processes die, each role has one file of a kind.
    (folder,) = (tmp_path / ".farm" / "run").glob("metrics-*")
    assert {file.name.partition("_")[2] for file in folder.glob("*.db")} == {"1-parent.db", "1-child.db"}

    eventually(lambda: number(engine, "SELECT count(*) FROM batches WHERE NOT folded") == 0)
    eventually(
        lambda: Scrape(coordinator_port)("batches_folded_total") == number(engine, "SELECT count(*) FROM batches")
    )
    coordinator = Scrape(coordinator_port)
    formed = number(engine, "SELECT count(*) FROM batches")
    assert coordinator("coordinator_leading") == 1
    assert coordinator("batches_formed_total") == coordinator("batches_sent_total") == formed
    # A batch that a worker was claiming when it was to be marked as sent has no send of its own.
    assert coordinator("batches_resent_total") == number(engine, "SELECT sum(greatest(sends - 1, 0)) FROM batches")
    assert coordinator("batches_reaped_total") == coordinator("batches_recalled_total") == 0
    assert coordinator("coordinator_turn_seconds_count") > formed / 200
    assert coordinator("coordinator_service_errors_total", service="database") == 0
    assert coordinator("coordinator_service_errors_total", service="broker") == 0
    for name, family in {**found.families, **coordinator.families}.items():
        assert name.startswith("process_") or (name.startswith("gemm_farm_") and family.documentation.endswith("."))

    with engine.begin() as connection:
        devices.set_state(connection, 1, DeviceState.DRAINED, None)
    kind = own["device_type"]
    eventually(lambda: Scrape(coordinator_port)("devices", device_type=kind, state="drained") == 1)
    assert Scrape(coordinator_port)("devices", device_type=kind, state="live") == 0

    assert worker.stop() == 0
    assert list((tmp_path / ".farm" / "run").glob("metrics-*")) == []
    assert not answers(worker_port)


@pytest.mark.long
def test_the_farm_is_shown_by_the_coordinator_that_leads(engine: Engine, announce: Announce, start: Start) -> None:
    announce(cpu())
    first_port, second_port = free_port(), free_port()
    patient = {"FARM_SILENT_AFTER_SECONDS": "600"}  # nobody speaks for the device
    first = start(COORDINATOR, FARM_COORDINATOR_METRICS=str(first_port), **patient)
    eventually(lambda: answers(first_port) and Scrape(first_port)("coordinator_leading") == 1)
    start(COORDINATOR, FARM_COORDINATOR_METRICS=str(second_port), **patient)
    eventually(lambda: answers(second_port))
    assert Scrape(first_port).has("devices")
    assert Scrape(second_port)("coordinator_leading") == 0
    assert not Scrape(second_port).has("devices")
    first.kill()
    eventually(lambda: Scrape(second_port)("coordinator_leading") == 1)
    assert Scrape(second_port)("devices", device_type="cpu-test", state="live") == 1
    assert Scrape(second_port)("coordinator_term") == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "variable"), [(COORDINATOR, "FARM_COORDINATOR_METRICS"), (FARM_WORKER, "FARM_WORKER_METRICS")]
)
def test_an_address_that_cannot_be_used_ends_the_program_and_names_the_setting(
    engine: Engine, start: Start, command: tuple[str, ...], variable: str
) -> None:
    port = free_port()
    arguments = ("--devices", "cpu") if command is FARM_WORKER else ()
    first = start(command, *arguments, **{variable: str(port)})
    eventually(lambda: answers(port))
    second = start(command, *arguments, **{variable: f"127.0.0.1:{port}"})
    assert second.wait() == 3
    assert (
        f"{variable} is '127.0.0.1:{port}', and metrics cannot be served there: Address already in use" in second.log()
    )
    assert first.is_alive()
    wrong = start(command, *arguments, **{variable: "localhost"})
    assert wrong.wait() == 2
    assert f"{variable} is 'localhost': it names no port" in wrong.log()


@pytest.mark.long
def test_a_farm_worker_that_was_killed_leaves_no_files_behind_for_long(
    engine: Engine, start: Start, tmp_path: Path
) -> None:
    run = tmp_path / ".farm" / "run"

    def folders() -> list[Path]:
        return sorted(run.glob("metrics-*"))

    killed, other = (
        start(FARM_WORKER, "--devices", device, FARM_WORKER_METRICS=str(free_port()))
        for device in ("cpu", f"recorded:{RECORDING}")
    )
    eventually(lambda: len(folders()) == 2)
    killed.kill()
    third = start(FARM_WORKER, "--devices", "cpu", FARM_WORKER_METRICS=str(free_port()))
    eventually(lambda: "metrics are served" in third.log())
    assert len(folders()) == 2
    assert other.stop() == third.stop() == 0
    assert folders() == []


@pytest.mark.long
def test_without_metrics_there_is_no_folder_and_nothing_of_prometheus_is_loaded(
    engine: Engine, submit: Submit, start: Start, tmp_path: Path
) -> None:
    start(COORDINATOR)
    start(FARM_WORKER, "--devices", f"recorded:{RECORDING}", PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "elsewhere"))
    eventually(lambda: number(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
    submit(load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000))
    eventually(lambda: number(engine, "SELECT count(*) FROM measurements"))
    assert list((tmp_path / ".farm").glob("run/metrics-*")) == []
    assert not (tmp_path / "elsewhere").exists()
    programs = "farm.coordinator.__main__, workers.process, workers.main"
    loaded = f"import sys, {programs}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


# --- one batch -----------------------------------------------------------------------------------------


class Noted(Metrics):
    """Counts by name and value, and the names of what was timed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.timed: Counter[str] = Counter()

    def count(self, what: Count, amount: float = 1, *, value: str | None = None) -> None:
        self.counts[what.name if value is None else f"{what.name}:{value}"] += amount

    def time(self, what: Duration) -> AbstractContextManager[object]:
        self.timed[what.name] += 1
        return super().time(what)


@pytest.fixture
def noted(engine: Engine, announce: Announce, submit: Submit) -> Callable[[Measure], Noted]:
    """What a runner counts and times while it measures a batch of twelve jobs as a script has it."""
    device_id = announce(cpu())
    submit(Campaign.from_document(document()))

    def ran(script: Measure) -> Noted:
        batch_id = form(engine)
        assert batch_id is not None
        noting = Noted()
        with suppress(DevicePoisoned):
            Runner(
                engine, Scripted(script), device_id, lease_seconds=60, stopping=threading.Event(), metrics=noting
            ).run_batch(batch_id)
        return noting

    return ran


def test_jobs_are_counted_by_what_became_of_them(engine: Engine, noted: Callable[[Measure], Noted]) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        if n == 2:
            raise InvalidOnDevice(why="no room")
        if n in (5, 7):
            raise MeasurementFailed(why="a hiccup")
        if n == 9:
            raise DevicePoisoned(why="an illegal address")
        return row(window_s=0.25)

    found = noted(script)
    names = {"worker_jobs:measured": 6, "worker_jobs:invalid": 1, "worker_jobs:failed": 2, "worker_jobs:killed": 1}
    assert found.counts == {**names, "worker_window_seconds": 1.5}
    once = {"worker_claim": 1, "worker_batch": 1, "worker_land": 1}
    assert found.timed == {**once, "worker_mark": 10, "worker_measuring": 10}


def test_a_lost_lease_is_counted_and_its_jobs_are_not(engine: Engine, noted: Callable[[Measure], Noted]) -> None:
    def script(n: int, _: Configuration) -> Measurement:
        with engine.begin() as connection:
            connection.execute(text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 s'"))
        return row()

    assert noted(script).counts == {"worker_leases_lost": 1, "worker_window_seconds": 0}


def test_each_try_that_the_database_does_not_answer_is_counted(
    engine: Engine, noted: Callable[[Measure], Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = batches.land, []

    def land_at_the_third_try(*arguments: Any, **named: Any) -> None:
        tries.append(None)
        if len(tries) < 3:
            raise OperationalError("SELECT", {}, Exception("the server closed the connection"))
        real(*arguments, **named)

    monkeypatch.setattr(batches, "land", land_at_the_third_try)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.0)
    expected = {"worker_database_errors": 2, "worker_jobs:measured": 12, "worker_window_seconds": 0}
    assert noted(lambda n, _: row()).counts == expected


# --- the farm in numbers -------------------------------------------------------------------------------


def read(engine: Engine) -> FarmGauges:
    with engine.connect() as connection:
        return gauges.read(connection, silent_after=60)


def test_gauges_count_jobs_of_active_campaigns_before_and_after_they_are_folded(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    device = announce(cpu())
    assert set(read(engine).jobs.values()) == {0}
    stored = submit(Campaign.from_document(document()))
    lease = leased(engine, device, 5)
    failures = {
        lease.jobs[0].id: Failure(FailureKind.INVALID, "no room"),
        lease.jobs[1].id: Failure(FailureKind.FAILED, "a hiccup"),
    }
    land(engine, lease, failures)
    leased(engine, device, 2)  # what failed goes first, and not with fresh jobs
    form(engine, 2)
    expected = {"pending": 5, "queued": 2, "running": 1, "later": 0, "done": 3, "invalid": 1, "dead": 0}
    assert read(engine).jobs == expected
    with engine.begin() as connection:
        assert batches.fold(connection) == 1
    assert read(engine).jobs == expected
    with engine.begin() as connection:
        batches.cancel(connection, stored.campaign_id)
    assert set(read(engine).jobs.values()) == {0}


def test_gauges_count_jobs_of_each_open_campaign_and_those_of_paused_ones_only_there(
    engine: Engine, announce: Announce, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(cpu())
    stored = submit(Campaign.from_document(document()))
    submit(Campaign.from_document(document(name="another")))
    with engine.begin() as connection:
        batches.pause(connection, stored.campaign_id)
    found = read(engine)
    assert {name: jobs[JobState.PENDING] for name, jobs in found.campaigns.items()} == {"small": 12, "another": 12}
    assert found.jobs[JobState.PENDING] == 12
    monkeypatch.setattr(gauges, "MAX_CAMPAIGNS", 1)
    assert set(read(engine).campaigns) == {"another"}


def test_gauges_show_the_sensors_of_rows_that_landed_lately(engine: Engine, announce: Announce, submit: Submit) -> None:
    device = announce(cpu())
    announce(cpu(2))
    submit(Campaign.from_document(document()))
    assert read(engine).sensors == []
    land(engine, leased(engine, device, 2))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE measurements DISABLE TRIGGER USER"))  # rows cannot be changed otherwise
        connection.execute(
            text("UPDATE measurements SET power_w = 100 * id, sm_clock_mhz = NULL, temperature_c = 40 + id")
        )
        connection.execute(text("UPDATE measurements SET power_limit_w = 700"))
    (found,) = read(engine).sensors
    assert found == gauges.Sensors("CPU-1", "cpu-test", 150, 700, None, 42)
    assert metrics._of_devices([found], "power_w") == {("CPU-1", "cpu-test"): 150}
    assert metrics._of_devices([found], "sm_clock_mhz") == {}
    with engine.begin() as connection:
        connection.execute(text("UPDATE measurements SET measured_at = measured_at - interval '5 min'"))
    assert read(engine).sensors == []


def test_gauges_show_the_size_and_the_connections_of_the_database(engine: Engine) -> None:
    found = read(engine).database
    assert found.size_bytes > 1e6
    assert 1 <= found.connections <= found.max_connections


def test_gauges_tell_devices_and_batches_apart_by_type(engine: Engine, announce: Announce, submit: Submit) -> None:
    first, stopped, drained, gone = (announce(cpu(n)) for n in range(1, 5))
    announce(cpu(5, kind="cpu-other"))
    with engine.begin() as connection:
        devices.leave(connection, stopped)
        devices.set_state(connection, drained, DeviceState.DRAINED, "for a while")
        devices.vanish(connection, host="here", uuids=["CPU-4"])
    assert gone == 4
    assert read(engine).oldest_unclaimed_s == 0
    submit(Campaign.from_document(document(targets=[{"device": "CPU-1"}])))
    submit(Campaign.from_document(document(name="another", targets=[{"type": "cpu-test"}])))
    number_of_batches = 0
    while (batch_id := form(engine, 5)) is not None:
        number_of_batches += 1
        if number_of_batches == 1:
            assert claim(engine, batch_id, first) is not None
    with engine.begin() as connection:
        connection.execute(text("UPDATE batches SET created_at = created_at - interval '100 s' WHERE id = 2"))
    found, nothing = read(engine), dict.fromkeys(gauges.CONDITIONS, 0)
    assert found.devices == {
        "cpu-test": nothing | {"live": 1, "stopped": 1, "gone": 1, "drained": 1},
        "cpu-other": nothing | {"live": 1},
    }
    assert found.batches == {
        "cpu-test": {BatchState.LEASED: 1, BatchState.QUEUED: number_of_batches - 1},
        "cpu-other": {BatchState.LEASED: 0, BatchState.QUEUED: 0},
    }
    assert 100 < found.oldest_unclaimed_s < 1000


def test_gauges_count_kernels_and_builders(engine: Engine, announce: Announce, submit: Submit) -> None:
    announce(card())
    submit(Campaign.from_document(ahead()))
    with engine.begin() as connection:
        kernels.announce(connection, "here:1", toolchains=TOOLCHAINS_HERE, slots=2)
        assert kernels.start(connection, 1, TOOLCHAINS_HERE, builder="here") is not None
    found = read(engine)
    assert found.kernels == {
        KernelState.WANTED: 1, KernelState.BUILDING: 1, KernelState.BUILT: 0, KernelState.FAILED: 0
    }  # fmt: skip
    assert found.builders == 1


def collected(collector: FarmCollector) -> set[str]:
    return {family.name for family in collector.collect()}


OWN = {"gemm_farm_coordinator_leading", "gemm_farm_metrics_version"}
LEADER = OWN | {"gemm_farm_coordinator_step_failing_seconds"}
TERM = {"gemm_farm_coordinator_term"}
ALL = {f"gemm_farm_{gauge.name}" for gauge in exported.GAUGES} - TERM


def test_the_farm_is_read_when_it_is_asked_for_and_not_again_within_seconds(
    engine: Engine, announce: Announce, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(cpu())
    times: list[None] = []
    real = gauges.read

    def counted(*arguments: object, **named: object) -> FarmGauges:
        times.append(None)
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics.gauges, "read", counted)
    collector = FarmCollector(engine, Watch(leading=True), Settings())
    assert list(collector.describe()) == []
    assert times == []
    assert collected(collector) == collected(collector) == ALL
    assert len(times) == 1
    assert {gauge.name for gauge in exported.OWN} == {name.removeprefix(PREFIX) for name in OWN | TERM}
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", 0.0)
    assert collected(FarmCollector(engine, Watch(leading=False), Settings())) == OWN
    assert len(times) == 1
    collector = FarmCollector(engine, Watch(leading=True), Settings())
    assert collected(collector) == collected(collector) == ALL
    assert len(times) == 3


def test_a_database_that_does_not_answer_hides_the_farm_and_nothing_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> FarmGauges:
        raise OperationalError("SELECT", {}, Exception("the server closed the connection"))

    noting = Noted()
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", 0.0)
    collector = FarmCollector(engine, Watch(noting, leading=True), Settings())
    assert collected(collector) == ALL
    monkeypatch.setattr(metrics.gauges, "read", away)
    assert collected(collector) == LEADER
    assert noting.counts == {"coordinator_service_errors:database": 1}


def test_stuck_jobs_are_exported_by_cause_until_they_are_no_longer_stuck(
    engine: Engine, announce: Announce, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", 0.0)
    announce(cpu())
    announce(cpu(2, kind="cpu-other"))
    submit(Campaign.from_document(document(targets=[{"type": "cpu-test"}, {"type": "cpu-other"}])))
    submit(Campaign.from_document(document(name="another", targets=[{"type": "cpu-other"}])))
    collector = FarmCollector(engine, Watch(leading=True), Settings())

    def stuck() -> dict[str, float]:
        (family,) = (one for one in collector.collect() if one.name == "gemm_farm_jobs_stuck")
        return {sample.labels["cause"]: sample.value for sample in family.samples}

    def set_state(state: DeviceState) -> None:
        with engine.begin() as connection:
            devices.set_state(connection, 2, state, "hot")

    nothing = dict.fromkeys(Cause, 0)
    assert stuck() == nothing | {"no_coordinator": 36}
    with engine.begin() as connection:
        assert leadership.take(connection, host="hal", pid=9000, seconds=3600) is not None
    assert stuck() == nothing
    set_state(DeviceState.QUARANTINED)
    assert stuck() == nothing | {"no_device": 24}
    set_state(DeviceState.ACTIVE)
    assert stuck() == nothing


# --- documents -----------------------------------------------------------------------------------------


def first_cells(section: str, head: str) -> list[str]:
    """The names in the first column of the table with that head, in a section of docs/operating.md."""
    document = (EXAMPLES.parent / "docs" / "operating.md").read_text()
    (of_section,) = re.findall(rf"^## {section}\n(.*?)^## ", document, flags=re.MULTILINE | re.DOTALL)
    (table,) = re.findall(rf"^\| {head} \|.*\n\| --- .*\n((?:\|.*\n)+)", of_section, flags=re.MULTILINE)
    return re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)


def test_every_cause_of_stuck_jobs_is_documented() -> None:
    assert sorted(first_cells("Metrics", "cause of stuck jobs")) == sorted(Cause)


def test_who_asks_while_another_reads_gets_the_last_answer_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, answer = threading.Event(), threading.Event()
    real = gauges.read

    def slow(*arguments: object, **named: object) -> FarmGauges:
        reading.set()
        assert answer.wait(120)
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics.gauges, "read", slow)
    collector = FarmCollector(engine, Watch(leading=True), Settings())
    found: list[set[str]] = []
    first = threading.Thread(target=lambda: found.append(collected(collector)))
    first.start()
    assert reading.wait(120)
    assert collected(collector) == LEADER  # nothing was ever read, and it does not wait
    answer.set()
    first.join(120)
    assert found == [ALL]


def test_a_gauge_of_jobs_knows_every_state_of_an_active_campaign(engine: Engine) -> None:
    assert set(read(engine).jobs) == set(JobState) - {JobState.CANCELLED}


def test_a_process_whose_files_cannot_be_made_works_without_metrics(tmp_path: Path) -> None:
    more = {FOLDER: str(tmp_path / "gone"), DEVICE_UUID: "CPU-1", DEVICE_TYPE: "cpu-test"}
    told = "import logging; from workers.metrics import *; logging.basicConfig(); print(type(metrics_of(CHILD, 1)).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=environment(tmp_path, **more),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "Metrics"
    assert "there are no metrics of this process" in done.stderr
