"""Which binary a configuration of the family needs.

Shape, alpha, beta, swizzle and raster order are given when a kernel is launched; everything else is compiled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.gemm import Problem
from farm.kernels.binary import Binary, Template, capability_of, ordered
from farm.kernels.cutlass.binaries import CPP, CUTLASS_OPTIONS
from farm.kernels.cutlass3x.point import Schedule

TEMPLATE = Template(
    name="cutlass3x/gemm3x.cu",
    path=Path(__file__).with_name("gemm3x.cu"),
    options=(
        *("-shared", "-cudart=static", *CUTLASS_OPTIONS),
        # Nothing of one library meets another's in a process that loads hundreds of them.
        *("-Xcompiler=-fPIC,-fvisibility=hidden", "-Xlinker=--exclude-libs=ALL,-s"),
    ),
    library=True,
)

_COMPILED_IN = (
    *("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"),
    *("schedule", "epilogue", "stages", "stream_k", "swap"),
)


def binary_of(problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary:
    """The binary of gemm3x.cu for a point of the space on an architecture. Raises `BadArchitecture`."""
    major, minor = capability_of(arch)
    types, layout, p = problem.types, problem.layout, parameters
    definitions = {
        "TYPE_A": CPP[types.ab.of_a],
        "TYPE_B": CPP[types.ab.of_b],
        "CD": CPP[types.cd],
        "ACC": CPP[types.acc],
        "A_TRANSPOSED": int(layout.a_transposed),
        "B_TRANSPOSED": int(layout.b_transposed),
        **{name.upper(): p[name] for name in _COMPILED_IN},
        "ARCH": 10 * major + minor,
    }
    words = (
        f"{types} {layout} tile {p['tile_m']}x{p['tile_n']}x{p['tile_k']} cluster {p['cluster_m']}x{p['cluster_n']}",
        str(Schedule(p["schedule"])),
        *(("TMA",) if p["epilogue"] else ("direct",)),
        f"stages {p['stages'] or 'all'}",
        *(("stream-k",) if p["stream_k"] else ()),
        *(("swapped",) if p["swap"] else ()),
        arch,
    )
    return Binary(template=TEMPLATE, arch=arch, definitions=ordered(definitions), label=" ".join(words))
