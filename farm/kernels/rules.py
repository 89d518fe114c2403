"""Rules that more than one kernel family has."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceTraits
from farm.gemm import ElementType, Problem
from farm.kernels.family import Reason, Rule

_E = ElementType

EIGHT_BIT_FLOATS = (_E.F8E4M3, _E.F8E5M2, _E.F8E4M3E5M2, _E.F8E5M2E4M3)
_FIRST_CAPABILITY = {_E.TF32: (8, 0), _E.BF16: (8, 0), **dict.fromkeys(EIGHT_BIT_FLOATS, (8, 9))}

TYPES_OF_CUDA: Mapping[ElementType, tuple[tuple[ElementType, ElementType], ...]] = {
    _E.F64: ((_E.F64, _E.F64),),
    _E.F32: ((_E.F32, _E.F32),),
    _E.TF32: ((_E.F32, _E.F32),),
    _E.F16: ((_E.F16, _E.F32), (_E.F32, _E.F32), (_E.F16, _E.F16)),
    _E.BF16: ((_E.BF16, _E.F32), (_E.F32, _E.F32)),
    _E.I8: ((_E.I32, _E.I32),),
}
"""For each input type the outputs and accumulators that both of NVIDIA's libraries have with it."""


def same_types(*allowed: ElementType) -> Rule:
    def rule(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
        t = problem.types
        if t.ab in allowed and t.ab == t.cd == t.acc:
            return None
        return f"computes only {' and '.join(allowed)}, the same for inputs, output and accumulator, not {t}"

    return rule


def whole_scalars(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.types.acc is not _E.I32 or (problem.alpha.is_integer() and problem.beta.is_integer()):
        return None
    return f"scales i32 by whole numbers only, not by alpha={problem.alpha:g} and beta={problem.beta:g}"


def tensor_types_exist(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    first, has = _FIRST_CAPABILITY.get(problem.types.ab), device.compute_capability
    if first is None or has is None or has >= first:
        return None
    return f"needs compute capability {first[0]}.{first[1]} for {problem.types.ab}, the device has {has[0]}.{has[1]}"
