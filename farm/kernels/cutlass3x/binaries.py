"""Which binary a configuration of the family needs.

Shape, batch, groups, alpha, beta, swizzle and raster order are given when a kernel is launched; everything else is compiled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels.binary import Binary, Template, capability_of, ordered
from farm.kernels.cutlass.binaries import ACTIVATIONS, CPP, CUTLASS_OPTIONS
from farm.kernels.cutlass3x.point import Schedule
from farm.scale import Scale


def _template(name: str) -> Template:
    folder = Path(__file__).parent
    return Template(
        name=f"cutlass3x/{name}",
        path=folder / name,
        options=(
            *("-shared", "-cudart=static", *CUTLASS_OPTIONS),
            # Nothing of one library meets another's in a process that loads hundreds of them.
            *("-Xcompiler=-fPIC,-fvisibility=hidden", "-Xlinker=--exclude-libs=ALL,-s"),
        ),
        head=folder / "gemm3x_operands.cu",
        tail=folder / "gemm3x_launch.cu",
        library=True,
    )


TEMPLATE = _template("gemm3x.cu")
"""For one product with nothing fused."""

KINDS = _template("gemm3x_kinds.cu")
"""For batches, groups, scale factors and fused operations."""

_BLOCKS = 3
_SCALES = {Scale.NONE: 0, Scale.TENSOR: 1, Scale.ROW: 2}
"""Values of SCALE; other scale factors are of blocks."""

_COMPILED_IN = (
    *("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"),
    *("schedule", "epilogue", "stages", "stream_k", "swap"),
)


def binary_of(problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary:
    """The binary for a point of the space on an architecture. Raises `BadArchitecture`."""
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
    template = TEMPLATE
    several = problem.batch != 1 or problem.groups is not None
    if several or types.ab.low_bit_weights or (problem.scale, problem.fused) != (Scale.NONE, Fusion.NONE):
        template = KINDS
        definitions |= _definitions(problem)
        words = (*words[:-1], *_words(problem), arch)
    return Binary(template=template, arch=arch, definitions=ordered(definitions), label=" ".join(words))


def _definitions(problem: Problem) -> dict[str, str | int]:
    """Those of gemm3x_kinds.cu alone."""
    scale, lines, of_weights = _SCALES.get(problem.scale, _BLOCKS), [1, 1], problem.scale.of_weights
    if of_weights:
        scale = _SCALES[Scale.NONE]
    if scale == _BLOCKS:
        lines = [
            1 if blocks is None or blocks.lines is None else blocks.lines
            for blocks in (problem.scale.of_a, problem.scale.of_b)
        ]
    return {
        "BIAS": int(problem.fused.bias),
        "ACTIVATION": f"cutlass::epilogue::thread::{ACTIVATIONS[problem.fused.activation]}",
        **{"SCALE": scale, "LINES_A": lines[0], "LINES_B": lines[1]},
        "GROUPED": int(problem.groups is not None),
        "NARROW": problem.types.ab.low_bit_weights + of_weights,
    }


def _words(problem: Problem) -> Iterator[str]:
    yield "groups" if problem.groups is not None else "batches"
    if problem.scale is not Scale.NONE:
        # How many elements share a factor of B alone is given at the launch.
        yield "factors of B" if problem.scale.of_weights else f"scale {problem.scale}"
    if problem.fused is not Fusion.NONE:
        yield f"fused {problem.fused}"
