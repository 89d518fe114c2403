"""What gemm_triton.py computes, in Triton's interpreter: every part of the template, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.builds import installed_toolchains
from farm.kernels import Configuration
from farm.kernels.toolchains import TRITON
from farm.settings import settings

pytestmark = pytest.mark.long

TILE = "tile_m=32,tile_n=16,tile_k=32,group_m=2"
GATED = "tile_m=64,tile_n=64,tile_k=64,group_m=2"
SHAPE, SCALED = "70x40x72", "150x40x200"
"""Ragged tiles along m, n and k; and more than a block of 128 along m and k."""
GROUPED, GROUPS = "105x24x200", "groups=0,33,0*2,66,1*2,4,0"
"""Empty groups, groups of less than a tile, and groups of several bands of tiles."""

# The interpreter multiplies the bits of bf16, so that no A and B are of it; C, D and the bias are.
CASES = [
    *(f"triton({TILE}) {SHAPE} f32 {layout} alpha=2 beta=-0.5 batch=2" for layout in ("nn", "nt", "tn", "tt")),
    f"triton({TILE}) 64x32x64 f32 nt",
    "triton(tile_m=16,tile_n=64,tile_k=16,group_m=1) 1x1x1 f32 tn beta=1",
    "triton(tile_m=256,tile_n=256,tile_k=64,warps=16) 300x270x130 f16 nt scale=128x128:1x128",
    *(
        f"triton({TILE}) {SCALED} f32 nt alpha=0.5 beta=1 batch=2 scale={scale}"
        for scale in ("tensor", "row", "1x128", "1x128:128x128", "128x128:1x128")
    ),
    *(f"triton({TILE}) {SHAPE} f32 tn batch=2 fused={fused}" for fused in ("bias", "relu", "gelu", "silu")),
    *(f"triton({TILE}) {SCALED} f16 nn beta=1 fused=bias+{fused} scale=1x128" for fused in ("relu", "gelu", "silu")),
    f"triton({GATED}) {SHAPE} f32 nn alpha=-2 batch=2 fused=bias+swiglu",
    f"triton({GATED}) {SCALED} f32 nt batch=2 scale=row fused=swiglu",
    f"triton({GATED},tma=1) 80x48x80 f16 nn batch=2 fused=swiglu",
    f"triton({GATED}) {SCALED} f16i4 nt scale=none:1x32 fused=bias+swiglu",
    f"triton({GATED}) 70x76x72 f16f4 nn scale=none:row fused=swiglu",
    f"triton({GATED}) 70x42x200 f16i8 nn scale=none:1x64 fused=swiglu",
    *(f"triton({GATED}) 150x{n}x200 f16 nt scale=1x128:128x128 fused=bias+swiglu" for n in (256, 280)),
    f"triton({GATED}) 105x72x200 f32 nt scale=row fused=bias+swiglu {GROUPS}",
    f"triton({GATED},tma=1) 105x80x208 f16 nt scale=1x128:128x128 fused=swiglu {GROUPS}",
    *(
        f"triton({TILE}) {GROUPED} f32 {more} {GROUPS}"
        for more in (
            "nn alpha=2 beta=-0.5",
            "nt scale=tensor",
            "nt scale=row fused=bias+silu",
            "nn scale=1x128 beta=1 fused=bias",
            "nt scale=1x128:128x128",
        )
    ),
    f"triton({TILE}) {GROUPED} i8 nt alpha=3 {GROUPS}",
    f"triton({TILE}) {GROUPED} f8e4m3 nt scale=1x128:128x128 fused=gelu {GROUPS}",
    f"triton({TILE},tma=1) 70x32x64 f16 nn alpha=2 beta=-0.5 batch=2",
    f"triton({TILE},tma=1) 80x40x48 f16 tt",
    f"triton({TILE},tma=1) 105x24x208 f16 nt scale=1x128:128x128 {GROUPS}",
    f"triton({TILE}) {SHAPE} f16:f32:f32 tt",
    f"triton({TILE}) {SHAPE} i8 tn alpha=3 beta=-2 batch=3",
    f"triton({TILE}) {SCALED} f8e4m3 nt scale=1x128:128x128 fused=bias+gelu beta=1",
    f"triton({TILE}) {SCALED} f8e5m2e4m3:f16:f32 nn scale=row",
    f"triton({TILE}) {SCALED} f16i4:f32:f32 nt beta=1 batch=2 scale=none:1x64",
    f"triton({TILE}) {SCALED} f16f4:f32:f32 nn batch=2 scale=none:1x32",
    f"triton({TILE}) {SHAPE} f16i8:f32:f32 nt scale=none:row",
    f"triton({TILE.replace('tile_k=32', 'tile_k=128')}) {SCALED} f16i4 nt scale=none:1x32 fused=bias+silu",
    "triton(tile_m=16,tile_n=16,tile_k=64,group_m=1) 70x64x128 f16i8 nt groups=20,0,50 scale=none:1x32",
    "triton(tile_m=16,tile_n=16,tile_k=32,group_m=1) 70x64x128 f16i4 nt groups=20,0,50 scale=none:1x64",
]

LARGEST = {"f32": 2e-6, "f16": 2e-3, "bf16": 1e-2, "i32": 0.0}
"""Errors by the type of D, as a share of the largest element: those of rounding."""


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """By configuration."""
    if TRITON not in installed_toolchains(settings()):
        pytest.skip("Triton is not installed in the farm's version: make setup EXTRA=triton installs it")
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join((tests, *filter(None, sys.path)))
    done = subprocess.run(
        [sys.executable, "-m", "support.triton_interpreted"],
        input="\n".join(CASES), env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = (line.split(" ", 1) for line in done.stdout.splitlines())
    return {case: float(error) for error, case in found}


@pytest.mark.parametrize("case", CASES)
def test_the_template_computes_what_it_should(errors: dict[str, float], case: str) -> None:
    assert errors[case] <= LARGEST[Configuration.parse(case).problem.types.cd]
