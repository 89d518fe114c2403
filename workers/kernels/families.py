"""The kernel families that a CUDA card can run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workers.kernels.base import CardContext, CudaFamily
from workers.kernels.cublaslt import CublasLtFamily
from workers.kernels.cutlass.family import CutlassFamily
from workers.kernels.cutlass3x.family import Cutlass3xFamily
from workers.kernels.tiled import TiledFamily

CUDA_FAMILIES: Mapping[str, Callable[[CardContext], CudaFamily]] = {
    "tiled": TiledFamily,
    "cublaslt": CublasLtFamily,
    "cutlass": CutlassFamily,
    "cutlass3x": Cutlass3xFamily,
}
