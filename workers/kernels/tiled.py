"""The `tiled` family: its source, how it is compiled, and the grid it is launched with. No CUDA is needed here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from farm.gemm import ElementType, Problem, Shape
from farm.kernels import Configuration

CUDA_TYPES = {ElementType.F32: "float", ElementType.F64: "double"}

LARGEST_GRID_X = 2**31 - 1
LARGEST_GRID_Y = 65_535

TILED_ENTRY = "tiled_gemm"
FILL_ENTRY = "fill_uniform"


@cache
def source(name: str) -> str:
    """The text of a CUDA source beside this module."""
    return Path(__file__).with_name(name).read_text()


def fill_options(kind: ElementType) -> tuple[str, ...]:
    """Compiler options of operands.cu for an element type."""
    return ("-std=c++17", f"-DELEMENT={CUDA_TYPES[kind]}")


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """One compilation of tiled.cu: what distinguishes two kernels."""

    tile: int
    element: ElementType
    a_transposed: bool
    b_transposed: bool

    @classmethod
    def of(cls, configuration: Configuration) -> TiledKernel:
        p: Problem = configuration.problem
        tile = dict(configuration.kernel.parameters)["tile"]
        return cls(tile, p.types.ab, p.layout.a_transposed, p.layout.b_transposed)

    @property
    def code(self) -> str:
        return source("tiled.cu")

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options; the architecture is the compiler's to add."""
        return (
            "-std=c++17",
            f"-DTILE={self.tile}",
            f"-DELEMENT={CUDA_TYPES[self.element]}",
            f"-DA_TRANSPOSED={int(self.a_transposed)}",
            f"-DB_TRANSPOSED={int(self.b_transposed)}",
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the source and the options: equal hashes are the same kernel."""
        return hashlib.sha256("\0".join((self.code, *self.options)).encode()).hexdigest()

    @property
    def block(self) -> tuple[int, int]:
        return (self.tile, self.tile)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile * self.tile

    def grid(self, shape: Shape) -> tuple[int, int]:
        """Blocks along the columns and along the rows of D; where rows need more than 65535, blocks walk on."""
        return (-(-shape.n // self.tile), min(-(-shape.m // self.tile), LARGEST_GRID_Y))
