"""`farm compare --fill`: what a side lacks is submitted for it, under the rules that the others were measured under."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.compare import missing_measurements
from farm.compare.aggregation import CompareQuery, aggregate
from farm.db import campaigns
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity, DeviceKind, DeviceTraits
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.provenance import Provenance
from support.batch_steps import claim, form
from support.commands import Command, farm_here, refused
from support.compared import A100, CONFIGURATIONS, H200, Put, taken
from support.farm_home import Farm
from support.folders import open_folder
from support.homes import need_embedded_services
from support.samples import card, cpu, document
from support.searches import fold, land
from workers.devices.recording import write_recording

H, A = "nvidia-h200", "nvidia-a100-sxm4-80gb"
POWERED = {"power": "all", "timing": {"target_rse": 0.02}, "operands": {"distribution": "normal"}}

Submit = Callable[[Campaign], Stored]


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def tiles(name: str, device_type: str, most: int, **changes: Any) -> Campaign:
    """So many tiles of two problems on a type of card."""
    asked = {
        "name": name,
        "targets": {"type": device_type},
        "problems": {"m": [64, 128], "n": 64, "k": 32, "types": ["f32"]},
        "kernels": {"family": "tiled", "tile": f"1..{most}"},
        "measure": POWERED,
    }
    return Campaign.from_document(document(**{**asked, **changes}))


def measure(engine: Engine, device: int, device_type: str) -> None:
    """All that waits for the type."""
    while (batch_id := form(engine, 100, kind=device_type)) is not None:
        lease = claim(engine, batch_id, device)
        assert lease is not None
        land(engine, lease)
    fold(engine)


def measured(engine: Engine, submit: Submit, device: int, campaign: Campaign) -> None:
    submit(campaign)
    measure(engine, device, campaign.targets[0].value)


def filled(command: Command, *arguments: str) -> dict[str, Any]:
    done = command("compare", *arguments, "--fill", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def stored(engine: Engine, name: str) -> Campaign:
    with engine.connect() as connection:
        return Campaign.from_document(campaigns.find(connection, name)["document"])


def test_what_is_missing_is_submitted_measured_and_shared(
    engine: Engine, command: Command, announce: Callable[[DeviceIdentity], int], submit: Submit
) -> None:
    h200, a100 = announce(H200), announce(A100)
    measured(engine, submit, h200, tiles("all", H, 8))
    measured(engine, submit, a100, tiles("few", A, 3))
    before = json.loads(command("compare", H, A, "--json").stdout)
    assert (before["baseline"]["missing"], before["sides"][0]["missing"]) == (0, 10)
    shown = command("compare", H, A)
    assert "--fill submits what is missing" in shown.stderr
    found = filled(command, H, A)
    (fill,) = found["fills"]
    assert (fill["side"], fill["missing"], fill["jobs"], fill["new_jobs"]) == (A, 10, 10, 10)
    assert fill["campaign"].startswith(f"fill-{A}-")
    assert fill["targets"] == [{"type": A}]
    assert 0 < fill["estimated_seconds"][f"type:{A}"] < 60
    campaign = stored(engine, fill["campaign"])
    assert campaign.measure == MeasuringRules.model_validate(POWERED)
    assert {str(one.kernel) for one in campaign.configurations} == {f"tiled(tile={tile})" for tile in range(4, 9)}
    # The same again is the same campaign, of which nothing is new.
    (again,) = filled(command, H, A)["fills"]
    assert (again["campaign"], again["underway"], again["new_jobs"]) == (None, {fill["campaign"]: 10}, 0)
    measure(engine, a100, A)
    after = filled(command, H, A)
    assert after["fills"] == []
    assert (after["sides"][0]["overall"]["configurations"], after["sides"][0]["missing"]) == (16, 0)
    assert "nothing is submitted" in command("compare", H, A, "--fill").stdout


def test_a_fill_that_was_cancelled_is_the_same_campaign_when_it_is_asked_for_again(
    engine: Engine, command: Command, announce: Callable[[DeviceIdentity], int], submit: Submit
) -> None:
    h200, a100 = announce(H200), announce(A100)
    measured(engine, submit, h200, tiles("all", H, 4))
    measured(engine, submit, a100, tiles("few", A, 2))
    (first,) = filled(command, H, A)["fills"]
    assert command("cancel", first["campaign"]).returncode == 0
    (second,) = filled(command, H, A)["fills"]
    assert (second["digest"], second["new"], second["new_jobs"]) == (first["digest"], False, 0)
    with engine.connect() as connection:
        assert campaigns.find(connection, first["campaign"])["state"] == "active"


def test_what_was_measured_meanwhile_or_is_under_way_is_not_submitted_again(
    engine: Engine, command: Command, announce: Callable[[DeviceIdentity], int], submit: Submit, put: Put
) -> None:
    h200, _ = announce(H200), announce(A100)
    measured(engine, submit, h200, tiles("all", H, 4))
    (first,) = filled(command, H, A)["fills"]  # the A100 has no row at all
    listed = stored(engine, first["campaign"]).configurations
    put(A100, taken(), configurations=listed[:3])
    measured(engine, submit, h200, tiles("more", H, 5))
    (second,) = filled(command, H, A)["fills"]
    assert (second["missing"], second["underway"], second["jobs"]) == (7, {first["campaign"]: 5}, 2)
    assert second["campaign"] != first["campaign"]


def test_open_jobs_under_other_rules_are_no_fill(
    engine: Engine, command: Command, announce: Callable[[DeviceIdentity], int], submit: Submit
) -> None:
    h200, _ = announce(H200), announce(A100)
    measured(engine, submit, h200, tiles("all", H, 4))
    submit(tiles("others", A, 4, measure={"power": "none"}))
    (fill,) = filled(command, H, A)["fills"]
    assert (fill["underway"], fill["jobs"]) == ({}, 8)


def test_the_most_common_rules_are_taken_and_the_others_are_named(
    engine: Engine, command: Command, announce: Callable[[DeviceIdentity], int], submit: Submit
) -> None:
    h200, _ = announce(H200), announce(A100)
    measured(engine, submit, h200, tiles("many", H, 5))
    closely = {**POWERED, "timing": {"target_rse": 0.001}}
    measured(engine, submit, h200, tiles("closely", H, 3, measure=closely))
    (fill,) = filled(command, H, A)["fills"]
    assert stored(engine, fill["campaign"]).measure.timing.target_rse == 0.02
    assert fill["notes"] == [
        f"{A} is filled under the rules of many, which apply to 10 of 16 rows; the others were measured under the rules of closely."
    ]


def test_rows_of_no_campaign_are_filled_under_default_rules_with_their_operands_and_power(
    engine: Engine, command: Command, put: Put, announce: Callable[[DeviceIdentity], int]
) -> None:
    put(H200, taken(distribution="sparse"))
    announce(A100)
    (fill,) = filled(command, H, A)["fills"]
    rules = stored(engine, fill["campaign"]).measure
    assert (rules.operands.distribution, rules.power) == ("sparse", "all")
    assert rules.timing == MeasuringRules().timing
    assert "default rules" in fill["notes"][0]
    put(A100, taken(watts=None, distribution="sparse"), configurations=CONFIGURATIONS[:4])
    (back,) = [f for f in filled(command, A, f"{H},distribution=normal", "--mixed")["fills"] if f["side"] != A]
    assert back["missing"] == 4
    rules = stored(engine, back["campaign"]).measure
    assert (rules.operands.distribution, rules.power) == ("normal", "none")


def test_a_fill_goes_to_what_the_side_names(
    engine: Engine, put: Put, announce: Callable[[DeviceIdentity], int]
) -> None:
    put(H200, taken())
    announce(card(5, kind=H))
    put(card(6, kind=A), taken(), host="there", configurations=CONFIGURATIONS[:1])
    put(cpu(7), taken(), host="there", configurations=CONFIGURATIONS[:1])
    targets = {
        A: [{"type": A}],
        "GPU-5": [{"device": "GPU-5"}],
        "there": [{"host": "there"}],
        f"host=there,type={A}": [{"device": "GPU-6"}],
    }
    for side, wanted in targets.items():
        gathered = aggregate(engine, CompareQuery(groups=("GPU-1", side)), filling=True)
        (fill,) = missing_measurements.plan_fills(engine, gathered, owner="ann")
        assert fill.plan is not None
        assert [target.to_document() for target in fill.plan.campaign.targets] == wanted
        assert fill.plan.campaign.owner == "ann"
    by_type = aggregate(engine, CompareQuery(by="type"), filling=True)
    fills = [fill.summary for fill in missing_measurements.plan_fills(engine, by_type, owner="ann")]
    assert {fill.side: fill.why_not for fill in fills} == {A: None, "cpu-test": None}


def test_what_the_side_cannot_run_is_left_out_with_its_reason(command: Command, put: Put, engine: Engine) -> None:
    put(H200, taken())
    put(H200, taken(), configurations=[Configuration.parse("blas(threads=99) 64x64x64 f32")])
    small = dataclasses.replace(A100, traits=dataclasses.replace(A100.traits, shared_memory_per_block_bytes=3 * 1024))
    put(small, taken(), configurations=CONFIGURATIONS[:2])
    done = command("compare", H, A, "--fill")
    assert "cannot run 1: blas runs on cpu devices, this is a cuda device" in done.stdout
    assert "cannot run 8: tiled needs 4096 bytes of shared memory" in done.stdout
    (fill,) = [f for f in filled(command, H, A)["fills"] if f["side"] == A]
    assert (fill["missing"], fill["cannot_run"], sum(fill["underway"].values()), fill["jobs"]) == (31, 9, 22, 0)


@pytest.mark.parametrize(
    ("side", "why"),
    [
        ("GPU-2,since=2020-01-01", "not of that time"),
        ("GPU-2,until=2099-01-01", "not of that time"),
        ("GPU-2,library=1.0", "library depends on the host"),
        ("GPU-2,clocks=default", "no campaign sets clocks"),
        ("GPU-2,campaign=few", "submit that campaign again"),
        ("source=measured,distribution=odd", "names no type, host or device"),
        ("GPU-2,distribution=odd", "no campaign can request operands of the distribution 'odd'"),
        (f"{A},source=recorded", "make measured rows"),
        ("l40s,source=imported", "imported rows come from files"),
        ("l40s,distribution=normal", "no worker has announced such a device"),
    ],
)
def test_a_side_that_cannot_be_filled_says_why(
    engine: Engine,
    command: Command,
    put: Put,
    submit: Submit,
    announce: Callable[[DeviceIdentity], int],
    side: str,
    why: str,
) -> None:
    put(H200, taken(clock_policy="default", distribution="normal"))
    a100 = announce(A100)
    measured(engine, submit, a100, tiles("few", A, 1))
    put(A100, taken(clock_policy="default", distribution="normal"), configurations=CONFIGURATIONS[:2])
    put(A100, taken(distribution="odd"), configurations=CONFIGURATIONS[:1])
    put(A100, taken(source="recorded", distribution="normal"), configurations=CONFIGURATIONS[:1])
    l40s = dataclasses.replace(card(3, kind="l40s"), uuid="IMP-3")
    put(l40s, taken(source="imported", distribution="normal"), configurations=CONFIGURATIONS[:2])
    (fill,) = [f for f in filled(command, H, side, "--mixed")["fills"] if f["side"] == side]
    assert why in fill["why_not"]
    assert (fill["campaign"], fill["jobs"], fill["missing"] > 0) == (None, 0, True)
    with engine.connect() as connection:
        names = connection.execute(
            text("SELECT name FROM campaigns WHERE document->'targets' @> '[{\"device\": \"GPU-2\"}]'")
        )
        assert list(names.scalars()) == []


def test_too_much_for_a_list_is_refused(
    command: Command, put: Put, announce: Callable[[DeviceIdentity], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_measurements, "MAX_CONFIGURATIONS", 31)
    put(H200, taken())
    announce(A100)
    refused(command("compare", H, A, "--fill"), 2, "lacks 32 configurations", "at most 31")


# --- on a farm -------------------------------------------------------------------------------------------


@pytest.fixture
def farm() -> Iterator[Farm]:
    need_embedded_services()
    with open_folder() as folder:
        yield Farm(folder, devices="recorded:quick.parquet,recorded:slow.parquet")


@pytest.mark.long
def test_a_farm_at_work_measures_what_was_missing(farm: Farm) -> None:
    """Two recorded devices, of which one lacks half; filled, both have all."""
    configurations = [Configuration.parse(f"blas(threads=1) {m}x64x64 f32") for m in range(16, 16 * 13, 16)]
    for name, factor in (("quick", 1.0), ("slow", 3.0)):
        rows = [
            {"configuration": c, "runtime_ms": factor * c.problem.shape.m, "runtime_rse": 0.001} for c in configurations
        ]
        traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=2)
        origin = Provenance(device_type=name, device_name=name, traits=traits, provenance="made up")
        write_recording(farm.folder / f"{name}.parquet", rows, origin)
    listed = {
        name: [one.canonical for one in some]
        for name, some in (("quick", configurations), ("slow", configurations[:6]))
    }
    for name, lines in listed.items():
        asked = {"name": name, "targets": {"type": f"recorded-{name}"}, "configurations": lines}
        (farm.folder / f"{name}.yaml").write_text(json.dumps(asked))
    farm("up")
    try:
        for name in listed:
            farm("submit", f"{name}.yaml", "--allow-missing-targets")
            farm("watch", name)
        sides = ("recorded-quick", "recorded-slow", "--any-source")
        found = farm.json("compare", *sides, "--fill")
        (fill,) = found["fills"]
        assert (fill["side"], fill["jobs"], found["sides"][0]["overall"]["configurations"]) == ("recorded-slow", 6, 6)
        farm("watch", fill["campaign"])
        after = farm.json("compare", *sides)
        assert after["sides"][0]["overall"]["configurations"] == 12
        assert after["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(3)
        assert (after["baseline"]["missing"], after["sides"][0]["missing"]) == (0, 0)
    finally:
        farm("down")
