"""`farm compare` with rows of both times and of several protocols: a time that all rows have is compared, or nothing is."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from farm.compare.aggregation import CompareQuery
from farm.compare.comparison import Comparison, compare
from farm.compare.statistics import PairVerdict
from farm.devices import DeviceIdentity
from farm.errors import NotComparable, SideWithoutRows
from support.commands import Command, farm_here, refused
from support.compared import A100, CONFIGURATIONS, H200, Put
from support.samples import card, row

H, A = "nvidia-h200", "nvidia-a100-sxm4-80gb"
LIMITED = {"runtime_burst_ms": 0.85, "runtime_burst_rse": 0.002, "runtime_settled_ms": 1.0, "power_limited": True}
"""A row of the protocol farm whose kernel is power-limited: 1 ms settled, 0.85 ms in a burst."""


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def asked(engine: Engine, *sides: str, **options: Any) -> Comparison:
    return compare(engine, CompareQuery(groups=sides, **options))


def ratio(found: Comparison) -> float:
    overall = found.groups[0].overall
    assert overall is not None
    return overall.time.ratio


def test_rows_of_one_protocol_are_compared_by_its_own_time_and_burst_is_shown_where_it_differs(
    engine: Engine, command: Command, put: Put
) -> None:
    put(H200, lambda _: row(1.0, power_w=700.0, **LIMITED))
    put(A100, lambda _: row(2.0, power_w=400.0, runtime_burst_ms=1.99, runtime_settled_ms=2.0))
    found = asked(engine, H, A)
    assert (found.time.time, found.time.common, found.notes) == ("settled", False, ())
    assert ratio(found) == pytest.approx(2)
    overall = found.groups[0].overall
    assert overall is not None
    assert overall.burst is not None
    assert overall.burst.ratio == pytest.approx(1.99 / 0.85)
    shown = command("compare", H, A, "--top", "1").stdout
    for words in ("burst 95%", "2.3412", "A burst ms", "0.85"):
        assert words in shown, words
    assert "B burst ms" not in shown  # 1.99 and 2 differ by less than 2%


def test_burst_times_that_hardly_differ_are_not_shown(engine: Engine, command: Command, put: Put) -> None:
    put(H200, lambda _: row(1.0, runtime_burst_ms=0.99, runtime_settled_ms=1.0))
    put(A100, lambda _: row(2.0, runtime_burst_ms=2.0, runtime_settled_ms=2.0))
    overall = asked(engine, H, A).groups[0].overall
    assert overall is not None
    assert overall.burst is None
    assert "burst" not in command("compare", H, A, "--top", "1").stdout


def test_the_burst_time_is_compared_where_it_is_asked_for(engine: Engine, put: Put) -> None:
    put(H200, lambda _: row(1.0, power_w=700.0, **LIMITED))
    put(A100, lambda _: row(2.0, power_w=400.0, runtime_burst_ms=1.7, runtime_burst_rse=0.6))
    found = asked(engine, H, A, time="burst")
    assert ratio(found) == pytest.approx(2)
    pairs = found.measured_pairs[A]
    assert pairs.baseline.runtime_ms == pytest.approx([0.85] * 32)
    assert pairs.baseline.runtime_rse == pytest.approx([0.002] * 32)
    # Energy is that of the settled time: 700 W x 1 ms, and 400 W x 2 ms, as no other settled time is known.
    assert pairs.baseline.energy_mj == pytest.approx([700.0] * 32)
    assert pairs.side.energy_mj == pytest.approx([800.0] * 32)
    overall = found.groups[0].overall
    assert overall is not None
    assert overall.burst is None  # it is the compared time itself
    # A factor of 2 with a standard error of 60%: the scatter is that of the burst times.
    assert set(pairs.verdict.tolist()) == {PairVerdict.UNSURE}
    assert set(asked(engine, H, A).measured_pairs[A].verdict.tolist()) == {PairVerdict.SLOWER}


def test_a_protocol_of_bursts_is_compared_with_the_burst_times_of_farm(
    engine: Engine, command: Command, put: Put
) -> None:
    """By hand: settled 1 ms against a burst of 0.9 ms would say 0.9; burst 0.85 against 0.9 ms is 1.0588."""
    put(H200, lambda _: row(1.0, **LIMITED))
    put(A100, lambda _: row(0.9, protocol="aiconfigurator"))
    found = asked(engine, H, A)
    assert (found.time.time, found.time.common) == ("burst", True)
    assert ratio(found) == pytest.approx(0.9 / 0.85)
    note = f"Protocols differ, and burst times are compared: {H} has farm (32 rows); {A} has aiconfigurator (32 rows)."
    assert found.notes == (note,)
    shown = command("compare", H, A)
    assert note in " ".join(shown.stdout.split())
    assert "burst time" in shown.stdout
    answer = json.loads(command("compare", H, A, "--json").stdout)
    assert (answer["time"], answer["common_time"], answer["notes"]) == ("burst", True, [note])
    assert answer["baseline"]["protocols"] == {"farm": 32}
    assert answer["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(0.9 / 0.85)


def test_settled_times_are_compared_with_those_of_fixed_power(engine: Engine, put: Put) -> None:
    put(H200, lambda _: row(1.0, **LIMITED))
    put(A100, lambda _: row(1.02, protocol="fixed-power"))
    found = asked(engine, H, A)
    assert (found.time.time, found.time.common) == ("settled", True)
    assert ratio(found) == pytest.approx(1.02)


def test_rows_without_the_compared_time_are_left_out_and_counted(engine: Engine, put: Put) -> None:
    put(H200, lambda _: row(1.0, **LIMITED), configurations=CONFIGURATIONS[:20])
    put(H200, lambda _: row(5.0), configurations=CONFIGURATIONS[20:])
    put(A100, lambda _: row(0.9, protocol="aiconfigurator"))
    found = asked(engine, H, A)
    assert found.groups[0].overall is not None
    assert found.groups[0].overall.configurations == 20
    assert f"12 rows of {H} have no burst time and are left out." in found.notes
    assert (found.baseline.rows, found.baseline.missing) == (20, 12)


@pytest.mark.parametrize(
    ("baseline", "side"),
    [
        ({}, {"protocol": "aiconfigurator"}),  # no burst time
        (LIMITED, {"protocol": "do-bench"}),
        (LIMITED, {"protocol": "unknown"}),
        ({"protocol": "fixed-power"}, {"protocol": "aiconfigurator"}),
    ],
)
def test_protocols_without_a_time_in_common_are_refused_unless_mixed(
    engine: Engine, put: Put, baseline: dict[str, Any], side: dict[str, Any]
) -> None:
    put(H200, lambda _: row(1.0, **baseline))
    put(A100, lambda _: row(0.9, **side))
    first = baseline.get("protocol", "farm")
    with pytest.raises(NotComparable, match="no burst or settled time in common") as error:
        asked(engine, H, A)
    said = str(error.value)
    assert f"{H} has {first} (32 rows); {A} has {side['protocol']} (32 rows)" in said
    assert f"This works: `farm compare {H} {A} --any-source --mixed`." in said
    mixed = asked(engine, H, A, mixed=True)
    assert ratio(mixed) == pytest.approx(0.9)
    assert mixed.notes[0].startswith("MIXED protocol: ")


def test_a_group_of_two_protocols_is_narrowed_to_one(command: Command, put: Put) -> None:
    put(H200, lambda _: row(1.0, protocol="server"))
    put(H200, lambda _: row(1.0, **LIMITED))
    put(A100, lambda _: row(2.0, **LIMITED))
    refused(command("compare", H, A), 2, "Protocol differs", "farm (32 rows), server (32 rows)", "protocol=farm")
    done = command("compare", f"{H},protocol=farm", A, "--json")
    assert json.loads(done.stdout)["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(2)


def test_protocols_of_one_card_are_groups_of_their_own(engine: Engine, put: Put) -> None:
    put(H200, lambda _: row(1.0, **LIMITED))
    put(H200, lambda _: row(0.8, protocol="aiconfigurator"))
    found = asked(engine, by="protocol")
    assert (found.baseline.name, found.groups[0].name) == ("aiconfigurator", "farm")
    assert (found.time.time, ratio(found)) == ("burst", pytest.approx(0.85 / 0.8))
    put(H200, lambda _: row(1.1, protocol="do-bench"))
    with pytest.raises(NotComparable):
        asked(engine, by="protocol")
    mixed = asked(engine, by="protocol", mixed=True)
    times = [one.overall.time.ratio for one in mixed.groups if one.overall is not None]
    assert times == pytest.approx([1.1 / 0.8, 1 / 0.8])


def test_a_time_that_a_group_lacks_is_one_message(engine: Engine, command: Command, put: Put) -> None:
    put(H200, lambda _: row(1.0, **LIMITED))
    put(A100, lambda _: row(2.0))
    with pytest.raises(SideWithoutRows, match=f"{A} has no rows to compare: no row has a burst time"):
        asked(engine, H, A, time="burst")
    refused(command("compare", H, A, "--time", "fastest"), 2, "burst", "settled")


def test_a_csv_has_both_times(command: Command, put: Put, tmp_path: Path) -> None:
    put(H200, lambda _: row(1.0, **LIMITED))
    put(A100, lambda _: row(2.0))
    file = tmp_path / "pairs.csv"
    assert command("compare", H, A, "--output", str(file)).returncode == 0
    for line in csv.DictReader(file.read_text().splitlines()):
        assert float(line["baseline_runtime_burst_ms"]) == pytest.approx(0.85)
        assert line["runtime_burst_ms"] == ""


def test_health_does_not_compare_rows_of_different_protocols(command: Command, put: Put) -> None:
    """A card that was measured by bursts only is not faster than its peers."""
    for number in range(1, 5):
        put(card(number, kind=H), lambda _: row(1.0, **LIMITED), host=f"host{number}")
    put(card(5, kind=H), lambda _: row(1.4, protocol="server"), host="host5")
    found = json.loads(command("health", "--json").stdout)
    assert {one["uuid"]: one["verdict"] for one in found["devices"]}["GPU-5"] != "slow"


# --- campaigns -------------------------------------------------------------------------------------------


def test_a_campaign_names_its_protocol_where_it_is_not_the_usual_one(
    command: Command, tmp_path: Path, announce: Callable[[DeviceIdentity], int]
) -> None:
    announce(H200)
    text = "name: {}\nowner: ann\ntargets: {{type: nvidia-h200}}\nproblems: {{shapes: 64x64x64, types: f32}}\n"
    text += "kernels: {{family: tiled, tile: 16}}\nmeasure: {{protocol: {}}}\n"
    for name in ("farm", "fixed-power"):
        (tmp_path / f"{name}.yaml").write_text(text.format(name, name))
        assert command("submit", f"{name}.yaml").returncode == 0
    said = "fixed-power: the settled time after 3 s of warm-up, the mean of at least 1,000 launches"
    planned = command("submit", "fixed-power.yaml", "--dry-run").stdout
    assert f"Protocol {said}." in " ".join(planned.split())
    assert "At most 5 s" in planned
    assert json.loads(command("submit", "fixed-power.yaml", "--dry-run", "--json").stdout)["protocol"] == "fixed-power"
    assert f"protocol {said}" in " ".join(command("status", "fixed-power").stdout.split())
    assert "rotocol" not in command("submit", "farm.yaml", "--dry-run").stdout
    assert "rotocol" not in command("status", "farm").stdout


def test_what_lacks_is_measured_by_the_protocol_of_the_rows_elsewhere(
    command: Command, put: Put, announce: Callable[[DeviceIdentity], int]
) -> None:
    put(H200, lambda _: row(1.0, protocol="fixed-power"), configurations=CONFIGURATIONS[:8])
    put(A100, lambda _: row(2.0, protocol="fixed-power"), configurations=CONFIGURATIONS[:4])
    announce(A100)
    done = command("compare", H, A, "--fill", "--json")
    assert done.returncode == 0, done.stderr
    (fill,) = json.loads(done.stdout)["fills"]
    assert fill["missing"] == 4
    found = json.loads(command("status", fill["campaign"], "--json").stdout)
    assert found["protocol"] == "fixed-power"
    # By another protocol that a group names, without power where the protocol has gaps between launches.
    put(H200, lambda _: row(1.0, power_w=500.0, **LIMITED), configurations=CONFIGURATIONS[8:])
    for protocol, power in (("farm", "all"), ("server", "none")):
        done = command("compare", f"{H},protocol=farm", f"{A},protocol={protocol}", "--fill", "--json")
        (fill,) = (one for one in json.loads(done.stdout)["fills"] if one["campaign"] and one["side"].startswith(A))
        rules = json.loads(command("status", fill["campaign"], "--json").stdout)["document"]["measure"]
        assert (rules["protocol"], rules["power"]) == (protocol, power)
    unknown = json.loads(command("compare", H, f"{A},protocol=nosuch", "--fill", "--json").stdout)["fills"]
    assert unknown[0]["why_not"] == "no campaign can request the protocol 'nosuch'"
