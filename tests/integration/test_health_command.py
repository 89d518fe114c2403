"""`farm health` on real Postgres: what is planted is found and ends with exit code 7, and what is well ends with 0."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign
from farm.compare.health import FleetReport, HealthQuery
from farm.compare.health.fleet_query import fleet_health
from farm.db import batches, devices
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind
from farm.devices import DeviceIdentity
from support.batch_steps import leased
from support.commands import Command, farm_here, refused
from support.samples import card, cpu, document, landed, row
from support.searches import gpu, measure, wanted

DATASETS = Path(farm.__file__).parent.parent / "examples" / "datasets"
FOUR_CARDS = DATASETS / "nvidia-h200-compare-cards.parquet"

CONFIGURATIONS = [
    f"tiled(tile={tile}) {m}x{n}x256 f32" for m in (64, 128, 256, 512) for n in (64, 128, 256) for tile in (8, 16)
]

Put = Callable[..., None]


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def fleet(engine: Engine) -> list[int]:
    """Four H200s on two hosts, none of which has a worker; their ids."""
    with engine.begin() as connection:
        found = [
            devices.register(
                connection, host=f"gpu0{number // 2}", host_facts={}, device=card(number, kind="nvidia-h200")
            )
            for number in range(4)
        ]
        for device_id in found:
            devices.leave(connection, device_id)
    return found


@pytest.fixture
def put(engine: Engine) -> Put:
    """Lands a row of each configuration for a device, so many days ago."""

    def put_rows(
        device_id: int,
        *,
        slower: float = 1.0,
        days_ago: float = 1,
        configurations: Sequence[str] = CONFIGURATIONS,
        **changes: Any,
    ) -> None:
        rng = np.random.default_rng([device_id, int(days_ago * 24)])
        common = {
            "power_w": 300.0,
            "power_limit_w": 700.0,
            "temperature_c": 55,
            "throttle_reasons": "none",
            "clock_policy": "default",
        }
        rows = [
            (written, row((1 + number) * 0.1 * slower * math.exp(rng.normal(0, 0.002)), **{**common, **changes}))
            for number, written in enumerate(configurations)
        ]
        # The table is append-only: when a row was measured is its default.
        for default in (f"clock_timestamp() - make_interval(mins => {round(days_ago * 24 * 60)})", "clock_timestamp()"):
            with engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE measurements ALTER measured_at SET DEFAULT {default}"))
            landed(engine, device_id, rows)
            rows = []

    return put_rows


def verdicts(found: FleetReport) -> dict[str, str]:
    return {one.uuid: one.verdict.value for one in found.devices}


HEALTHY = {f"GPU-{number}": "healthy" for number in range(4)}


def test_a_fleet_that_is_well_ends_with_0(fleet: list[int], put: Put, command: Command) -> None:
    for device_id in fleet:
        put(device_id)
    done = command("health")
    assert done.returncode == 0, done.stderr
    assert "4 healthy, 0 not, 0 unknown" in done.stdout
    found = json.loads(command("health", "--json").stdout)
    assert found["unwell"] == 0
    assert {one["uuid"]: one["verdict"] for one in found["devices"]} == HEALTHY
    assert found["devices"][0]["time"]["shapes"] == 12


def test_a_slow_card_is_named_with_evidence_time_and_advice(fleet: list[int], put: Put, command: Command) -> None:
    for days in (20, 3, 1):
        for device_id in fleet:
            put(device_id, days_ago=days, slower=1.05 if device_id == fleet[2] and days < 10 else 1.0)
    done = command("health")
    assert done.returncode == 7
    assert "1 of 4 devices need a look: GPU-2 on gpu01 (slow)" in done.stderr
    assert "Traceback" not in done.stderr
    said = " ".join(done.stdout.split())
    assert "slow: takes 1.05" in said
    assert "as the median of 3 peers on 12 shapes" in said
    three_days_ago = datetime.now().astimezone() - timedelta(days=3)
    assert f"since {three_days_ago.astimezone(tz=None):%Y-%m}" in said
    assert "drifting: takes 1.05" in said
    assert "farm devices drain GPU-2" in said
    found = json.loads(command("health", "--json").stdout)
    (slow,) = [one for one in found["devices"] if one["verdict"] != "healthy"]
    (finding,) = [one for one in slow["findings"] if one["verdict"] == "slow"]
    assert finding["since"]["at"][:10] == f"{datetime.now().astimezone() - timedelta(days=3):%Y-%m-%d}"
    assert slow["past"]["value"] == pytest.approx(1.05, abs=0.005)
    assert command("health", "--tolerance", "8").returncode == 0
    assert command("health", "--host", "gpu00").returncode == 0
    assert command("health", "--device", "GPU-2").returncode == 7


def test_a_new_driver_that_is_slower_is_a_regression(engine: Engine, fleet: list[int], put: Put) -> None:
    for device_id in fleet:
        put(device_id, days_ago=12, environment={"driver": "570.86"})
        put(device_id, days_ago=1, slower=1.06, environment={"driver": "580.159"})
    found = fleet_health(engine, HealthQuery())
    assert set(verdicts(found).values()) == {"regressed"}
    assert "since driver 570.86 → 580.159" in found.devices[0].findings[0].evidence
    assert fleet_health(engine, HealthQuery(tolerance=0.1)).unwell == 0


def test_what_does_not_compare_is_left_out(engine: Engine, fleet: list[int], put: Put) -> None:
    for device_id in fleet:
        put(device_id)
    put(fleet[1], days_ago=0.5, slower=2.0, distribution="zeros")
    found = fleet_health(engine, HealthQuery())
    assert verdicts(found) == HEALTHY
    assert "24 configurations are left out: its peers have them only at other clocks" in found.devices[1].notes[0]


def test_short_rounds_and_sentinels_are_no_results(
    engine: Engine,
    fleet: list[int],
    put: Put,
    announce: Callable[[DeviceIdentity], int],
    submit: Callable[[Campaign], Stored],
) -> None:
    for device_id in fleet:
        put(device_id)
        put(device_id, days_ago=0.5, slower=1.0 + device_id, source="sentinel", configurations=CONFIGURATIONS[:1])
    assert verdicts(fleet_health(engine, HealthQuery(device_type="nvidia-h200"))) == HEALTHY
    searching = announce(gpu(9))
    submit(wanted())
    measure(engine, searching)
    with engine.connect() as connection:
        taken = connection.execute(text("SELECT count(*) FROM measurements WHERE job_id IS NOT NULL")).scalar_one()
    assert taken == 32
    (one,) = fleet_health(engine, HealthQuery(device_type="nvidia-test")).devices
    assert one.rows == 0


def test_conditions_come_from_the_rows_and_the_device(engine: Engine, fleet: list[int], put: Put) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE devices SET facts = facts || CAST(:facts AS jsonb) WHERE id = :id"),
            {"facts": json.dumps({"slowdown_c": 90.0, "default_power_limit_w": 700.0}), "id": fleet[3]},
        )
    put(fleet[0])
    put(fleet[1], power_limit_w=500.0)
    put(fleet[2], throttle_reasons="sw_power_cap,hw_thermal")
    put(fleet[3], temperature_c=89)
    assert list(verdicts(fleet_health(engine, HealthQuery())).values()) == [
        "healthy",
        "power-capped",
        "throttled",
        "hot",
    ]


def test_rows_that_say_whether_they_are_power_limited_are_read(engine: Engine, fleet: list[int], put: Put) -> None:
    for number, device_id in enumerate(fleet):
        put(device_id, throttle_reasons="sw_power_cap", power_limited=number == 1)
    found = fleet_health(engine, HealthQuery())
    assert list(verdicts(found).values()) == ["healthy", "throttled", "healthy", "healthy"]
    assert "(by power_limited)" in found.devices[1].findings[0].evidence


def test_states_and_failures_are_read(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    good, bad = announce(cpu(1)), announce(cpu(2))
    submit(Campaign.from_document(document()))
    lease = leased(engine, bad)
    failures = {job.id: Failure(kind=FailureKind.FAILED, message="it fell over") for job in lease.jobs}
    with engine.begin() as connection:
        batches.land(connection, lease, [], failures)
    again = leased(engine, good)
    with engine.begin() as connection:
        batches.land(connection, again, [(job, row()) for job in again.jobs], {})
    found = fleet_health(engine, HealthQuery(silent_after_s=3600))
    assert verdicts(found) == {"CPU-1": "unknown", "CPU-2": "failing"}
    assert "12 jobs failed on it that other devices then measured" in found.devices[1].findings[0].evidence
    assert "it fell over" in found.devices[1].findings[0].evidence
    with engine.begin() as connection:
        devices.set_state(connection, bad, DeviceState.QUARANTINED, "tired")
        connection.execute(
            text("UPDATE devices SET last_seen_at = now() - interval '2 hours' WHERE id = :id"), {"id": good}
        )
    assert verdicts(fleet_health(engine, HealthQuery(silent_after_s=3600))) == {
        "CPU-1": "silent",
        "CPU-2": "quarantined",
    }
    with engine.begin() as connection:
        devices.leave(connection, good)
    assert verdicts(fleet_health(engine, HealthQuery()))["CPU-1"] == "unknown"


def planted(folder: Path, factor: float) -> Path:
    """The four H200s, with one that is slower."""
    table = pq.read_table(FOUR_CARDS)
    slow = [uuid.startswith("GPU-8cf5565c") for uuid in table["device_uuid"].to_pylist()]
    for name in ("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms", "runtime_settled_ms"):
        values = [
            None if value is None else value * (factor if one else 1.0)
            for value, one in zip(table[name].to_pylist(), slow, strict=True)
        ]
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    path = folder / "planted.parquet"
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_four_real_cards_are_well_and_a_planted_slow_one_is_named(
    engine: Engine, command: Command, tmp_path: Path, factor: float
) -> None:
    path = FOUR_CARDS if factor == 1 else planted(tmp_path, factor)
    assert command("import", "dataset", str(path)).returncode == 0
    assert "No device matches." in command("health").stdout
    done = command("health", "--any-source", "--since", "2026-11-22", "--json")
    found = {one["uuid"][-36:][:8]: one for one in json.loads(done.stdout)["devices"]}
    expected = "healthy" if factor == 1 else "slow"
    assert {name: one["verdict"] for name, one in found.items()} == {
        "5ac55372": "healthy", "8cf5565c": expected, "c10c9d0d": "healthy", "f168d49b": "healthy",
    }  # fmt: skip
    assert found["8cf5565c"]["time"]["value"] == pytest.approx(factor, abs=0.003)
    assert done.returncode == (0 if factor == 1 else 7)


def test_what_the_farm_does_not_know_is_told(engine: Engine, fleet: list[int], command: Command) -> None:
    refused(command("health", "--type", "nvidia-b200"), 4, "nvidia-b200", "nvidia-h200")
    refused(command("health", "--device", "GPU-9"), 4, "GPU-9")
    refused(command("health", "--since", "2100-01-01"), 2, "in the future")
    refused(command("health", "--since", "yesterday"), 2, "yesterday")
    assert command("health").returncode == 0
    assert "0 healthy, 0 not, 4 unknown" in command("health").stdout
