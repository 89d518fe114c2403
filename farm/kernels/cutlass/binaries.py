"""Which binary a configuration of the family needs.

Shape, batch, alpha, beta, split-k and a bias are given when a kernel is launched; everything else is compiled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.fusion import Activation, Fusion
from farm.gemm import ElementType, Problem
from farm.kernels.binary import Binary, Template, capability_of, ordered
from farm.kernels.cutlass.point import load_at_once, store_at_once

_E = ElementType

CUTLASS_OPTIONS = ("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr")


def _template(name: str) -> Template:
    return Template(
        name=f"cutlass/{name}",
        path=Path(__file__).with_name(name),
        options=("-cubin", *CUTLASS_OPTIONS),
        head=Path(__file__).with_name("gemm2x_tiles.cu"),
    )


TEMPLATE = _template("gemm2x.cu")
"""For one product with nothing fused."""

UNIVERSAL = _template("gemm2x_universal.cu")
"""For batches and fused operations."""

ACTIVATIONS = {
    None: "Identity",
    Activation.RELU: "ReLu",
    Activation.GELU: "GELU_taylor",
    Activation.SILU: "SiLu",
}
"""CUTLASS's functors. Its `GELU_taylor` is the approximation by tanh, and `GELU` is not."""

FUSIONS = tuple(fused for fused in Fusion if fused.activation in ACTIVATIONS and not fused.gated)
"""What the templates of both families fuse."""

CPP = {
    _E.F64: "double",
    _E.F32: "float",
    _E.TF32: "cutlass::tfloat32_t",
    _E.F16: "cutlass::half_t",
    _E.BF16: "cutlass::bfloat16_t",
    _E.F8E4M3: "cutlass::float_e4m3_t",
    _E.F8E5M2: "cutlass::float_e5m2_t",
    _E.I8: "int8_t",
    _E.I4: "cutlass::int4b_t",
    _E.F4: "cutlass::float_e2m1_t",
    _E.I32: "int32_t",
}
"""The C++ type of an element, in the templates of both families of CUTLASS."""


def binary_of(problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary:
    """The binary for a point of the space on an architecture. Raises `BadArchitecture`.

    The parameter `align` holds for A and B; 0 takes for each the most that its leading dimension allows. C and D are
    always accessed as widely as n allows.
    """
    major, minor = capability_of(arch)
    shape, types, layout, p = problem.shape, problem.types, problem.layout, parameters
    align_a = load_at_once(shape.m if layout.a_transposed else shape.k, types.ab, p["align"])
    align_b = load_at_once(shape.k if layout.b_transposed else shape.n, types.ab, p["align"])
    align_c = store_at_once(problem)
    definitions = {
        "AB": CPP[types.ab],
        "CD": CPP[types.cd],
        "ACC": CPP[types.acc],
        "A_TRANSPOSED": int(layout.a_transposed),
        "B_TRANSPOSED": int(layout.b_transposed),
        **{name.upper(): p[name] for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "swizzle")},
        "ALIGN_A": align_a,
        "ALIGN_B": align_b,
        "ALIGN_C": align_c,
        "ARCH": 10 * major + minor,
    }
    label = (
        f"{types} {layout} tile {p['tile_m']}x{p['tile_n']}x{p['tile_k']} warp {p['warp_m']}x{p['warp_n']} "
        f"stages {p['stages']} swizzle {p['swizzle']} align {align_a},{align_b},{align_c} {arch}"
    )
    template = TEMPLATE
    if problem.batch != 1 or problem.fused is not Fusion.NONE:
        template, activation = UNIVERSAL, problem.fused.activation
        definitions["ACTIVATION"] = ACTIVATIONS[activation]
        label += f" universal {activation}" if activation else " universal"
    return Binary(template=template, arch=arch, definitions=ordered(definitions), label=label)
