"""Sentinels through the runner on real Postgres, under the workers' role; what people are told of drift and of duty."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import batches, duty, sentinels
from farm.db.campaigns import Stored
from farm.devices import Backend, DeviceIdentity
from farm.errors import DevicePoisoned, InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement, Source
from farm.metrics import Metrics
from support import worker_role
from support.batch_steps import counts, form, land, leased
from support.commands import Command, farm_here, refused
from support.samples import cpu, document, row
from support.scripted_device import Measure, Scripted
from workers import canary, runner, tasks
from workers.canary import SENTINEL_RULES
from workers.runner import EXIT_SENTINEL, Deadline, Runner

farm_services, name, url, worker = worker_role.farm_services, worker_role.name, worker_role.url, worker_role.worker

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
Run = Callable[..., Runner]


@pytest.fixture
def run(engine: Engine, worker: Engine, device: int) -> Run:
    """Measures all that waits in batches of `size`, as a worker that may do no more than one; returns its runner."""

    def ran(
        sentinels: Measure | None, *, script: Measure = lambda n, _: row(), every: int = 100, size: int = 500,
        deadline: Deadline | None = None,
    ) -> Runner:  # fmt: skip
        running = Runner(
            worker, Scripted(script, sentinels=sentinels), device, lease_seconds=60, stopping=threading.Event(),
            deadline=deadline, sentinel_jobs=every,
        )  # fmt: skip
        while (batch_id := form(engine, size)) is not None:
            running.run_batch(batch_id)
        return running

    return ran


def asked(engine: Engine, statement: str) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(found) for found in connection.execute(text(statement)).mappings()]


ALL = "SELECT * FROM v_sentinels ORDER BY measurement_id"


# --- measuring and landing -----------------------------------------------------------------------------


def test_the_first_batch_of_a_campaign_lands_a_sentinel_that_is_no_result(
    engine: Engine, small: Stored, device: int, run: Run
) -> None:
    run(lambda n, _: row(7.0, sm_clock_mhz=1410))
    (found,) = asked(engine, ALL)
    assert (found["campaign_id"], found["device_uuid"], found["job_id"]) == (small.campaign_id, "CPU-1", None)
    assert (found["runtime_ms"], found["sm_clock_mhz"], found["source"]) == (7.0, 1410, "sentinel")
    assert found["configuration_id"] == Scripted.SENTINEL.id
    assert Configuration.from_columns(found) == Scripted.SENTINEL
    assert counts(engine, small.campaign_id) == {"done": 12}
    assert asked(engine, "SELECT count(*) AS n FROM v_measurements") == [{"n": 12}]


def test_a_sentinel_comes_after_so_many_jobs_and_never_sooner_than_its_time(
    engine: Engine, submit: Submit, small: Stored, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(lambda n, _: row(), every=5, size=3)
    assert len(asked(engine, ALL)) == 1
    monkeypatch.setattr(canary, "SENTINEL_SECONDS", 0.0)
    submit(Campaign.from_document(document(name="another")))
    run(lambda n, _: row(), every=5, size=3)
    assert len(asked(engine, ALL)) == 1 + 2  # before the first of four batches, and before the third


def test_a_device_without_a_sentinel_and_a_worker_without_the_setting_measure_none(
    engine: Engine, submit: Submit, small: Stored, run: Run
) -> None:
    run(None)
    submit(Campaign.from_document(document(name="another")))
    run(lambda n, _: row(), every=0)
    assert asked(engine, ALL) == []


@pytest.mark.parametrize(
    "error", [MeasurementFailed(why="a hiccup"), InvalidOnDevice(why="no room"), ZeroDivisionError()]
)
def test_a_sentinel_that_fails_is_no_failure_of_a_job(
    engine: Engine, small: Stored, run: Run, error: Exception
) -> None:
    def failing(n: int, _: Configuration) -> Measurement:
        raise error

    run(failing)
    assert asked(engine, ALL) == []
    assert counts(engine, small.campaign_id) == {"done": 12}
    assert asked(engine, "SELECT count(*) AS n FROM failures") == [{"n": 0}]


def test_a_sentinel_that_cannot_be_stored_does_not_keep_its_batch_from_landing(
    engine: Engine, small: Stored, run: Run
) -> None:
    run(lambda n, _: row(samples=0))
    assert asked(engine, ALL) == []
    assert counts(engine, small.campaign_id) == {"done": 12}


def test_a_sentinel_whose_batch_is_lost_is_not_stored(engine: Engine, small: Stored, run: Run) -> None:
    def late(n: int, _: Configuration) -> Measurement:
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE state = 'leased'")
            )
        return row()

    run(late)
    assert asked(engine, "SELECT count(*) AS n FROM measurements") == [{"n": 0}]


def test_a_sentinel_that_poisons_the_device_ends_the_process_and_is_no_jobs_fault(
    engine: Engine, small: Stored, worker: Engine, device: int
) -> None:
    def poisonous(n: int, _: Configuration) -> Measurement:
        raise DevicePoisoned(why="an illegal address")

    scripted = Scripted(lambda n, _: row(), sentinels=poisonous)
    batch_id = form(engine)
    assert batch_id is not None
    running = Runner(worker, scripted, device, lease_seconds=60, stopping=threading.Event(), sentinel_jobs=1)
    with pytest.raises(DevicePoisoned):
        running.run_batch(batch_id)
    assert running.at_sentinel
    assert scripted.asked == []
    assert counts(engine, small.campaign_id) == {"pending": 12}
    assert asked(engine, "SELECT count(*) AS n FROM failures") == [{"n": 0}]


def test_a_job_that_poisons_the_device_after_a_sentinel_is_the_one_to_blame(
    engine: Engine, small: Stored, run: Run, worker: Engine, device: int
) -> None:
    def poisonous(n: int, _: Configuration) -> Measurement:
        raise DevicePoisoned(why="an illegal address")

    scripted = Scripted(poisonous, sentinels=lambda n, _: row())
    batch_id = form(engine)
    assert batch_id is not None
    running = Runner(worker, scripted, device, lease_seconds=60, stopping=threading.Event(), sentinel_jobs=1)
    with pytest.raises(DevicePoisoned):
        running.run_batch(batch_id)
    assert not running.at_sentinel
    assert len(asked(engine, ALL)) == 1
    assert asked(engine, "SELECT kind FROM failures") == [{"kind": "killed"}]


def test_a_sentinel_that_hangs_is_ended_and_no_job_is_the_suspect(
    engine: Engine, small: Stored, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, seen = threading.Event(), []

    def end(status: int) -> None:
        seen.append((status, asked(engine, "SELECT state, current_job_id FROM batches")))
        ended.set()

    def hanging(n: int, _: Configuration) -> Measurement:
        assert ended.wait(120)
        return row()

    monkeypatch.setattr(runner, "SENTINEL_RULES", SENTINEL_RULES.model_copy(update={"job_seconds": 0.05}))
    run(hanging, deadline=Deadline(end, look_s=0.01))
    assert seen == [(EXIT_SENTINEL, [{"state": "leased", "current_job_id": None}])]


def test_a_device_whose_sentinel_ends_its_process_again_and_again_is_quarantined_and_no_job_pays_for_it(
    engine: Engine, small: Stored, device: int, worker: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "engine", lambda: worker)
    monkeypatch.setattr(tasks, "device_id", lambda: device)
    monkeypatch.setattr(tasks, "_metrics", lambda _: Metrics())
    hand_backs = tasks._HandBacks()
    for times in range(3):
        assert asked(engine, "SELECT state FROM devices") == [{"state": "active"}]
        batch_id = leased(engine, device, 4).batch_id
        hand_backs.add(batch_id, f"its process hung {times}", cause="sentinel")
        hand_backs.work_off()
    (found,) = asked(engine, "SELECT state, state_reason FROM devices")
    assert found == {"state": "quarantined", "state_reason": "its process dies before it can measure: it hung 2"}
    assert counts(engine, small.campaign_id) == {"pending": 12}
    assert asked(engine, "SELECT sum(attempts) AS n FROM jobs") == [{"n": 0}]


def test_two_workers_may_store_the_first_sentinel_of_a_type_at_once(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    devices = [announce(cpu(n)) for n in (1, 2)]
    submit(Campaign.from_document(document(targets=[{"each": "cpu-test"}])))
    both = threading.Barrier(2)

    def measure(device_id: int) -> None:
        def together(n: int, _: Configuration) -> Measurement:
            both.wait(120)
            return row()

        scripted = Scripted(lambda n, _: row(), sentinels=together)
        running = Runner(engine, scripted, device_id, lease_seconds=60, stopping=threading.Event(), sentinel_jobs=1)
        for batch_id in ids:
            running.run_batch(batch_id)

    ids = [batch_id for _ in devices if (batch_id := form(engine)) is not None]
    threads = [threading.Thread(target=measure, args=(device_id,)) for device_id in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found["device_uuid"] for found in asked(engine, ALL)) == ["CPU-1", "CPU-2"]


# --- what people are told ------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def told(command: Command, *arguments: str) -> Any:
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def said(command: Command, *arguments: str) -> str:
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def store(engine: Engine, device_id: int, times_ms: Sequence[float]) -> None:
    """Lands sentinels of these times with batches of one job."""
    for time_ms in times_ms:
        lease = leased(engine, device_id, 1)
        with engine.begin() as connection:
            sentinel = row(time_ms, source=Source.SENTINEL, sm_clock_mhz=1980 - round(time_ms), temperature_c=50)
            sentinels.land(connection, lease, Scripted.SENTINEL, sentinel)
        land(engine, lease)


STEADY = (5.0, 5.01, 5.0, 5.005, 5.0, 5.01)
STEPPED = (5.0, 5.01, 5.0, 5.3, 5.3, 5.3)


def test_a_device_that_drifts_is_flagged_and_hosts_of_one_type_are_compared(
    command: Command, engine: Engine, announce: Announce, submit: Submit
) -> None:
    first, second = (announce(cpu(n)) for n in (1, 2))
    submit(Campaign.from_document(document(targets=[{"device": "CPU-1"}])))
    store(engine, first, STEPPED)
    submit(Campaign.from_document(document(name="other", targets=[{"device": "CPU-2"}])))
    land(engine, leased(engine, first))
    store(engine, second, STEADY)

    (one,) = told(command, "sentinels", "small")
    assert (one["device_uuid"], one["host"], one["n"], one["flagged"]) == ("CPU-1", "here", 6, True)
    assert (one["first_ms"], one["latest_ms"], one["ratio"]) == (5.0, 5.3, None)
    assert one["drift_percent"] == pytest.approx(6.0)
    assert one["since"] < one["drifts_since"] < one["latest"]["measured_at"]
    assert (one["first"]["sm_clock_mhz"], one["latest"]["temperature_c"]) == (1975, 50)

    both = told(command, "sentinels")
    assert [(s["device_uuid"], s["campaign"], s["flagged"]) for s in both] == [
        ("CPU-1", "small", True),
        ("CPU-2", "other", False),
    ]
    middle = (5.3 + 5.005) / 2
    assert [s["ratio"] for s in both] == [pytest.approx(5.3 / middle), pytest.approx(5.005 / middle)]
    assert told(command, "sentinels", "--device", "cpu-2") == both[1:]

    shown = said(command, "sentinels")
    assert re.search(r"CPU-1 \S+ here small 6 5 5\.3 \+6\.0 \S+ \S+ 1\.029", shown)
    assert "drifts since" in shown
    status = said(command, "status", "small")
    assert "drift: CPU-1 on here: its sentinel takes 6.0% longer than at first since" in status
    assert [s["device_uuid"] for s in told(command, "status", "small")["drifting"]] == ["CPU-1"]
    assert told(command, "status", "other")["drifting"] == []
    assert "drift:" not in said(command, "status", "other")


def test_without_sentinels_it_is_said_why_and_what_is_not_known_is_refused(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    assert told(command, "sentinels") == []
    assert "No sentinel was measured yet" in said(command, "sentinels", "small")
    refused(command("sentinels", "large"), 4, "large")
    refused(command("sentinels", "--device", "CPU-7"), 4, "CPU-7")


def test_the_series_is_that_of_the_latest_configuration_and_of_its_ends(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(Campaign.from_document(document(problems={"m": "64..512 +64", "n": 64, "k": [32, 64], "types": ["f32"]})))
    other = Configuration.parse("blas(threads=1) 32x32x32 f32")
    lease = leased(engine, device, 1)
    with engine.begin() as connection:
        sentinels.land(connection, lease, other, row(1.0, source=Source.SENTINEL))
    land(engine, lease)
    store(engine, device, STEADY)
    with engine.connect() as connection:
        (found,) = sentinels.series_of_devices(connection, campaign_id=lease.campaign_id)
    assert found.n == 7
    assert [one.runtime_ms for one in found.rows] == list(STEADY)
    assert not found.flagged


def test_of_a_long_series_the_first_three_and_the_latest_are_looked_at(
    engine: Engine, device: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sentinels, "_SERIES_OF_CAMPAIGN", text(str(sentinels._SERIES_OF_CAMPAIGN).replace("LIMIT 100", "LIMIT 4"))
    )
    stored = submit(Campaign.from_document(document()))
    store(engine, device, [5.0, 5.0, 5.01, 5.3, 5.3, 5.3, 5.3, 5.0, 5.01, 5.0, 5.0])
    with engine.connect() as connection:
        (found,) = sentinels.series_of_devices(connection, campaign_id=stored.campaign_id)
    assert found.n == 11
    assert [one.runtime_ms for one in found.rows] == [5.0, 5.0, 5.01, 5.0, 5.01, 5.0, 5.0]


# --- duty ------------------------------------------------------------------------------------------------


def landed(engine: Engine, device_id: int, jobs: int, *, seconds: float, ago: float = 0.0) -> None:
    """Adds a batch of the given length that ended the given time before its campaign. Each of its jobs has a one-second window."""
    lease = leased(engine, device_id, jobs)
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, row(window_s=1.0)) for job in lease.jobs], {})
        connection.execute(text("ALTER TABLE measurements DISABLE TRIGGER USER"))  # which keeps rows as they landed
        connection.execute(
            text("""
                WITH moved AS (
                    UPDATE batches b SET finished_at = c.submitted_at - make_interval(secs => :ago),
                        claimed_at = c.submitted_at - make_interval(secs => :ago + :seconds)
                    FROM campaigns c WHERE b.id = :id AND c.id = :campaign RETURNING b.finished_at
                )
                UPDATE measurements SET measured_at = moved.finished_at FROM moved WHERE job_id = ANY(:jobs)
            """),
            {
                **{"ago": ago, "seconds": seconds, "id": lease.batch_id, "campaign": lease.campaign_id},
                "jobs": [job.id for job in lease.jobs],
            },
        )
        connection.execute(text("ALTER TABLE measurements ENABLE TRIGGER USER"))


def shares(engine: Engine, stored: Stored, **bounds: int) -> dict[str, tuple[float, float]]:
    """By device: seconds in windows and at work."""
    with engine.connect() as connection:
        found = duty.of_campaign(connection, stored.campaign_id, **bounds)
    return {one.device_uuid: (one.window_s, one.wall_s) for one in found}


def test_duty_is_the_time_in_windows_over_the_time_at_work(
    command: Command, engine: Engine, announce: Announce, submit: Submit
) -> None:
    first, _ = (announce(cpu(n)) for n in (1, 2))
    submit(Campaign.from_document(document(targets=[{"each": "cpu-test"}])))
    landed(engine, first, 6, seconds=8)
    (found,) = told(command, "status", "small")["duty"]
    assert (found["device_uuid"], found["window_s"]) == ("CPU-1", 6.0)
    assert found["share"] == pytest.approx(6 / 8)
    assert "duty (share of time inside a measurement): 75% CPU-1 on here" in said(command, "status", "small")
    lately = {one["uuid"]: one["duty_lately"] for one in told(command, "devices")}
    assert lately == {"CPU-1": pytest.approx(6 / 8), "CPU-2": None}
    assert "75%" in said(command, "devices")


def test_the_time_between_batches_counts_where_it_is_no_break(engine: Engine, device: int, small: Stored) -> None:
    landed(engine, device, 4, seconds=10, ago=20)
    landed(engine, device, 4, seconds=10, ago=0)
    assert shares(engine, small) == {"CPU-1": (8.0, pytest.approx(30))}
    landed(engine, device, 2, seconds=10, ago=-100)
    assert shares(engine, small) == {"CPU-1": (10.0, pytest.approx(40))}


def test_a_device_whose_rows_were_in_no_window_has_no_duty(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    land(engine, leased(engine, device))
    assert shares(engine, small) == {}
    assert told(command, "status", "small")["duty"] == []


def test_a_recording_has_no_duty_whatever_its_rows_say_of_another_device(
    command: Command, engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(replace(cpu(kind="recorded-cpu-test"), uuid="REC-1", backend=Backend.RECORDED))
    stored = submit(Campaign.from_document(document()))
    lease = leased(engine, device, kind="recorded-cpu-test")
    with engine.begin() as connection:
        results = [(job, row(window_s=100.0, source=Source.RECORDED)) for job in lease.jobs]
        batches.land(connection, lease, results, {})
    assert shares(engine, stored) == {}
    assert told(command, "status", "small")["duty"] == []
    assert [one["duty_lately"] for one in told(command, "devices")] == [None]


def test_of_many_rows_the_latest_tell_the_duty_and_a_batch_that_is_cut_is_left_out(
    engine: Engine, device: int, small: Stored
) -> None:
    landed(engine, device, 6, seconds=100)
    landed(engine, device, 6, seconds=0.4, ago=-0.5)
    assert shares(engine, small) == {"CPU-1": (12.0, pytest.approx(100.5))}
    assert shares(engine, small, max_rows=9) == {"CPU-1": (6.0, pytest.approx(0.4))}


def test_sentinels_are_part_of_the_duty_and_other_campaigns_are_not(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    submit(Campaign.from_document(document(name="other", owner="bob", priority=9)))
    landed(engine, device, 12, seconds=50)
    lease = leased(engine, device, 4)
    assert lease.campaign_id == small.campaign_id
    with engine.begin() as connection:
        sentinels.land(connection, lease, Scripted.SENTINEL, row(source=Source.SENTINEL, window_s=0.5))
    land(engine, lease)
    (found,) = shares(engine, small).values()
    assert found[0] == 0.5
