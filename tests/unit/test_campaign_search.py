"""Looking for the best kernel of each problem: which kernels are tried, which go on, and how closely they are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.campaign import Campaign, KnownDevice, Search, load, plan
from farm.campaign.strategies import Grid, Halving, Random
from farm.campaign.strategies.draws import Draw
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import CampaignFileError
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules

CPU = KnownDevice(
    "CPU-1", "cpu-x", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=4), Backend.CPU
)
GPU_TRAITS = DeviceTraits(
    kind=DeviceKind.CUDA, memory_bytes=2**34, max_threads_per_block=256, compute_capability=(9, 0)
)
GPU = KnownDevice("GPU-1", "nvidia-h200", "gpu01", GPU_TRAITS, Backend.CUDA)
OTHER_GPU = KnownDevice("GPU-2", "nvidia-l4", "gpu02", GPU_TRAITS, Backend.CUDA)


def campaign_of(search: dict[str, object] | None, **fields: object) -> Campaign:
    document: dict[str, object] = {
        "name": "search",
        "owner": "ann",
        "problems": {"m": [256, 512], "n": 256, "k": 256, "types": "f32"},
        "kernels": {"family": "tiled", "tile": "1..32"},
        **({} if search is None else {"search": search}),
        **fields,
    }
    return Campaign.from_document(document)


def halving(**fields: object) -> Halving:
    return Halving.model_validate({"strategy": "halving", **fields})


# --- which go on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "kernels", "rounds"),
    [
        (halving(), 32, [32, 8, 4]),
        (halving(), 16_128, [16_128, 4032, 1008, 252, 63, 16, 4]),
        (halving(kernels=30, keep=0.1, finalists=1), 1000, [30, 3, 1]),
        (halving(kernels=64), 10, [10, 4]),  # fewer kernels than are to be drawn
        (halving(keep=0.01), 100, [100, 4]),  # never fewer than the finalists
        (halving(keep=0.5, finalists=1), 2, [2, 1]),
        (halving(), 4, [4, 4]),  # no more than the finalists: nothing to choose
        (halving(), 1, [1, 1]),
        (halving(), 0, [0, 0]),  # all of them failed, or none can run
        (Grid(), 32, [32]),
        (Random(kernels=8), 32, [8]),
        (Random(kernels=60), 32, [32]),
    ],
)
def test_how_many_kernels_each_round_measures(search: Search, kernels: int, rounds: list[int]) -> None:
    assert search.rounds(kernels) == rounds


@given(st.integers(0, 100_000), st.floats(0, 0.5, exclude_min=True, allow_subnormal=False), st.integers(1, 200))
def test_every_round_leaves_fewer_and_the_last_has_the_finalists(kernels: int, keep: float, finalists: int) -> None:
    search = halving(keep=keep, finalists=finalists)
    *shorts, last = search.rounds(kernels)
    assert shorts == sorted(set(shorts), reverse=True)
    assert last == min(kernels, finalists)
    assert all(search.going_on(n) >= min(n, finalists) for n in shorts)


# --- how closely -----------------------------------------------------------------------------------------


def test_a_short_round_costs_less_and_each_is_stricter_than_the_one_before() -> None:
    full = MeasuringRules(power="all", timing=TimingRules(warm_l2=True), max_attempts=2, job_seconds=7)
    first, second = (halving().short_rules(full, number) for number in (0, 1))
    assert first.timing == TimingRules(target_rse=0.03, min_samples=3, max_seconds=0.05, warmup_seconds=0.005)
    assert second.timing == TimingRules(target_rse=0.015, min_samples=3, max_seconds=0.2, warmup_seconds=0.005)
    assert (first.power, first.max_attempts, first.job_seconds, first.operands) == ("none", 2, 7, full.operands)


def test_no_short_round_is_stricter_than_the_campaign_s_own_rules() -> None:
    full = MeasuringRules(timing=TimingRules(target_rse=0.1, min_samples=2, max_seconds=0.01, warmup_seconds=0))
    for number in range(20):
        timing = halving().short_rules(full, number).timing
        assert timing.target_rse == 0.1
        assert timing.min_samples == 2
        assert timing.max_seconds <= 0.01
        assert MeasuringRules.model_validate_json(halving().short_rules(full, number).model_dump_json())


def test_only_halving_has_short_rounds() -> None:
    assert halving().first_rules(MeasuringRules()) is not None
    assert Grid().first_rules(MeasuringRules()) is None
    assert Random(kernels=3).first_rules(MeasuringRules()) is None


# --- what is drawn ---------------------------------------------------------------------------------------

DRAWN = ["tiled(tile=5)", "tiled(tile=25)", "tiled(tile=1)", "tiled(tile=30)", "tiled(tile=22)"]
"""What seed 0 draws of these, which must never change."""

KERNELS = [Configuration.parse(f"tiled(tile={tile}) 512x512x512 f32") for tile in range(1, 33)]


def drawn(configurations: list[Configuration], most: int = 5, seed: int = 0) -> list[str]:
    draw = Draw(most, seed)
    for configuration in configurations:
        draw.add(configuration)
    return [str(configuration.kernel) for configuration in draw.drawn()]


def test_a_draw_is_the_same_in_any_order_however_often_a_kernel_comes() -> None:
    assert drawn(KERNELS) == drawn(KERNELS[::-1]) == drawn(KERNELS + KERNELS[:9] + KERNELS)
    assert len(set(drawn(KERNELS))) == 5


def test_a_draw_is_the_same_on_every_host_and_python() -> None:
    assert drawn(KERNELS) == DRAWN
    code = (
        "from farm.campaign.strategies.draws import Draw\nfrom farm.kernels import Configuration\nd = Draw(5, 0)\n"
        "for t in range(1, 33): d.add(Configuration.parse(f'tiled(tile={t}) 512x512x512 f32'))\n"
        "print([str(c.kernel) for c in d.drawn()])"
    )
    again = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.strip() == str(DRAWN)


def test_another_seed_or_problem_draws_others_and_few_kernels_are_all_drawn() -> None:
    other = [Configuration.parse(c.canonical.replace("512x512x512", "256x512x512")) for c in KERNELS]
    assert len({tuple(drawn(KERNELS)), tuple(drawn(KERNELS, seed=1)), tuple(drawn(other))}) == 3
    assert sorted(drawn(KERNELS[:3])) == sorted(str(c.kernel) for c in KERNELS[:3])


def test_what_is_drawn_stays_when_others_are_left_out() -> None:
    kept = drawn(KERNELS)
    assert drawn([c for c in KERNELS if str(c.kernel) in kept or int(c.kernel.parameters[0][1]) % 2]) == kept


def test_every_kernel_has_the_same_chance() -> None:
    times = dict.fromkeys((str(c.kernel) for c in KERNELS), 0)
    for seed in range(800):
        for kernel in drawn(KERNELS, 8, seed):
            times[kernel] += 1
    assert all(140 < n < 260 for n in times.values())  # 200 expected, standard deviation 12


# --- the jobs of the first round -------------------------------------------------------------------------


def first_round(campaign: Campaign, *devices: KnownDevice) -> dict[tuple[str, str], list[str]]:
    """By pool and problem the kernels of the first round that can run; those that cannot, with an x before them."""
    jobs = plan(campaign, devices or [GPU], allow_missing=False).jobs()
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        kernel = f"{'x ' if job.invalid_reason else ''}{job.configuration.kernel}"
        found.setdefault((job.pool.name, str(job.configuration.problem.shape)), []).append(kernel)
    return found


def test_kernels_are_drawn_among_those_that_can_run_and_the_others_are_invalid_as_ever() -> None:
    jobs = first_round(campaign_of({"strategy": "halving", "kernels": 6}))
    assert set(jobs) == {("type:nvidia-h200", "256x256x256"), ("type:nvidia-h200", "512x256x256")}
    for kernels in jobs.values():
        assert len([k for k in kernels if not k.startswith("x")]) == 6
        assert len([k for k in kernels if k.startswith("x")]) == 16  # more than 256 threads
    assert len({tuple(sorted(kernels)) for kernels in jobs.values()}) == 2


def test_the_baseline_is_in_the_round_that_has_the_campaign_s_own_rules_and_on_gpus_alone() -> None:
    both = [{"family": "tiled", "tile": [8, 16]}, {"family": "blas", "threads": [1, 2]}]
    baselines = {
        strategy: [
            (pool, shape)
            for (pool, shape), kernels in first_round(
                campaign_of({"strategy": strategy}, kernels=both), GPU, CPU
            ).items()
            if kernels.count("cublaslt(algorithm=0)") == 1
        ]
        for strategy in ("grid", "random", "halving")
    }
    once = [("type:nvidia-h200", "256x256x256"), ("type:nvidia-h200", "512x256x256")]
    assert baselines == {"grid": once, "random": once, "halving": []}
    assert not any("cublaslt(algorithm=0)" in kernels for kernels in first_round(campaign_of(None)).values())


def test_a_problem_that_cublaslt_cannot_compute_has_no_baseline() -> None:
    old = KnownDevice(
        "GPU-9",
        "nvidia-t4",
        "old",
        DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34, compute_capability=(7, 5)),
        Backend.CUDA,
    )
    fields = {
        "problems": {"shapes": "256x256x256", "types": "bf16"},
        "kernels": {"family": "cublaslt", "algorithm": [1, 2]},
    }
    ((_, kernels),) = first_round(campaign_of({"strategy": "grid"}, **fields), old).items()
    assert kernels == ["x cublaslt(algorithm=1)", "x cublaslt(algorithm=2)"]


def test_any_searches_on_each_type_for_itself() -> None:
    assert {pool for pool, _ in first_round(campaign_of({"strategy": "grid"}), GPU, OTHER_GPU)} == {
        "type:nvidia-h200",
        "type:nvidia-l4",
    }
    assert {pool for pool, _ in first_round(campaign_of(None), GPU, OTHER_GPU)} == {"any:nvidia-h200,nvidia-l4"}


def test_a_draw_of_a_large_grid_keeps_no_more_than_it_draws() -> None:
    campaign = campaign_of(
        {"strategy": "random", "kernels": 3},
        problems={"shapes": "512x512x512", "types": "f16"},
        kernels={"family": "cublaslt", "algorithm": "0..255"},
    )
    seen = 0

    def counted():  # type: ignore[no-untyped-def]
        nonlocal seen
        for configuration in campaign.expand():
            seen += 1
            yield configuration

    jobs = plan(campaign, [GPU], allow_missing=False).jobs_of(counted())
    assert len([next(jobs) for _ in range(3)]) == 3
    assert seen == 256


# --- what a dry run says ---------------------------------------------------------------------------------


def test_a_plan_says_what_each_round_comes_to() -> None:
    campaign = campaign_of({"strategy": "halving", "finalists": 2}, measure={"power": "all"})
    summary = plan(campaign, [GPU], allow_missing=False).summary()
    assert [(r.round, r.jobs, r.short) for r in summary.rounds] == [(0, 32, True), (1, 8, True), (2, 6, False)]
    everything = plan(campaign_of(None, measure={"power": "all"}), [GPU], allow_missing=False).summary()
    assert everything.rounds == ()
    assert sum(r.estimated_seconds for r in summary.rounds) == pytest.approx(sum(summary.estimated_seconds.values()))
    assert sum(summary.estimated_seconds.values()) < sum(everything.estimated_seconds.values())
    assert json.dumps(asdict(summary))


def test_a_plan_of_one_round_counts_the_baselines() -> None:
    (only,) = plan(campaign_of({"strategy": "random", "kernels": 5}), [GPU], allow_missing=False).summary().rounds
    assert (only.round, only.jobs, only.short) == (0, 2 * (5 + 1), False)


# --- the file --------------------------------------------------------------------------------------------

GOOD = """\
name: search
owner: ann
problems: {shapes: 512x512x512, types: f32}
kernels: {family: tiled, tile: 1..32}
"""


@pytest.mark.parametrize(
    ("section", "document"),
    [
        ("{strategy: grid}", {"strategy": "grid"}),
        ("{strategy: random}", {"strategy": "random", "kernels": 60, "seed": 0}),
        ("{strategy: random, kernels: 7, seed: 3}", {"strategy": "random", "kernels": 7, "seed": 3}),
        ("{strategy: halving}", {"strategy": "halving", "keep": 0.25, "finalists": 4}),
        (
            "{strategy: halving, kernels: 20, keep: 0.5, finalists: 2, seed: 1}",
            {"strategy": "halving", "kernels": 20, "keep": 0.5, "finalists": 2, "seed": 1},
        ),
    ],
)
def test_a_search_is_part_of_the_campaign_and_reads_back(tmp_path: Path, section: str, document: object) -> None:
    (tmp_path / "s.yaml").write_text(f"{GOOD}search: {section}\n")
    campaign = load(tmp_path / "s.yaml", limit=1000)
    assert campaign.document["search"] == document
    assert Campaign.from_document(campaign.document) == campaign


def test_equal_searches_are_one_campaign_and_without_a_search_it_is_the_one_it_was() -> None:
    sections = [
        None, {"strategy": "grid"}, {"strategy": "random"}, {"strategy": "random", "seed": 1}, {"strategy": "halving"},
        {"strategy": "halving", "keep": 0.5}, {"strategy": "halving", "kernels": 20},
    ]  # fmt: skip
    assert len({campaign_of(section).digest for section in sections}) == len(sections)
    assert campaign_of({"strategy": "random"}).digest == campaign_of({"strategy": "random", "kernels": 60}).digest
    assert "search" not in campaign_of(None).document
    assert campaign_of(None).digest == "1cfa039216656162b4e1a864677a905f0cf1602d2af086b835a5ab4d50a691a1"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{}", "5: search.strategy: it is missing; write for example strategy: halving"),
        ("", "5: search: it has no value; write for example {strategy: halving}, or remove the field"),
        (
            "halving",
            "5: search: 'halving' is not a mapping; its fields are strategy, kernels, seed, problems, finalists, keep, test_problems, random_share, budget_seconds, target",
        ),
        (
            "{strategy: best}",
            "5: search.strategy: 'best' is not known here; write grid or random or halving or learn "
            "(all kernels, some at random, many briefly and the best closely, or what teaches a model most)",
        ),
        (
            "{strategy: grid, kernels: 3}",
            "5: search.kernels: grid does not read it; remove it, or use random or halving or learn",
        ),
        ("{strategy: random, keep: 0.25}", "5: search.keep: random does not read it; remove it, or use halving"),
        (
            "{strategy: halving, finalist: 1}",
            "5: search.finalist: there is no such field here; did you mean finalists?",
        ),
        (
            "{strategy: halving, keep: 0.9}",
            "5: search.keep: 0.9 is too large; write a number above 0 up to 0.5 (share of a problem's kernels that a round "
            "leaves)",
        ),
        (
            "\n  strategy: halving\n  seed: 4",
            "7: search.seed: nothing is drawn, as all kernels are tried; remove it, or say how many kernels to draw",
        ),
        (
            "{strategy: halving, kernels: 4}",
            "5: search.kernels: all of 4 kernels would be finalists (4); draw more, or use random",
        ),
        (
            "\n  strategy: halving\n  finalists: 32",
            "7: search.finalists: all of the campaign's 32 kernels would be finalists (32); ask for fewer, or use grid",
        ),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path, section: str, told: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"{GOOD}search: {section}\n")
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1000)
    assert str(raised.value) == f"{path}:{told}"


def test_problems_come_one_after_another() -> None:
    """What a plan draws by problem, and what it counts, rests on it."""
    campaign = campaign_of(None)
    problems = [problem for problem, _ in groupby(campaign.expand(), key=lambda c: c.problem)]
    assert len(problems) == len(set(problems)) == 2
