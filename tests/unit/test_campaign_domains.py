"""Campaigns that draw their problems from a domain: distributions, draws, plans, files and their errors."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import farm.campaign.drawing
from farm.campaign import Campaign, load, loads, plan, texts_named
from farm.campaign.domain import (
    COORDINATES,
    Layers,
    ListedShapes,
    LogRange,
    Ranges,
    Source,
    mixture,
    named_domains,
    random_points,
    sobol_points,
)
from farm.campaign.drawing import MAX_WITHOUT_KERNEL, draw
from farm.campaign.named_shapes import MODELS, layer_weights
from farm.campaign.problem_blocks import DomainBlock
from farm.campaign.shape_files import parse_shapes
from farm.campaign.weighted import Weighted
from farm.errors import CampaignFileError, CampaignTooLarge, NothingToMeasure
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.language_models.built_in import built_in
from support.known_devices import H200

F32, F64, F16 = (ElementTypes.parse(name) for name in ("f32", "f64", "f16"))

ONE = LogRange(1, 1)
SMALL = Ranges(m=LogRange(1, 4096), n=LogRange(16, 4096), k=LogRange(16, 4096), align=Weighted({1: 1, 8: 1}))


def block_of(*sources: Source, types: tuple[ElementTypes, ...] = (F32,), weight: float = 1.0) -> DomainBlock:
    return DomainBlock(domain=sources or (SMALL,), types=types, layouts=(Layout.NN, Layout.NT), weight=weight)


def first(number: int, *blocks: DomainBlock, seed: int = 0, keeps=lambda _: True, runs=lambda _: True) -> list[Problem]:
    return list(islice(draw(blocks or [block_of()], random_points, seed=seed, keeps=keeps, runs=runs), number))


def campaign_of(**fields: object) -> Campaign:
    document: dict[str, object] = {
        "name": "drawn",
        "owner": "ann",
        "problems": {"domain": "serving-and-general", "types": "f32"},
        "kernels": {"family": "tiled", "tile": "1..32"},
        "search": {"strategy": "random", "problems": 50},
        **fields,
    }
    return Campaign.from_document(document)


# --- distributions -------------------------------------------------------------------------------------

shares = st.floats(0, 1, exclude_max=True)


@st.composite
def log_ranges(draw):  # type: ignore[no-untyped-def]
    low = draw(st.integers(1, 2**20))
    return LogRange(low, draw(st.integers(low, 2**21)))


@given(log_ranges(), shares)
def test_a_number_of_a_range_is_inside_it(extent: LogRange, u: float) -> None:
    assert extent.low <= extent.at(u) <= extent.high


@given(log_ranges())
def test_both_ends_of_a_range_are_drawn(extent: LogRange) -> None:
    assert (extent.at(0.0), extent.at(math.nextafter(1, 0))) == (extent.low, extent.high)


@given(log_ranges(), st.integers(1, 4096), shares)
def test_an_extent_is_aligned_as_drawn_or_by_a_smaller_alignment_where_it_is_too_small(
    extent: LogRange, multiple: int, u: float
) -> None:
    drawn = Ranges(m=extent, n=ONE, k=ONE, align=Weighted({multiple: 1.0})).shape([u, 0, 0, 0, 0, 0]).m
    assert extent.low <= drawn <= extent.high
    has_multiple = extent.high // multiple >= math.ceil(extent.low / multiple)
    if extent.at(u) >= multiple and has_multiple:
        assert drawn % multiple == 0


def test_an_extent_near_the_end_of_its_range_is_aligned_too() -> None:
    source = Ranges(m=LogRange(1, 1000), n=ONE, k=ONE, align=Weighted({256: 1.0}))
    assert source.shape([0.9999, 0, 0, 0, 0, 0]).m == 768


@given(st.lists(shares, min_size=1 + COORDINATES, max_size=1 + COORDINATES))
def test_every_shape_of_the_default_domain_is_in_its_documented_range_or_a_layer_of_a_model(point: list[float]) -> None:
    source = mixture(named_domains()["serving-and-general"]).choose(point[0])
    shape = source.shape(point[1:])
    assert 1 <= shape.m <= 16384
    if isinstance(source, Ranges):
        assert 16 <= shape.n <= 32768
        assert 16 <= shape.k <= 32768
        return
    assert isinstance(source, Layers)
    splits = {(n // a, k // b) for model in MODELS for n, k in layer_weights(built_in(model)).values() for a in source.tensor_parallel
              for b in source.tensor_parallel if a == 1 or b == 1}  # fmt: skip
    assert (shape.n, shape.k) in splits


def test_the_default_domain_has_odd_and_aligned_sizes_and_every_model() -> None:
    shapes = [problem.shape for problem in first(4000, block_of(*named_domains()["serving-and-general"]))]
    shares_of = {multiple: sum(shape.n % multiple == 0 for shape in shapes) / len(shapes) for multiple in (2, 64, 256)}
    assert 0.05 < 1 - shares_of[2] < 0.25
    assert shares_of[64] > 0.4
    assert shares_of[256] > 0.2
    n_of = {shape.n for shape in shapes}
    assert all(layer_weights(built_in(model))["output head"][0] in n_of for model in MODELS)


def test_a_log_range_gives_each_factor_of_two_the_same_share() -> None:
    points = random_points(1, 0)
    extent = LogRange(1, 16384)
    counts = Counter(int(math.log2(extent.at(next(points)[0]) + 0.5)) for _ in range(20_000))
    # From 1 to 16384, with half a number at each end: the probability of [2^i, 2^(i+1)) follows from the logarithms.
    edges = [math.log(max(2**i, 1) - 0.5) for i in range(15)] + [math.log(16384.5)]
    width = edges[-1] - edges[0]
    expected = [20_000 * (b - a) / width for a, b in pairwise(edges)]
    chi2 = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert chi2 < 36.1  # 99.9% of 14 degrees of freedom


def test_tensor_parallelism_splits_columns_of_what_enters_and_rows_of_what_leaves_a_block() -> None:
    source = Layers(layers=("llama-3.1-8b",), tokens=LogRange(7, 7), tensor_parallel=(8,))
    shapes = {source.shape([0, 0, (i + 0.5) / 5, 0, 0, 0]) for i in range(5)}
    assert shapes == {
        Shape(7, 6144 // 8, 4096), Shape(7, 4096, 4096 // 8), Shape(7, 28672 // 8, 4096), Shape(7, 4096, 14336 // 8),
        Shape(7, 128256 // 8, 4096),
    }  # fmt: skip


def test_weights_are_shares() -> None:
    chosen = Weighted({"a": 1.0, "b": 3.0})
    points = random_points(1, 1)
    counts = Counter(chosen.choose(next(points)[0]) for _ in range(10_000))
    assert abs(counts["b"] - 7500) < 4 * math.sqrt(10_000 * 0.75 * 0.25)


# --- points --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [random_points, sobol_points])
def test_points_follow_from_their_seed(points) -> None:  # type: ignore[no-untyped-def]
    def some(seed: int) -> list[tuple[float, ...]]:
        return list(islice(points(10, seed), 300))

    assert some(3) == some(3) != some(4)
    assert all(len(point) == 10 and all(0 <= u < 1 for u in point) for point in some(3))


def test_points_never_change() -> None:
    """A campaign that is stored draws the same problems for ever."""
    assert next(random_points(2, 0)) == (0.4300344203897323, 0.20942615599276482)
    assert next(sobol_points(2, 0)) == (0.4300344162620604, 0.8665067511610687)


def test_sobol_points_fill_every_interval_evenly() -> None:
    for values in zip(*islice(sobol_points(10, 5), 256), strict=True):
        assert sorted(int(u * 256) for u in values) == list(range(256))


# --- draws ---------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 60))
def test_a_draw_follows_from_its_seed_and_a_longer_one_begins_with_it(seed: int, number: int, more: int) -> None:
    blocks = block_of(types=(F32, F64), weight=2), block_of(types=(F16,))
    problems = first(number, *blocks, seed=seed)
    assert len(set(problems)) == number
    assert first(number + more, *blocks, seed=seed)[:number] == problems


def test_another_seed_draws_others() -> None:
    assert not set(first(50, seed=1)) & set(first(50, seed=2))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 200))
def test_every_beginning_of_a_draw_has_the_shares_that_the_weights_say(a: int, b: int, number: int) -> None:
    drawn = Counter(
        p.types for p in first(number, block_of(types=(F32, F64), weight=a), block_of(types=(F16,), weight=b))
    )
    for types, share in ((F32, a / 2), (F64, a / 2), (F16, b)):
        assert abs(drawn[types] - number * share / (a + b)) <= 1 + 1e-9


def test_problems_that_are_refused_or_run_nowhere_are_replaced_in_their_stratum() -> None:
    problems = first(
        100,
        block_of(types=(F32, F64)),
        keeps=lambda problem: problem.shape.m < 512,
        runs=lambda problem: problem.types == F32 or problem.layout is Layout.NT,
    )
    assert Counter(p.types for p in problems) == {F32: 50, F64: 50}
    assert all(p.shape.m < 512 for p in problems)
    assert {p.layout for p in problems if p.types == F64} == {Layout.NT}
    assert {p.layout for p in problems if p.types == F32} == {Layout.NN, Layout.NT}


def test_a_stratum_without_problems_leaves_its_turns_to_the_others_after_a_bounded_search() -> None:
    tried = Counter[ElementTypes]()

    def runs(problem: Problem) -> bool:
        tried[problem.types] += 1
        return problem.types == F32

    assert {p.types for p in first(30, block_of(types=(F32, F64)), runs=runs)} == {F32}
    assert tried == {F32: 30, F64: MAX_WITHOUT_KERNEL}


def test_a_small_domain_is_drawn_whole_and_ends() -> None:
    shapes = ListedShapes(shapes=Weighted({Shape(8, 8, n): 1.0 for n in range(1, 9)}))
    assert len(first(1000, block_of(shapes))) == 16  # in two layouts


# --- campaigns -----------------------------------------------------------------------------------------


def test_a_campaign_with_a_domain_reads_back_from_its_document(tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("m,n,k,weight\n1,4096,4096,2\n64,4096,14336,0.5\n")
    (tmp_path / "d.yaml").write_text(
        "name: d\nowner: ann\nproblems:\n"
        "  - domain: [{m: 1..64, n: 16..512, k: 512, align: {8: 1, 1: 2}}, {file: shapes.csv, weight: 3},\n"
        "             {layers: [qwen2.5-7b, llama-3.1-8b], tokens: 1..128, tensor_parallel: [2, 1]}]\n"
        "    types: [f16, f32]\n    weight: 2\n"
        "kernels: {family: tiled}\nsearch: {strategy: random, problems: 7}\n"
    )
    campaign = load(tmp_path / "d.yaml", limit=1000)
    assert campaign.document["problems"] == [
        {
            "domain": [
                {"align": {"1": 2.0, "8": 1.0}, "k": "512..512", "m": "1..64", "n": "16..512", "weight": 1.0},
                {"layers": ["llama-3.1-8b", "qwen2.5-7b"], "tensor_parallel": [1, 2], "tokens": "1..128", "weight": 1.0},
                {"shapes": {"1x4096x4096": 2.0, "64x4096x14336": 0.5}, "weight": 3.0},
            ],
            "types": ["f16:f16:f32", "f32:f32:f32"], "layouts": ["nn"], "alpha": [1.0], "beta": [0.0], "weight": 1.0,
        }
    ]  # fmt: skip
    assert campaign.document["search"] == {"strategy": "random", "problems": 7, "kernels": 4, "seed": 0}
    again = Campaign.from_document(json.loads(json.dumps(campaign.document)))
    assert (again, again.digest) == (campaign, campaign.digest)
    assert list(again.expand()) == list(campaign.expand())


def test_notation_and_order_leave_no_trace_but_weights_and_seeds_do() -> None:
    def digest(domain: object, **search: object) -> str:
        problems = {"domain": domain, "types": ["f32"]}
        return campaign_of(problems=problems, search={"strategy": "random", "problems": 9, **search}).digest

    one = {"m": "1..8", "n": 16, "k": "16..64"}
    two = {"shapes": ["8x8x8"]}
    same = [[one, two], [two, {**one, "align": 1}], [{**one, "weight": 1}, {"shapes": {"8": 1.0}}]]
    assert len({digest(domain) for domain in same}) == 1
    assert digest("serving-and-general") == digest(["serving-and-general"])
    others = [
        digest([one, {**two, "weight": 2}]),
        digest([one]),
        digest([one, two], seed=1),
        digest([one, two], kernels=5),
    ]
    assert len({digest(same[0]), *others}) == 5
    assert digest([one, two], kernels=4) == digest([one, two])


def of_weights(*weights: float) -> Campaign:
    blocks = [{"domain": {"m": "1..64", "n": 16 * i, "k": 16}, "types": "f32", "weight": weight}
              for i, weight in enumerate(weights, start=1)]  # fmt: skip
    return campaign_of(problems=blocks)


@pytest.mark.parametrize(
    ("same", "normal"),
    [
        ([(1, 1), (2, 2), (0.1, 0.1)], [1, 1]),
        ([(3, 4, 2), (0.3, 0.4, 0.2), (6, 8, 4)], [3, 4, 2]),
        ([(5,), (0.25,)], [1]),
        ([(0.5, 3), (1, 6)], [1, 6]),
    ],
)
def test_weights_of_blocks_with_the_same_ratios_are_the_same_campaign(
    same: list[tuple[float, ...]], normal: list[float]
) -> None:
    campaigns = [of_weights(*weights) for weights in same]
    assert [block["weight"] for block in campaigns[0].document["problems"]] == normal
    assert len({campaign.digest for campaign in campaigns}) == 1
    assert all(campaign == campaigns[0] for campaign in campaigns)
    assert Campaign.from_document(campaigns[0].document).digest == campaigns[0].digest


def test_blocks_that_differ_in_their_weights_alone_are_in_one_order() -> None:
    block = {"domain": "serving-and-general", "types": "f32"}
    campaign = campaign_of(problems=[{**block, "weight": 10}, {**block, "weight": 2}])
    assert [block["weight"] for block in campaign.document["problems"]] == [1, 5]
    assert Campaign.from_document(campaign.document) == campaign


def test_weights_with_other_ratios_are_another_campaign() -> None:
    assert len({of_weights(*weights).digest for weights in ((1, 1), (1, 2), (2, 1), (1e-300, 1e300), (1, 1e300))}) == 5


def test_campaigns_without_a_domain_keep_their_digest() -> None:
    document = {"name": "s", "owner": "ann", "problems": {"shapes": "512x512x512", "types": "f32"},
                "kernels": {"family": "tiled", "tile": "1..32"}, "search": {"strategy": "random"}}  # fmt: skip
    assert "problems" not in Campaign.from_document(document).document["search"]


def test_the_size_counts_the_kernels_that_are_drawn_for_a_problem() -> None:
    search = {"strategy": "random", "problems": 1000, "kernels": 5}
    assert campaign_of(search=search).size == 5000
    assert campaign_of(search={"strategy": "learn", "kernels": 5, "test_problems": 30}).size == (100 + 30) * 5
    assert campaign_of(kernels={"family": "tiled", "tile": [8, 16]}).size == 50 * 2  # fewer than are drawn


@pytest.mark.parametrize(
    ("search", "candidates", "problems"),
    [
        ("{strategy: random, problems: 1000, kernels: 5}", 1000 * 2048, "search.problems 1,000"),
        ("{strategy: learn}", 200 * 2048, "search.problems 100, search.test_problems 100"),
    ],
)
def test_huge_ranges_of_kernels_for_drawn_problems_are_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str, candidates: int, problems: str
) -> None:
    monkeypatch.delattr(farm.campaign.drawing, "draw")
    path = tmp_path / "d.yaml"
    path.write_text(
        "name: d\nproblems: {domain: serving-and-general, types: f16}\n"
        "kernels: {family: cutlass, swizzle: [1, 2, 4, 8], split_k: 1..64, stages: 2..9}\n"
        f"search: {search}\n"
    )
    load(path, limit=candidates)
    with pytest.raises(CampaignTooLarge) as raised:
        load(path, limit=candidates - 1)
    assert str(raised.value) == (
        f"{path} draws kernels from {candidates:,} configurations (problems times kernels, before constraints); one campaign "
        f"may draw from {candidates - 1:,}. They come from {problems}, kernels 2,048 (cutlass.split_k 64, cutlass.stages 8, "
        "cutlass.swizzle 4). Shorten a range of kernel parameters, draw fewer problems or split the campaign."
    )


# --- plans ---------------------------------------------------------------------------------------------


def test_a_plan_tells_what_was_drawn() -> None:
    campaign = campaign_of(
        problems=[{"domain": "serving-and-general", "types": ["f32", "f64"]}], constraints="flops <= 10**9"
    )
    summary = plan(campaign, [H200], allow_missing=False).summary()
    drawn = summary.drawn
    assert drawn is not None
    assert (drawn.problems, drawn.requested, drawn.configurations, summary.jobs) == (50, 50, 200, 200)
    assert [(one.types, one.problems, one.configurations) for one in drawn.by_types] == [
        ("f32:f32:f32", 25, 100),
        ("f64:f64:f64", 25, 100),
    ]
    problems = list(dict.fromkeys(c.problem for c in campaign.expand()))
    for one in drawn.by_types:
        of_types = [p for p in problems if str(p.types) == one.types]
        for quantiles, values in (
            (one.m, sorted(p.shape.m for p in of_types)), (one.n, sorted(p.shape.n for p in of_types)),
            (one.k, sorted(p.shape.k for p in of_types)), (one.flops, sorted(p.flops for p in of_types)),
        ):  # fmt: skip
            assert quantiles is not None
            assert (quantiles.min, quantiles.median, quantiles.max) == (values[0], values[12], values[-1])
    assert [one.shape for one in drawn.sample] == [str(p.shape) for p in problems[:8]]
    assert all(len(one.kernels) == 4 for one in drawn.sample)
    assert json.dumps(asdict(summary))


def test_what_constraints_exclude_is_counted_among_the_kernels_of_the_drawn_problems() -> None:
    campaign = campaign_of(constraints=["tile <= 8", "m >= 8"])
    summary = plan(campaign, [H200], allow_missing=False).summary()
    assert (summary.configurations, summary.excluded_by_constraints) == (50 * 8, 50 * 24)


def test_problems_that_no_kernel_runs_are_replaced_and_the_missing_types_are_told() -> None:
    problems = {"domain": "serving-and-general", "types": ["f32", "f16"]}  # tiled kernels have no f16
    summary = plan(campaign_of(problems=problems), [H200], allow_missing=False).summary()
    assert summary.drawn is not None
    assert summary.invalid == ()
    assert [(one.types, one.problems) for one in summary.drawn.by_types] == [("f16:f16:f32", 0), ("f32:f32:f32", 50)]
    assert summary.drawn.by_types[0].m is None


def test_a_problem_whose_kernels_the_constraints_exclude_is_replaced() -> None:
    campaign = campaign_of(constraints="tile <= m // 16")
    assert len({c.problem for c in campaign.expand()}) == 50


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"constraints": "m > 20000"},
            "its constraints (m > 20000) leave none of the configurations that were drawn from its domain; relax them",
        ),
        (
            {"constraints": "tile > 32"},
            "its constraints (tile > 32) leave none of the configurations that were drawn from its domain; relax them",
        ),
        (
            {"problems": {"domain": "serving-and-general", "types": "f16"}},
            r"none of its kernels runs a problem of its domain on the devices of its targets; for example, "
            r"tiled\(tile=1\) \S+ f16:f16:f32 nn alpha=1 beta=0: .*f16",
        ),
    ],
)
def test_a_domain_of_which_nothing_can_be_measured_is_an_error(fields: dict[str, object], why: str) -> None:
    with pytest.raises(NothingToMeasure) as raised:
        plan(campaign_of(**fields), [H200], allow_missing=False).summary()
    pattern = why if "\\" in why else re.escape(why)
    assert re.search(f"asks for nothing that can be measured: {pattern}", str(raised.value))


def test_kernels_are_drawn_with_every_family_as_likely_as_any_other() -> None:
    campaign = campaign_of(
        kernels=[{"family": "cublaslt"}, {"family": "tiled", "tile": "1..32"}],
        search={"strategy": "random", "problems": 300, "kernels": 1},
    )
    counts = {c.family: c.jobs for c in plan(campaign, [H200], allow_missing=False).summary().counts}
    assert abs(counts["cublaslt"] - 150) < 4 * math.sqrt(75)


@pytest.mark.parametrize("problems", [{"domain": "serving-and-general"}, {"shapes": ["512x512x512", "1024x512x512"]}])
def test_a_random_search_keeps_the_binaries_of_kernels_that_are_built_ahead(problems: dict[str, object]) -> None:
    campaign = campaign_of(
        problems={**problems, "types": "f16"},
        kernels={"family": "cutlass", "tile_m": [64, 128], "warp_m": 64, "stages": 2},
        search={"strategy": "random", "kernels": 2, **({"problems": 5} if "domain" in problems else {})},
    )
    jobs = [
        job
        for job in plan(campaign, [H200], allow_missing=False).jobs()
        if job.configuration.kernel.family == "cutlass"
    ]
    assert jobs
    assert all(len(job.binaries) == 1 for job in jobs if job.invalid_reason is None)


def test_the_search_for_a_problem_that_runs_ends_sooner_with_many_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {"family": "tiled", "tile": "1..32"}
    campaign = campaign_of(kernels=kernels)
    tried = Counter[Problem]()

    def runs(configuration: Configuration) -> bool:
        tried[configuration.problem] += 1
        return False

    monkeypatch.setattr(farm.campaign.drawing, "MAX_REFUSED_KERNELS", 32 * 50)
    assert list(campaign.expand(runs)) == []
    assert set(tried.values()) == {32}
    assert len(tried) == 50


LEARN = {"strategy": "learn", "problems": 30, "kernels": 2, "test_problems": 20}


def test_the_test_set_of_a_learning_campaign_is_drawn_once_for_all_of_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Counter[str]()

    def counted(*blocks: Any, **rest: Any) -> Iterator[Problem]:
        drawn[blocks[1].__name__] += 1
        return draw(*blocks, **rest)

    monkeypatch.setattr(farm.campaign.drawing, "draw", counted)
    planned = plan(campaign_of(search=LEARN), [H200], allow_missing=False)
    problems: dict[int, set[Problem]] = {0: set(), 1: set()}
    for job in planned.jobs():
        problems[job.round].add(job.configuration.problem)
    assert {number: len(of_round) for number, of_round in problems.items()} == {0: 20, 1: 30}
    assert problems[0] == set(planned.test_set)
    assert not problems[0] & problems[1]
    assert drawn == {"random_points": 1, "sobol_points": 1}


# --- files ---------------------------------------------------------------------------------------------

FILE = """\
name: d
owner: ann
kernels: {family: tiled}
search: {strategy: random, problems: 5}
problems:
  - types: f32
    domain: [DOMAIN]
