"""Batches in campaign files: their axis, constraints, draws and plans; campaigns without them are as before."""

from __future__ import annotations

import hashlib
import json
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from farm.campaign import Campaign, load, loads, plan
from farm.campaign.domain import Points, random_points, sobol_points
from farm.campaign.drawing import draw
from farm.errors import CampaignFileError, CampaignTooLarge
from farm.gemm import Problem
from support.known_devices import CPU, H200

EXAMPLES = Path(__file__).parents[2] / "examples" / "campaigns"


def campaign(problems: str, rest: str = "", *, kernels: str = "{family: cublaslt}", limit: int = 10_000) -> Campaign:
    text = f"name: batches\nproblems: {problems}\nkernels: {kernels}\n{rest}"
    return loads(text, name="batches.yaml", owner="ann", limit=limit)


def problems_of(one: Campaign) -> list[Problem]:
    return list(dict.fromkeys(configuration.problem for configuration in one.expand()))


@pytest.mark.parametrize(
    ("written", "batches"),
    [("8", [8]), ("[64, 1, 8, 8]", [1, 8, 64]), ("1..64 x8", [1, 8, 64]), ("[2, 10..16 +2]", [2, 10, 12, 14, 16])],
)
@pytest.mark.parametrize("shapes", ["shapes: [64x32x16, 8x8x8]", "m: [64, 8], n: 32, k: 16"])
def test_every_shape_and_variant_is_a_problem_of_each_batch(shapes: str, written: str, batches: list[int]) -> None:
    one = campaign(f"{{{shapes}, types: [f16, f32], beta: [0, 1], batch: {written}}}")
    found = problems_of(one)
    assert one.size == len(found) == 2 * 2 * 2 * len(batches)
    assert {(p.beta, p.batch) for p in found} == set(product((0.0, 1.0), batches))
    again = Campaign.from_document(json.loads(json.dumps(one.document)))
    assert (again.digest, problems_of(again)) == (one.digest, found)


def test_a_batch_of_one_is_the_campaign_without_and_another_is_another_campaign() -> None:
    without = campaign("{shapes: 8x8x8, types: f32}")
    assert campaign("{shapes: 8x8x8, types: f32, batch: [1]}").digest == without.digest
    assert "batch" not in without.document["problems"][0]
    assert campaign("{shapes: 8x8x8, types: f32, batch: [1, 2]}").digest != without.digest
    alike = [
        campaign(f"{{shapes: 8x8x8, types: f32, batch: {written}}}").digest for written in ("1..16 x4", "[16, 4, 1]")
    ]
    assert len(set(alike)) == 1


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("0", "batch: 0 is zero; batch goes from 1 to 2147483647"),
        ("[8, -1]", r"batch\[1\]: -1 is negative; batch goes from 1 to 2147483647"),
        ("2.5", "batch: 2.5 is not a value of batch; write a whole number, or a range as in"),
        ("many", "batch: 'many' is not a value of batch"),
        ("1..99999999999", "the range 1..99999999999 reaches 99999999999, which is too large"),
        ("[]", "batch: the list is empty"),
    ],
)
@pytest.mark.parametrize("block", ["shapes: 8x8x8", "m: 8, n: 8, k: 8", "domain: serving-and-general"])
def test_a_batch_that_cannot_be_is_one_clear_error(block: str, written: str, message: str) -> None:
    search = "search: {strategy: random, problems: 3}" if "domain" in block else ""
    with pytest.raises(CampaignFileError, match=message) as raised:
        campaign(f"{{{block}, types: f32, batch: {written}}}", search)
    assert str(raised.value).count("\n") <= 1


def test_batches_count_in_the_size_of_a_campaign_before_it_is_expanded() -> None:
    with pytest.raises(CampaignTooLarge, match=r"2,147,483,647.*problems\[0\].batch 2,147,483,647"):
        campaign("{shapes: 8x8x8, types: f32, batch: 1..2147483647}")


def test_constraints_see_the_batch_and_the_work_of_all_its_products() -> None:
    block = "{shapes: 128x128x128, types: f32, batch: [1, 2, 4, 8]}"
    of = lambda text: [p.batch for p in problems_of(campaign(block, f"constraints: ['{text}']"))]  # noqa: E731
    assert of("batch <= 2") == [1, 2]
    assert of("flops > 2 * 128**3 * 2") == [4, 8]
    assert of("bytes == 4 * 3 * 128**2 * 4") == [4]
    assert of("intensity == flops / bytes and intensity > 21 and intensity < 22") == [1, 2, 4, 8]


