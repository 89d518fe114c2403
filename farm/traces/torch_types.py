"""How PyTorch writes types, strides and scale factors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from farm.errors import BadScale
from farm.gemm import ElementType
from farm.scale import Scale

_E = ElementType
_TYPES = {
    _E.F64: ("double", "float64"),
    _E.F32: ("float", "float32"),
    _E.TF32: ("tf32",),
    _E.F16: ("Half", "float16"),
    _E.BF16: ("BFloat16", "bfloat16"),
    _E.F8E4M3: ("Float8_e4m3fn", "float8_e4m3fn"),
    _E.F8E5M2: ("Float8_e5m2", "float8_e5m2"),
    _E.I8: ("signed char", "int8", "Char"),
    _E.I32: ("int", "int32", "Int"),
}
_BY_NAME = {name: kind for kind, names in _TYPES.items() for name in names}

NUMBERED = {
    "3": _E.I32, "5": _E.F16, "6": _E.F32, "7": _E.F64, "15": _E.BF16, "23": _E.F8E5M2, "24": _E.F8E4M3
}  # fmt: skip
"""Types by their number in the profiler's `Concrete Inputs`. Source: torch/headeronly/core/ScalarType.h."""


def torch_type(name: str) -> ElementType:
    """The type that PyTorch calls `c10::BFloat16`, `torch.bfloat16` or `BFloat16`. Raises `ValueError` for one that the farm has not."""
    kind = _BY_NAME.get(name.removeprefix("c10::").removeprefix("torch."))
    if kind is None:
        raise ValueError(f"the type {name[:40] or 'of an input is missing'}")
    return kind


def dtype_name(kind: ElementType) -> str:
    """`torch.bfloat16`, of a type that PyTorch has."""
    return f"torch.{_TYPES[kind][1]}"


def scale_of(a: Sequence[int], b: Sequence[int], *, m: int, n: int, k: int) -> Scale | None:
    """The scale factors of `torch._scaled_mm` with these sizes of `scale_a` and `scale_b`; None where the farm has no such."""
    words = _blocks(a, m, k), _blocks(tuple(reversed(b)), n, k)
    return parsed_scale(*words)


def parsed_scale(of_a: str, of_b: str) -> Scale | None:
    """The scale factors by the words of A and of B; None where the farm has no such."""
    try:
        return Scale.parse(of_a if of_a == of_b else f"{of_a}:{of_b}")
    except BadScale:
        return None


def _blocks(sizes: Sequence[int], lines: int, inner: int) -> str:
    if prod(sizes) == 1:
        return "tensor"
    across, along = -(-lines // 128), -(-inner // 128)
    known: dict[tuple[int, ...], str] = {
        (across, along): "128x128",
        (lines, along): "1x128",
        (lines, 1): "row",
    }  # the last of equal ones counts
    return known.get(tuple(sizes), "?")
