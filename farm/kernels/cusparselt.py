"""The family `cusparselt`: the vendor's library for a sparse B."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.fusion import Activation, Fusion
from farm.gemm import ElementType, Layout, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import OUTPUTS_OF_8BIT_FLOATS, computes, fuses_floats, tensor_types_exist, whole_scalars
from farm.sparsity import Sparsity

_E = ElementType
_TYPES: Mapping[ElementType, tuple[tuple[ElementType, ElementType], ...]] = {
    _E.F16: ((_E.F16, _E.F32),),
    _E.BF16: ((_E.BF16, _E.F32),),
    _E.I8: ((_E.I32, _E.I32),),
    _E.F8E4M3: OUTPUTS_OF_8BIT_FLOATS,
}
"""For each input type the outputs and accumulators that go with it: cuSPARSELt documentation, cusparseLtMatmulDescriptorInit()."""

_FIRST_CAPABILITY, _HOPPER = (8, 0), (9, 0)
_EIGHT_BITS = (_E.I8, _E.F8E4M3)
_LINE_BYTES, _SPARSE_LINE_BYTES = 16, 32
"""What extents of dense matrices, and of a sparse one, are multiples of: cusparseLtDenseDescriptorInit() and
cusparseLtStructuredDescriptorInit()."""


def _types_known(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    types = problem.types
    if types.ab not in _TYPES:
        return f"multiplies {', '.join(_TYPES)}, not {types.ab}"
    return computes(types, _TYPES[types.ab])


def _sparse_cores_exist(_: Problem, __: Mapping[str, int], device: DeviceTraits) -> Reason:
    has = device.compute_capability
    if has is None or has >= _FIRST_CAPABILITY:
        return None
    return f"needs sparse tensor cores, of compute capability 8.0, the device has {has[0]}.{has[1]}"


def _fits(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    s, ab = problem.shape, problem.types.ab
    if ab in _EIGHT_BITS and problem.layout is not Layout.NT:
        return f"multiplies {ab} in layout nt only, not {problem.layout}"
    dense, sparse = _LINE_BYTES // ab.bytes, _SPARSE_LINE_BYTES // ab.bytes
    if s.m % dense or s.n % sparse or s.k % sparse:
        return f"needs m to be a multiple of {dense}, and n and k of {sparse}, for {ab}, not {s}"
    return None


def _fuses(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    fused, types = problem.fused, problem.types
    if (why := fuses_floats(problem)) is not None:
        return why
    if fused.activation is Activation.GELU and (types.ab not in _EIGHT_BITS or types.cd is not ElementType.BF16):
        return f"fuses gelu into products of f8e4m3 with a D of bf16 only, not of {types}"
    return None


def _slices(_: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    """What cusparseLtMatmulAlgSetAttribute() takes."""
    has = device.compute_capability
    if parameters["split_mode"] and parameters["split_k"] == 1:
        return "needs split_k above 1 for a split_mode"
    if parameters["segment_k"] and parameters["split_k"] > 1:
        return "has segment_k or split_k, not both"
    if has is None:
        return None
    if parameters["split_k"] > 1 and has >= _HOPPER:
        return f"has split_k below compute capability 9.0 only, the device has {has[0]}.{has[1]}"
    if parameters["segment_k"] and has != _HOPPER:
        return f"has segment_k on compute capability 9.0 only, the device has {has[0]}.{has[1]}"
    return None


CUSPARSELT = KernelFamily(
    name="cusparselt",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.cusparselt:CusparseLtFamily",
    meaning="the vendor's library for 2:4 sparsity, its own choice or one of its algorithms",
    parameters=(
        Parameter(
            name="algorithm", values=range(256), default=0, meaning="0: the library's choice; n: its algorithm n - 1"
        ),
        Parameter(name="split_k", values=range(1, 65), default=1, meaning="slices of k; 1: the library's choice"),
        Parameter(
            name="split_mode",
            values=(0, 1, 2),
            default=0,
            meaning="slices are added up by 1: the kernel, 2: a second kernel; 0: the library's choice",
        ),
        Parameter(name="segment_k", values=(0, 1), default=0, meaning="1: blocks share the steps of k on Hopper"),
    ),
    batched=True,
    fusions=tuple(f for f in Fusion if f.activation is not Activation.SILU),
    sparsities=(Sparsity.TWO_OF_FOUR,),
    rules=(_types_known, whole_scalars, _sparse_cores_exist, tensor_types_exist, _fits, _fuses, _slices),
)
