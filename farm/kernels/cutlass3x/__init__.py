"""The family `cutlass3x`: CUTLASS 3.x kernels for Hopper built ahead of time, and which points of their space exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import Problem
from farm.kernels.cutlass.binaries import FUSIONS
from farm.kernels.cutlass3x import building, fitting
from farm.kernels.cutlass3x.binaries import KINDS, TEMPLATE, binary_of
from farm.kernels.cutlass3x.point import Point
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import whole_scalars
from farm.scale import Scale

# What comes first explains most: the card, a type that it lacks, then the kernel's own shape, then the problem.
_CHECKS: tuple[Callable[[Point], Reason], ...] = (
    building.device_is_hopper,
    building.types_exist,
    building.kind_exists,
    building.schedule_exists,
    building.instructions_fit,
    building.layouts_fit,
    building.narrow_fits,
    building.cluster_fits,
    building.blocks_fit,
    fitting.registers_suffice,
    fitting.shared_memory_fits,
    fitting.stages_are_swizzled_alike,
    fitting.tma_can_copy,
    fitting.factors_can_be_read,
    fitting.grid_fits,
)

_TILES = (16, 32, 64, 96, 128, 192, 256)
_CLUSTERS = (1, 2, 4, 8)
_SWITCH = (0, 1)


def _exists(problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    point = Point(problem=problem, device=device, **parameters)
    return next((reason for check in _CHECKS if (reason := check(point)) is not None), None)


CUTLASS3X = KernelFamily(
    name="cutlass3x",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.cutlass3x.family:Cutlass3xFamily",
    meaning="CUTLASS 3.x kernels for Hopper built ahead of time",
    parameters=(
        Parameter(name="tile_m", values=_TILES, default=128, meaning="rows of C that a block computes"),
        Parameter(name="tile_n", values=_TILES, default=128, meaning="columns of C that a block computes"),
        Parameter(name="tile_k", values=(16, 32, 64, 128, 256), default=64, meaning="K step of a block"),
        Parameter(name="cluster_m", values=_CLUSTERS, default=1, meaning="blocks along m that share tiles of B"),
        Parameter(name="cluster_n", values=_CLUSTERS, default=1, meaning="blocks along n that share tiles of A"),
        Parameter(
            name="schedule", values=(0, 1, 2), default=2, meaning="0 warp-specialised, 1 pingpong, 2 cooperative"
        ),
        Parameter(name="epilogue", values=_SWITCH, default=1, meaning="0 stores from registers, 1 by TMA"),
        Parameter(name="stages", values=(0, *range(2, 17)), default=0, meaning="pipeline stages; 0 is as many as fit"),
        Parameter(name="stream_k", values=_SWITCH, default=0, meaning="1 shares a tile's steps of K among blocks"),
        Parameter(
            name="swap", values=_SWITCH, default=0, meaning="1 computes the transposed product: 64 rows lie along n"
        ),
        Parameter(
            name="swizzle", values=(1, 2, 4, 8), default=1, meaning="columns of tiles that are computed together"
        ),
        Parameter(
            name="raster", values=(0, 1, 2), default=0, meaning="order of tiles: 0 by shape, 1 along m, 2 along n"
        ),
    ),
    rules=(_exists, whole_scalars),
    templates=(TEMPLATE, KINDS),
    binary=binary_of,
    batched=True,
    grouped=True,
    scales=tuple(Scale),
    fusions=FUSIONS,
)
