"""The blocks of a campaign in normal form: products of axes that make problems and kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from farm.campaign.axes import Axis
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Kernel


@dataclass(frozen=True, slots=True)
class ShapeList:
    """Shapes that are listed one by one, in rising order."""

    shapes: tuple[Shape, ...]

    def __iter__(self) -> Iterator[Shape]:
        return iter(self.shapes)

    def factors(self) -> dict[str, int]:
        return {"shapes": len(self.shapes)}

    def to_document(self) -> dict[str, Any]:
        return {"shapes": [str(shape) for shape in self.shapes]}


@dataclass(frozen=True, slots=True)
class ShapeProduct:
    """Every combination of three axes."""

    m: Axis
    n: Axis
    k: Axis

    def __iter__(self) -> Iterator[Shape]:
        # itertools.product would hold each axis in memory; these stay ranges.
        return (Shape(m, n, k) for m in self.m for n in self.n for k in self.k)

    def factors(self) -> dict[str, int]:
        return {"m": len(self.m), "n": len(self.n), "k": len(self.k)}

    def to_document(self) -> dict[str, Any]:
        return {"m": self.m.to_document(), "n": self.n.to_document(), "k": self.k.to_document()}


@dataclass(frozen=True, slots=True)
class ProblemBlock:
    """Shapes, each with every combination of types, layouts, alpha and beta."""

    shapes: ShapeList | ShapeProduct
    types: tuple[ElementTypes, ...]
    layouts: tuple[Layout, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    def factors(self) -> dict[str, int]:
        """The length of each axis."""
        rest = {"types": self.types, "layouts": self.layouts, "alpha": self.alpha, "beta": self.beta}
        return self.shapes.factors() | {name: len(values) for name, values in rest.items()}

    def __len__(self) -> int:
        return math.prod(self.factors().values())

    def __iter__(self) -> Iterator[Problem]:
        variants = list(product(self.types, self.layouts, self.alpha, self.beta))
        return (Problem(shape, *variant) for shape in self.shapes for variant in variants)

    def to_document(self) -> dict[str, Any]:
        return self.shapes.to_document() | {
            "types": [str(types) for types in self.types],
            "layouts": [str(layout) for layout in self.layouts],
            "alpha": list(self.alpha),
            "beta": list(self.beta),
        }


@dataclass(frozen=True, slots=True)
class KernelBlock:
    """A family with an axis for each of its parameters, in the order of their names."""

    family: str
    axes: tuple[tuple[str, Axis], ...]

    def factors(self) -> dict[str, int]:
        """The length of each axis."""
        return {name: len(axis) for name, axis in self.axes}

    def __len__(self) -> int:
        return math.prod(len(axis) for _, axis in self.axes)

    def __iter__(self) -> Iterator[Kernel]:
        names = [name for name, _ in self.axes]
        for values in _combinations([axis for _, axis in self.axes]):
            yield Kernel(self.family, tuple(zip(names, values, strict=True)))

    def to_document(self) -> dict[str, Any]:
        return {"family": self.family} | {name: axis.to_document() for name, axis in self.axes}


def _combinations(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """`itertools.product` that does not copy its axes into memory."""
    if not axes:
        yield ()
        return
    for first in axes[0]:
        for rest in _combinations(axes[1:]):
            yield (first, *rest)


def largest_factors(problems: Sequence[dict[str, int]], kernels: Sequence[tuple[str, dict[str, int]]]) -> str:
    """The four longest axes, for people: `problems[0].m 4,096, tiled.tile 32`."""
    lengths = [(n, f"problems[{i}].{name}") for i, block in enumerate(problems) for name, n in block.items()]
    lengths += [(n, f"{family}.{name}") for family, block in kernels for name, n in block.items()]
    longest = sorted(lengths, key=lambda factor: -factor[0])[:4]
    return ", ".join(f"{name} {length:,}" for length, name in longest if length > 1) or "the number of blocks"
