"""Rules that several kernel families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farm.devices import DeviceTraits
from farm.fusion import Fusion
from farm.gemm import ElementType, ElementTypes, Problem
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

OUTPUTS_OF_8BIT_FLOATS = ((_E.BF16, _E.F32), (_E.F16, _E.F32), (_E.F32, _E.F32))
"""The same for 8-bit floats."""


def same_types(*allowed: ElementType) -> Rule:
    def rule(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
        t = problem.types
        if t.ab in allowed and t.ab == t.cd == t.acc:
            return None
        return f"computes only {' and '.join(allowed)}, the same for inputs, output and accumulator, not {t}"

    return rule


def plain_product(why: str) -> Rule:
    """The family computes A·B alone."""

    def rule(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
        if problem.alpha == 1 and problem.beta == 0:
            return None
        return f"computes A·B alone ({why}): alpha must be 1 and beta 0"

    return rule


def whole_scalars(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.types.acc is not _E.I32 or (problem.alpha.is_integer() and problem.beta.is_integer()):
        return None
    return f"scales i32 by whole numbers only, not by alpha={problem.alpha:g} and beta={problem.beta:g}"


def fuses_floats(problem: Problem) -> Reason:
    """Why nothing is fused into products of integers."""
    if problem.fused is Fusion.NONE or problem.types.ab is not _E.I8:
        return None
    return f"fuses no operations into products of i8: fused must be none, not {problem.fused}"


def computes(types: ElementTypes, known: Sequence[tuple[ElementType, ElementType]]) -> Reason:
    """Why an input type does not go with these outputs and accumulators."""
    if (types.cd, types.acc) in known:
        return None
    return f"computes {' or '.join(f'{types.ab}:{cd}:{acc}' for cd, acc in known)}, not {types}"


def has_type(kind: ElementType, first: tuple[int, int] | None, has: tuple[int, int] | None) -> Reason:
    """Why a device of compute capability `has` lacks a type that exists since `first`. None if either is unknown."""
    if first is None or has is None or has >= first:
        return None
    return f"needs compute capability {first[0]}.{first[1]} for {kind}, the device has {has[0]}.{has[1]}"


def tensor_types_exist(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    kind = problem.types.ab
    return has_type(kind, _FIRST_CAPABILITY.get(kind), device.compute_capability)
