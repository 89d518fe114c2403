"""Groups and experts in campaign files: their problems, constraints and mistakes; campaigns without them are as before."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from farm.campaign import Campaign, load, loads, plan, texts_named
from farm.errors import CampaignFileError, CampaignTooLarge
from farm.gemm import Layout, Problem
from farm.groups import Groups
from farm.kernels import FAMILIES
from support.known_devices import H200

ROUTING = "3,0,5\n1,1,6\n"


def campaign(problems: str, rest: str = "", *, limit: int = 10_000, files: dict[str, str] | None = None) -> Campaign:
    text = f"name: groups\nproblems: {problems}\nkernels: {{family: cublaslt}}\n{rest}"
    return loads(text, name="groups.yaml", owner="ann", limit=limit, files=files or {})


def problems_of(one: Campaign) -> list[Problem]:
    return list(dict.fromkeys(configuration.problem for configuration in one.expand()))


def reads_back(one: Campaign) -> bool:
    again = Campaign.from_document(json.loads(json.dumps(one.document)))
    return (again.digest, problems_of(again)) == (one.digest, problems_of(one))


@pytest.mark.parametrize("block", ["shapes: [131x32x16, 131x8x8]", "m: 131, n: [32, 8], k: 16"])
def test_every_shape_is_a_problem_with_each_of_the_groups(block: str) -> None:
    one = campaign(f"{{{block}, types: [f16, f32], layouts: [nn, nt], groups: ['16*8,3', none, '131,0']}}")
    found = problems_of(one)
    assert one.size == len(found) == 2 * 2 * 2 * 3
    assert {p.groups for p in found} == {None, Groups((16,) * 8 + (3,)), Groups((131, 0))}
    assert reads_back(one)


def test_none_is_the_campaign_without_groups_and_notation_makes_no_difference() -> None:
    without = campaign("{shapes: 16x8x8, types: f32}")
    assert campaign("{shapes: 16x8x8, types: f32, groups: none}").digest == without.digest
    assert "groups" not in without.document["problems"][0]
    alike = {
        campaign(f"{{shapes: 16x8x8, types: f32, groups: {text}}}").digest for text in ("8*2", "'8,8'", "[8*2, '8,8']")
    }
    assert len(alike) == 1
    assert without.digest not in alike


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("shapes: [16x8x8, 17x8x8], groups: [none, 8*2]", r"groups: .*8\*2 .*they have 16 rows together, and m is 17"),
        ("m: 16..2147483647, n: 8, k: 8, groups: 8*2", "groups: .*they have 16 rows together, and m is 17"),
        ("shapes: 16x8x8, groups: 8*2, batch: [1, 2]", "groups: .*a batch has no groups, and batch is 2"),
        ("shapes: 16x8x8, groups: 8*2, layouts: [nn, tn]", "groups: .*the layout is nn or nt, not tn"),
        ("shapes: 16x8x8, groups: 8*2, scale: '128x128:1x128'", "groups: .*would belong to several groups"),
        ("shapes: 16x8x8, groups: [8*2, 8.5]", r"groups\[1\]: 8.5 is not the groups of a product; write their rows as"),
        ("shapes: 16x8x8, groups: '8,x'", "groups: The groups 8,x do not work: 'x' is not a number of rows"),
        ("domain: serving-and-general, groups: 16", "groups: the shapes of a domain have no groups"),
    ],
)
def test_groups_that_do_not_fit_are_named_with_their_place(block: str, message: str) -> None:
    with pytest.raises(CampaignFileError, match=rf"^groups\.yaml:2: problems\.{message}") as raised:
        campaign(f"{{{block}, types: f32}}")
    assert str(raised.value).count("\n") == 0


EXPERTS = "experts: 16, top_k: 2, tokens: [8, 64], weights: [32x64, 64x16], routing: [balanced, uniform, zipf 1.2]"


def test_experts_make_a_problem_of_each_number_of_tokens_routing_and_weight() -> None:
    one = campaign(f"{{{EXPERTS}, types: [bf16, f16], layouts: nt, scale: [none, row], fused: silu}}")
    found = problems_of(one)
    assert one.size == len(found) == 2 * 3 * 2 * 2 * 2
    assert {(p.shape.m, p.shape.n, p.shape.k) for p in found} == {
        (m, n, k) for m in (16, 128) for n, k in ((32, 64), (64, 16))
    }
    assert {p.layout for p in found} == {Layout.NT}
    assert all(p.groups is not None and len(p.groups.sizes) == 16 and p.groups.largest <= p.shape.m / 2 for p in found)
    assert Groups((1,) * 16) in {p.groups for p in found}
    assert any(0 in p.groups.sizes for p in found if p.groups is not None)
    of_weight = [{p.groups for p in found if p.shape.n == n} for n in (32, 64)]
    assert of_weight[0] == of_weight[1]
    assert len(of_weight[0]) == 6
    assert reads_back(one)


def test_other_numbers_of_tokens_and_rules_leave_the_rows_of_a_routing_alone_and_another_seed_does_not() -> None:
    of = lambda text: {p.groups for p in problems_of(campaign(f"{{{text}, types: bf16}}"))}  # noqa: E731
    alone = of(EXPERTS.replace("[8, 64]", "64").replace("[balanced, uniform, zipf 1.2]", "uniform"))
    assert len(alone) == 1
    assert alone < of(EXPERTS)
    assert not alone & of(f"{EXPERTS}, seed: 1")


def test_a_model_is_a_block_with_its_experts() -> None:
    rest = "tokens: 16, routing: uniform, types: bf16, layouts: nt"
    one = campaign(f"{{model: qwen3-30b-a3b, {rest}}}")
    assert one == campaign(f"{{experts: 128, top_k: 8, weights: [2048x768, 1536x2048], {rest}}}")
    assert reads_back(one)
    assert "model" not in one.document["problems"][0]


def test_recorded_routings_are_stored_with_the_campaign(tmp_path: Path) -> None:
    text = "name: groups\nproblems: {routing: {file: r.csv}, weights: [32x64, 8x8], types: bf16}\nkernels: {family: cublaslt}\n"
    (tmp_path / "r.csv").write_text(ROUTING)
    (tmp_path / "groups.yaml").write_text(text)
    assert texts_named(text, tmp_path / "groups.yaml") == {"r.csv": ROUTING}
    one = load(tmp_path / "groups.yaml", limit=100)
    assert one.size == 4
    assert {(p.shape.m, p.groups) for p in problems_of(one)} == {(8, Groups((3, 0, 5))), (8, Groups((1, 1, 6)))}
    assert reads_back(one)
    listed = campaign("{routing: ['1*2,6', '3,0,5'], weights: [8x8, 32x64], types: bf16}")
    assert listed.document["problems"] == one.document["problems"]
    with pytest.raises(CampaignFileError, match=r"problems\.routing: r\.csv was not sent with the campaign"):
        campaign("{routing: {file: r.csv}, weights: 32x64, types: bf16}")
    (tmp_path / "r.csv").write_text("3,0\nmany\n")
    with pytest.raises(CampaignFileError, match=r"problems\.routing: r\.csv:2: .*'many' is not a number of rows"):
        load(tmp_path / "groups.yaml", limit=100)
    (tmp_path / "r.csv").unlink()
    with pytest.raises(CampaignFileError, match=r"problems\.routing\.file: there is no file .*r\.csv"):
        texts_named(text, tmp_path / "groups.yaml")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (EXPERTS.replace("top_k: 2", "top_k: 17"), "top_k: a token chooses 17 different experts of 16; lower it"),
        (EXPERTS.replace("experts: 16", "experts: 4097"), "experts: 4097 is too large"),
        (EXPERTS.replace("[8, 64]", "[0, 64]"), r"tokens\[0\]: 0 is zero; tokens goes from 1 to 131072"),
        (EXPERTS.replace("[8, 64]", "1..131072"), "tokens: up to 34,360,000,512 choices of experts would be drawn"),
        (EXPERTS.replace("32x64", "32"), r"weights\[0\]: 32 is not the weight of an expert; write n x k, as in 1536x2048"),
        (EXPERTS.replace("uniform", "even"), r"routing\[1\]: 'even' is no routing; write balanced, uniform, or zipf"),
        (EXPERTS.replace("uniform", "{file: r.csv}"), r"routing\[1\]: a file has the rows of each expert; remove experts"),
        (EXPERTS.replace("top_k: 2, ", ""), "top_k: it is missing; write for example top_k: 8"),
        (f"{EXPERTS}, layouts: [nt, tt]", "layouts: the rows of a group lie together, .* the layout is nn or nt, not tt"),
        (f"{EXPERTS}, scale: ['128x128:1x128']", "scale: a factor of 128 rows of A would belong to several groups"),
        (f"{EXPERTS}, batch: 8", "batch: routing and weights decide the problems of a block of experts; remove batch"),
        (f"{EXPERTS}, seed: -1", "seed: -1 is too small"),
        ("model: qwen3, tokens: 8, routing: uniform", "model: There is no language model 'qwen3'; did you mean qwen3-8b"),
        ("model: deepseek-v3, top_k: 2, tokens: 8, routing: uniform", "top_k: the model has its top_k; remove top_k"),
        ("routing: uniform, weights: 8x8", "routing: uniform needs experts, top_k and tokens, or a model"),
        ("routing: {files: r.csv}, weights: 8x8", r"routing: this is not a file of routings; write \{file: routing.csv\}"),
        ("routing: ['0*3'], weights: 8x8", r"routing\[0\]: no expert has rows"),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_are_one_clear_error(block: str, message: str) -> None:
    with pytest.raises(CampaignFileError, match=rf"^groups\.yaml:2: problems\.{message}") as raised:
        campaign(f"{{{block}, types: f32}}", files={"r.csv": ROUTING})
    assert str(raised.value).count("\n") == 0


def test_routings_count_in_the_size_of_a_campaign_before_they_are_drawn() -> None:
    with pytest.raises(CampaignTooLarge, match=r"131,072.*problems\[0\]\.tokens 131,072"):
        campaign("{experts: 4, top_k: 1, tokens: 1..131072, weights: 8x8, routing: balanced, types: f32}")


def test_constraints_see_how_many_groups_there_are_and_have_rows() -> None:
    block = "{shapes: 16x8x8, types: f32, groups: [none, '16', '8*2', '8,0,8']}"
    of = lambda text: [str(p.groups) for p in problems_of(campaign(block, f"constraints: ['{text}']"))]  # noqa: E731
    assert of("groups == 1") == ["16", "None"]
    assert of("active_groups < groups") == ["8,0,8"]
    assert of("bytes == 4 * (16 * 8 + 2 * 64 + 16 * 8)") == ["8*2", "8,0,8"]


def test_a_plan_of_groups_has_jobs_of_families_that_compute_them(monkeypatch: pytest.MonkeyPatch) -> None:
    one = campaign(f"[{{{EXPERTS}, types: f32}}, {{shapes: 8x8x8, types: f32}}]")
    for grouped, invalid in ((True, []), (False, [("cublaslt computes no groups", 12)])):
        monkeypatch.setitem(FAMILIES, "cublaslt", replace(FAMILIES["cublaslt"], grouped=grouped, rules=()))
        summary = plan(one, [H200], allow_missing=False).summary()
        assert [(group.reason, group.count) for group in summary.invalid] == invalid
        assert summary.jobs == 13


def test_the_example_measures_the_experts_of_three_models() -> None:
    one = load(Path(__file__).parents[2] / "examples" / "campaigns" / "moe.yaml", limit=1000)
    found, kernels = problems_of(one), Counter(c.kernel.family for c in one.expand())
    assert len(found) == (2 + 2 + 3) * 3 * 2
    assert {len(p.groups.sizes) for p in found if p.groups is not None} == {8, 128, 256}
    assert max(p.operand_bytes for p in found) < 2**33
    assert kernels == {"cublaslt": 24, "triton": 204}
