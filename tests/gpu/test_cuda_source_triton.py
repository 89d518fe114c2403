"""Own kernels in Triton on a card: the example is right and as fast as the family, cheats are refused, and errors have their line."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.referee import (
    CHEATING_IN_TRITON,
    CHEATS_IN_TRITON,
    HONEST_IN_TRITON,
    ROOT,
    TritonPair,
    cheat,
    cheats_in_triton,
    own,
    refused,
    triton_example,
)
from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from support.quick import QUICK
from workers.devices.cuda import CudaDevice

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="Triton is not installed: make setup EXTRA=triton installs it",
    ),
    # The referee compares times of each kernel that comes as source.
    pytest.mark.alone,
]


@pytest.fixture(scope="module")
def example() -> Definition:
    return triton_example()


def configured(definition: Definition, problem: str, tile: tuple[int, int, int]) -> Configuration:
    return TritonPair(problem, tile).as_own(definition)


@pytest.mark.parametrize(
    "problem",
    [
        "512x512x512 f16 nn", "512x384x256 bf16 nt alpha=2 beta=-1", "300x333x77 f16:f32:f32 tn", "100x200x50 f16 tt batch=7",
        "1x256x128 bf16 nn", "16x1x48 f16 nt",
    ],
)  # fmt: skip
def test_the_example_is_right(device: CudaDevice, example: Definition, problem: str) -> None:
    row = device.measure(configured(example, problem, (64, 64, 32)), QUICK)
    assert row.runtime_ms > 0
    assert row.details["triton"]
    assert row.details["source_file"] == "triton_gemm.py"


@pytest.mark.parametrize("pair", HONEST_IN_TRITON, ids=lambda pair: pair.problem)
def test_it_is_about_as_fast_as_the_family(device: CudaDevice, example: Definition, pair: TritonPair) -> None:
    """Both have the same tiles and order; the family's template has more options."""
    built_in, row = device.measure(pair.built_in, QUICK), device.measure(pair.as_own(example), QUICK)
    assert row.runtime_ms == pytest.approx(built_in.runtime_ms, rel=0.1)


@pytest.mark.parametrize("number", CHEATS_IN_TRITON, ids=CHEATS_IN_TRITON.get)
def test_cheats_are_refused(device: CudaDevice, number: int) -> None:
    definition = cheats_in_triton()
    assert refused(device, cheat(number, definition, CHEATING_IN_TRITON), QUICK)["kind"] == "refused"


def test_an_honest_kernel_next_to_the_cheats_is_measured(device: CudaDevice) -> None:
    definition = cheats_in_triton()
    row = device.measure(cheat(0, definition, CHEATING_IN_TRITON), QUICK)
    assert row.details["referee_ms"] == pytest.approx(row.runtime_ms, rel=0.1)
    assert row.details["referee_unchanged_ms"] == pytest.approx(row.details["referee_ms"], rel=0.05)


def test_an_error_of_the_compiler_has_its_line(device: CudaDevice, example: Definition) -> None:
    code = example.code.replace("total = tl.dot(x, y, total)", "total = tl.dot(x, y, nowhere)")
    line = code[: code.index("nowhere")].count("\n") + 1
    wrong = Definition.from_json(example.to_json() | {"code": code})
    with pytest.raises(InvalidOnDevice, match=rf"does not compile: line {line}: .*nowhere is not defined"):
        device.measure(configured(wrong, "256x256x256 f16", (64, 64, 32)), QUICK)


def test_scale_factors_reach_the_kernel(device: CudaDevice) -> None:
    code = """
import triton
import triton.language as tl


@triton.jit
def scaled(a, b, d, scale_a, scale_b, bias, m, n, k):
    rows, columns, inner = tl.program_id(0) * 32 + tl.arange(0, 32), tl.program_id(1) * 32 + tl.arange(0, 32), tl.arange(0, 32)
    total = tl.zeros((32, 32), dtype=tl.float32)
    for step in range(0, k // 32):
        x = tl.load(a + rows[:, None] * k + (step * 32 + inner)[None, :])
        y = tl.load(b + (step * 32 + inner)[:, None] * n + columns[None, :])
        total = tl.dot(x, y, total, input_precision="ieee")
    total = total * tl.load(scale_a + rows)[:, None] * tl.load(scale_b + columns)[None, :] + tl.load(bias + columns)[None, :]
    tl.store(d + rows[:, None] * n + columns[None, :], tl.maximum(total, 0.0))
"""
    definition = own(
        ROOT / "scaled.py", code=code, entry="scaled", grid=("m / 32", "n / 32"), block=(), warps="4", stages="2",
        arguments=("a", "b", "d", "scale_a", "scale_b", "bias", "m", "n", "k"),
        requires=("scale == 'row'", "fused == 'bias+relu'", "layout == 'nn'"),
    )  # fmt: skip
    configuration = Configuration.parse(
        f"source(definition={definition.id}) 256x128x96 f32 nn scale=row fused=bias+relu"
    )
    assert device.measure(configuration, QUICK).runtime_ms > 0