DOMAIN = "domain: {m: 1..4096, n: 16..4096, k: 16..4096}, types: [f16, f32]"
RANDOM = "search: {strategy: random, problems: 200, seed: 3}"


def test_a_domain_draws_each_batch_about_as_often() -> None:
    found = problems_of(campaign(f"{{{DOMAIN}, batch: [1, 8, 64, 512]}}", RANDOM))
    counts = {batch: sum(p.batch == batch for p in found) for batch in (1, 8, 64, 512)}
    assert sum(counts.values()) == 200
    assert min(counts.values()) > 25
    # The batch does not decide the shape.
    assert len({p.shape.m > 64 for p in found if p.batch == 8}) == 2


def test_a_domain_of_one_batch_draws_the_shapes_of_the_domain_without() -> None:
    alone, eight = (problems_of(campaign(f"{{{DOMAIN}{batch}}}", RANDOM)) for batch in ("", ", batch: 8"))
    assert [(p.shape, p.types) for p in eight] == [(p.shape, p.types) for p in alone]
    assert {p.batch for p in alone} == {1}
    assert {p.batch for p in eight} == {8}


@pytest.mark.parametrize(
    ("points", "digest"), [(random_points, "53ea0b3be3ac55a2"), (sobol_points, "224b732343b19a5b")]
)
def test_campaigns_from_before_batches_draw_the_same_problems(points: Points, digest: str) -> None:
    blocks = load(EXAMPLES / "domain.yaml", limit=10**9).domain_blocks
    drawn = islice(draw(blocks, points, seed=1, keeps=lambda _: True), 200)
    lines = "\n".join(f"{p.shape} {p.types} {p.layout} {p.alpha:g} {p.beta:g}" for p in drawn)
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == digest


def test_a_plan_counts_the_work_of_batches_and_shows_them() -> None:
    of = {text: campaign(f"{{{DOMAIN}{text}}}", RANDOM) for text in ("", ", batch: 8")}
    alone, eight = (plan(one, [H200], allow_missing=False).summary() for one in of.values())
    assert alone.drawn is not None
    assert eight.drawn is not None
    assert (alone.drawn.added, eight.drawn.added) == ((), ("batch",))
    for before, after in zip(alone.drawn.by_types, eight.drawn.by_types, strict=True):
        assert (before.m, before.n, before.k) == (after.m, after.n, after.k)
        assert before.flops is not None
        assert after.flops is not None
        assert after.batch is not None
        assert after.flops.median == 8 * before.flops.median
        assert (after.batch.min, after.batch.max) == (8, 8)
    assert eight.drawn.sample[0].problem == f"{alone.drawn.sample[0].problem} batch=8"
    assert sum(eight.estimated_seconds.values()) > sum(alone.estimated_seconds.values())


def test_kernels_without_batches_have_invalid_jobs_that_say_why() -> None:
    one = campaign("{shapes: 64x64x64, types: f16, batch: [1, 8]}", kernels="{family: cutlass, split_k: 2}")
    (group,) = plan(one, [H200], allow_missing=False).summary().invalid
    assert (group.count, group.reason) == (
        1,
        "cutlass slices k of one product only: with batch=8, split_k must be 1, not 2",
    )


def on_a_cpu(text: str) -> str:
    """The example changed as its head says."""
    head, _, rest = text.partition("name:")
    replacement = head.split("Replace the key kernels with:")[1].replace("\n#   ", "\n").replace("#", "")
    return f"name:{rest.split('kernels:')[0]}{replacement.strip()}\n"


def test_the_example_measures_8_to_1024_products_on_gpus_and_as_its_head_says_on_cpus() -> None:
    text = (EXAMPLES / "batched.yaml").read_text()
    found = problems_of(loads(text, name="batched.yaml", owner="ann", limit=1000))
    assert {p.batch for p in found} == {8, 32, 64, 128, 256, 512, 1024}
    assert {str(p.types.ab) for p in found} == {"f16", "bf16", "f32"}
    assert max(p.operand_bytes for p in found) < 2**31
    summary: Any = plan(
        loads(on_a_cpu(text), name="cpu.yaml", owner="ann", limit=1000), [CPU], allow_missing=False
    ).summary()
    assert {count.family for count in summary.counts} == {"blas"}
    assert summary.jobs > 50
    assert summary.invalid == ()
