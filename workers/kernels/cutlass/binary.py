"""What distinguishes two CUTLASS 2.x binaries, and the hash that names one.

Shape, alpha, beta and split-k are given when a kernel is launched; everything else is compiled in. Many configurations
share a binary, so a farm builds far fewer than it measures. Everything here is pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from farm.errors import BadArchitecture
from farm.gemm import ElementType, ElementTypes
from farm.kernels import Configuration
from farm.kernels.cutlass.point import load_at_once, store_at_once

E = ElementType

COMPILER_OPTIONS = ("-cubin", "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr")

_CPP = {
    E.F64: "double",
    E.F32: "float",
    E.TF32: "cutlass::tfloat32_t",
    E.F16: "cutlass::half_t",
    E.BF16: "cutlass::bfloat16_t",
    E.I8: "int8_t",
    E.I32: "int32_t",
}

_FIRST_ARCHITECTURE = 75


@cache
def template() -> str:
    """The text that every kernel is compiled from."""
    return Path(__file__).with_name("gemm2x.cu").read_text()


def architecture_of(compute_capability: tuple[int, int]) -> str:
    """What to compile for a card: (9, 0) is sm_90a. From 9.0 on, `a` gives all that this one architecture has."""
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _capability(arch: str) -> int:
    """90 for sm_90a."""
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if found is None or int(found[1]) < _FIRST_ARCHITECTURE:
        raise BadArchitecture(value=arch)
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Versions:
    """What a binary is made with: 4.2.0 of CUTLASS, 13.0.88 of nvcc."""

    cutlass: str
    cuda: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One compilation of gemm2x.cu."""

    types: ElementTypes
    a_transposed: bool
    b_transposed: bool
    tile_m: int
    tile_n: int
    tile_k: int  # also a warp's
    warp_m: int
    warp_n: int
    stages: int
    swizzle: int
    align_a: int  # elements that are loaded at once
    align_b: int
    align_c: int  # elements of C and D that are loaded and stored at once
    arch: str  # as nvcc names it, sm_90a

    @classmethod
    def of(cls, configuration: Configuration, arch: str) -> Self:
        """The binary that a configuration of the family needs on an architecture. Raises `BadArchitecture`.

        The parameter `align` holds for A and B; 0 takes for each the most that its leading dimension allows. C and D are
        always accessed as widely as n allows.
        """
        _capability(arch)
        problem = configuration.problem
        given = dict(configuration.kernel.parameters)
        shape, types, layout = problem.shape, problem.types, problem.layout

        return cls(
            types=types,
            a_transposed=layout.a_transposed,
            b_transposed=layout.b_transposed,
            **{name: given[name] for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "swizzle")},
            align_a=load_at_once(shape.m if layout.a_transposed else shape.k, types.ab, given["align"]),
            align_b=load_at_once(shape.k if layout.b_transposed else shape.n, types.ab, given["align"]),
            align_c=store_at_once(problem),
            arch=arch,
        )

    @property
    def definitions(self) -> dict[str, str]:
        """The macros of the template, by name."""
        return {
            "AB": _CPP[self.types.ab],
            "CD": _CPP[self.types.cd],
            "ACC": _CPP[self.types.acc],
            "A_TRANSPOSED": str(int(self.a_transposed)),
            "B_TRANSPOSED": str(int(self.b_transposed)),
            "TILE_M": str(self.tile_m),
            "TILE_N": str(self.tile_n),
            "TILE_K": str(self.tile_k),
            "WARP_M": str(self.warp_m),
            "WARP_N": str(self.warp_n),
            "STAGES": str(self.stages),
            "SWIZZLE": str(self.swizzle),
            "ALIGN_A": str(self.align_a),
            "ALIGN_B": str(self.align_b),
            "ALIGN_C": str(self.align_c),
            "ARCH": str(_capability(self.arch)),
        }

    @property
    def options(self) -> tuple[str, ...]:
        """What the compiler is told; where headers lie is its own business."""
        defined = (f"-D{name}={value}" for name, value in self.definitions.items())
        return (*COMPILER_OPTIONS, f"-arch={self.arch}", *defined)

    def hash(self, versions: Versions) -> str:
        """SHA-256 of the template, the options and the versions: equal hashes are the same kernel."""
        text = "\0".join((template(), versions.cutlass, versions.cuda, *self.options))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        """For people: what is compiled in, in one line."""
        layout = "nt"[self.a_transposed] + "nt"[self.b_transposed]
        return (
            f"{self.types} {layout} tile {self.tile_m}x{self.tile_n}x{self.tile_k} warp {self.warp_m}x{self.warp_n} "
            f"stages {self.stages} swizzle {self.swizzle} align {self.align_a},{self.align_b},{self.align_c} {self.arch}"
        )
