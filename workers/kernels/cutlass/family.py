"""The `cutlass` family on a card: binaries of gemm2x.cu and gemm2x_universal.cu, loaded and launched.

A kernel takes CUTLASS's `Params` by value. A second kernel of the binary fills them on the card, once for each operand
set; they are copied back and handed over with each launch, which costs no more than the launch of any other kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.builds.record import Built, Record
from farm.kernels import Configuration
from farm.kernels.cutlass.binaries import UNIVERSAL
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.built_family import BuiltFamily
from workers.kernels.cubins import kernel_of, loaded_module
from workers.kernels.residency import residency
from workers.measure.elements import STORAGE

PACK, GEMM = "gemm_pack", "gemm"
"""The two kernels of a binary."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A binary on the card."""

    record: Record
    pack: Any
    gemm: Any


class CutlassFamily(BuiltFamily[_Loaded]):
    """The family on one card."""

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        return _BoundCutlass(self._card, self._load(configuration), configuration, placement)

    def _loaded_from(self, built: Built) -> _Loaded:
        cp = self._card.cp
        module = loaded_module(cp, built)
        return _Loaded(built.record, module.get_function(PACK), kernel_of(cp, module, built, GEMM))


class _BoundCutlass:
    capturable = True
    deterministic = True  # a semaphore gives the slices of k their order

    def __init__(self, card: CardContext, loaded: _Loaded, configuration: Configuration, placement: Placement) -> None:
        self._card = card
        self._record, self._gemm = loaded.record, loaded.gemm
        parameters = dict(configuration.kernel.parameters)
        # Slices of k add up in D, and each rounds to its type.
        self.roundings = parameters["split_k"]
        self.hash = loaded.record.hash
        self._semaphores = self._zeros(configuration, parameters) if self.roundings > 1 else None
        self._params, self._grid = self._pack(loaded.pack, placement)

    def _zeros(self, configuration: Configuration, parameters: dict[str, int]) -> Any:
        """A semaphore for each tile of D. A launch leaves them as they were, so all sets share them."""
        s = configuration.problem.shape
        tiles = -(-s.m // parameters["tile_m"]) * -(-s.n // parameters["tile_n"])
        return self._card.cp.zeros(tiles, np.int32)

    def _pack(self, pack: Any, placement: Placement) -> tuple[list[Any], tuple[int, int, int]]:
        """`Params` for each operand set, as the kernel takes them, and the grid."""
        cp, sets, lies, size = self._card.cp, placement.sets, placement.layout, self._record.params_bytes
        p = lies.problem
        boxes, launch = cp.empty(sets * size, np.uint8), cp.empty(4, np.int64)
        scalar = STORAGE[p.types.acc]
        semaphores = 0 if self._semaphores is None else self._semaphores
        _, _, bias = placement.added(0)
        added = (p.batch, bias, lies.bias * p.types.cd.bytes) if self._record.template == UNIVERSAL.name else ()
        # Python integers reach a kernel as 64 bits: pointers and extents alike.
        pack(
            (sets,),
            (1,),
            (
                boxes, launch, p.shape.m, p.shape.n, p.shape.k, *placement.addresses(0),
                lies.inputs * p.types.ab.bytes, lies.outputs * p.types.cd.bytes,
                scalar(p.alpha), scalar(p.beta), self.roundings, semaphores, *added,
            ),
        )  # fmt: skip
        bytes_ = boxes.get()
        x, y, z, _ = (int(extent) for extent in launch.get())
        # One element of a void type is what CuPy passes by value.
        return [bytes_[n * size : (n + 1) * size].view(f"V{size}") for n in range(sets)], (x, y, z)

    def launch(self, index: int) -> None:
        record = self._record
        self._gemm(self._grid, (record.threads,), (self._params[index],), record.shared_bytes)

    def details(self) -> dict[str, Any]:
        """Facts from the compiler and the card."""
        record, (x, y, z) = self._record, self._grid
        return {
            **record.details,
            **residency(
                self._card, self._gemm.ptr, threads=record.threads, blocks=x * y * z, dynamic_bytes=record.shared_bytes
            ),
        }

    def close(self) -> None:
        """The binary stays loaded for the next configuration."""
        self._semaphores = None
