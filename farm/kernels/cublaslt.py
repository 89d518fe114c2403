"""The family `cublaslt`: the vendor's library."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.fusion import Activation, Fusion
from farm.gemm import ElementType, Layout, Problem
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.kernels.rules import (
    EIGHT_BIT_FLOATS,
    OUTPUTS_OF_8BIT_FLOATS,
    TYPES_OF_CUDA,
    computes,
    fuses_floats,
    tensor_types_exist,
    whole_scalars,
)
from farm.scale import SCALES_OF_BOTH, Scale

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
    if t.ab not in _TYPES:
        return f"does not compute {t.ab}: A and B must have elements of the same size"
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


_BLOCK_MULTIPLE = 4
_SCALES_BY_LINE = (9, 0)
"""The one compute capability on which factors are more than one number: cuBLAS documentation, "Scaling Mode Support Overview"."""


def _scales_exist(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    scale, s, has = problem.scale, problem.shape, device.compute_capability
    if scale is Scale.NONE:
        return None
    if problem.types.ab not in EIGHT_BIT_FLOATS:
        return f"has scale={scale} for 8-bit floats only, not for {problem.types.ab}"
    if problem.batch != 1:
        # One scalar would be that of all its matrices. Where the vectors and blocks of a batch lie is not documented.
        return f"has scale={scale} for one product only: batch must be 1, not {problem.batch}"
    if scale is Scale.TENSOR:
        return None
    if has is not None and has != _SCALES_BY_LINE:
        return f"has scale={scale} on compute capability 9.0 only, the device has {has[0]}.{has[1]}"
    if scale is not Scale.ROW and (s.m % _BLOCK_MULTIPLE or s.n % _BLOCK_MULTIPLE):
        return f"needs m and n to be multiples of {_BLOCK_MULTIPLE} for scale={scale}, not {s}"
    return None


def _fuses(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    fused, types = problem.fused, problem.types
    if fused.bias and types.ab in EIGHT_BIT_FLOATS and types.cd is _E.F32:
        return f"adds a bias of bf16 to {types}, and fused={fused} means one of f32: use f16 or bf16 for D"
    return fuses_floats(problem)


_GROUPED_TYPES = (_E.F16, _E.BF16, *EIGHT_BIT_FLOATS)
_GROUPED_ALIGNMENT = 16


def _groups_fit(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    """The requirements of cuBLAS documentation, cublasLtMatmul(), for grouped matrices."""
    groups, t, s, scale, has = problem.groups, problem.types, problem.shape, problem.scale, device.compute_capability
    if groups is None:
        return None
    if t.ab not in _GROUPED_TYPES or t.acc is not _E.F32:
        return f"computes groups of f16, bf16 and 8-bit floats with an accumulator of f32 only, not of {t}"
    if has is not None and has != (9, 0) and has[0] not in (10, 11):
        return f"computes groups on compute capability 9.0, 10.x and 11.0 only, the device has {has[0]}.{has[1]}"
    if problem.fused is not Fusion.NONE:
        return f"fuses no operations into groups: fused must be none, not {problem.fused}"
    if scale in (Scale.TENSOR, Scale.ROW):
        return f"has scale=1x128 and scale=1x128:128x128 with groups, not scale={scale}"
    odd = next((size for size in groups.sizes if size % _BLOCK_MULTIPLE), None)
    if scale is not Scale.NONE and odd is not None:
        return f"needs groups of multiples of {_BLOCK_MULTIPLE} rows for scale={scale}, not of {odd}"
    of_b = s.k if problem.layout.b_transposed else s.n
    if any(n % _GROUPED_ALIGNMENT for n in (s.k * t.ab.bytes, of_b * t.ab.bytes, s.n * t.cd.bytes)):
        return f"needs rows of A, B and D of multiples of {_GROUPED_ALIGNMENT} bytes with groups, not {s} of {t}"
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
    grouped=True,
    scales=SCALES_OF_BOTH,
    fusions=tuple(fused for fused in Fusion if fused.activation is not Activation.SILU and not fused.gated),
    rules=(_types_known, whole_scalars, tensor_types_exist, _eight_bit_fits, _scales_exist, _fuses, _groups_fit),
)
