"""The family `blas`: the machine's BLAS through NumPy, on CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import ElementType, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import plain_product, same_types

_FLOPS_OF_THREAD = 5e9


def _threads_exist(_: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    if device.threads is None or parameters["threads"] <= device.threads:
        return None
    return f"needs {parameters['threads']} threads, the device has {device.threads}"


BLAS = KernelFamily(
    name="blas",
    kind=DeviceKind.CPU,
    worker="workers.kernels.blas:BlasFamily",
    meaning="the machine's BLAS through NumPy",
    parameters=(Parameter(name="threads", values=range(1, 4097), default=1, meaning="BLAS threads"),),
    slow_flops=lambda parameters: _FLOPS_OF_THREAD * parameters["threads"],
    batched=True,
    grouped=True,
    rules=(same_types(ElementType.F32, ElementType.F64), plain_product("it is NumPy's matmul"), _threads_exist),
)
