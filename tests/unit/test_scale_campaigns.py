"""Scale factors and fused operations in campaign files: their values, constraints, draws and plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest

from farm.campaign import Campaign, KnownDevice, loads, plan
from farm.campaign.domain import Points, random_points, sobol_points
from farm.campaign.drawing import draw
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import CampaignFileError, CampaignTooLarge
from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels import FAMILIES
from farm.scale import SCALES_OF_BOTH, Scale

CPU = KnownDevice(
    "CPU-1", "cpu-laptop", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**33, threads=2), Backend.CPU
)
DOMAIN = "domain: {m: 1..4096, n: 16..4096, k: 16..4096}, types: [f16, f32]"
RANDOM = "search: {strategy: random, problems: 200, seed: 3}"


def campaign(problems: str, rest: str = "", *, kernels: str = "{family: cublaslt}", limit: int = 10_000) -> Campaign:
    text = f"name: added\nproblems: {problems}\nkernels: {kernels}\n{rest}"
    return loads(text, name="added.yaml", owner="ann", limit=limit)


def problems_of(one: Campaign) -> list[Problem]:
    return list(dict.fromkeys(configuration.problem for configuration in one.expand()))


@pytest.fixture
def blas_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(FAMILIES["blas"], scales=SCALES_OF_BOTH, fusions=tuple(Fusion), rules=())
    monkeypatch.setitem(FAMILIES, "blas", family)


@pytest.mark.parametrize("block", ["shapes: [64x32x16, 8x8x8]", "m: [64, 8], n: 32, k: 16"])
def test_every_shape_is_a_problem_with_each_scale_and_each_fusion(block: str) -> None:
    one = campaign(
        f"{{{block}, types: f8e4m3, batch: [1, 8], scale: [row, 1x128:128x128, row], fused: [none, bias+gelu]}}"
    )
    found = problems_of(one)
    assert one.size == len(found) == 2 * 2 * 2 * 2
    assert {(p.batch, p.scale, p.fused) for p in found} == {
        (batch, scale, fused)
        for batch in (1, 8)
        for scale in (Scale.ROW, Scale.GROUP_BLOCK)
        for fused in (Fusion.NONE, Fusion.BIAS_GELU)
    }
    again = Campaign.from_document(json.loads(json.dumps(one.document)))
    assert (again.digest, problems_of(again)) == (one.digest, found)


def test_none_is_the_campaign_without_them_and_their_order_makes_no_difference() -> None:
    without = campaign("{shapes: 8x8x8, types: f32}")
    assert campaign("{shapes: 8x8x8, types: f32, scale: none, fused: [none]}").digest == without.digest
    assert not {"scale", "fused"} & without.document["problems"][0].keys()
    other = {
        campaign(f"{{shapes: 8x8x8, types: f32, {key}}}").digest
        for key in ("scale: row", "fused: relu", "scale: [none, row]", "scale: [row, none]", "fused: [relu, none]")
    }
    assert len(other) == 4
    assert without.digest not in other


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("scale: 2x128", r"2: problems\.scale: '2x128' names no scale factors\. Use one of none, tensor, row, 1x128"),
        ("scale: [row, 7]", r"2: problems\.scale\[1\]: 7 names no scale factors"),
        ("scale: []", r"2: problems\.scale: the list is empty"),
        ("fused: swish", r"2: problems\.fused: 'swish' names no fused operations\. Use one of none, bias, relu, gelu"),
        ("fused: {bias: 1}", r"2: problems\.fused: .*names no fused operations"),
        ("fuse: bias", r"2: problems\.fuse: there is no such field here; did you mean fused"),
    ],
)
@pytest.mark.parametrize("block", ["shapes: 8x8x8", "m: 8, n: 8, k: 8", "domain: serving-and-general"])
def test_what_is_not_known_is_one_clear_error(block: str, written: str, message: str) -> None:
    search = "search: {strategy: random, problems: 3}" if "domain" in block else ""
    with pytest.raises(CampaignFileError, match=message) as raised:
        campaign(f"{{{block}, types: f32, {written}}}", search)
    assert str(raised.value).count("\n") <= 1


def test_they_count_in_the_size_of_a_campaign() -> None:
    with pytest.raises(CampaignTooLarge, match=r"fused 3, problems\[0\]\.scale 2"):
        campaign("{shapes: 8x8x8, types: f32, scale: [none, row], fused: [none, bias, relu]}", limit=5)


def test_constraints_see_them_and_their_bytes() -> None:
    block = "{shapes: 128x128x128, types: f32, scale: [none, row, tensor], fused: [none, bias]}"
    of = lambda text: {(p.scale, p.fused) for p in problems_of(campaign(block, f'constraints: ["{text}"]'))}  # noqa: E731
    assert of("scale == 'none'") == {("none", "none"), ("none", "bias")}
    assert of("scale in ('row', 'tensor') and fused != 'bias'") == {("row", "none"), ("tensor", "none")}
    assert of("bytes == 4 * 3 * 128**2 + 4 * 256 + 4 * 128") == {("row", "bias")}
    with pytest.raises(CampaignFileError, match="scale is never 'rows'"):
        of("scale == 'rows'")


@pytest.mark.parametrize("points", [random_points, sobol_points])
def test_a_domain_draws_each_about_as_often_and_one_value_changes_no_shape(points: Points) -> None:
    def drawn(keys: str) -> list[Problem]:
        blocks = campaign(f"{{{DOMAIN}{keys}}}", RANDOM).domain_blocks
        return list(islice(draw(blocks, points, seed=1, keeps=lambda _: True), 200))

    alone, one = drawn(""), drawn(", scale: row, fused: bias")
    assert [(p.shape, p.types) for p in one] == [(p.shape, p.types) for p in alone]
    assert {(p.scale, p.fused) for p in one} == {(Scale.ROW, Fusion.BIAS)}
    several = drawn(", batch: [1, 8], scale: [none, row], fused: [none, relu, silu]")
    assert _counts([p.scale for p in several]).keys() == {Scale.NONE, Scale.ROW}
    assert min(_counts([(p.batch, p.scale, p.fused) for p in several]).values()) > 4
    assert len(_counts([(p.batch, p.scale, p.fused) for p in several])) == 12


def _counts(values: Sequence[object]) -> dict[object, int]:
    return {value: values.count(value) for value in values}


@pytest.mark.usefixtures("blas_computes_all")
def test_a_plan_names_the_values_that_were_drawn() -> None:
    of = [
        campaign(f"{{{DOMAIN.replace('[f16, f32]', 'f32')}{keys}}}", RANDOM, kernels="{family: blas}")
        for keys in ("", ", scale: [row, tensor], fused: bias+relu")
    ]
    alone, added = (plan(one, [CPU], allow_missing=False).summary().drawn for one in of)
    assert alone is not None
    assert added is not None
    assert (alone.added, added.added) == ((), ("scale", "fused"))
    (types,) = added.by_types
    assert (types.scale, types.fused) == (("row", "tensor"), ("bias+relu",))
    assert added.sample[0].problem.endswith(f" scale={added.sample[0].scale} fused=bias+relu")


def test_a_family_that_does_not_compute_them_has_invalid_jobs_that_say_why() -> None:
    one = campaign("{shapes: 64x64x64, types: f32, scale: [none, 1x128]}", kernels="{family: blas}")
    (group,) = plan(one, [CPU], allow_missing=False).summary().invalid
    assert (group.count, group.example_reason) == (1, "blas has no scale=1x128, only none")
