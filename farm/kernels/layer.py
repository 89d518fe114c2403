"""The family `layer`: linear layers of a serving framework, as tables of others have them. Nothing here runs it."""

from __future__ import annotations

from farm.devices import DeviceKind
from farm.kernels.family import KernelFamily
from farm.scale import Scale

LAYER = KernelFamily(
    name="layer",
    kind=DeviceKind.CUDA,
    worker=None,
    meaning="a linear layer of a serving framework in FP8: the quantisation of A, and the framework's own kernel",
    scales=(Scale.TENSOR,),
)