"""


@pytest.mark.parametrize(
    ("domain", "told"),
    [
        ("{m: 1..8, k: 5}", "[0].n: it is missing; write for example n: 16..32768"),
        ("{layers: llama-3.1-8b}", "[0].tokens: it is missing; write for example tokens: 1..16384"),
        ("{m: 8..1, n: 1, k: 1}", "[0].m: the range 8..1 counts down; write 1..8"),
        ("{m: 0, n: 1, k: 1}", "[0].m: the range 0..0 leaves 1..2147483647; write for example 16..32768"),
        ("{m: , n: 1, k: 1}", "[0].m: an empty value is not a range; write for example 16..32768, or one number"),
        ("{m: 1..8 x2, n: 1, k: 1}", "[0].m: '1..8 x2' is not a range; write for example 16..32768, or one number"),
        ("{m: 1, n: 1, k: 1, align: 0}", "[0].align: '0' is not an alignment; write a whole number of elements, such as 8"),
        ("{m: 1, n: 1, k: 1, align: {}}", "[0].align: it is empty; write for example {1: 1, 8: 1, 64: 2}"),
        ("{m: 1, n: 1, k: 1, weight: 0}", "[0].weight: 0 is not a weight; write a number above 0, such as 1 or 0.5"),
        ("{m: 1, n: 1, k: 1, aligned: 8}", "[0].aligned: there is no such field here; did you mean align?"),
        ("{layers: llama-3.1-9b, tokens: 1}", "[0].layers: There is no language model 'llama-3.1-9b'; did you mean llama-3.1-8b or "),
        ("serving-general", "[0]: there is no domain 'serving-general'; did you mean serving-and-general?"),
        ("5..9", "[0]: there is no domain '5..9'; use one of serving-and-general"),
        ("{weight: 2}", "[0]: a mapping is not part of a domain; write the name of a domain, "),
        ("5", "[0]: 5 is not part of a domain; write the name of a domain, "),
        ("{shapes: {}}", "[0].shapes: it is empty; write for example {512x512x512: 1}"),
        ("", ": the list is empty; write at least one value, or remove the field"),
        ("{file: 5}", "[0].file: 5 is not the name of a file; write for example shapes.csv"),
    ],
)  # fmt: skip
def test_a_domain_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path, domain: str, told: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(FILE.replace("DOMAIN", domain))
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1000)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{path}:7: problems[0].domain{told}")


@pytest.mark.parametrize(
    ("search", "told"),
    [
        (
            "search: {strategy: random}",
            "4: search: the problems are drawn from a domain: say how many, as in search: {strategy: random, problems: 500}",
        ),
        (
            "search: {strategy: halving, problems: 5}",
            "4: search.strategy: halving does not draw problems from a domain; use learn or random, or list the problems\n"
            "{path}:4: search.problems: halving does not read it; remove it, or use random or learn",
        ),
        (
            "search: {strategy: grid}",
            "4: search.strategy: grid does not draw problems from a domain; use learn or random, or list the problems",
        ),
        ("search: {strategy: random, problems: 5, kernel: 3}", "4: search.kernel: there is no such field here; did you mean kernels?"),
        (
            "search: {strategy: random, problems: 0}",
            "4: search.problems: 0 is too small; write a whole number from 1 up to 10,000,000 "
            "(problems drawn from the domain of a campaign that has one)",
        ),
        (
            "priority: 0",
            "5: problems: the problems are drawn from a domain: say how many, as in search: {strategy: random, problems: 500}",
        ),
    ],
)  # fmt: skip
def test_a_search_that_does_not_suit_a_domain_is_refused(tmp_path: Path, search: str, told: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        FILE.replace("DOMAIN", "serving-and-general").replace("search: {strategy: random, problems: 5}", search)
    )
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1000)
    assert str(raised.value) == f"{path}:{told.replace('{path}', str(path))}"


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("{shapes: 512x512x512, types: f32}", "4: search.problems: the problems of this campaign are listed, not drawn from a domain; remove it"),
        (
            "[{domain: serving-and-general, types: f32}, {shapes: 512x512x512, types: f32}]",
            "5: problems: some blocks list their problems and some draw them from a domain; make them two campaigns",
        ),
        (
            "{domain: serving-and-general, types: f32, m: 5}",
            "5: problems.m: a block of problems has a domain, or its shapes, not both; move m into the domain, or remove the domain",
        ),
    ],
)  # fmt: skip
def test_listed_and_drawn_problems_do_not_mix(tmp_path: Path, block: str, told: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(FILE.split("problems:\n", maxsplit=1)[0] + f"problems: {block}\n")
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1000)
    assert str(raised.value) == f"{path}:{told}"


# --- files of shapes -----------------------------------------------------------------------------------


def test_a_file_of_shapes_has_its_columns_in_any_order_and_adds_up_repeated_shapes() -> None:
    text = "\ufeffweight,K,n,m\r\n2,64,32,16\r\n\r\n0.5, 64, 32, 16\n1,8,8,8\n".lstrip("\ufeff")
    assert parse_shapes(text, "s.csv") == Weighted({Shape(8, 8, 8): 1.0, Shape(16, 32, 64): 2.5})
    assert parse_shapes("m,n,k\n1,2,3\n", "s.csv") == Weighted({Shape(1, 2, 3): 1.0})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            "shapes.csv:1: the header is not m,n,k or m,n,k,weight; write a header m,n,k,weight, and then lines such as",
        ),
        ("m,n\n1,2\n", "shapes.csv:1: the header is not m,n,k or m,n,k,weight; "),
        ("m,n,k\n", "shapes.csv has no shapes; write a header m,n,k,weight, and then lines such as 512,4096,4096,2"),
        ("m,n,k\n1,2,3\n1,2\n", "shapes.csv:3: there are 2 values for the 3 columns m,n,k"),
        ("m,n,k\n1,2,x\n", "shapes.csv:2: k is 'x'; write a whole number such as 4096"),
        ("m,n,k\n1,0,3\n", "shapes.csv:2: "),
        (
            "m,n,k,weight\n1,2,3,-1\n1,2,3,nan\n",
            "shapes.csv:2: the weight is '-1'; write a number above 0, such as 1 or 0.5 (1 more lines are wrong)",
        ),
    ],
)
def test_a_file_of_shapes_that_is_wrong_is_refused_with_both_lines(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "shapes.csv").write_text(text)
    path = tmp_path / "d.yaml"
    path.write_text(FILE.replace("DOMAIN", "{file: shapes.csv}"))
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1000)
    assert str(raised.value).startswith(f"{path}:7: problems[0].domain[0].file: {told}")


def test_a_file_of_shapes_that_is_not_there_is_refused_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(FILE.replace("DOMAIN", "{file: shapes.csv}"))
    told = (
        f"{path}:7: problems[0].domain[0].file: there is no file {tmp_path / 'shapes.csv'}; "
        "a name is relative to the folder of the campaign file"
    )
    for reading in (lambda: load(path, limit=1000), lambda: texts_named(path.read_text(), path)):
        with pytest.raises(CampaignFileError) as raised:
            reading()
        assert str(raised.value) == told


def test_a_server_opens_no_file_and_takes_those_that_were_sent(tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("m,n,k\n8,8,8\n")
    path = tmp_path / "d.yaml"
    path.write_text(FILE.replace("DOMAIN", "{file: shapes.csv}"))
    text, there = path.read_text(), str(path)
    with pytest.raises(CampaignFileError, match=r"shapes\.csv was not sent with the campaign.*list the shapes instead"):
        loads(text, name=there, limit=1000, owner="ann")
    assert loads(text, name=there, limit=1000, owner="ann", files=texts_named(text, path)) == load(path, limit=1000)


def test_texts_are_named_by_domains_alone_and_a_broken_file_names_none(tmp_path: Path) -> None:
    assert texts_named("name: [", tmp_path / "d.yaml") == {}
    assert texts_named("name: d\nproblems: 5\n", tmp_path / "d.yaml") == {}
