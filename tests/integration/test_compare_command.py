"""`farm compare` on real Postgres: known differences come out, and what does not belong together stays apart."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, text

import farm
from farm.api.trainings import nothing_to_learn_from
from farm.campaign import Campaign
from farm.compare import row_query
from farm.compare.aggregation import CompareQuery
from farm.compare.comparison import Comparison, compare
from farm.db import trainings
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.gemm import ElementType
from farm.gpus import find_gpu
from farm.kernels import Configuration
from support.commands import Command, farm_here, refused
from support.compared import A100, CONFIGURATIONS, H200, SHAPES, Put, taken
from support.samples import card, row
from support.searches import fold, measure, wanted

FOUR_CARDS = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-compare-cards.parquet"

_NEXT_DAY = text("ALTER TABLE measurements ALTER measured_at SET DEFAULT '2026-05-02T12:00Z'")


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def asked(engine: Engine, *sides: str, **options: Any) -> Comparison:
    return compare(engine, CompareQuery(groups=sides, **options))


# --- the figures ---------------------------------------------------------------------------------------


def test_a_known_difference_comes_out_in_every_figure(engine: Engine, put: Put) -> None:
    put(H200, taken())
    put(A100, taken(1.5, 80.0))
    found = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb")
    (side,) = found.groups
    overall = side.overall
    assert (overall.configurations, overall.shapes) == (32, 8)
    assert overall.time.ratio == pytest.approx(1.5)
    assert (overall.time.low, overall.time.high) == pytest.approx((1.5, 1.5))
    assert overall.tflops.ratio == pytest.approx(1 / 1.5)
    assert overall.power is not None
    assert overall.energy is not None
    assert (overall.power.ratio, overall.energy.ratio) == pytest.approx((0.8, 1.2))
    assert (overall.faster, overall.ties, overall.slower, overall.unsure) == (0, 0, 32, 0)
    assert {label: one.configurations for label, one in side.by_type.items()} == {"f32": 16, "f64": 16}
    assert sum(one.configurations for one in side.by_size.values()) == 32
    assert sum(one.configurations for one in side.by_bound.values()) == 32
    assert set(side.by_bound) == {"memory-bound", "compute-bound"}
    assert found.notes == ()
    # The other way round it is the inverse.
    (back,) = asked(engine, "nvidia-a100-sxm4-80gb", "nvidia-h200").groups
    assert back.overall.time.ratio == pytest.approx(1 / 1.5)
    assert back.overall.faster == 32


def test_noise_is_inside_the_interval_and_small_differences_are_ties(engine: Engine, put: Put) -> None:
    rng = np.random.default_rng(5)
    put(H200, taken())
    put(A100, lambda one: row(one.problem.flops / 1e9 * math.exp(rng.normal(0.002, 0.001)), runtime_rse=0.0005))
    (side,) = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb").groups
    assert side.overall.ties == 32
    assert side.overall.time.low is not None
    assert side.overall.time.high is not None
    assert side.overall.time.low < math.exp(0.002) < side.overall.time.high
    (close,) = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb", tie=0.0001).groups
    assert close.overall.ties == 0


def test_repeats_are_reduced_to_their_median_and_energy_is_derived_row_by_row(engine: Engine, put: Put) -> None:
    for factor, watts, sustained in ((1.0, 100.0, None), (5.0, None, None), (1.2, 110.0, 3.0)):
        put(H200, lambda one, f=factor, w=watts, s=sustained: row(f, power_w=w, runtime_settled_ms=s))
    put(A100, lambda _: row(1.2, power_w=105.0))
    found = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb")
    assert (found.baseline.rows, found.baseline.configurations) == (96, 32)
    pairs = found.measured_pairs["nvidia-a100-sxm4-80gb"]
    assert pairs.baseline.runtime_ms == pytest.approx([1.2] * 32)
    assert pairs.baseline.power_w == pytest.approx([105.0] * 32)
    # The median of 100 W x 1 ms and of 110 W x 3 ms.
    assert pairs.baseline.energy_mj == pytest.approx([(100 + 330) / 2] * 32)
    assert pairs.side.energy_mj == pytest.approx([126.0] * 32)


def test_the_share_of_the_roofline_is_told_where_the_card_is_known(engine: Engine, put: Put) -> None:
    put(H200, taken())
    put(card(2, kind="nvidia-test"), taken())
    (side,) = asked(engine, "nvidia-h200", "nvidia-test").groups
    assert side.overall.roofline is None
    assert side.overall.baseline_roofline is not None
    assert 0 < side.overall.baseline_roofline < 1
    # By the ridge of the baseline, which nobody knows.
    (other,) = asked(engine, "nvidia-test", "nvidia-h200").groups
    assert other.by_bound == {}
    assert other.overall.roofline == pytest.approx(side.overall.baseline_roofline)


def test_batches_of_a_shape_are_problems_of_their_own(engine: Engine, put: Put) -> None:
    """One product takes as long on both cards, and a batch twice as long on the second."""
    alone, batched = ([f"cublaslt() {shape} f16{batch}" for shape in SHAPES] for batch in ("", " batch=8"))
    configurations = [Configuration.parse(one) for one in (*alone, *batched)]
    put(H200, taken(), configurations=configurations)
    put(A100, lambda one: taken(2.0 if one.problem.batch == 8 else 1.0)(one), configurations=configurations)
    (side,) = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb").groups
    assert side.overall is not None
    assert (side.overall.configurations, side.overall.shapes) == (16, 16)
    assert (side.overall.ties, side.overall.slower) == (8, 8)
    assert side.overall.time.ratio == pytest.approx(math.sqrt(2))
    # All run at 1 TFLOP/s, with the operations of whole batches.
    peak = find_gpu("nvidia-h200").peak_tflops(ElementType.F16)  # type: ignore[union-attr]
    assert peak is not None
    assert side.by_bound["compute-bound"].baseline_roofline == pytest.approx(1 / peak)


def check_kinds_apart(engine: Engine, put: Put, configurations: list[Configuration]) -> None:
    """Compares two cards on four kinds of `SHAPES`, of which the plain ones are first. Only the others take longer on the second."""
    put(H200, taken(), configurations=configurations)
    plain = configurations[: len(SHAPES)]
    put(A100, lambda one: taken(1.0 if one in plain else 2.0)(one), configurations=configurations)
    (side,) = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb").groups
    assert side.overall is not None
    assert (side.overall.configurations, side.overall.shapes) == (32, 32)
    assert (side.overall.ties, side.overall.slower) == (8, 24)


def test_scale_factors_and_fused_operations_of_a_shape_are_problems_of_their_own(engine: Engine, put: Put) -> None:
    """Without them both cards take as long, and with them the second one twice as long."""
    kinds = ("", " scale=row", " fused=bias", " scale=row fused=bias")
    configurations = [Configuration.parse(f"cublaslt() {shape} f16{rest}") for rest in kinds for shape in SHAPES]
    check_kinds_apart(engine, put, configurations)


def test_products_of_a_shape_in_other_groups_are_problems_of_their_own(engine: Engine, put: Put) -> None:
    """Without groups both cards take as long, and with them the second one twice as long."""
    kinds = ("", " groups={m}", " groups={m},0", " groups=0*3,{m},0*200")
    configurations = [
        Configuration.parse(f"cublaslt() {shape} f16{rest.format(m=shape.split('x')[0])}")
        for rest in kinds
        for shape in map(str, SHAPES)
    ]
    check_kinds_apart(engine, put, configurations)


def test_only_what_both_have_is_compared(engine: Engine, put: Put) -> None:
    put(H200, taken(), configurations=CONFIGURATIONS[:20])
    put(A100, taken(2.0), configurations=CONFIGURATIONS[12:])
    found = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb")
    assert (found.baseline.configurations, found.groups[0].configurations) == (20, 20)
    assert found.groups[0].overall.configurations == 8
    shared = set(row_query.as_uuids(found.measured_pairs["nvidia-a100-sxm4-80gb"].ids))
    assert shared == {one.id for one in CONFIGURATIONS[12:20]}


def test_few_of_many_configurations_are_read_by_their_ids(
    engine: Engine, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_query, "IDS_PER_QUERY", 2)
    put(H200, taken())
    put(A100, taken(2.0), configurations=CONFIGURATIONS[:5])
    with engine.begin() as connection:
        connection.execute(text("ANALYZE configurations"))
    (side,) = asked(engine, "nvidia-h200", "nvidia-a100-sxm4-80gb").groups
    assert (side.overall.configurations, side.overall.shapes) == (5, 2)
    assert side.overall.time.low is None  # of two shapes
    assert {label: one.configurations for label, one in side.by_type.items()} == {"f32": 3, "f64": 2}


def test_filters_are_on_every_side(engine: Engine, put: Put) -> None:
    put(H200, taken())
    put(A100, lambda one: row((3 if one.problem.types.ab == "f64" else 2) * one.problem.flops / 1e9))
    sides = ("nvidia-h200", "nvidia-a100-sxm4-80gb")
    for dtype in ("f64", "f64:f64:f64"):
        (side,) = asked(engine, *sides, dtype=dtype, family="tiled").groups
        assert (side.overall.configurations, side.overall.time.ratio) == (16, pytest.approx(3))
        assert (side.rows, side.configurations) == (16, 16)


# --- what belongs together -----------------------------------------------------------------------------


def test_sources_and_sentinels_stay_out_unless_they_are_asked_for(engine: Engine, put: Put) -> None:
    put(H200, taken())
    put(A100, taken(2.0))
    put(A100, taken(9.0, source="imported"))
    put(A100, taken(0.1, source="sentinel"))
    sides = ("nvidia-h200", "nvidia-a100-sxm4-80gb")
    assert asked(engine, *sides).groups[0].overall.time.ratio == pytest.approx(2)
    (imported,) = asked(engine, sides[0], f"{sides[1]},source=imported").groups
    assert imported.overall.time.ratio == pytest.approx(9)
    both = asked(engine, *sides, any_source=True)
    assert both.groups[0].overall.time.ratio == pytest.approx(5.5)
    assert "Not all rows were measured by this farm" in both.notes[0]


def test_short_rounds_of_searches_are_no_results(
    engine: Engine, put: Put, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(card(1))
    submit(wanted())
    short = measure(engine, device)
    fold(engine)
    configurations = [job.configuration for lease in short for job in lease.jobs]
    assert len(configurations) == 32
    put(card(2, kind="nvidia-h200"), lambda one: row(1.0), configurations=configurations)
    put(card(1), lambda one: row(4.0), configurations=configurations[:3])
    (side,) = asked(engine, "nvidia-h200", "nvidia-test").groups
    assert (side.rows, side.overall.configurations) == (3, 3)
    assert side.overall.time.ratio == pytest.approx(4)


def test_other_clocks_are_refused_unless_narrowed_or_mixed(command: Command, put: Put) -> None:
    put(H200, taken(clock_policy="default"))
    put(H200, taken(1.3, clock_policy="locked:1200"))
    put(A100, taken(2.0, clock_policy="default"))
    sides = ("nvidia-h200", "nvidia-a100-sxm4-80gb")
    refused(command("compare", *sides), 2, "Clock policy differs", "default (32 rows), locked:1200", "clocks=default")
    done = command("compare", "nvidia-h200,clocks=default", sides[1], "--json")
    assert json.loads(done.stdout)["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(2)
    mixed = json.loads(command("compare", *sides, "--mixed", "--json").stdout)
    assert mixed["notes"][0].startswith("MIXED clock policy")


def test_sides_are_told_apart_by_day_time_driver_host_and_device(engine: Engine, put: Put) -> None:
    with engine.begin() as connection:
        connection.execute(text(str(_NEXT_DAY).replace("05-02", "05-01")))
    put(H200, taken(environment={"driver": "570"}))
    with engine.begin() as connection:
        connection.execute(_NEXT_DAY)
    put(H200, taken(2.0, environment={"driver": "580"}))
    put(card(3, kind="nvidia-h200"), taken(4.0, environment={"driver": "580"}), host="there")

    def ratio(*sides: str, **options: Any) -> float:
        return asked(engine, *sides, **options).groups[0].overall.time.ratio

    assert ratio("GPU-1,until=2026-05-02", "GPU-1,since=2026-05-02") == pytest.approx(2)
    assert ratio("GPU-1,since=2026-05-02", "GPU-1,until=2026-05-02T12:00") == pytest.approx(0.5)
    assert ratio("GPU-1,driver=570", "there,driver=580") == pytest.approx(4)
    assert ratio("GPU-1,driver=580", "GPU-3") == pytest.approx(2)
    for key, names in (
        ("day", ["2026-05-02", "2026-05-01"]),
        ("driver", ["580", "570"]),
        ("host", ["here", "there"]),
        ("device", ["GPU-1", "GPU-3"]),
    ):
        found = asked(engine, by=key)
        assert [found.baseline.name, *(side.name for side in found.groups)] == names
    assert "driver: GPU-1,driver=570 570; GPU-3 580" in asked(engine, "GPU-1,driver=570", "GPU-3").notes


def test_a_campaign_narrows_a_side_or_all(
    engine: Engine, put: Put, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(card(1))
    submit(wanted(search=None))
    (lease,) = measure(engine, device)
    configurations = [job.configuration for job in lease.jobs]
    put(card(2, kind="nvidia-h200"), lambda one: row(1.0), configurations=configurations)
    put(card(1), lambda one: row(1e6), configurations=configurations)
    (side,) = asked(engine, "GPU-2", "GPU-1,campaign=search").groups
    assert side.rows == len(configurations)
    assert side.overall.time.ratio < 100
    with pytest.raises(farm.errors.SideWithoutRows, match="GPU-2"):
        asked(engine, "GPU-2", "GPU-1", campaign="search")


def test_a_comparison_of_campaigns_reads_rows_of_these_campaigns_only(
    engine: Engine,
    announce: Callable[[DeviceIdentity], int],
    submit: Callable[[Campaign], Stored],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = announce(card(1))
    ids = {}
    for name in ("one", "two", "three"):
        ids[name] = submit(wanted(name, search=None)).campaign_id
        measure(engine, device)
    limits = []
    kinds = row_query.kinds

    def noted(connection: Any, devices: Any, contents: Any, row_filter: row_query.RowFilter) -> Any:
        found = kinds(connection, devices, contents, row_filter)
        limits.append((row_filter.only_campaigns, {kind.campaign_id for kind in found}))
        return found

    monkeypatch.setattr(row_query, "kinds", noted)
    both = {ids["one"], ids["two"]}
    (group,) = asked(engine, "campaign=one", "campaign=two").groups
    assert group.rows > 0
    assert limits.pop() == (tuple(sorted(both)), both)
    (group,) = asked(engine, "campaign=one", "GPU-1,campaign=two", any_source=True).groups
    assert group.overall.time.ratio == pytest.approx(1.0)
    assert limits.pop() == (tuple(sorted(both)), both)
    asked(engine, "campaign=one", "GPU-1", any_source=True)
    assert limits.pop() == (None, set(ids.values()))
    with pytest.raises(farm.errors.SideWithoutRows):
        asked(engine, "campaign=one", "campaign=two", campaign="three", any_source=True)
    assert limits.pop() == ((), set())


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_shows_sides_ratios_groups_costs_and_what_differs_most(command: Command, put: Put) -> None:
    put(H200, taken())
    put(A100, taken(1.5, 80.0))
    done = command(
        "compare", "nvidia-h200", "type=nvidia-a100-sxm4-80gb", "--top", "2", "--carbon", "300",
        "--price", "nvidia-h200=4", "--price", "type=nvidia-a100-sxm4-80gb=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "nvidia-h200 (baseline)", "1 x nvidia-h200 on here", "B / A", "1.5000–1.5000", "1.2000", "memory-bound", "f64",
        "largest differences in time", "tiled(tile=", "money", "0.7500  0.7500–0.7500", "g CO2",
    ):  # fmt: skip
        assert words in done.stdout, words
    few = command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "--json", "--top", "1")
    found = json.loads(few.stdout)
    assert found["baseline"]["name"] == "nvidia-h200"
    (top,) = found["sides"][0]["top"]
    assert (top["time_ratio"], top["verdict"]) == (pytest.approx(1.5), "slower")
    assert found["sides"][0]["money_per_pflop"] is None


def test_few_shapes_have_no_interval_and_a_remark_says_so(command: Command, put: Put) -> None:
    put(H200, taken(), configurations=CONFIGURATIONS[:4])
    put(A100, taken(2.0, None), configurations=CONFIGURATIONS[:4])
    done = command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb")
    assert "Fewer than 6 shapes have no interval" in done.stderr
    found = json.loads(command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "--json").stdout)
    overall = found["sides"][0]["overall"]
    assert overall["time"] == {"ratio": 2.0, "low": None, "high": None, "shapes": 1, "pairs": 4}
    assert (overall["power"], overall["energy"]) == (None, None)


def test_every_pair_goes_into_a_csv(command: Command, put: Put, tmp_path: Path) -> None:
    put(H200, taken())
    put(A100, taken(1.5, None))
    file = tmp_path / "pairs.csv"
    done = command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "--output", str(file))
    assert "32 pairs" in done.stderr
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {Configuration.parse(_line(line)).id for line in rows} == {one.id for one in CONFIGURATIONS}
    assert {(line["side"], line["verdict"], line["power_w"]) for line in rows} == {
        ("nvidia-a100-sxm4-80gb", "slower", "")
    }
    for line in rows:
        assert float(line["runtime_ms"]) / float(line["baseline_runtime_ms"]) == pytest.approx(1.5)
    refused(command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "-o", "/nowhere/x.csv"), 2, "cannot be written")


def _line(row: dict[str, str]) -> str:
    tile = json.loads(row["parameters"])["tile"]
    return f"tiled(tile={tile}) {row['m']}x{row['n']}x{row['k']} {row['ab']}"


def test_what_cannot_be_compared_says_what_there_is(command: Command, put: Put) -> None:
    put(H200, taken(), configurations=CONFIGURATIONS[:4])
    put(A100, taken(), configurations=CONFIGURATIONS[4:8])
    put(card(3, kind="l40s"), taken(source="imported"), configurations=CONFIGURATIONS[:4])
    h200, a100 = "nvidia-h200", "nvidia-a100-sxm4-80gb"
    refused(command("compare"), 2, "two or more groups")
    refused(command("compare", h200), 2, "two or more groups")
    refused(command("compare", h200, a100, "--by", "host"), 2, "two or more groups")
    refused(command("compare", h200, h200), 2, "the same")
    refused(command("compare", h200, "b200"), 4, "Types: l40s, nvidia-a100-sxm4-80gb, nvidia-h200. Hosts: here")
    refused(command("compare", h200, "driver=5"), 4, "of environments: library")
    refused(command("compare", h200, "campaign=none"), 4, "no campaign 'none'")
    works = "This works: `farm compare nvidia-h200 l40s --any-source`."
    refused(command("compare", h200, "l40s"), 4, "l40s has no rows", "4 imported", works)
    refused(command("compare", h200, "A100"), 4, "Did you mean nvidia-a100-sxm4-80gb?")
    refused(command("compare", h200, "l40s,until=2020-01-01"), 4, "no row meets its conditions")
    refused(command("compare", h200, a100), 4, "share no configuration", f"{h200} has 4, {a100} has 4")
    refused(command("compare", "--by", "host"), 2, "makes only one group, here")
    refused(command("compare", "--by", "type", "--type", "h100"), 4, "no device type 'h100'")
    refused(command("compare", h200, a100, "--family", "tild"), 2, "no kernel family")
    refused(command("compare", h200, a100, "--dtype", "f33"), 2, "not an element type")
    refused(command("compare", h200, a100, "--family", "cublaslt"), 4, "that family or those types")
    refused(command("compare", h200, a100, "--price", "x=1"), 2, "no group is 'x'")
    # Of several sides, one without anything in common is left out and named.
    found = json.loads(command("compare", "--by", "type", "--any-source", "--json").stdout)
    assert [side["name"] for side in found["sides"]] == [h200]
    assert "nvidia-a100-sxm4-80gb shares no configuration with l40s" in " ".join(found["notes"])


def test_a_refusal_names_all_that_is_missing_and_a_command_that_works(command: Command, put: Put) -> None:
    """Our export of one card, and of another our export and a published table that tells no clocks and operands."""
    ours = {"source": "imported", "clock_policy": "default"}
    put(card(1, kind="nvidia-h200"), taken(**ours))
    put(card(2, kind="nvidia-h100"), taken(1.5, **ours), configurations=CONFIGURATIONS[:4])
    put(card(3, kind="nvidia-h100"), taken(0.5, source="imported", distribution="unknown"))
    done = command("compare", "nvidia-h200", "nvidia-h100")
    refused(
        done,
        4,
        f"nvidia-h200 has no rows to compare: its rows are {len(CONFIGURATIONS)} imported",
        f"nvidia-h100 has none either: its rows are {len(CONFIGURATIONS) + 4} imported",
        "clock policy and operand distribution differ",
    )
    (works,) = re.findall(r"This works: `farm (.*)`", done.stderr)
    assert works == (
        "compare nvidia-h200,clocks=default,distribution=uniform nvidia-h100,clocks=default,distribution=uniform "
        "--any-source"
    )
    (side,) = json.loads(command(*shlex.split(works), "--json").stdout)["sides"]
    assert (side["overall"]["configurations"], side["overall"]["time"]["ratio"]) == (4, pytest.approx(1.5))
    # Both reasons at once where the first refusal is theirs.
    refused(command("compare", "nvidia-h200", "nvidia-h100", "--any-source"), 2, "Clock policy", "Operand", works)


def test_the_answer_comes_first_and_minor_notes_are_counted_in_one_line(command: Command, put: Put) -> None:
    put(H200, taken(environment={"driver": "580", "numpy": "2.4", "python": "3.11"}))
    put(A100, taken(2.0, environment={"driver": "570", "numpy": "2.5"}))
    shown = command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb").stdout
    assert shown.index("median ratio over shapes") < shown.index("note: driver: ")
    assert "2 more notes on versions (numpy, python). To show them: --notes" in shown
    assert "numpy: nvidia-h200" not in shown
    assert (
        "note: numpy: nvidia-h200 2.4" in command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "--notes").stdout
    )
    told = json.loads(command("compare", "nvidia-h200", "nvidia-a100-sxm4-80gb", "--json").stdout)
    assert [len(told[which]) for which in ("notes", "minor_notes")] == [1, 2]


def test_training_names_the_rows_that_any_source_would_learn_from(engine: Engine, put: Put) -> None:
    put(H200, taken(source="imported"))
    with engine.connect() as connection:
        rows = trainings.rows_by_source(connection, campaign_id=None)
    assert rows == {"nvidia-h200": {"imported": len(CONFIGURATIONS)}}
    says = (
        f"nvidia-h200 has no measured rows, but {len(CONFIGURATIONS)} imported. "
        "`farm train nvidia-h200 --any-source` learns from them."
    )
    assert nothing_to_learn_from([], [], rows) == nothing_to_learn_from(["nvidia-h200"], [], rows) == says
    assert nothing_to_learn_from(["l40s", "nvidia-h200"], [], rows) == f"{says} l40s: no rows of any source."
    assert "l40s: no measurements. Measured: cpu. Run a campaign" in nothing_to_learn_from(["l40s"], ["cpu"], rows)


def test_a_farm_without_rows_says_so(engine: Engine, command: Command) -> None:
    refused(command("compare", "a", "b"), 4, "Types: none yet")
    refused(command("compare", "--by", "type"), 4, "The grouping by type has no rows")


def test_cards_are_held_against_a_published_folder(command: Command, put: Put) -> None:
    few = CONFIGURATIONS[:4]
    for number in range(3):
        put(card(10 + number, kind="nvidia-h200"), taken(1 + number / 100), configurations=few)
    done = command("publish", "--output", "public", "--type", "nvidia-h200")
    assert done.returncode == 0, done.stderr
    assert "4 bands in public/bands.json" in done.stderr
    again = command("publish", "--output", "public")
    refused(again, 2, "public/bands.json")
    assert "Signed with" not in again.stderr
    found = json.loads(command("compare", "--against", "public", "--json").stdout)["cards"]
    assert [(one["gemms"], one["published_cards"], one["standing"]) for one in found] == 3 * [(4, 3, "within")]
    put(card(20, kind="nvidia-h200"), taken(1.5), configurations=few)
    done = command("compare", "--against", "public")
    assert done.returncode == 7
    assert "Of 4 cards, 1 is outside the published bands" in done.stderr
    refused(command("compare", "a", "b", "--against", "public"), 2, "only --campaign, --type, --family")
    refused(command("compare", "--against", "public", "--type", "cpu"), 4, "It has GEMMs of nvidia-h200")
    refused(command("compare", "--against", "nowhere"), 4, "nowhere is not a published folder")


def test_four_cards_of_one_type_differ_by_a_few_percent(command: Command, engine: Engine) -> None:
    assert command("import", "dataset", str(FOUR_CARDS)).returncode == 0
    refused(command("compare", "--by", "device"), 4, "408 imported")
    found = json.loads(command("compare", "--by", "device", "--any-source", "--json").stdout)
    assert len(found["sides"]) == 3
    for side in found["sides"]:
        overall = side["overall"]
        assert (overall["configurations"], overall["shapes"]) == (102, 14)
        assert 0.97 < overall["time"]["low"] <= overall["time"]["ratio"] <= overall["time"]["high"] < 1.03
        assert 0.94 < overall["energy"]["low"] <= overall["energy"]["high"] < 1.03
        assert overall["ties"] > 50
        assert set(side["by_bound"]) == {"memory-bound", "compute-bound"}
        assert 0.3 < overall["roofline"] < 1
    assert any("imported" in note for note in found["notes"])
