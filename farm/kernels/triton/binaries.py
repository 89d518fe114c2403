"""Which binary a configuration of the family needs.

Shape, alpha, beta, the batch and the rows of groups are given when a kernel is launched. Compiled in is, besides the parameters, what the compiler
makes faster code from: which of m, n and k are multiples of 16, and whether k is one of the tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels.binary import Binary, Template, capability_of, ordered
from farm.kernels.rules import EIGHT_BIT_FLOATS
from farm.kernels.toolchains import TRITON
from farm.scale import Scale

TEMPLATE = Template(
    name="triton/gemm_triton.py", path=Path(__file__).with_name("gemm_triton.py"), options=(), toolchain=TRITON
)

MULTIPLE = 16
"""The multiple that Triton's compiler distinguishes."""

_COMPILED_IN = ("tile_m", "tile_n", "tile_k", "group_m", "warps", "stages", "tma")

_MAX_IMPRECISE = 128
"""Terms of 8-bit floats that tensor cores add up before the sum goes to the accumulator, as in cuBLASLt."""

SCRATCH_BYTES = 256
"""Of each program with `tma`: the descriptors of A and B (CUtensorMap of cuda.h)."""

_INDICES = 2**31
"""Elements of a matrix from which their offsets take 64 bits."""


def binary_of(problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary:
    """The binary of gemm_triton.py for a point of the space on an architecture. Raises `BadArchitecture`."""
    capability_of(arch)
    s, types, layout, p = problem.shape, problem.types, problem.layout, parameters
    scales = problem.scale.split(":")
    multiples = {"m": layout.a_transposed and s.m % MULTIPLE == 0, "n": s.n % MULTIPLE == 0, "k": s.k % MULTIPLE == 0}
    along_a, along_b = s.m if layout.a_transposed else s.k, s.k if layout.b_transposed else s.n
    of_b = problem.scale.of_b
    definitions = {
        "TYPE_A": types.ab.of_a.value,
        "TYPE_B": types.ab.of_b.value,
        "CD": types.cd.value,
        "ACC": types.acc.value,
        "A_TRANSPOSED": int(layout.a_transposed),
        "B_TRANSPOSED": int(layout.b_transposed),
        **{name.upper(): p[name] for name in _COMPILED_IN},
        "GROUPED": int(problem.groups is not None),
        **{f"{name.upper()}_16": int(is_one) for name, is_one in multiples.items()},
        "WHOLE_K": int(s.k % p["tile_k"] == 0),
        "WIDE": int(max(s.m * s.k, s.k * s.n, s.m * s.n) >= _INDICES),
        "SUM_OFFSETS": int(bool(along_a % MULTIPLE or along_b % MULTIPLE)),
        "IMPRECISE": min(_MAX_IMPRECISE, p["tile_k"]) if types.ab in EIGHT_BIT_FLOATS else 0,
        "ADDS_C": int(problem.beta != 0),
        "SCALE_A": scales[0],
        "SCALE_B": scales[-1],
        "WEIGHTS_PER_FACTOR": (of_b.inner or 0) if of_b is not None and problem.scale.of_weights else 0,
        "WHOLE_SECTORS": int(types.ab.of_b.per_item > 1 and along_b % (2 * MULTIPLE) == 0),
        "BIAS": int(problem.fused.bias),
        "ACTIVATION": "none" if problem.fused.activation is None else problem.fused.activation.value,
        "GATED": int(problem.fused.gated),
        "UP_ALIGNED": int(s.n % p["tile_n"] == 0) if problem.fused.gated else 0,
    }
    words = (
        f"{types} {layout} tile {p['tile_m']}x{p['tile_n']}x{p['tile_k']} group {p['group_m']} warps {p['warps']}",
        f"stages {p['stages']}",
        *(("tma",) if p["tma"] else ()),
        *(
            (f"multiples {''.join(name for name, is_one in multiples.items() if is_one)}",)
            if any(multiples.values())
            else ()
        ),
        *(("grouped",) if problem.groups is not None else ()),
        *(("adds C",) if problem.beta else ()),
        *((f"scale {problem.scale}",) if problem.scale is not Scale.NONE else ()),
        *((f"fused {problem.fused}",) if problem.fused is not Fusion.NONE else ()),
        arch,
    )
    return Binary(template=TEMPLATE, arch=arch, definitions=ordered(definitions), label=" ".join(words))


def scratch_bytes(binary: Binary) -> int:
    """Bytes of scratch memory that a launch has for each block."""
    return SCRATCH_BYTES if binary.template == TEMPLATE and dict(binary.definitions)["TMA"] == "1" else 0
