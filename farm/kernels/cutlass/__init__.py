"""The family `cutlass`: CUTLASS 2.x kernels built ahead of time, and which points of their parameter space exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import Problem
from farm.kernels.cutlass import building, fitting
from farm.kernels.cutlass.binaries import FUSIONS, TEMPLATE, UNIVERSAL, binary_of
from farm.kernels.cutlass.point import Point
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import whole_scalars

# What comes first explains most: a type that the card lacks, then the kernel's own shape, then the problem and the device.
_CHECKS: tuple[Callable[[Point], Reason], ...] = (
    building.types_exist,
    building.operations_exist,
    building.stages_exist,
    building.warps_fit,
    building.instructions_fit,
    building.simt_fits,
    building.tensor_fits,
    building.loads_are_shared,
    building.stores_are_shared,
    fitting.alignment_is_possible,
    fitting.shared_memory_fits,
    fitting.registers_suffice,
    fitting.batch_is_whole,
    fitting.slices_have_work,
    fitting.grid_fits,
)


def _exists(problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    point = Point(problem=problem, device=device, **parameters)
    return next((reason for check in _CHECKS if (reason := check(point)) is not None), None)


CUTLASS = KernelFamily(
    name="cutlass",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.cutlass.family:CutlassFamily",
    meaning="CUTLASS kernels built ahead of time",
    parameters=(
        Parameter(name="tile_m", values=(16, 32, 64, 128, 256), default=128, meaning="threadblock rows of C"),
        Parameter(name="tile_n", values=(16, 32, 64, 128, 256), default=128, meaning="threadblock columns of C"),
        Parameter(name="tile_k", values=(8, 16, 32, 64, 128), default=32, meaning="K step of a threadblock"),
        Parameter(name="warp_m", values=(8, 16, 32, 64, 128), default=64, meaning="warp rows of C"),
        Parameter(name="warp_n", values=(8, 16, 32, 64, 128), default=64, meaning="warp columns of C"),
        Parameter(name="stages", values=range(2, 11), default=3, meaning="pipeline stages"),
        Parameter(
            name="swizzle", values=(1, 2, 4, 8), default=1, meaning="columns of tiles that are computed together"
        ),
        Parameter(name="split_k", values=range(1, 65), default=1, meaning="slices of K"),
        Parameter(
            name="align",
            values=(0, 1, 2, 4, 8, 16),
            default=0,
            meaning="elements of A and of B that are loaded at once; 0 is as many as the problem allows",
        ),
    ),
    rules=(_exists, whole_scalars),
    templates=(TEMPLATE, UNIVERSAL),
    binary=binary_of,
    batched=True,
    fusions=FUSIONS,
)
