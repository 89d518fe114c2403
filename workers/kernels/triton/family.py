"""The `triton` family on a card: binaries of gemm_triton.py, loaded and launched as any kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.builds.record import Built, Record
from farm.errors import InvalidOnDevice
from farm.gemm import ElementType
from farm.kernels import Configuration
from farm.kernels.triton.binaries import SCRATCH_BYTES
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.built_family import BuiltFamily
from workers.kernels.cubins import kernel_of, loaded_module
from workers.kernels.group_tiles import group_tiles
from workers.kernels.residency import residency
from workers.kernels.toolchains.compilation import ENTRY

_OWN_PARAMS_BYTES = 80
"""Seven pointers and five numbers of four bytes, up to the next pointer. Groups have a pointer more."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A binary on the card."""

    record: Record
    gemm: Any


class TritonFamily(BuiltFamily[_Loaded]):
    """The family on one card."""

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        return _BoundTriton(self._card, self._load(configuration), configuration, placement)

    def _loaded_from(self, built: Built) -> _Loaded:
        need, most = built.record.shared_bytes, self._card.traits.shared_memory_per_block_bytes
        if most is not None and need > most:
            raise InvalidOnDevice(why=f"its kernel needs {need} bytes of shared memory, the device has {most}")
        cp = self._card.cp
        return _Loaded(built.record, kernel_of(cp, loaded_module(cp, built), built, ENTRY))


class _BoundTriton:
    capturable = True
    deterministic = True
    roundings = 1

    def __init__(self, card: CardContext, loaded: _Loaded, configuration: Configuration, placement: Placement) -> None:
        self._card, self._record, self._gemm = card, loaded.record, loaded.gemm
        self.hash = loaded.record.hash
        problem, p = placement.layout.problem, dict(configuration.kernel.parameters)
        s, scalar = problem.shape, np.int32 if problem.types.acc is ElementType.I32 else np.float32
        numbers = (*(np.int32(extent) for extent in (s.m, s.n, s.k)), scalar(problem.alpha), scalar(problem.beta))
        self._groups: tuple[Any, ...] = ()
        self._shares: dict[str, float] = {}
        rows = -(-s.m // p["tile_m"])
        if problem.groups is not None:
            table = group_tiles(problem.groups, p["tile_m"])
            self._groups, rows = (card.cp.asarray(table),), len(table)
            self._shares = {"useful_share": problem.groups.useful_share(p["tile_m"])}
        # Newer versions of Triton add pointers to scratch memory: of each block, and for profiles, which the farm does not take.
        own = _OWN_PARAMS_BYTES + 8 * len(self._groups)
        self._grid = (rows * -(-s.n // p["tile_n"]), problem.batch, 1)
        scratch: list[Any] = [0] * (max(0, self._record.params_bytes - own) // 8)
        if p["tma"]:
            scratch[0] = card.cp.empty(math.prod(self._grid) * SCRATCH_BYTES, np.uint8)
        # Python integers reach a kernel as 64 bits, as pointers do.
        self._arguments = [
            (*placement.addresses(index), *placement.added(index), *self._groups, *numbers, *scratch)
            for index in range(placement.sets)
        ]

    def launch(self, index: int) -> None:
        self._gemm(self._grid, (self._record.threads,), self._arguments[index], self._record.shared_bytes)

    def details(self) -> dict[str, Any]:
        """Facts from the compiler and the card. With groups, the share of the tiles' rows that D has."""
        record, (tiles, batch, _) = self._record, self._grid
        return {
            **record.details,
            **residency(
                self._card,
                self._gemm.ptr,
                threads=record.threads,
                blocks=tiles * batch,
                dynamic_bytes=record.shared_bytes,
            ),
            **self._shares,
        }

    def close(self) -> None:
        """The binary stays loaded for the next configuration."""
