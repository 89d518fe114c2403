"""Traces of programs: what PyTorch and cuBLASLt record becomes problems with the number of their calls."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from farm.errors import BadTrace
from farm.kernels import problem_line
from farm.traces import formats, profiler
from farm.traces.formats import read_trace
from farm.traces.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "traces"


def counts(trace: Trace) -> dict[str, float]:
    return {f"{gemm.name} {problem_line(gemm.problem, scalars=False)}": gemm.count for gemm in trace.gemms}


def reads(tmp_path: Path, text: str) -> Trace:
    file = tmp_path / "trace"
    file.write_text(text)
    return read_trace(file)


def why_not(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadTrace) as error:
        reads(tmp_path, text)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value).removeprefix(str(tmp_path / "trace"))


def test_the_products_of_tunableop_are_transposed_into_rows() -> None:
    trace = read_trace(DATA / "tunableop_untuned0.csv")
    assert trace.format == "TunableOp"
    assert counts(trace) == {
        "GemmTunableOp 6144x4096x512 bf16:bf16:f32 tn": 1,
        "GemmAndBiasTunableOp 1024x768x3072 f16:f16:f32 nt fused=bias": 1,
        "ScaledGemmTunableOp 64x12288x2048 f8e5m2e4m3:bf16:f32 nt scale=row": 1,
        "GemmTunableOp 8x6144x4096 bf16:bf16:f32 nt": 2,
        "GemmStridedBatchedTunableOp 128x64x256 f32:f32:f32 nn batch=96": 1,
        "ScaledGemmTunableOp 32x512x256 f8e4m3:bf16:f32 nt scale=tensor fused=bias": 1,
        "GemmTunableOp 16x512x256 tf32:f32:f32 nt": 1,
    }
    assert list(trace.notes()) == [
        "TunableOp records each GEMM once, so the number of calls is not known: each counts as one.",
        "Left out: 1 call: ScaledGemmTunableOp of the type Float8_e4m3fnuz",
        "Left out: 1 call: GemmTunableOp_c10::complex<float>_CN is not read",
    ]


def test_results_of_tunableop_are_read_as_well(tmp_path: Path) -> None:
    text = "Validator,PT_VERSION,2.2.0\nGemmTunableOp_float_NT,nt_25088_4096_64,1219,1.262\n"
    assert counts(reads(tmp_path, text)) == {"GemmTunableOp 4096x25088x64 f32:f32:f32 tn": 1}


def test_each_call_of_cublaslt_counts_once_with_its_epilogue_scales_and_batch() -> None:
    trace = read_trace(DATA / "cublaslt.log")
    assert counts(trace) == {
        "cublasLtMatmul 8x6144x4096 bf16:bf16:f32 nt": 2,
        "cublasLtMatmul 32x2048x1024 f8e5m2e4m3:bf16:f32 nt scale=1x128:128x128": 1,
        "cublasLtMatmul 64x32x16 f16:f16:f32 nn fused=bias+gelu": 1,
        "cublasLtMatmul 128x64x16 tf32:f32:f32 tn beta=1 batch=96": 1,
        "cublasLtMatmul 64x48x32 i8:i32:i32 nt": 1,
    }
    assert trace.left_out == {"the scale factors VEC16_UE4M3 of A and VEC16_UE4M3 of B": 1}


def test_inductors_log_counts_the_products_of_each_graph_and_has_strides_of_autotuned_ones() -> None:
    trace = read_trace(DATA / "inductor.log")
    assert counts(trace) == {
        "addmm 8x96x64 bf16:bf16:f32 nt fused=bias": 1,
        "mm 8x64x96 bf16:bf16:f32 nt": 1,
        "mm 8x64x96 f32:f32:f32 nt": 1,
        "mm 64x96x8 f32:f32:f32 nt": 1,
        "mm 8x96x64 f32:f32:f32 nt": 1,
        "mm 8x32x64 f32:f32:f32 nt": 1,
        "bmm 8x8x16 bf16:bf16:f32 nt batch=4": 1,
    }
    assert "taken as transposed" in trace.remarks[0]


def test_inductor_has_batches_with_a_matrix_added_and_groups(tmp_path: Path) -> None:
    layout = "output_layout=FixedLayout('cpu', torch.bfloat16, size=[16, 48], stride=[48, 1])"
    types = "mat1_dtype=torch.bfloat16, mat2_dtype=torch.bfloat16"
    trace = reads(
        tmp_path,
        f"Tuned aten.baddbmm: batch_size=4, m=8, n=8, k=16, {types}, inp=torch.bfloat16, {layout}\n"
        f"Tuned aten._grouped_mm.default: mat1_shape=[17, 32], mat2_shape=[4, 32, 48], {types}, {layout}\n"
        f"Tuned aten.other: {types}\n",
    )
    assert counts(trace) == {
        "baddbmm 8x8x16 bf16:bf16:f32 nt beta=1 batch=4": 1,
        "grouped_mm 17x48x32 bf16:bf16:f32 nt groups=5,4*3": 1,
    }
    assert trace.left_out == {"Tuned aten.other is not read": 1}


def test_without_a_line_for_each_product_inductors_last_table_counts_them(tmp_path: Path) -> None:
    text = (
        "AUTOTUNE mm(96x8, 8x64)\nstrides: [1, 96], [64, 1]\ndtypes: torch.bfloat16, torch.bfloat16\n"
        "AUTOTUNE addmm(8x96, 8x64, 64x96)\nstrides: [0, 1], [64, 1], [1, 64]\ndtypes: torch.float16, torch.float16, torch.float16\n"
        "AUTOTUNE addmm(8x32, 8x64, 64x32)\nstrides: [32, 1], [64, 1], [1, 64]\ndtypes: torch.float16, torch.float16, torch.float16\n"
        "AUTOTUNE scaled_mm(512x256, 256x64, 1, , 64)\nstrides: [256, 1], [1, 256], [1], [], [1]\n"
        "dtypes: torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.float32, torch.bfloat16\n"
        "AUTOTUNE mm(8x2048, 2048x3072)\n  triton_mm_4 0.0130 ms 100.0%\n"
        "Overview info of inductor aten mms:\naten.mm | - | 96 | 64 | 8 | 1\n"
        "Overview info of inductor aten mms:\naten.mm | - | 96 | 64 | 8 | 7\naten.mm | - | 5 | 5 | 5 | 3\n"
    )
    trace = reads(tmp_path, text)
    assert counts(trace) == {
        "mm 96x64x8 bf16:bf16:f32 tn": 7,
        "addmm 8x96x64 f16:f16:f32 nt fused=bias": 1,
        "addmm 8x32x64 f16:f16:f32 nt beta=1": 1,
        "scaled_mm 512x64x256 f8e4m3:bf16:f32 nt scale=tensor": 1,
    }
    assert trace.left_out == {
        "the table of products has no types; record with TORCH_LOGS=+inductor": 3,
        "AUTOTUNE without dtypes, as before PyTorch 2.7; record with TORCH_LOGS=+inductor": 1,
    }


PROFILED = {
    "addmm 8x96x64 bf16:bf16:f32 nt fused=bias": 4,
    "addmm 16x96x64 bf16:bf16:f32 nt fused=bias": 1,
    "mm 8x64x96 bf16:bf16:f32 nt": 3,
    "mm 8x96x64 f32:f32:f32 nn": 1,
    "mm 8x96x64 f64:f64:f64 nn": 1,
    "mm 96x64x8 bf16:bf16:f32 nn": 1,
    "bmm 8x8x16 bf16:bf16:f32 nt batch=4": 2,
    "baddbmm 8x8x16 bf16:bf16:f32 nt beta=1 batch=4": 1,
    "_int_mm 32x32x32 i8:i32:i32 nn": 1,
    "_addmm_activation 8x96x64 bf16:bf16:f32 nt fused=bias+gelu": 1,
    "_scaled_mm 16x48x32 f8e4m3:bf16:f32 nt scale=tensor": 1,
    "_scaled_mm 16x48x32 f8e4m3:bf16:f32 nt scale=row": 1,
    "_grouped_mm 16x48x32 bf16:bf16:f32 nt groups=4*4": 1,
}


def test_the_profiler_counts_operations_that_others_contain_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_trace(DATA / "profiler.json")
    assert counts(trace) == PROFILED
    assert trace.left_out == {"aten::mv is not read": 1, "aten::mm: the type c10::complex<float>": 1}
    monkeypatch.setattr(formats, "_CHUNK", 97)  # events of several chunks
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress((DATA / "profiler.json").read_bytes()))
    assert counts(read_trace(packed)) == PROFILED


def event(name: str = "aten::mm", **changed: object) -> dict[str, object]:
    sizes = {"Input Dims": [[8, 64], [64, 96]], "Input Strides": [[64, 1], [1, 64]], "Input type": ["float", "float"]}
    return {"ph": "X", "name": name, "ts": 1, "dur": 1, "pid": 1, "tid": 1, "args": sizes} | changed


def test_scale_factors_of_later_versions_are_read_by_their_recipes(tmp_path: Path) -> None:
    def scaled(of_a: str, of_b: str) -> dict[str, object]:
        args = {
            "Input Dims": [[16, 256], [256, 48], [[1]], [], [], [[1]], [], [], [], [], [], []],
            "Input Strides": [[256, 1], [1, 256], [[1]], [], [], [[1]], [], [], [], [], [], []],
            "Input type": ["c10::Float8_e4m3fn"] * 2 + ["TensorList", "ScalarList"] + [""] * 8,
            "Concrete Inputs": ["", "", "", of_a, "[]", "", of_b, "[]", "", "15", "[]", "False"],
        }
        return event("aten::_scaled_mm_v2", args=args, tid=of_a + of_b)

    trace = reads(tmp_path, json.dumps([scaled("[1]", "[1]"), scaled("[4]", "[5]"), scaled("[3]", "[3]")]))
    assert counts(trace) == {
        "_scaled_mm_v2 16x48x256 f8e4m3:bf16:f32 nt scale=row": 1,
        "_scaled_mm_v2 16x48x256 f8e4m3:bf16:f32 nt scale=1x128:128x128": 1,
    }
    assert trace.left_out == {"aten::_scaled_mm_v2: scale factors that the farm has not": 1}


def test_a_product_has_the_type_and_the_scale_factors_that_its_call_gives(tmp_path: Path) -> None:
    def call(name: str, sizes: list[list[int]], types: list[str], *values: str) -> dict[str, object]:
        strides = [
            [1, size[0]] if place == name.count("scaled") + 1 else [size[-1], 1] for place, size in enumerate(sizes)
        ]
        lists = {"Input Dims": sizes, "Input Strides": strides, "Input type": types, "Concrete Inputs": values}
        return event(name, args=lists, tid=str(lists))

    f8, of_vllm = "c10::Float8_e4m3fn", "_C::cutlass_scaled_mm"
    operands = [[16, 48], [16, 256], [256, 48]], ["c10::BFloat16", f8, f8, "float", "float"]
    trace = reads(
        tmp_path,
        json.dumps(
            [
                call("aten::mm", [[8, 64], [64, 96], [0]], ["c10::BFloat16"] * 2 + [""], "", "", "6"),
                call(of_vllm, [*operands[0], [16, 1], [48, 1]], operands[1]),
                call(of_vllm, [*operands[0], [1], [1]], operands[1]),
            ]
        ),
    )
    assert counts(trace) == {
        "mm 8x96x64 bf16:f32:f32 nt": 1,
        "cutlass_scaled_mm 16x48x256 f8e4m3:bf16:f32 nt scale=row": 1,
        "cutlass_scaled_mm 16x48x256 f8e4m3:bf16:f32 nt scale=tensor": 1,
    }


def test_events_of_one_line_without_the_usual_frame_are_read(tmp_path: Path) -> None:
    events = [
        event(),
        event(tid=2),
        event(ts=1.5, dur=0.2),
        event("triton_tem_fused_mm_3", ts=9),
        event(cat="kernel", ts=20),
    ]
    events += [event("ProfilerStep#7"), event("ProfilerStep#8"), event("ProfilerStep#8", tid=2)]
    trace = reads(tmp_path, json.dumps(events))
    assert counts(trace) == {"mm 8x96x64 f32:f32:f32 nt": 2}
    assert trace.left_out == {"triton_tem_fused_mm_3 is not read": 1}
    assert trace.remarks == ("Counts are those of 2 steps of the profiler together.",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ": it has no GEMMs. Looked for: TunableOp's lines"),
        ("\x00\x01 nothing\n" * 3, ": it has no GEMMs. Looked for: TunableOp's lines"),
        ('{"a": [1, 2]}', ": it is JSON without traceEvents"),
        (json.dumps({"traceEvents": [event("aten::relu")]}), ": it has no GEMMs. Looked for: a PyTorch profiler's events"),
        (json.dumps([event(args={})]), "Left out: 1 of aten::mm: no sizes; record with record_shapes=True"),
        (json.dumps([event(ts=float("nan"))]), ":1: ts of an event of aten::mm is 'nan', not a time"),
        ('{"traceEvents": [\n{"ph": "X"},\n{"ph": oops},\n]}', ":3: it is not JSON from here on"),
        ('{"traceEvents": [\n{"ph": "X"},\n', ":3: it is not JSON from here on, or it is cut off"),
        ('[\n{"ts": ' + "1" * 5000 + "}]", ":2: it is not JSON from here on, or it is cut off"),
        (json.dumps([event(ts=10**400)]), ":1: ts of an event of aten::mm is '1000"),
        ("x\nAUTOTUNE mm(8x64, 64x96)\nstrides: [1 2, 1]", ":3: it has a number that is not understood"),
        ("GemmTunableOp_float_NT,nt_8_8_8\nGemmTunableOp_float_NT,nt_8\n", ":2: 'GemmTunableOp_float_NT,nt_8' is no line of"),
        ("x\n[t][cublasLt][1][Trace][cublasLtMatmul] A=0X1 Adesc=[type=R_16F\n", ":2: the call of cublasLtMatmul has no Adesc"),
        (
            (DATA / "cublaslt.log").read_text().replace("cols=8 ld=4096", "cols=NaN ld=4096"),
            ":5: cols is 'NaN', not a whole number",
        ),
        ((DATA / "cublaslt.log").read_text().replace("cols=8 ld=6144", "cols=9 ld=6144"), ":5: A (6144, 4096), B (4096, 8) and D"),
        ("Tuned aten.mm: m=s77, n=8, k=8, output_layout=FixedLayout('cuda:0', torch.float16, size=[8])\n", "dynamic=False"),
    ],
)  # fmt: skip
def test_a_file_without_gemms_or_with_garbage_is_one_error(tmp_path: Path, text: str, why: str) -> None:
    assert why in why_not(tmp_path, text)


def test_files_and_lines_that_are_too_large_or_broken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_MAX_LINE", 100)
    monkeypatch.setattr(formats, "_CHUNK", 64)
    assert why_not(tmp_path, "a\n" + "b" * 500) == ":2: the line is longer than 0 MiB."
    monkeypatch.setattr(formats, "MAX_BYTES", 200)
    assert "it has more than 0 GiB" in why_not(tmp_path, "b\n" * 300)
    monkeypatch.setattr(profiler, "_MAX_EVENT", 100)
    assert ":1: it is not JSON" in why_not(tmp_path, '{"traceEvents": [{"name": "' + "x" * 170)
    (tmp_path / "trace").write_bytes(gzip.compress(b"x\n" * 50)[:-9])
    with pytest.raises(BadTrace, match="it cannot be read: "):
        read_trace(tmp_path / "trace")
    (tmp_path / "trace").write_bytes(gzip.compress(b"")[:10] + b"not deflated")
    with pytest.raises(BadTrace, match="it cannot be read: "):
        read_trace(tmp_path / "trace")
    with pytest.raises(BadTrace, match="there is no such file"):
        read_trace(tmp_path / "nothing")


def test_batches_that_share_a_matrix_are_told(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[4, 8, 64], [4, 64, 96]],
        "Input Strides": [[512, 64, 1], [0, 1, 64]],
        "Input type": ["float"] * 2,
    }
    trace = reads(tmp_path, json.dumps([event("aten::bmm", args=args)]))
    assert counts(trace) == {"bmm 8x96x64 f32:f32:f32 nt batch=4": 1}
    assert "share a matrix" in trace.remarks[0]
    log = (DATA / "cublaslt.log").read_text()
    assert "share a matrix" not in " ".join(reads(tmp_path, log).remarks)
    log = log.replace("batchCount=96 stridedBatchOffset=2048", "batchCount=96 stridedBatchOffset=0")
    assert "share a matrix" in " ".join(reads(tmp_path, log).remarks)


def test_lines_of_a_second_format_are_told(tmp_path: Path) -> None:
    text = (DATA / "inductor.log").read_text() + (DATA / "cublaslt.log").read_text()
    assert "The file has lines of cuBLASLt log too" in " ".join(reads(tmp_path, text).remarks)
