"""What a campaign asks for does not depend on how its file is written, and its size is known before it is expanded."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import islice, pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.campaign import Campaign, load, shape_sets
from farm.campaign.axes import Axis, parse_part
from farm.gemm import Shape

TYPES = ["f64", "f32", "tf32", "f16", "bf16", "i8", "f16:f16:f16", "f16:f32:f32"]
extents = st.lists(st.integers(1, 5000), min_size=1, max_size=5, unique=True)


def one_or_more(values, most=3):
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


problem_variants = st.fixed_dictionaries(
    {"types": one_or_more(TYPES)},
    optional={
        "layouts": one_or_more(["nn", "nt", "tn", "tt"]),
        "alpha": one_or_more([1, 0.5, -2, 3.0]),
        "beta": one_or_more([0, 1, 0.25]),
    },
)
shape_blocks = st.fixed_dictionaries(
    {"shapes": st.lists(st.tuples(*[st.integers(1, 9)] * 3).map(list), min_size=1, unique_by=tuple)}
)
axis_blocks = st.fixed_dictionaries({"m": extents, "n": extents, "k": extents})
problem_blocks = st.tuples(shape_blocks | axis_blocks, problem_variants).map(lambda parts: parts[0] | parts[1])
kernel_blocks = st.one_of(
    st.fixed_dictionaries({"family": st.just("tiled"), "tile": one_or_more(range(1, 33))}),
    st.fixed_dictionaries({"family": st.just("blas"), "threads": one_or_more(range(1, 65))}),
    st.fixed_dictionaries(
        {"family": st.just("cutlass"), "stages": one_or_more(range(2, 6)), "tile_m": one_or_more([64, 128])}
    ),
)
documents = st.fixed_dictionaries(
    {
        "name": st.just("sweep"),
        "owner": st.just("anna"),
        "problems": st.lists(problem_blocks, min_size=1, max_size=2),
        "kernels": st.lists(kernel_blocks, min_size=1, max_size=2),
    }
)
quickly = settings(max_examples=60)


@quickly
@given(documents)
def test_a_campaign_expands_to_as_many_configurations_as_it_says(document):
    campaign = Campaign.from_document(document)
    assert sum(1 for _ in campaign.expand()) == campaign.size


@quickly
@given(documents)
def test_one_block_of_each_makes_every_configuration_once(document):
    one_each = document | {"problems": document["problems"][:1], "kernels": document["kernels"][:1]}
    campaign = Campaign.from_document(one_each)
    assert len({c.id for c in campaign.expand()}) == campaign.size


@quickly
@given(documents)
def test_a_stored_document_gives_the_campaign_back(document):
    campaign = Campaign.from_document(document)
    again = Campaign.from_document(json.loads(json.dumps(campaign.document)))
    assert again == campaign
    assert again.digest == campaign.digest
    assert [c.canonical for c in again.expand()] == [c.canonical for c in campaign.expand()]


@quickly
@given(documents, st.randoms(use_true_random=False))
def test_the_order_of_values_and_blocks_changes_nothing(document, rng):
    shuffled = Campaign.from_document(_shuffled(document, rng))
    campaign = Campaign.from_document(document)
    assert shuffled.digest == campaign.digest
    assert shuffled.document == campaign.document


def _shuffled(value, rng: random.Random):
    if isinstance(value, dict):
        items = [(k, v if k == "shapes" else _shuffled(v, rng)) for k, v in value.items()]
        if "shapes" in value:
            items = [(k, rng.sample(v, len(v)) if k == "shapes" else v) for k, v in items]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return rng.sample([_shuffled(v, rng) for v in value], len(value))
    return value


BASE = {
    "name": "sweep",
    "owner": "anna",
    "problems": [{"m": [512, 1024, 2048, 4096], "n": [1, 2, 3, 4, 5], "k": [8], "types": ["f16"]}],
    "kernels": [{"family": "tiled", "tile": [16]}],
    "constraints": ["m * n <= 2 ** 40"],
}


@pytest.mark.parametrize(
    "same",
    [
        {"problems": {"m": "512..4096 x2", "n": "1..5", "k": 8, "types": "f16:f16:f32"}},
        {"problems": [{"m": [4096, "512..2048 ×2"], "n": ["1..5 +2", 2, 4, 4], "k": "8..8", "types": ["F16", "f16"]}]},
        {"kernels": {"family": "tiled"}},
        {"kernels": [{"family": "tiled", "tile": 16}, {"family": "tiled"}]},
        {"constraints": "(m*n) <= (2**40)"},
        {"targets": ["any", "any"]},
        {"description": "now with a description"},
        {"priority": 7},
        {"measure": {"timing": {"target_rse": 0.005}}},
    ],
)
def test_notation_description_and_priority_leave_the_digest_alone(same):
    assert Campaign.from_document(BASE | same).digest == Campaign.from_document(BASE).digest


@pytest.mark.parametrize(
    "other",
    [
        {"name": "sweep-2"},
        {"owner": "berta"},
        {"targets": [{"type": "nvidia-h200"}]},
        {"problems": [BASE["problems"][0] | {"k": [9]}]},
        {"problems": [BASE["problems"][0] | {"beta": 1}]},
        {"kernels": [{"family": "tiled", "tile": 8}]},
        {"constraints": []},
        {"measure": {"timing": {"target_rse": 0.01}}},
    ],
)
def test_what_is_asked_for_makes_the_digest(other):
    assert Campaign.from_document(BASE | other).digest != Campaign.from_document(BASE).digest


def test_the_digest_of_a_campaign_is_the_same_in_every_version():
    """A change of this literal makes every stored campaign a stranger to its own file."""
    assert Campaign.from_document(BASE).digest == "a5d6807060d7c73907b52a69693206997fd6fb2cc90c2baf032f989900001ac8"


@given(st.sets(st.integers(1, 300), min_size=1))
def test_the_normal_form_of_an_axis_has_its_values_and_no_others(values):
    axis = Axis([parse_part(v, name="m", allowed=range(1, 301)) for v in values])
    assert list(axis) == sorted(values)
    again = Axis([parse_part(e, name="m", allowed=range(1, 301)) for e in axis.to_document()])
    assert again == axis
    assert again.to_document() == axis.to_document()


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(2, 9))
def test_a_geometric_range_multiplies_up_to_its_end(first, more, factor):
    values = parse_part(f"{first}..{first + more} x{factor}", name="m", allowed=range(1, 2**31))
    assert values[0] == first
    assert all(b == a * factor for a, b in pairwise(values))
    assert values[-1] <= first + more < values[-1] * factor


@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(1, 999))
def test_an_arithmetic_range_steps_up_to_its_end(first, more, step):
    part = parse_part(f"{first}..{first + more} +{step}", name="m", allowed=range(1, 2**31))
    assert list(part) == list(range(first, first + more + 1, step))
    assert Axis([part, part]).max_length == 2 * len(part)


def test_constraints_keep_exactly_what_fulfils_them():
    campaign = Campaign.from_document(
        {
            "name": "x",
            "owner": "anna",
            "problems": {"m": "1..40", "n": [7, 16], "k": 64, "types": ["f32", "f64"]},
            "kernels": [{"family": "tiled", "tile": "1..32"}, {"family": "blas", "threads": [1, 2]}],
            "constraints": ["m % 2 == 0", "tile <= m", "family != 'blas' or ab == 'f32'"],
        }
    )
    found = [(c.problem.shape.m, c.problem.types.ab, c.kernel) for c in campaign.expand()]
    expected = sum(min(m, 32) * 4 + 4 for m in range(2, 41, 2))
    assert len(found) == expected
    for m, ab, kernel in found:
        assert m % 2 == 0
        assert dict(kernel.parameters)["tile"] <= m if kernel.family == "tiled" else ab == "f32"


def test_expansion_holds_no_more_than_one_configuration(tmp_path: Path):
    path = tmp_path / "large.yaml"
    path.write_text(
        "name: x\nproblems: {m: 1..1000000, n: 1..1000, k: 1, types: f32}\n"
        "kernels: {family: cutlass, tile_m: 16..256 x2, tile_n: 16..256 x2, stages: 2..10, split_k: 1..64}\n"
    )
    campaign = load(path, limit=10**16)
    tracemalloc.start()
    try:
        taken = sum(1 for _ in islice(campaign.expand(), 20_000))
        assert taken == 20_000
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_problems_and_kernels_are_shared_between_configurations():
    campaign = Campaign.from_document(BASE | {"kernels": {"family": "tiled", "tile": [1, 2]}})
    first, second, third = islice(campaign.expand(), 3)
    assert first.problem is second.problem
    assert first.kernel is third.kernel


def test_every_shape_set_can_be_named_in_a_file():
    for name, shape_set in shape_sets().items():
        document = yaml.safe_load(f"{{problems: {{shapes: {{set: {name}}}, types: f16}}}}")
        assert Campaign.from_document(BASE | {"constraints": []} | document).size == len(set(shape_set.shapes))


def test_the_paper_sets_have_their_shapes():
    assert len(shape_sets()["paper-27"].shapes) == 27
    assert len(shape_sets()["paper-36"].shapes) == 36
    assert Shape(128256, 512, 2048) in shape_sets()["paper-36"].shapes


def test_model_shapes_follow_from_the_published_dimensions():
    """n and k as in the weights of the published checkpoints (q, k and v stacked; gate and up stacked)."""
    llama_8b = shape_sets()["llm-llama-3.1-8b-decode"].shapes
    assert [(s.n, s.k) for s in llama_8b if s.m == 8] == [
        (4096 + 1024 + 1024, 4096), (4096, 4096), (14336 + 14336, 4096), (4096, 14336), (128256, 4096),
    ]  # fmt: skip
    assert {s.m for s in llama_8b} == {1, 8, 32, 128}
    gpt_oss = shape_sets()["llm-gpt-oss-20b-prefill"].shapes
    assert Shape(512, 2880, 4096) in gpt_oss  # 64 heads of 64 are wider than the hidden size
    assert Shape(8192, 5120, 2880) in gpt_oss
