"""The family `blas`: the machine's BLAS through NumPy, on CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import ElementType, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import same_types


def _plain_product(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.alpha == 1 and problem.beta == 0:
        return None
    return "computes A·B alone (it is NumPy's matmul): alpha must be 1 and beta 0"


def _threads_exist(_: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    if device.threads is None or parameters["threads"] <= device.threads:
        return None
    return f"needs {parameters['threads']} threads, the device has {device.threads}"


BLAS = KernelFamily(
    name="blas",
    kind=DeviceKind.CPU,
    meaning="the machine's BLAS through NumPy",
    parameters=(Parameter(name="threads", values=range(1, 4097), default=1, meaning="BLAS threads"),),
    rules=(same_types(ElementType.F32, ElementType.F64), _plain_product, _threads_exist),
)
