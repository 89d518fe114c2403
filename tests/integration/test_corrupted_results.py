"""Corrupted results on real Postgres: the fleet's majority, `farm health`, and the coordinator's quarantine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.compare.health import HealthQuery
from farm.compare.health.fleet_query import fleet_health
from farm.coordinator.quarantine import CorruptionWatch
from farm.coordinator.steps import PartlyFailed
from farm.corruption import Corruption
from farm.db import batches, corrupted_results, devices
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind
from farm.devices import DeviceIdentity
from farm.settings import Settings
from support.batch_steps import land, leased
from support.commands import Command, farm_here
from support.samples import card, cpu, document, landed, row

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]

ONE, TWO, THREE = (f"tiled(tile=16) {m}x64x64 f32" for m in (64, 128, 256))
RIGHT, WRONG = "00" * 8, "ff" * 8


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def fleet(announce: Announce) -> list[int]:
    """Four cards of a type; their ids."""
    return [announce(card(number)) for number in range(4)]


@pytest.fixture
def put(engine: Engine) -> Callable[..., None]:
    """Lands a row with a digest for each device, of each configuration."""

    def landed_rows(digests: Mapping[int, str], *configurations: str, **changes: object) -> None:
        for device_id, digest in digests.items():
            rows = [
                (one, row(result_digest=digest, **{"kernel_hash": "k", **changes})) for one in configurations or (ONE,)
            ]
            landed(engine, device_id, rows)

    return landed_rows


def corrupting(engine: Engine, *, days: float = 7, **more: bool) -> dict[int, Corruption]:
    with engine.connect() as connection:
        return corrupted_results.corrupting(connection, since=datetime.now(UTC) - timedelta(days=days), **more)


def state_of(engine: Engine, device_id: int) -> tuple[str, str | None]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT state, state_reason FROM devices WHERE id = :id"), {"id": device_id}
        ).one()
    return found.state, found.state_reason


# --- the majority --------------------------------------------------------------------------------------


def test_the_card_that_differs_from_the_majority_is_found(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    put(dict.fromkeys(fleet, RIGHT), ONE, TWO)
    assert corrupting(engine) == {}
    put({fleet[2]: WRONG}, ONE)
    put({fleet[2]: WRONG}, ONE)
    (found,) = corrupting(engine).items()
    assert found[0] == fleet[2]
    assert [one.rows for one in found[1].differing] == [2]
    assert len(found[1].configurations) == 1


def test_a_card_now_and_then_wrong_is_found_by_one_other(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT})
    put({fleet[1]: WRONG})
    assert set(corrupting(engine)) == {fleet[1]}


def test_a_card_whose_bits_change_at_every_launch_is_found(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    look = watch(engine, after=1)
    assert look() == []
    put({fleet[0]: RIGHT, fleet[1]: RIGHT})
    landed(engine, fleet[2], [(ONE, row(kernel_hash="k", deterministic=False))])
    landed(engine, fleet[3], [(ONE, row(kernel_hash="k"))])
    assert set(corrupting(engine)) == {fleet[2]}
    assert look() == [fleet[2]]


def test_two_cards_that_disagree_are_both_told_and_none_accused(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: WRONG}, ONE, TWO)
    found = corrupting(engine)
    assert {device: set().union(*one.disagreeing.values()) for device, one in found.items()} == {
        fleet[0]: {fleet[1]}, fleet[1]: {fleet[0]},
    }  # fmt: skip
    assert not any(one.configurations for one in found.values())


@pytest.mark.parametrize(
    "other",
    [
        {"distribution": "zeros"},
        {"seed": 1},
        {"kernel_hash": "another"},
        {"kernel_hash": None},
        {"environment": {"library": "1.0", "blas": "OpenBLAS 0.3.30"}},
        {"environment": {"library": "1.0", "nvrtc": "13.0"}},
        {"environment": {"library": "1.0", "operands": 2}},
        {"source": "recorded"},
        {"source": "imported"},
    ],
)
def test_other_work_has_other_bits(
    engine: Engine, fleet: list[int], put: Callable[..., None], other: dict[str, object]
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT, fleet[2]: RIGHT})
    put({fleet[3]: WRONG}, **other)
    assert corrupting(engine) == {}


def test_another_driver_clock_or_protocol_has_the_same_bits(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT}, kernel_hash=None)
    other = {"environment": {"driver": "580.159"}, "clock_policy": "locked:1200", "protocol": "do-bench"}
    put({fleet[3]: WRONG}, kernel_hash=None, source="sentinel", **other)
    assert set(corrupting(engine)) == {fleet[3]}


def test_other_types_and_rows_without_a_digest_do_not_vote(
    engine: Engine, announce: Announce, fleet: list[int], put: Callable[..., None]
) -> None:
    other = announce(card(9, kind="nvidia-other"))
    put({fleet[0]: RIGHT, fleet[1]: RIGHT, other: WRONG})
    landed(engine, fleet[2], [(ONE, row(kernel_hash="k"))])
    assert corrupting(engine) == {}


def test_recorded_rows_are_compared_where_that_is_asked_for(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT, fleet[2]: WRONG}, source="imported")
    assert corrupting(engine) == {}
    assert set(corrupting(engine, any_source=True)) == {fleet[2]}


def test_what_is_older_than_the_window_is_left_out(engine: Engine, fleet: list[int], put: Callable[..., None]) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT, fleet[2]: WRONG})
    assert set(corrupting(engine)) == {fleet[2]}
    assert corrupting(engine, days=-1) == {}


# --- farm health ---------------------------------------------------------------------------------------


def test_farm_health_names_the_card_and_the_rows_that_may_be_affected(
    engine: Engine, fleet: list[int], put: Callable[..., None], command: Command
) -> None:
    put(dict.fromkeys(fleet[:3], RIGHT), ONE, TWO)
    put({fleet[3]: WRONG}, ONE)
    put({fleet[3]: RIGHT}, TWO, THREE)
    done = command("health")
    assert done.returncode == 7
    assert "1 of 4 devices need a look: GPU-3 on here (corrupting)" in done.stderr
    told = " ".join(done.stdout.split())
    assert (
        "corrupting: it corrupted results of 1 configuration: 1 row has other bits than the same work on most" in told
    )
    document = json.loads(command("health", "--json").stdout)
    (bad,) = [one for one in document["devices"] if one["verdict"] == "corrupting"]
    advice = bad["findings"][0]["advice"]
    assert "3 rows of it since" in advice
    shown = re.search(r"farm (results .*) shows them", advice)
    assert shown is not None
    rows = json.loads(command(*shlex.split(shown[1]), "--format", "json").stdout)
    assert {one["device_uuid"] for one in rows} == {"GPU-3"}
    assert len(rows) == 3


def test_farm_health_tells_that_two_cards_disagree(engine: Engine, fleet: list[int], put: Callable[..., None]) -> None:
    put({fleet[0]: RIGHT, fleet[1]: WRONG})
    found = {one.uuid: one for one in fleet_health(engine, HealthQuery()).devices}
    assert [found[f"GPU-{number}"].verdict for number in range(4)] == ["differs", "differs", "unknown", "unknown"]
    assert "2 devices disagree about the bits of 1 configuration: it and GPU-1" in found["GPU-0"].findings[0].evidence


# --- quarantine ----------------------------------------------------------------------------------------


def watch(engine: Engine, after: int = 2) -> Callable[[], list[int]]:
    """Looks for corrupting devices, each time a minute later."""
    now = [0.0]
    watched = CorruptionWatch(engine, Settings(quarantine_after_corrupted=after), clock=lambda: now[0])

    def look() -> list[int]:
        now[0] += 60
        return watched.quarantine()

    return look


def test_a_card_that_differs_on_two_configurations_is_quarantined(
    engine: Engine, fleet: list[int], put: Callable[..., None]
) -> None:
    look = watch(engine)
    put(dict.fromkeys(fleet[:3], RIGHT), ONE, TWO)
    put({fleet[3]: WRONG}, ONE)
    put({fleet[3]: WRONG}, ONE)
    assert look() == []  # one configuration, however often
    put({fleet[3]: WRONG}, TWO)
    assert look() == [fleet[3]]
    assert state_of(engine, fleet[3]) == (
        "quarantined",
        "it corrupted results of 2 configurations: 3 rows have other bits than the same work on most devices of its type",
    )
    assert look() == []
    (finding,) = [
        one
        for device in fleet_health(engine, HealthQuery()).devices
        for one in device.findings
        if one.verdict == "corrupting"
    ]
    assert "drain" not in finding.advice
    with engine.begin() as connection:  # what it corrupted before it was resumed is forgiven
        devices.set_state(connection, fleet[3], DeviceState.ACTIVE, None)
    put(dict.fromkeys(fleet[:3], RIGHT), THREE)
    put({fleet[3]: WRONG}, THREE)
    assert look() == []
    assert watch(engine, after=1)() == [fleet[3]]


def test_results_that_changed_between_launches_count_together_with_differing_rows(
    engine: Engine, announce: Announce, submit: Submit, put: Callable[..., None]
) -> None:
    bad, *good = [announce(cpu(number)) for number in (1, 2, 3)]
    submit(Campaign.from_document(document()))
    lease = leased(engine, bad, 3)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.CORRUPTED, "bit 3 of element (0, 7).")})
    look = watch(engine)
    assert look() == []
    put({**dict.fromkeys(good, RIGHT), bad: WRONG}, "blas(threads=4) 64x64x64 f32")
    assert look() == [bad]
    state, reason = state_of(engine, bad)
    assert state == "quarantined"
    assert reason is not None
    assert (
        "the result of 1 job changed between launches, the last: bit 3 of element (0, 7); 1 row has other bits"
        in reason
    )
    told = {one.uuid: one.verdict for one in fleet_health(engine, HealthQuery(silent_after_s=3600)).devices}
    assert told == {"CPU-1": "quarantined", "CPU-2": "unknown", "CPU-3": "unknown"}


def test_a_job_whose_result_changed_on_two_devices_is_at_fault_itself(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    one, other = announce(cpu(1)), announce(cpu(2))
    submit(Campaign.from_document(document()))
    for device_id in (one, other):
        lease = leased(engine, device_id, 2)
        failures = {job.id: Failure(FailureKind.CORRUPTED, "one bit") for job in lease.jobs}
        with engine.begin() as connection:
            batches.land(connection, lease, [], failures)
            connection.execute(text("UPDATE returned_jobs SET not_before = NULL"))
    with engine.connect() as connection:
        shared = connection.execute(text("SELECT count(*) FROM failures GROUP BY job_id")).scalars().all()
    assert shared == [2, 2]
    assert corrupting(engine) == {}
    assert watch(engine)() == []


def test_all_digests_are_compared_only_after_new_rows_that_differ(
    engine: Engine, fleet: list[int], put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = corrupted_results.active_corrupting
    monkeypatch.setattr(
        corrupted_results, "active_corrupting", lambda connection: compared.append(0) or real(connection)
    )
    look = watch(engine)
    look()
    assert len(compared) == 1  # once at the start
    put(dict.fromkeys(fleet, RIGHT), ONE, TWO)
    put({fleet[0]: WRONG}, ONE, seed=1)
    look()
    assert len(compared) == 1
    put({fleet[1]: WRONG}, ONE)
    look()
    assert len(compared) == 2
    look()  # a second time, as a row may become visible late
    look()
    look()
    assert len(compared) == 3


def test_a_quarantine_that_fails_is_tried_again(
    engine: Engine, fleet: list[int], put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put({fleet[0]: RIGHT, fleet[1]: RIGHT, fleet[2]: WRONG}, ONE, TWO)
    look = watch(engine)
    with monkeypatch.context() as broken:
        broken.setattr(devices, "set_state", lambda *_: 1 / 0)
        with pytest.raises(PartlyFailed):
            look()
    assert look() == [fleet[2]]


def test_comparisons_take_a_small_share_of_the_coordinators_time(
    engine: Engine, fleet: list[int], put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, compared = [0.0], []

    def slowly(connection: object) -> dict[int, Corruption]:
        compared.append(now[0])
        now[0] += 2
        return {}

    monkeypatch.setattr(corrupted_results, "active_corrupting", slowly)
    watched = CorruptionWatch(engine, Settings(), clock=lambda: now[0])
    for number in range(30):
        put({fleet[number % 2]: f"{number:016x}"})
        watched.quarantine()
        now[0] += 10
    assert [round(at) for at in compared] == [0, 102, 204]
