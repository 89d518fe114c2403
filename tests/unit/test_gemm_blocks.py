"""Blocks of campaigns that list whole problems with counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from farm.campaign import Campaign, load, loads, texts_named
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.trace_texts import notes_of
from farm.errors import CampaignFileError
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import parse_problem, problem_line
from farm.language_models.layer_gemm import LayerGemm

TRACES = Path(__file__).parents[1] / "data" / "traces"


def campaign(problems: str) -> Campaign:
    text = f"name: x\nproblems: {problems}\nkernels: {{family: cublaslt}}\n"
    return loads(text, name="x.yaml", limit=1000, owner="me")


def test_a_block_of_gemms_keeps_problems_and_counts_in_one_order() -> None:
    made = campaign("{gemms: {8x64x32 f8e4m3 nt scale=row fused=bias: 3, 8x64x32 bf16 nt beta=1: 2.5}}")
    assert made.document["problems"] == [
        {
            "gemms": {
                "8x64x32 bf16:bf16:f32 nt beta=1": 2.5,
                "8x64x32 f8e4m3:bf16:f32 nt scale=row fused=bias": 3.0,
            }
        }
    ]
    assert Campaign.from_document(made.document).digest == made.digest
    assert made.size == 2
    assert [problem_line(one.problem, scalars=False) for one in made.expand()] == list(
        made.document["problems"][0]["gemms"]
    )


def test_equal_problems_of_a_list_are_one_with_the_sum_of_their_counts() -> None:
    problem = Problem(Shape(8, 64, 32), ElementTypes.parse("bf16"), Layout.NT)
    block = GemmsBlock.of([LayerGemm("q_proj", problem, 32), LayerGemm("o_proj", problem, 2)])
    assert block.gemms.weight_of == {problem: 34}
    assert campaign("{gemms: [8x64x32 bf16 nt, '8x64x32 bf16:bf16:f32 nt alpha=1']}").size == 1


@pytest.mark.parametrize(
    ("problems", "why"),
    [
        ("{gemms: {8x64 bf16: 1}}", "problems.gemms: '8x64' is not a shape"),
        ("{gemms: {8x64x32: 1}}", "'8x64x32' is not a problem: it does not have that form"),
        ("{gemms: {8x64x32 bf16 nt colour=1: 1}}", "is not a problem: there is no 'colour'"),
        ("{gemms: {8x64x32 bf16: 0}}", "0 is not a weight"),
        ("{gemms: {}}", "it is empty; write for example {8x4096x4096 bf16 nt: 32}"),
        ("{gemms: [8x64x32 bf16], types: f16}", "the problems of gemms are whole; write types in their lines"),
    ],
)
def test_a_wrong_block_of_gemms_is_one_error_with_its_line(problems: str, why: str) -> None:
    with pytest.raises(CampaignFileError) as error:
        campaign(problems)
    assert str(error.value).startswith("x.yaml:2: problems.gemms: ") or "types" in problems
    assert why in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_text_of_a_problem_reads_back() -> None:
    text = "16x64x32 f8e4m3:bf16:f32 nt alpha=0.5 beta=0 scale=row groups=8*2"
    assert problem_line(parse_problem(text)) == text


def test_a_trace_is_its_gemms_here_and_where_only_texts_are_sent(tmp_path: Path) -> None:
    shutil.copy(TRACES / "cublaslt.log", tmp_path / "my trace.log")
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nowner: me\nproblems: {trace: my trace.log}\nkernels: {family: cublaslt}\n")
    here, texts = load(file, limit=1000), texts_named(file.read_text(), file)
    assert here.document["problems"][0]["gemms"]["8x6144x4096 bf16:bf16:f32 nt"] == 2
    assert here.size == 5
    assert loads(file.read_text(), name="x.yaml", limit=1000, owner=None, files=texts).digest == here.digest
    assert "the scale factors VEC16_UE4M3" in " ".join(notes_of(texts))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{trace: none.log}", "x.yaml:2: problems.trace: none.log was not sent with the campaign"),
        ("{trace: [1]}", "is not the name of a file; write for example trace.json.gz"),
        ("{trace: a.log, types: f16}", "the trace decides the problems; remove types"),
        ("{trace: sent.log}", "sent.log was not sent as farm submit sends a trace"),
        ("{trace: wrong.log}", "'8x8' is not a shape"),
    ],
)
def test_a_wrong_block_of_a_trace_is_one_error_with_its_line(written: str, why: str) -> None:
    sent = {"sent.log#gemms": '{"gemms": [1]}', "a.log#gemms": '{"gemms": {"8x8x8 f16": 1}}'}
    sent["wrong.log#gemms"] = '{"gemms": {"8x8 f16": 1}}'
    with pytest.raises(CampaignFileError) as error:
        loads(
            f"name: x\nproblems: {written}\nkernels: {{family: cublaslt}}\n",
            name="x.yaml",
            limit=9,
            owner="me",
            files=sent,
        )
    assert why in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_trace_that_cannot_be_read_is_one_error_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("GemmTunableOp_float_NT,nt_8_8_8\nGemmTunableOp_float_NT,oops\n")
    text = "name: x\nproblems: {trace: bad.csv}\nkernels: {family: cublaslt}\n"
    with pytest.raises(
        CampaignFileError, match=r"x.yaml:2: problems.trace: .*bad.csv:2: 'GemmTunableOp_float_NT,oops'"
    ):
        texts_named(text, tmp_path / "x.yaml")
