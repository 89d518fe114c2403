"""The arguments of an own kernel: addresses of matrices, numbers of the problem, and its parameters. Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.gemm import ElementType, Problem

MATRICES, ADDED = ("a", "b", "c", "d"), ("scale_a", "scale_b", "bias")
STRIDES = tuple(f"stride_{pair}" for pair in ("am", "ak", "bk", "bn", "cm", "cn", "dm", "dn"))
GROUP_OFFSETS = "group_offsets"
POINTERS, SCALARS, EXTENTS = (
    (*MATRICES, *ADDED, GROUP_OFFSETS),
    ("alpha", "beta"),
    ("m", "n", "k", "batch", "groups", *STRIDES),
)
"""Arguments by kind: addresses, numbers of the accumulator's type, and whole numbers.

`stride_ak` is the distance in elements from an element of A to the next one along k. `group_offsets` has the first row of each group, and
m at its end.
"""

WIDTHS: Mapping[str, int] = {"i32": 4, "i64": 8}
"""Bytes of a whole number as an argument; the first is the default."""


def groups_of(problem: Problem) -> int:
    """How many groups it has; 1 where its rows are not in groups."""
    return 1 if problem.groups is None else len(problem.groups.sizes)


def extents_of(problem: Problem) -> dict[str, int]:
    """The values of the arguments `EXTENTS`."""
    s, layout = problem.shape, problem.layout
    a = (1, s.m) if layout.a_transposed else (s.k, 1)
    b = (1, s.k) if layout.b_transposed else (s.n, 1)
    d = (problem.columns_of_d, 1)
    return dict(zip(EXTENTS, (s.m, s.n, s.k, problem.batch, groups_of(problem), *a, *b, *d, *d), strict=True))


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the kernel."""

    name: str
    width: int = 4  # bytes of a whole number

    @classmethod
    def parse(cls, written: object, parameters: Sequence[str]) -> Argument:
        """Reads `a`, `m` or `m:i64`. Raises `ValueError`."""
        text = str(written).strip() if isinstance(written, str) else str(written)
        name, colon, width = text.partition(":")
        numbers = (*EXTENTS, *parameters)
        if name not in (*POINTERS, *SCALARS, *numbers):
            known = ", ".join((*POINTERS, *SCALARS, *numbers))
            raise ValueError(f"there is no argument {text[:40]!r}; use {known}")
        if colon and (name not in numbers or width not in WIDTHS):
            what = f"a width is {' or '.join(WIDTHS)}" if name in numbers else f"{name} has no width; write {name}"
            raise ValueError(f"{text[:40]!r} is not an argument; {what}")
        return cls(name, WIDTHS[width] if colon else next(iter(WIDTHS.values())))

    @property
    def is_scalar(self) -> bool:
        """Whether it is a number of the accumulator's type."""
        return self.name in SCALARS

    def element(self, problem: Problem) -> ElementType | None:
        """What an address is of; None for a number."""
        types = problem.types
        if self.name not in POINTERS:
            return None
        factor = problem.factor_type
        inputs = {
            "a": types.ab.of_a,
            "b": types.ab.of_b,
            "scale_a": factor,
            "scale_b": factor,
            GROUP_OFFSETS: ElementType.I32,
        }
        return inputs.get(self.name, types.cd)

    def __str__(self) -> str:
        numbers = self.name not in (*POINTERS, *SCALARS)
        return f"{self.name}:i64" if numbers and self.width == WIDTHS["i64"] else self.name
