"""The family `cublaslt`: the vendor's library."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import ElementType, Layout, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import (
    EIGHT_BIT_FLOATS,
    OUTPUTS_OF_8BIT_FLOATS,
    TYPES_OF_CUDA,
    computes,
    tensor_types_exist,
    whole_scalars,
)

_E = ElementType
_TYPES: Mapping[ElementType, tuple[tuple[ElementType, ElementType], ...]] = {
    **TYPES_OF_CUDA,
    _E.F8E4M3: OUTPUTS_OF_8BIT_FLOATS,
    _E.F8E4M3E5M2: OUTPUTS_OF_8BIT_FLOATS,
    _E.F8E5M2E4M3: OUTPUTS_OF_8BIT_FLOATS,
    _E.F8E5M2: (),
}
"""For each input type the outputs and accumulators that go with it: cuBLAS documentation, cublasLtMatmul()."""

_8BIT_MULTIPLE = 16


def _types_known(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    t = problem.types
    if t.ab is _E.F8E5M2:
        return "multiplies f8e5m2 by f8e4m3 only (f8e5m2e4m3 and f8e4m3e5m2), not by f8e5m2"
    return computes(t, _TYPES[t.ab])


def _eight_bit_fits(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    ab = problem.types.ab
    if ab not in EIGHT_BIT_FLOATS:
        return None
    has, s = device.compute_capability, problem.shape
    if problem.layout is not Layout.NT and has is not None and has[0] in (8, 9, 12):
        return f"multiplies {ab} in layout nt only on compute capability {has[0]}.{has[1]}, not {problem.layout}"
    if s.n % _8BIT_MULTIPLE or s.k % _8BIT_MULTIPLE:
        return f"needs n and k to be multiples of {_8BIT_MULTIPLE} for {ab}, not {s}"
    return None


CUBLASLT = KernelFamily(
    name="cublaslt",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.cublaslt:CublasLtFamily",
    baseline=True,
    chooses=True,
    meaning="the vendor's library, its own heuristic choice or its n-th algorithm",
    parameters=(Parameter(name="algorithm", values=range(256), default=0, meaning="rank in the heuristic's list"),),
    batched=True,
    rules=(_types_known, whole_scalars, tensor_types_exist, _eight_bit_fits),
)
