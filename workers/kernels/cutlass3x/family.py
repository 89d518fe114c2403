"""The `cutlass3x` family on a card: libraries of gemm3x.cu, which launch their own kernels.

What launches an operand set, TMA descriptors and all, is made once on the host when a configuration is bound; a launch is
then one call into the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.builds.record import Built, Record
from farm.kernels import Configuration
from farm.kernels.cutlass3x.point import Schedule
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.built_family import BuiltFamily
from workers.kernels.cutlass3x.groups import group_table
from workers.kernels.cutlass3x.library import ALIGNMENT, Library
from workers.kernels.residency import resident_columns

_Loaded = tuple[Record, Library]


class Cutlass3xFamily(BuiltFamily[_Loaded]):
    """The family on one card. Its binaries are libraries."""

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        record, library = self._load(configuration)
        return _BoundCutlass3x(self._card, record, library, configuration, placement)

    def _loaded_from(self, built: Built) -> _Loaded:
        library = Library(self._card.cp, built.record.hash, built.code)
        library.open()
        return built.record, library


class _BoundCutlass3x:
    capturable = True
    deterministic = True  # so is stream-k: ReductionMode::Deterministic is the default of its scheduler
    roundings = 1  # stream-k adds up in the accumulator's type

    def __init__(
        self, card: CardContext, record: Record, library: Library, configuration: Configuration, placement: Placement
    ) -> None:
        self._card, self._record, self._library = card, record, library
        self.hash = record.hash
        parameters, problem = dict(configuration.kernel.parameters), placement.layout.problem
        self._cluster = parameters["cluster_m"] * parameters["cluster_n"]
        self._persistent = parameters["schedule"] != Schedule.WARP_SPECIALISED
        rows, columns = parameters["tile_m"], parameters["tile_n"]
        of_rows = -(-problem.shape.m // rows) if problem.groups is None else problem.groups.tiles(rows)
        self._tiles = problem.batch * of_rows * -(-problem.shape.n // columns)
        # What is in groups for each operand set is copied to the card once.
        self._tables: Any = None
        self._shares: dict[str, float] = {}
        places = [0] * placement.sets
        if problem.groups is not None:
            self._shares = {"useful_share": problem.groups.useful_share(rows)}
            swap, indexes = bool(parameters["swap"]), range(placement.sets)
            tables = np.stack([group_table(problem.groups, placement, index, swap=swap) for index in indexes])
            self._tables = card.cp.asarray(tables)
            places = [int(self._tables.data.ptr) + index * tables[0].nbytes for index in range(placement.sets)]
        sets = [
            library.problem(placement, index, place, swizzle=parameters["swizzle"], raster=parameters["raster"])
            for index, place in enumerate(places)
        ]
        # Launches follow each other in one stream, so that all sets share it.
        needs = library.workspace_bytes(sets[0])
        self._workspace = card.cp.empty(needs, np.uint8) if needs else None
        workspace = 0 if self._workspace is None else int(self._workspace.data.ptr)
        size = record.params_bytes
        self._packed = np.empty(len(sets) * size + ALIGNMENT, np.uint8)
        first = -(-self._packed.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._places = [first + index * size for index in range(len(sets))]
        for place, operands in zip(self._places, sets, strict=True):
            library.pack(place, operands, workspace)

    def launch(self, index: int) -> None:
        self._library.launch(self._places[index])

    def details(self) -> dict[str, Any]:
        """Facts from the compiler and the card.

        A card is filled with tiles: a block that is persistent computes several, and CUTLASS launches at most one of those
        for each multiprocessor.
        """
        record, found = self._record, self._library.resources(self._places[0])
        resident, tiles = found["blocks_per_multiprocessor"], self._tiles
        side_by_side = min(resident, 1) if self._persistent else resident
        at_once = min(side_by_side * self._library.multiprocessors, self._library.clusters * self._cluster)
        return {
            **record.details,
            **resident_columns(self._card, resident, threads=record.threads, blocks=found["blocks"]),
            "waves": tiles / at_once if at_once else None,
            "tiles": tiles,
            **self._shares,
            "pipeline_stages": found["stages"],
            "workspace_bytes": 0 if self._workspace is None else int(self._workspace.size),
        }

    def close(self) -> None:
        """The library stays loaded for the next configuration."""
        self._workspace = self._tables = None
