"""The `tiled` family: its source, how it is compiled, the grid it is launched with, and how it runs on a card."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from farm.fusion import Fusion
from farm.gemm import ElementType, Problem, Shape
from farm.groups import Groups
from farm.kernels import Configuration
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.group_tiles import group_tiles
from workers.kernels.once import Once
from workers.kernels.residency import residency
from workers.measure.elements import STORAGE

CUDA_TYPES = {ElementType.F32: "float", ElementType.F64: "double"}

MAX_GRID_Y = 65_535

TILED_ENTRY = "tiled_gemm"


@cache
def source(name: str) -> str:
    """The text of a CUDA source in this folder."""
    return Path(__file__).with_name(name).read_text()


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """One compilation of tiled.cu: what distinguishes two kernels."""

    tile: int
    element: ElementType
    a_transposed: bool
    b_transposed: bool
    batched: bool = False
    fused: Fusion = Fusion.NONE
    grouped: bool = False

    @classmethod
    def of(cls, configuration: Configuration) -> TiledKernel:
        p: Problem = configuration.problem
        tile = dict(configuration.kernel.parameters)["tile"]
        transposed = p.layout.a_transposed, p.layout.b_transposed
        return cls(tile, p.types.ab, *transposed, p.batch != 1, p.fused, p.groups is not None)

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
            f"-DBATCHED={int(self.batched)}",
            f"-DGROUPED={int(self.grouped)}",
            f"-DBIAS={int(self.fused.bias)}",
            f"-DGATED={int(self.fused.gated)}",
            f"-DACTIVATION={self.fused.activation or 'none'}",
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

    def grid(self, shape: Shape, groups: Groups | None = None) -> tuple[int, int]:
        """Blocks along the columns and along the rows of one D; where rows need more than 65535, blocks walk on."""
        rows = -(-shape.m // self.tile) if groups is None else groups.tiles(self.tile)
        return (-(-self.fused.columns(shape.n) // self.tile), min(rows, MAX_GRID_Y))


class TiledFamily:
    """The family on one card. Kernels are compiled once for each process, and by CuPy's cache once for each host."""

    def __init__(self, card: CardContext) -> None:
        self._card = card
        self._compiled = Once[TiledKernel, Any]()

    def prepare(self, configuration: Configuration) -> None:
        self._function(TiledKernel.of(configuration))

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        kernel = TiledKernel.of(configuration)
        return _BoundTiled(self._card, kernel, self._function(kernel), placement)

    def close(self) -> None:
        self._compiled.clear()

    def _function(self, kernel: TiledKernel) -> Any:
        def compiled() -> Any:
            return self._card.cp.RawModule(code=kernel.code, options=kernel.options).get_function(TILED_ENTRY)

        return self._compiled.get(kernel, compiled)


class _BoundTiled:
    capturable = True
    roundings = 1
    deterministic = True  # each element is one thread's sum

    def __init__(self, card: CardContext, kernel: TiledKernel, function: Any, placement: Placement) -> None:
        self._card = card
        self._kernel = kernel
        self._function = function
        self._placement = placement
        self._has_bias = kernel.fused.bias
        p = placement.layout.problem
        self._grid, self._block = (*kernel.grid(p.shape, p.groups), p.batch), kernel.block
        self._tiles: tuple[Any, ...] = ()
        self._shares: dict[str, float] = {}
        if p.groups is not None:
            table = group_tiles(p.groups, kernel.tile)
            self._tiles = card.cp.asarray(table), len(table)
            self._shares = {"useful_share": p.groups.useful_share(kernel.tile)}
        scalar = STORAGE[p.types.acc]
        # Python integers reach a kernel as 64 bits: pointers and extents alike.
        self._rest = (p.shape.m, p.shape.n, p.shape.k, scalar(p.alpha), scalar(p.beta))
        self.hash = kernel.hash

    def launch(self, index: int) -> None:
        bias = self._placement.added(index)[2:] if self._has_bias else ()
        self._function(self._grid, self._block, (*self._placement.addresses(index), *self._rest, *bias, *self._tiles))

    def details(self) -> dict[str, Any]:
        """Facts from the compiler and the card. With groups, the share of the tiles' rows that D has."""
        function = self._function
        return {
            "registers": int(function.num_regs),
            "static_shared_bytes": int(function.shared_size_bytes),
            "local_bytes": int(function.local_size_bytes),
            **residency(self._card, function.kernel.ptr, threads=self._kernel.threads, blocks=math.prod(self._grid)),
            **self._shares,
        }

    def close(self) -> None:
        """The compiled kernel is kept for the next configuration."""
