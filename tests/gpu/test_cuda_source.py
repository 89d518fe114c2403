"""Own kernels on a card: known cheats in CUDA C++ are refused, honest kernels are measured, and others survive."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from benchmarks.referee import (
    CHEATS,
    HONEST,
    IN_A_PROCESS,
    OWN,
    ROOT,
    Pair,
    cheat,
    cheats,
    own,
    refused,
    refused_in_a_process,
    tiled,
)
from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from support.quick import QUICK
from workers.devices.cuda import CudaDevice
from workers.kernels.toolchains import nvcc

# The referee compares times of each kernel that comes as source.
pytestmark = pytest.mark.alone
COMPILED = (30,)
"""Cheats that do not compile."""


@pytest.fixture(scope="module")
def definition() -> Definition:
    return cheats()


@pytest.mark.parametrize("number", [n for n in CHEATS if n not in (*IN_A_PROCESS, *COMPILED)], ids=lambda n: CHEATS[n])
def test_cheats_are_refused(device: CudaDevice, definition: Definition, number: int) -> None:
    found = refused(device, cheat(number, definition), QUICK)
    assert found["kind"] == "refused", found


def test_a_cheat_harms_no_kernel_of_the_farm(device: CudaDevice, definition: Definition) -> None:
    plain = Configuration.parse("tiled(tile=16) 256x256x256 f32")
    before = device.measure(plain, QUICK)
    for number in (18, 19, 20, 22, 24):
        refused(device, cheat(number, definition), QUICK)
    assert device.measure(plain, QUICK).result_digest == before.result_digest


def test_a_device_side_launch_does_not_compile(device: CudaDevice, definition: Definition) -> None:
    with pytest.raises(InvalidOnDevice, match=r"cheats.cu does not compile: line \d+: .*"):
        device.measure(cheat(30, definition), QUICK)


@pytest.mark.parametrize("number", IN_A_PROCESS, ids=lambda n: CHEATS[n])
def test_kernels_that_hang_or_fault_end_their_process_alone(definition: Definition, number: int) -> None:
    assert refused_in_a_process(definition, cheat(number, definition))["kind"] == "killed"
    assert refused_in_a_process(definition, cheat(0, definition), job_seconds=120)["kind"] == "measured"


# --- honest kernels -----------------------------------------------------------------------------------


def test_an_honest_kernel_next_to_the_cheats_is_measured(device: CudaDevice, definition: Definition) -> None:
    row = device.measure(cheat(0, definition), QUICK)
    assert row.details["referee_ms"] == pytest.approx(row.runtime_ms, rel=0.1)


@pytest.mark.parametrize("pair", HONEST, ids=str)
def test_the_source_of_tiled_takes_as_long_as_the_family(device: CudaDevice, pair: Pair) -> None:
    definition = tiled(pair.built_in.problem.types.ab)
    built_in, row = device.measure(pair.built_in, QUICK), device.measure(pair.as_own(definition), QUICK)
    assert row.runtime_ms == pytest.approx(built_in.runtime_ms, rel=0.05)
    assert row.details["registers"] == built_in.details["registers"]


@pytest.mark.parametrize("parameters", ["BM=32,BN=64", "BM=64,BN=64", "BM=128,BN=128"])
@pytest.mark.parametrize(
    "problem", ["512x512x512 f32", "300x333x77 f32 nn alpha=2 beta=-1", "100x200x50 f32 nn batch=7"]
)
def test_the_example_is_right(device: CudaDevice, parameters: str, problem: str) -> None:
    definition = own(
        ROOT / "examples" / "kernels" / "tile_gemm.cu", entry="tile_gemm", grid=("ceil(n / BN)", "ceil(m / BM)", "batch"),
        block=("BM * BN / 16",), shared_bytes="4 * (BM + BN) * BK", parameters=("BK", "BM", "BN"),
    )  # fmt: skip
    configuration = Configuration.parse(f"source(definition={definition.id},{parameters},BK=16) {problem}")
    assert device.measure(configuration, QUICK).runtime_ms > 0


def test_tensor_cores_and_headers_of_cuda_can_be_used(device: CudaDevice) -> None:
    definition = own(
        OWN / "wmma_gemm.cu", entry="wmma_gemm", grid=("ceil(n / (16 * WARPS))", "m / 16"), block=("32 * WARPS",),
        arguments=("a", "b", "d", "m", "n", "k"), parameters=("WARPS",), requires=("ab == 'f16'", "m % 16 == 0"),
    )  # fmt: skip
    for warps in (1, 4):
        configuration = Configuration.parse(f"source(definition={definition.id},WARPS={warps}) 512x768x256 f16")
        assert device.measure(configuration, QUICK).runtime_ms > 0


GROUPED = """
extern "C" __global__ void grouped(const float* a, const float* b, float* d, const int* group_offsets, int groups, int n, int k) {
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= group_offsets[groups] || column >= n) return;
    int group = 0;
    while (row >= group_offsets[group + 1]) ++group;
    const float* mine = b + (size_t)group * k * n;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * mine[(size_t)i * n + column];
    d[(size_t)row * n + column] = sum;
}
"""


def test_groups_are_passed(device: CudaDevice) -> None:
    definition = own(
        ROOT / "grouped.cu", code=GROUPED, entry="grouped", grid=("ceil(n / 16)", "ceil(m / 16)"), block=("16", "16"),
        arguments=("a", "b", "d", "group_offsets", "groups", "n", "k"),
    )  # fmt: skip
    for groups in ("100", "16*4,0,35,1"):
        configuration = Configuration.parse(f"source(definition={definition.id}) 100x96x64 f32 nn groups={groups}")
        assert device.measure(configuration, QUICK).runtime_ms > 0


SCALED = """
extern "C" __global__ void scaled(const float* a, const float* b, float* d, const float* scale_a, const float* scale_b,
                                  const float* bias, int m, int n, int k) {
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + column];
    d[(size_t)row * n + column] = fmaxf(scale_a[row] * scale_b[column] * sum + bias[column], 0.0f);
}
"""


def test_scale_factors_and_a_bias_are_passed(device: CudaDevice) -> None:
    definition = own(
        OWN / "scaled.cu", code=SCALED, entry="scaled", grid=("ceil(n / 16)", "ceil(m / 16)"), block=("16", "16"),
        arguments=("a", "b", "d", "scale_a", "scale_b", "bias", "m", "n", "k"),
        requires=("layout == 'nn'", "scale == 'row'", "fused == 'bias+relu'"),
    )  # fmt: skip
    text = f"source(definition={definition.id}) 512x300x200 f32 nn scale=row fused=bias+relu"
    assert device.measure(Configuration.parse(text), QUICK).runtime_ms > 0


def test_ptx_is_loaded(device: CudaDevice) -> None:
    definition = own(
        OWN / "plain_gemm.ptx", entry="plain_gemm", grid=("ceil(n / 32)", "ceil(m / 8)"), block=("32", "8"),
        arguments=("a", "b", "d", "m", "n", "k"),
    )  # fmt: skip
    configuration = Configuration.parse(f"source(definition={definition.id}) 300x200x100 f64")
    assert device.measure(configuration, QUICK).runtime_ms > 0


def test_a_cubin_of_another_architecture_is_invalid_and_that_of_the_card_is_loaded(
    device: CudaDevice, tmp_path: Path
) -> None:
    compiler = next(nvcc._compilers(), None)
    if compiler is None:
        pytest.skip("there is no nvcc")
    assert device.identity.traits.compute_capability is not None
    here = "sm_{}{}".format(*device.identity.traits.compute_capability)
    for arch in (here, "sm_120" if here != "sm_120" else "sm_90"):
        cubin = tmp_path / f"{arch}.cubin"
        subprocess.run([compiler, "-cubin", f"-arch={arch}", "-DCHEAT=0", "-o", cubin, OWN / "cheats.cu"], check=True)
        definition = own(
            cubin, code=base64.b64encode(cubin.read_bytes()).decode(), entry="cheat", grid=("n / 16", "m / 16"),
            block=("16", "16"),
        )  # fmt: skip
        configuration = Configuration.parse(f"source(definition={definition.id}) 256x256x256 f32")
        if arch == here:
            assert device.measure(configuration, QUICK).runtime_ms > 0
        else:
            with pytest.raises(InvalidOnDevice, match="cannot be loaded on compute capability"):
                device.measure(configuration, QUICK)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"code": 'extern "C" __global__ void cheat(float* d) {\n  d[0] = x;\n}\n'}, "does not compile: line 2: .*x"),
        ({"code": "__global__ void cheat(float* d) { d[0] = 1; }\n"}, "has no kernel cheat; declare it extern"),
        (
            {"arguments": ("a", "b", "d")},
            "cheat takes 9 parameters of 8, 8, 8, 8, 4, 4, 4, 4, 4 bytes, and arguments give 3",
        ),
    ],
)
def test_mistakes_are_named(device: CudaDevice, changes: dict[str, object], why: str) -> None:
    keys: dict[str, object] = {
        "code": (OWN / "cheats.cu").read_text().replace("#if CHEAT == 16", "#define CHEAT 0\n#if CHEAT == 16", 1), "entry": "cheat",
        "grid": ("n / 16", "m / 16"), "block": ("16", "16"),
    }  # fmt: skip
    definition = own(OWN / "cheats.cu", **keys | changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidOnDevice, match=why):
        device.measure(Configuration.parse(f"source(definition={definition.id}) 256x256x256 f32"), QUICK)
