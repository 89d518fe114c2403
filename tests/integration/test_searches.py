# ruff: noqa: B023 - what runs at once runs within its round
"""Searches on real Postgres: rounds that follow one another, whoever dies, cancels, retries or decides at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign, load
from farm.coordinator.rounds import Rounds
from farm.db import batches, campaigns, measurements, measuring_rules, rounds
from farm.db.batches import Lease
from farm.db.campaigns import Stored
from farm.db.states import JobState
from farm.devices import DeviceIdentity, DeviceKind, DeviceTraits
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.services import ServiceUrls
from support.batch_steps import claim, form
from support.commands import Command, farm_here
from support.homes import eventually
from support.invariants import unfinished
from support.programs import COORDINATOR, FARM_WORKER, programs
from support.races import at_once, nothing_is_broken
from support.samples import cpu, row
from support.searches import fold, gpu, land, measure, time_ms, wanted
from trainer.reading import read_training_table

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
EXAMPLES = Path(farm.__file__).parent.parent / "examples"


def look(engine: Engine) -> None:
    Rounds(engine).reconcile()
    nothing_is_broken(engine)


def kernels(leases: list[Lease]) -> dict[int, list[str]]:
    """By m of the problem, the kernels, the largest tiles first."""
    found: dict[int, list[Configuration]] = {}
    for job in (job for lease in leases for job in lease.jobs):
        found.setdefault(job.configuration.problem.shape.m, []).append(job.configuration)
    return {m: [str(c.kernel) for c in sorted(some, key=time_ms)] for m, some in sorted(found.items())}


def tiles(*numbers: int, baseline: bool = False) -> list[str]:
    return ["cublaslt(algorithm=0)"] * baseline + [f"tiled(tile={n})" for n in numbers]


def asked(engine: Engine, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(found) for found in connection.execute(text(statement), parameters)]


def lanes(engine: Engine) -> list[tuple[Any, ...]]:
    return asked(engine, "SELECT round, rules IS NOT NULL, jobs, done FROM lanes ORDER BY campaign_id, pool_id, round")


@pytest.fixture
def device(announce: Announce) -> int:
    return announce(gpu())


LAST = {m: tiles(16, 15, 14, 13, baseline=True) for m in (64, 128)}


# --- from round to round ---------------------------------------------------------------------------------


def test_the_fastest_go_on_and_the_finalists_are_measured_closely_with_the_baseline(
    engine: Engine, device: int, submit: Submit
) -> None:
    stored = submit(wanted())
    assert stored.jobs == 32
    expected = {"later": 2 * (8 + 4 + 1)}
    assert counted(engine, stored) == {"pending": 32, **expected}
    first = measure(engine, device)
    assert {lease.rules for lease in first} == {wanted().search.short_rules(wanted().measure, 0)}  # type: ignore[union-attr]
    assert counted(engine, stored) == {"done": 32, **expected}
    assert fold(engine) == []
    look(engine)
    assert counted(engine, stored) == {"done": 32, "pending": 16, "later": 10}
    second = measure(engine, device)
    assert kernels(second) == {m: tiles(*range(16, 8, -1)) for m in (64, 128)}
    assert {lease.rules for lease in second} == {wanted().search.short_rules(wanted().measure, 1)}  # type: ignore[union-attr]
    look(engine)
    assert counted(engine, stored) == {"done": 48, "pending": 10}
    last = measure(engine, device)
    assert kernels(last) == LAST
    assert {lease.rules for lease in last} == {wanted().measure}
    assert lanes(engine) == [(0, True, 32, 32), (1, True, 16, 16), (2, False, 10, 10)]
    assert asked(engine, "SELECT state FROM campaigns") == [("done",)]
    with engine.connect() as connection:
        assert unfinished(connection) == []


def test_what_two_workers_measured_at_the_same_time_goes_on_last(engine: Engine, device: int, submit: Submit) -> None:
    submit(wanted(problems={"m": 64, "n": 64, "k": 32, "types": ["f32"]}))
    while (batch_id := form(engine, 1, kind="nvidia-test")) is not None:
        lease = claim(engine, batch_id, device)
        assert lease is not None
        ((before,),) = asked(engine, "SELECT clock_timestamp()")
        land(engine, lease)
        if tiles(16) == [str(job.configuration.kernel) for job in lease.jobs]:
            with engine.begin() as connection:
                connection.execute(
                    text("""
                        INSERT INTO device_overlaps (device_id, since, until, rows_until, epoch)
                        VALUES (:device, :before, clock_timestamp(), clock_timestamp(), 1)
                    """),
                    {"device": device, "before": before},
                )
    fold(engine)
    look(engine)
    assert kernels(measure(engine, device)) == {64: tiles(*range(15, 7, -1))}


def counted(engine: Engine, stored: Stored) -> dict[str, int]:
    with engine.connect() as connection:
        return {state: n for state, n in campaigns.counts(connection, stored.campaign_id).items() if n}


def test_the_total_that_a_bar_shows_never_grows_and_open_jobs_end_with_the_campaign(
    engine: Engine, device: int, submit: Submit
) -> None:
    stored = submit(wanted())
    totals, done = [], []
    while True:
        with engine.connect() as connection:
            now = campaigns.counts(connection, stored.campaign_id)
        totals.append(sum(now.values()))
        done.append(now["done"])
        if not campaigns.open_jobs(now):
            break
        batch_id = form(engine, 7, kind="nvidia-test")
        if batch_id is None:
            fold(engine)
            look(engine)
            continue
        lease = claim(engine, batch_id, device)
        assert lease is not None
        land(engine, lease)
    assert set(totals) == {58}
    assert done == sorted(done)
    assert done[-1] == 58
    assert fold(engine) == [stored.campaign_id]


def test_a_problem_with_few_kernels_goes_to_the_last_round_at_once(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(wanted(constraints=["m < 128 or tile > 11"]))  # of the larger problem, five
    measure(engine, device)
    look(engine)
    assert kernels(measure(engine, device)) == {64: tiles(*range(16, 8, -1))}
    look(engine)
    assert kernels(measure(engine, device)) == LAST
    assert counted(engine, stored) == {"done": 21 + 8 + 10}


def test_kernels_that_fail_do_not_go_on_and_a_problem_without_any_has_its_baseline_alone(
    engine: Engine, device: int, submit: Submit
) -> None:
    def fails(configuration: Configuration) -> bool:
        return configuration.problem.shape.m == 64 or dict(configuration.kernel.parameters)["tile"] in (16, 13)

    stored = submit(wanted())
    measure(engine, device, fails)
    look(engine)
    assert kernels(measure(engine, device)) == {128: tiles(15, 14, 12, 11, 10, 9, 8)}  # half of 14
    look(engine)
    assert kernels(measure(engine, device)) == {
        64: tiles(baseline=True),
        128: tiles(15, 14, 12, 11, baseline=True),
    }
    assert counted(engine, stored) == {"done": 14 + 7 + 6, "dead": 18}


def test_where_everything_fails_on_a_cpu_the_search_ends_with_nothing(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    device = announce(cpu())
    stored = submit(
        wanted(kernels={"family": "blas", "threads": [1, 2]}, search={"strategy": "halving", "finalists": 1})
    )
    batch_id = form(engine)
    assert batch_id is not None
    lease = claim(engine, batch_id, device)
    assert lease is not None
    land(engine, lease, lambda _: True)
    assert fold(engine) == []
    look(engine)
    assert fold(engine) == [stored.campaign_id]
    assert lanes(engine) == [(0, True, 4, 0), (1, False, 0, 0)]
    assert counted(engine, stored) == {"dead": 4}


def test_equal_times_are_told_apart_by_the_configuration_and_always_the_same(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(wanted(problems={"m": 64, "n": 64, "k": 32, "types": ["f32"]}))
    batch_id = form(engine, kind="nvidia-test")
    assert batch_id is not None
    lease = claim(engine, batch_id, device)
    assert lease is not None
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, row(1.0)) for job in lease.jobs], {})
    fold(engine)
    look(engine)
    (again,) = measure(engine, device)
    assert [j.configuration for j in again.jobs] == [j.configuration for j in lease.jobs][:8]  # in the order of ids


def test_a_kernel_of_the_campaign_that_is_the_baseline_is_measured_once(
    engine: Engine, device: int, submit: Submit
) -> None:
    both = [{"family": "tiled", "tile": "1..16"}, {"family": "cublaslt", "algorithm": [0, 1]}]
    submit(wanted(kernels=both))
    for _ in range(4):  # 18, 9, 5, 4
        leases = measure(engine, device)
        look(engine)
    baselines = [
        job for lease in leases for job in lease.jobs if str(job.configuration.kernel) == "cublaslt(algorithm=0)"
    ]
    assert len(baselines) == 2
    assert sum(len(lease.jobs) for lease in leases) == 8


def test_each_pool_is_searched_for_itself(engine: Engine, announce: Announce, submit: Submit) -> None:
    first, second = announce(gpu(1)), announce(gpu(2))
    submit(wanted(targets=[{"each": "nvidia-test"}]))
    while (batch_id := form(engine, kind="nvidia-test")) is not None:
        lease = claim(engine, batch_id, first)
        if lease is None:  # of the other device
            break
        land(engine, lease)
    fold(engine)
    look(engine)
    found = asked(
        engine, "SELECT device_uuid, round, l.jobs FROM lanes l JOIN pools p ON p.id = l.pool_id ORDER BY 1, 2"
    )
    assert found == [("GPU-1", 0, 32), ("GPU-1", 1, 16), ("GPU-2", 0, 32)]
    assert second != first


# --- whoever dies, cancels, pauses, retries --------------------------------------------------------------


def test_a_coordinator_that_dies_before_it_has_decided_leaves_nothing_behind(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(wanted())
    for expected in (2, 3):
        measure(engine, device)
        with engine.connect() as connection:
            (lane_id,) = rounds.due(connection)
        with suppress(InterruptedError), engine.begin() as connection:
            assert rounds.decide(connection, lane_id) is not None
            raise InterruptedError
        assert len(lanes(engine)) == expected - 1
        assert fold(engine) == []
        nothing_is_broken(engine)
        look(engine)
        assert len(lanes(engine)) == expected
    assert kernels(measure(engine, device)) == LAST


def test_two_coordinators_decide_once(engine: Engine, device: int, submit: Submit) -> None:
    for number in range(8):
        stored = submit(wanted(f"search-{number}"))
        for _ in range(2):
            measure(engine, device)
            at_once(*[lambda: Rounds(engine).reconcile()] * 3, lambda: fold(engine))
            nothing_is_broken(engine)
        measure(engine, device)
        assert counted(engine, stored) == {"done": 58}


@pytest.mark.parametrize("how", [batches.cancel, batches.pause])
def test_deciding_against_cancelling_submitting_and_retrying(
    engine: Engine, device: int, submit: Submit, how: Callable[..., bool]
) -> None:
    def stop(campaign_id: int) -> bool:
        with engine.begin() as connection:
            return how(connection, campaign_id)

    def retry(campaign_id: int) -> int:
        with engine.begin() as connection:
            return batches.retry(connection, campaign_id)

    for number in range(8):
        name = f"search-{number}"
        stored = submit(wanted(name))
        measure(engine, device, lambda c: dict(c.kernel.parameters).get("tile") == 16)
        at_once(
            lambda: Rounds(engine).reconcile(),
            lambda: stop(stored.campaign_id),
            lambda: submit(wanted(name)),
            lambda: retry(stored.campaign_id),
            lambda: fold(engine),
        )
        nothing_is_broken(engine)
        submit(wanted(name))
        with engine.begin() as connection:
            batches.resume(connection, stored.campaign_id)
        for _ in range(4):
            leases = measure(engine, device)
            look(engine)
            if not counted(engine, stored).keys() - {"done"}:
                break
        assert kernels(leases)[64][-1] in tiles(*range(12, 17))
        measured = asked(
            engine,
            "SELECT count(DISTINCT configuration_id) FROM v_measurements WHERE campaign_id = :id AND parameters = :best",
            id=stored.campaign_id, best='{"tile": 16}',
        )  # fmt: skip
        assert measured == [(2,)]  # the ones that were tried again went on, and are the best


@pytest.mark.parametrize("after", [1, 2])
def test_a_search_that_is_cancelled_between_two_rounds_goes_on_when_it_is_submitted_again(
    engine: Engine, device: int, submit: Submit, after: int
) -> None:
    stored = submit(wanted())
    for _ in range(after - 1):
        measure(engine, device)
        look(engine)
    measure(engine, device)
    with engine.begin() as connection:
        assert batches.cancel(connection, stored.campaign_id)
    look(engine)
    assert len(lanes(engine)) == after  # nothing is decided of what was given up
    assert "later" not in counted(engine, stored)
    again = submit(wanted())
    assert (again.new, again.jobs) == (False, 0)
    assert asked(engine, "SELECT state FROM campaigns") == [("active",)]
    for _ in range(3 - after):
        look(engine)
        leases = measure(engine, device)
    assert kernels(leases) == LAST
    assert counted(engine, stored) == {"done": 58}


def test_what_is_being_cancelled_is_not_decided_any_more(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(wanted())
    measure(engine, device)
    with engine.begin() as connection:
        assert batches.cancel(connection, stored.campaign_id)
        Rounds(engine).reconcile()  # waits for nobody
        assert len(lanes(engine)) == 1
    Rounds(engine).reconcile()
    assert len(lanes(engine)) == 1


def test_a_paused_search_waits_between_two_rounds(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(wanted())
    measure(engine, device)
    with engine.begin() as connection:
        batches.pause(connection, stored.campaign_id)
    look(engine)
    assert fold(engine) == []
    assert len(lanes(engine)) == 1
    with engine.begin() as connection:
        batches.resume(connection, stored.campaign_id)
    look(engine)
    assert len(lanes(engine)) == 2


def test_dead_jobs_that_are_tried_again_may_go_on_however_late(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(wanted())
    measure(engine, device, lambda c: dict(c.kernel.parameters)["tile"] in (16, 2))
    for _ in range(2):
        look(engine)
        leases = measure(engine, device)
    assert kernels(leases) == {m: tiles(15, 14, 13, 12, baseline=True) for m in (64, 128)}
    assert asked(engine, "SELECT state FROM campaigns") == [("done",)]
    with engine.begin() as connection:
        assert batches.retry(connection, stored.campaign_id) == 4
    assert kernels(measure(engine, device)) == {m: tiles(16, 2) for m in (64, 128)}
    assert counted(engine, stored)["later"] == 1  # something may come of it
    for _ in range(2):
        assert asked(engine, "SELECT state FROM campaigns") == [("active",)]
        look(engine)
        assert kernels(measure(engine, device)) == {m: tiles(16) for m in (64, 128)}
    look(engine)
    assert fold(engine) == []
    assert asked(engine, "SELECT state FROM campaigns") == [("done",)]
    assert [number for number, *_ in lanes(engine)] == [0, 1, 2]


def test_invalid_jobs_that_are_tried_again_may_go_on_too(engine: Engine, announce: Announce, submit: Submit) -> None:
    traits = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36, max_threads_per_block=144)
    device = announce(replace(gpu(), traits=traits))
    stored = submit(wanted())
    for _ in range(3):
        measure(engine, device)
        look(engine)
    assert counted(engine, stored) == {"done": 2 * (12 + 6 + 5), "invalid": 8}
    with engine.begin() as connection:  # the jobs that were refused are tried on a larger one
        assert batches.retry(connection, stored.campaign_id, states=[JobState.INVALID]) == 8
    for _ in range(3):
        measure(engine, device)
        look(engine)
    best = asked(engine, "SELECT DISTINCT parameters ->> 'tile' FROM v_measurements WHERE family = 'tiled'")
    assert {tile for (tile,) in best} >= {"16", "15", "14", "13"}


# --- what rows say ---------------------------------------------------------------------------------------


@pytest.fixture
def searched(engine: Engine, device: int, submit: Submit) -> Stored:
    """A search at its end: 48 short rows, 10 others."""
    stored = submit(wanted())
    for _ in range(3):
        measure(engine, device)
        look(engine)
    return stored


def test_short_rows_are_no_results_are_not_trained_on_and_say_their_rules(engine: Engine, searched: Stored) -> None:
    with engine.connect() as connection:
        results = measurements.read(connection)
        everything = measurements.read(connection, short_rounds=True)
        under = measuring_rules.of_rows(connection, [found["measurement_id"] for found in everything])
        table = read_training_table(engine, "nvidia-test")
    assert [found["round"] for found in results] == [2] * 10
    assert len(table) == 10
    assert [found["round"] for found in everything] == [0] * 32 + [1] * 16 + [2] * 10
    search, full = wanted().search, wanted().measure
    assert search is not None
    of_round: list[MeasuringRules] = [search.short_rules(full, 0), search.short_rules(full, 1), full]
    assert all(under[found["measurement_id"]] == of_round[found["round"]] for found in everything)


def test_jobs_say_their_round_and_are_repeated_under_its_rules(
    engine: Engine, searched: Stored, command: Command
) -> None:
    listed = json.loads(command("jobs", "-c", "search", "--all", "--json").stdout)
    assert [job["round"] for job in listed] == [0] * 32 + [1] * 16 + [2] * 10
    assert "rules" not in listed[0]
    assert '"target_rse":0.03' in listed[0]["command"]
    assert '"power":"all"' not in listed[0]["command"]
    assert '"power":"all"' in listed[-1]["command"]
    assert '"target_rse"' not in listed[-1]["command"]


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def test_results_show_the_last_round_unless_all_are_asked_for(
    engine: Engine, searched: Stored, command: Command, tmp_path: Path
) -> None:
    assert len(json.loads(command("results", "-c", "search", "--json").stdout)) == 10
    everything = json.loads(command("results", "-c", "search", "--short-rounds", "--json").stdout)
    assert len(everything) == 58
    assert "round" in command("results", "-c", "search", "--short-rounds").stdout
    assert command("results", "-c", "search", "--short-rounds", "-o", "rows.parquet").returncode == 0
    refused = command("import", "dataset", "rows.parquet")  # measured under several rules, it is no recording
    assert refused.returncode != 0
    status = json.loads(command("status", "search", "--json").stdout)
    assert [(lane["round"], lane["done"], lane["later"]) for lane in status["targets"]] == [
        (0, 32, 0),
        (1, 16, 0),
        (2, 10, 0),
    ]


# --- what was found --------------------------------------------------------------------------------------


def found_by(command: Command, name: str) -> dict[str, Any]:
    done = command("best", name, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_best_of_a_search_beside_the_baseline_and_the_grid_of_another_campaign(
    engine: Engine, device: int, submit: Submit, searched: Stored, command: Command
) -> None:
    alone = found_by(command, "search")
    assert [one["share_of_best"] for one in alone["found"]] == [None, None]
    submit(wanted("sweep", search=None))
    (grid,) = measure(engine, device)
    assert len(grid.jobs) == 32
    told = found_by(command, "search")
    assert told["search"] == {"strategy": "halving", "keep": 0.5, "finalists": 4}
    first = told["found"][0]
    assert (first["m"], first["device_type"], first["best"]["kernel"]) == (64, "nvidia-test", "tiled(tile=16)")
    assert (first["best"]["runtime_ms"], first["baseline"]["runtime_ms"], first["speed_up"]) == (4, 2, 0.5)
    low, high = first["speed_up_95"]
    assert low == pytest.approx(0.5 / 1.00277, rel=1e-5)  # exp(1.96 √2 0.001)
    assert high == pytest.approx(0.5 * 1.00277, rel=1e-5)
    assert (first["tried"], first["grid"]) == (16, 16)
    assert first["device_s"] == pytest.approx(0.01 * (16 + 8 + 4))
    assert first["baseline_device_s"] == pytest.approx(0.01)
    assert (first["grid_best_ms"], first["grid_found_ms"], first["share_of_best"]) == (4, 4, 1)
    assert told["summary"] == {
        "problems": 2, "kernels_tried": 32, "kernels_of_the_grid": 32, "device_s": pytest.approx(0.56),
        "baseline_device_s": pytest.approx(0.02), "with_baseline": 2, "median_speed_up": 0.5, "max_speed_up": 0.5,
        "baseline_fastest": 2,
        "with_share_of_best": 2, "median_share_of_best": 1, "worst_share_of_best": 1,
    }  # fmt: skip
    shown = command("best", "search").stdout
    assert "0.500 (0.499 – 0.501)" in shown
    assert "0.500 times as fast in the median, 0.500 at most. That choice is the fastest of 2." in " ".join(
        shown.split()
    )
    assert "100.00% in the median" in shown


def test_the_best_of_a_sweep_and_of_a_few_kernels_drawn(
    engine: Engine, device: int, submit: Submit, command: Command
) -> None:
    submit(wanted("sweep", search=None))
    measure(engine, device)
    submit(wanted("drawn", search={"strategy": "random", "kernels": 3}))
    measure(engine, device)
    sweep = found_by(command, "sweep")["found"]
    assert [(one["best"]["kernel"], one["tried"], one["grid"], one["baseline"]) for one in sweep] == [
        ("tiled(tile=16)", 16, 16, None)
    ] * 2
    assert sweep[0]["share_of_best"] is None  # it is the grid
    for one in found_by(command, "drawn")["found"]:
        tile = int(one["best"]["kernel"].removeprefix("tiled(tile=").removesuffix(")"))
        assert (one["tried"], one["grid"], one["share_of_best"]) == (3, 16, pytest.approx(tile / 16))
        assert one["speed_up"] == pytest.approx(tile / 32)


def test_there_is_no_share_of_a_grid_that_others_measured_in_part_or_that_this_campaign_alone_measured(
    engine: Engine, device: int, submit: Submit, searched: Stored, command: Command
) -> None:
    submit(wanted("part", search=None, kernels={"family": "tiled", "tile": "2..16"}))
    measure(engine, device)
    assert [one["share_of_best"] for one in found_by(command, "search")["found"]] == [None, None]
    assert found_by(command, "search")["summary"]["worst_share_of_best"] is None
    submit(wanted("whole", search={"strategy": "grid"}, kernels={"family": "tiled", "tile": "1..15"}))
    measure(engine, device)
    assert [one["share_of_best"] for one in found_by(command, "whole")["found"]] == [None, None]
    assert [one["speed_up"] for one in found_by(command, "whole")["found"]] == [15 / 32] * 2


def test_the_grid_of_another_protocol_is_no_grid_to_compare_with(
    engine: Engine, device: int, submit: Submit, searched: Stored, command: Command
) -> None:
    submit(wanted("sweep", search=None, measure={"protocol": "do-bench"}))
    measure(engine, device, protocol="do-bench")
    assert [one["share_of_best"] for one in found_by(command, "search")["found"]] == [None, None]


def test_a_kernel_that_another_campaign_could_not_run_does_not_keep_its_grid_from_being_full(
    engine: Engine, device: int, submit: Submit, searched: Stored, command: Command
) -> None:
    submit(wanted("sweep", search=None))
    measure(engine, device, lambda c: dict(c.kernel.parameters)["tile"] == 3)
    assert [one["share_of_best"] for one in found_by(command, "search")["found"]] == [1, 1]


def test_best_says_so_where_nothing_is_measured_closely_yet(
    engine: Engine, device: int, submit: Submit, command: Command
) -> None:
    submit(wanted())
    measure(engine, device)
    done = command("best", "search")
    assert "search has no measurements under its own rules yet." in done.stdout
    assert "26 jobs are open" in done.stderr
    assert command("best", "nothing").returncode == 4


def test_a_dry_run_says_what_a_search_will_do(engine: Engine, device: int, command: Command, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps(wanted().document))
    told = json.loads(command("submit", "--dry-run", "s.yaml", "--json").stdout)
    assert [(r["round"], r["jobs"], r["short"]) for r in told["rounds"]] == [
        (0, 32, True),
        (1, 16, True),
        (2, 10, False),
    ]
    assert "rounds of the search" in command("submit", "--dry-run", "s.yaml").stdout


# --- with real workers -----------------------------------------------------------------------------------


@pytest.fixture
def replayed(tmp_path: Path) -> Iterator[Path]:
    """The paper's tiles, searched: what the project's recording answers."""
    file = tmp_path / "paper-search.yaml"
    text_of = (
        (EXAMPLES / "campaigns" / "paper-tiled.yaml").read_text().replace("name: paper-tiled", "name: paper-search")
    )
    file.write_text(f"{text_of}\nsearch: {{strategy: halving, keep: 0.3, finalists: 2}}\n")
    return file


@pytest.mark.long
def test_a_coordinator_is_killed_between_two_rounds_and_another_goes_on(
    engine: Engine, farm_services: ServiceUrls, database_url: str, tmp_path: Path, replayed: Path, submit: Submit
) -> None:
    recording = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"
    variables = {
        "FARM_DATABASE_URL": database_url,
        "FARM_BROKER_URL": str(farm_services.broker_url),
        "FARM_DEVICES": f"recorded:{recording}",
    }

    def done(number: int) -> bool:
        found = asked(engine, "SELECT 1 FROM lanes WHERE round = :n AND jobs > 0 AND done + invalid = jobs", n=number)
        return bool(found)

    with programs(tmp_path, **variables) as start:
        worker = start(FARM_WORKER)
        eventually(lambda: bool(asked(engine, "SELECT 1 FROM devices")))
        first = start(COORDINATOR)
        stored = submit(load(replayed, limit=1000))
        eventually(lambda: done(0))
        first.kill()
        start(COORDINATOR)
        eventually(lambda: asked(engine, "SELECT state FROM campaigns") == [("done",)])
        assert worker.stop() == 0
    assert [(number, short, size) for number, short, size, _ in lanes(engine)] == [
        (0, True, 270), (1, True, 81), (2, False, 81),
    ]  # fmt: skip
    nothing_is_broken(engine)
    best = asked(
        engine,
        "SELECT count(*) FROM (SELECT DISTINCT ON (m, n, k) parameters ->> 'tile' AS tile FROM v_measurements "
        "WHERE campaign_id = :id ORDER BY m, n, k, runtime_ms) b WHERE tile = '32'",
        id=stored.campaign_id,
    )
    assert best == [(27,)]
