"""Options that name a trace instead of a campaign file."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.cli import plan
from farm.cli.workload_options import campaign_text
from farm.errors import BadInput
from farm.kernels import parse_problem, problem_line
from farm.language_models.layer_gemm import LayerGemm

TRACES = Path(__file__).parents[1] / "data" / "traces"


def test_a_trace_makes_a_campaign_of_its_gemms_and_tells_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "My Trace: 1.log"
    shutil.copy(TRACES / "cublaslt.log", trace)
    made = campaign_text(None, trace=trace, families=["cublaslt", "triton"])
    one = made.campaign(100)
    assert one.name == "my-trace-1"
    assert one.families == ("cublaslt", "triton")
    assert "8x6144x4096 bf16:bf16:f32 nt" in {
        problem_line(each.problem, scalars=False) for each in one.expand() if each.kernel.family == "cublaslt"
    }
    assert "Left out: 1 call: the scale factors VEC16_UE4M3" in " ".join(capsys.readouterr().err.split())


def test_a_file_or_a_trace_is_named_and_not_both(tmp_path: Path) -> None:
    for file, trace in ((None, None), (Path("x.yaml"), Path("y.log"))):
        with pytest.raises(BadInput, match=r"a campaign file, or a trace with --trace FILE"):
            campaign_text(file, trace=trace, families=None)
    with pytest.raises(BadInput, match="--family goes with --trace"):
        campaign_text(Path("x.yaml"), trace=None, families=["tiled"])
    with pytest.raises(BadInput, match=r"^\S+none\.log: there is no such file\.$"):
        campaign_text(None, trace=tmp_path / "none.log", families=None)


def test_a_plan_of_a_trace_keeps_the_sizes_of_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse_problem(f"820x64x32 bf16 nt groups={','.join(str(rows) for rows in range(41))}")
    trace = SimpleNamespace(gemms=[LayerGemm("experts", problem, 1)], notes=list)
    monkeypatch.setattr(plan, "read_trace", lambda path: trace)
    (one,) = plan.workload(None, Path("trace.json"))["gemms"]
    assert parse_problem(one.problem) == problem
