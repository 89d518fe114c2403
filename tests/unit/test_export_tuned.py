"""Tuned kernels for other tools: only winners that a paired measurement proves are written, and in each tool's own form."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from farm.api.results import Identity, Results
from farm.cli.check_view import Compared, Run
from farm.cli.exporting import app
from farm.errors import BadInput, NothingToExport, OtherConsumerVersion
from farm.exporters import TUNED
from farm.exporters.exporter import Export
from farm.exporters.tuned import REPORT, TunedChoice
from farm.kernel_versions import Pair
from farm.kernels import Configuration
from farm.paired import Arm, PairedResult, Verdict
from farm.schema.results import EXPORTED

H200 = Identity(
    uuid="GPU-1", type="nvidia-h200", name="NVIDIA H200", backend="cuda", traits={"kind": "cuda", "memory_bytes": 1}
)
BLOCKS = "f8e4m3 nt scale=1x128:128x128"
SMALL = f"triton(tile_m=16,tile_n=32,tile_k=128,group_m=1,warps=4,stages=4) 8x2112x7168 {BLOCKS}"
LARGE = f"triton(tile_m=128,tile_n=64,tile_k=64,group_m=16,warps=8,stages=3) 512x2112x7168 {BLOCKS}"
DEFAULT = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}
"""What vLLM and SGLang run without a file, less the stages: `fp8_utils.py` of vLLM 0.33.0, `fp8_kernel.py` of SGLang 0.5.23."""


def row(configuration: str, ms: float, **more: Any) -> dict[str, Any]:
    known = {
        "protocol": "farm",
        "runtime_ms": ms,
        "runtime_settled_ms": ms,
        "measured_at": datetime(2026, 11, 26, tzinfo=UTC),
    }
    return {**dict.fromkeys(EXPORTED), **Configuration.parse(configuration).columns(), **known, **more}


def proofs(path: Path, *checks: tuple[str, str, float, float], device_type: str = "nvidia-h200") -> Path:
    """What `farm check --json` prints: base, head, and the ends of the interval of the ratio. A file may have several outputs."""
    pairs = [Pair(Configuration.parse(base), Configuration.parse(head)) for base, head, *_ in checks]
    run = Run(Compared(pairs, {Arm.BASE: "base", Arm.HEAD: "head"}, ()), 2.0, device={"type": device_type})
    for number, (_, _, low, high) in enumerate(checks):
        result = {"ratio": (low + high) / 2, "interval": [low, high], "rounds": 6, "verdict": Verdict.FASTER}
        run.answers[number] = {"result": result}
    with path.open("a") as file:
        file.write(json.dumps(run.document(), indent=2) + "\n")
    return path


def exported(tool: str, *rows: dict[str, Any], given: list[Path] | None = None, version: str | None = None) -> Export:
    found = Results.model_construct(rows=list(rows), identity=H200 if rows else None, commands=None, next=None)
    farm: Any = SimpleNamespace(rows_at_once=1000, ask=lambda *_, **__: found)
    query = {"type": "nvidia-h200"}
    return TUNED[tool].export(farm, query, time="settled", proofs=given or [], consumer_version=version)


def default_of(tool: str, configuration: str) -> str:
    return TUNED[tool].default(Configuration.parse(configuration).problem).canonical


@pytest.mark.parametrize(
    ("tool", "stages", "blocks"), [("vllm", 2, "[128,128]"), ("sglang", 3, "[128, 128]")], ids=["vllm", "sglang"]
)
def test_a_file_maps_tokens_to_proven_winners_and_to_defaults(
    tool: str, stages: int, blocks: str, tmp_path: Path
) -> None:
    proof = proofs(tmp_path / "checks.json", (default_of(tool, SMALL), SMALL, 0.80, 0.84))
    export = exported(tool, row(SMALL, 0.02), row(LARGE, 0.1), given=[proof])
    linear, report = export.files
    assert linear.name == f"N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape={blocks}.json"
    winner = {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 4,
    }
    assert json.loads(linear.content) == {"8": winner, "512": {**DEFAULT, "num_stages": stages}}
    assert report.name == REPORT
    small, large = json.loads(report.content)["choices"]
    assert (small["written"], small["interval"], small["rounds"]) == ("winner", [0.80, 0.84], 6)
    assert (large["written"], large["winner"], large["ratio"]) == (
        "default",
        Configuration.parse(LARGE).canonical,
        None,
    )
    assert large["check"].startswith("farm check 'triton(")
    assert "1 of 2 problems have a winner that is proven" in export.remarks[0]


@pytest.mark.parametrize(
    ("interval", "proven"),
    [((0.9, 0.999), True), ((0.9, 1.0), False), ((0.5, 1.01), False), ((0.0, float("inf")), False)],
)
def test_a_winner_is_proven_where_its_interval_excludes_no_change(interval: tuple[float, float], proven: bool) -> None:
    default, winner = Configuration.parse(default_of("vllm", SMALL)), Configuration.parse(SMALL)
    choice = TunedChoice(default, winner, PairedResult(0.9, interval, 4, Verdict.FASTER))
    assert (choice.proven, choice.written) == (proven, winner if proven else default)


def test_only_a_proof_of_the_fastest_kernel_counts(tmp_path: Path) -> None:
    slower = SMALL.replace("stages=4", "stages=5")
    base = default_of("vllm", SMALL)
    rows = row(SMALL, 0.01), row(slower, 0.02)
    of_another = proofs(tmp_path / "another.json", (base, slower, 0.7, 0.75))
    export = exported("vllm", *rows, given=[of_another])
    (choice,) = json.loads(export.files[1].content)["choices"]
    assert (choice["winner"], choice["written"]) == (Configuration.parse(SMALL).canonical, "default")
    assert export.remarks[0].startswith("1 proofs do not compare the default of a problem with its fastest kernel")
    own = proofs(tmp_path / "own.json", (base, SMALL, 0.80, 0.84))
    assert json.loads(exported("vllm", *rows, given=[of_another, own]).files[0].content)["8"]["num_stages"] == 4


def test_of_several_proofs_of_a_kernel_the_weakest_counts(tmp_path: Path) -> None:
    base = default_of("vllm", SMALL)
    proof = proofs(
        tmp_path / "checks.json", (base, SMALL, 0.80, 0.84), (base, SMALL, 0.9, 1.1), (base, SMALL, 0.7, 0.8)
    )
    (choice,) = json.loads(exported("vllm", row(SMALL, 0.01), given=[proof]).files[1].content)["choices"]
    assert (choice["written"], choice["interval"]) == ("default", [0.9, 1.1])


def test_rows_that_the_files_cannot_name_are_left_out() -> None:
    rows = [
        row(SMALL, 0.02),
        row(SMALL.replace("stages=4", "stages=4,tma=1"), 0.01),
        row("triton() 8x2112x7168 bf16 nt", 0.01),
        row("cublaslt() 8x2112x7168 bf16 nt", 0.01),
        row(SMALL, 0.02, runtime_settled_ms=None, protocol="do-bench"),
    ]
    export = exported("vllm", *rows)
    assert json.loads(export.files[1].content)["choices"][0]["winner"] == Configuration.parse(SMALL).canonical
    left = [remark.partition(" rows ")[::2] for remark in export.remarks[:3]]
    assert left == [
        ("2", "are no linear layers in f8e4m3 with scale=1x128:128x128, and are left out."),
        ("1", "are of other kernels than triton without tma, and are left out."),
        ("1", "have no settled time, and are left out."),
    ]


@pytest.mark.parametrize(
    ("layout", "strides"),
    [
        ("nt", "[1024, 1]), (torch.bfloat16, [1024, 4096], [1, 1024]"),
        ("tn", "[1, 64]), (torch.bfloat16, [1024, 4096], [4096, 1]"),
    ],
)
def test_inductor_finds_a_product_by_card_types_sizes_and_strides(layout: str, strides: str, tmp_path: Path) -> None:
    kernel = f"triton(tile_m=64,tile_n=128,tile_k=64,group_m=8,warps=4,stages=3) 64x4096x1024 bf16 {layout}"
    proof = proofs(tmp_path / "checks.json", (default_of("inductor", kernel), kernel, 0.9, 0.95))
    key = f"NVIDIA H200+((torch.bfloat16, [64, 1024], {strides}))+mm"
    assert json.loads(exported("inductor", row(kernel, 0.01), given=[proof]).files[0].content) == {
        key: [
            {
                "template_id": "triton::mm", "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 3,
                "EVEN_K": True, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32",
            }
        ]
    }  # fmt: skip
    assert json.loads(exported("inductor", row(kernel, 0.01)).files[0].content) == {key: [{"template_id": "aten::mm"}]}


CHECK = {
    "base_configuration": SMALL,
    "head_configuration": SMALL,
    "ratio": 0.9,
    "interval": None,
    "rounds": 2,
    "verdict": "undecided",
}


def document(**changes: Any) -> str:
    return json.dumps({"device": {"type": "nvidia-h200"}, "two_environments": False, "checks": [CHECK]} | changes)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no output of farm check --json"),
        ('{"checks": []}', "is no output of farm check --json"),
        ("", "is no output of farm check --json"),
        ("[" * 100_000, "is no output of farm check --json"),
        (document(checks=[CHECK | {"interval": ["a", "b"]}]), "is no output of farm check --json"),
        (document(checks=[CHECK | {"head_configuration": 5}]), "is no output of farm check --json"),
        (document(device={"type": "nvidia-b200"}), "was measured on nvidia-b200"),
        (document(two_environments=True), "different environment variables"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_proof_that_proves_nothing_here_is_an_error(content: str | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "checks.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput, match=why):
        exported("vllm", row(SMALL, 0.02), given=[path])


def test_a_problem_that_only_the_default_computed_is_left_to_the_tool() -> None:
    plain = "cublaslt() 64x4096x1024 bf16 nt"
    with pytest.raises(NothingToExport, match="1 problems have rows of the default alone"):
        exported("inductor", row(plain, 0.01))
    kernel = plain.replace("cublaslt", "triton")
    (choice,) = json.loads(exported("inductor", row(plain, 0.01), row(kernel, 0.02)).files[1].content)["choices"]
    assert (choice["winner"], choice["check"]) == (Configuration.parse(plain).canonical, None)


@pytest.mark.parametrize("tool", list(TUNED))
def test_files_for_another_version_or_without_rows_are_refused(tool: str) -> None:
    with pytest.raises(OtherConsumerVersion, match=r"not for 0\.0\.1"):
        exported(tool, row(SMALL, 0.02), version="0.0.1")
    with pytest.raises(NothingToExport, match=tool):
        exported(tool)


def test_tunableop_has_no_files_and_the_error_names_what_has() -> None:
    result = CliRunner().invoke(app, ["tunableop", "--type", "nvidia-h200", "--output", "files"])
    assert isinstance(result.exception, NothingToExport)
    assert "farm export inductor" in str(result.exception)
