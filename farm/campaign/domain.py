"""A domain is a distribution over shapes: what a campaign draws from where it does not list what it measures (pure).

It is a mixture of sources. Each makes a shape of `COORDINATES` numbers from [0, 1), so that the same source serves random
numbers and low-discrepancy points.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

from farm.campaign.named_shapes import MODELS, ModelDimensions
from farm.gemm import Shape

T = TypeVar("T")

COORDINATES = 6
"""How many numbers a source makes a shape of."""


class Weighted(Generic[T]):
    """Values with weights, of which a number from [0, 1) chooses one."""

    def __init__(self, weight_of: Mapping[T, float]) -> None:
        self.weight_of = dict(weight_of)
        self._values = list(self.weight_of)
        self._ends = list(accumulate(self.weight_of.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.weight_of == other.weight_of

    def __hash__(self) -> int:
        return hash(tuple(self.weight_of.items()))

    def choose(self, u: float) -> T:
        """The value at the share `u` of the sum of all weights."""
        place = bisect_right(self._ends, u * self._ends[-1])
        return self._values[min(place, len(self._values) - 1)]


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole numbers from `low` to `high`, log-uniform: each factor of two is as likely as any other."""

    low: int
    high: int

    def at(self, u: float) -> int:
        # From half a number below the first to half a number above the last: the ends are as likely as their neighbours.
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


class Source(Protocol):
    """One part of the mixture."""

    def shape(self, u: Sequence[float]) -> Shape:
        """The shape at a point [COORDINATES] of the unit cube."""

    def to_document(self) -> dict[str, Any]:
        """The source as a campaign file describes it."""


@dataclass(frozen=True)
class Ranges:
    """m, n and k log-uniform and independent, each rounded to a multiple of an alignment that is drawn for it."""

    m: LogRange
    n: LogRange
    k: LogRange
    align: Weighted[int]

    def shape(self, u: Sequence[float]) -> Shape:
        extents = zip((self.m, self.n, self.k), u[:3], u[3:6], strict=True)
        return Shape(*(self._extent(extent, where, choice) for extent, where, choice in extents))

    def _extent(self, extent: LogRange, where: float, choice: float) -> int:
        value, multiple = extent.at(where), self.align.choose(choice)
        if multiple > value:  # as large an alignment as the value allows
            multiple = max((a for a in self.align.weight_of if a <= value), default=1)
        first, last = math.ceil(extent.low / multiple), extent.high // multiple
        # A narrow range may have no multiple.
        return value if first > last else min(max(round(value / multiple), first), last) * multiple

    def to_document(self) -> dict[str, Any]:
        align = {str(multiple): weight for multiple, weight in self.align.weight_of.items()}
        return {"m": str(self.m), "n": str(self.n), "k": str(self.k), "align": align}


@dataclass(frozen=True)
class Layers:
    """The matrix products of models' layers, for any number of tokens, with their weights split over some devices.

    A model is as likely as any other, and so is each of its weights. Tensor parallelism splits the columns (n) of what
    enters a block, and the rows (k) of what leaves it (Shoeybi et al., arXiv 1909.08053).
    """

    models: tuple[str, ...]
    tokens: LogRange
    tensor_parallel: tuple[int, ...] = (1,)

    @cached_property
    def _weights(self) -> list[list[list[tuple[int, int]]]]:
        """(n, k) by model, weight and degree of tensor parallelism."""
        models = [model_named(name) for name in self.models]
        return [[[_split(name, n, k, over) for over in self.tensor_parallel] for name, (n, k) in model.weights().items()]
                for model in models]  # fmt: skip

    def shape(self, u: Sequence[float]) -> Shape:
        weights = item_at(self._weights, u[1])
        n, k = item_at(item_at(weights, u[2]), u[3])
        return Shape(self.tokens.at(u[0]), n, k)

    def to_document(self) -> dict[str, Any]:
        split = list(self.tensor_parallel)
        return {"layers": list(self.models), "tokens": str(self.tokens), "tensor_parallel": split}


@dataclass(frozen=True)
class ListedShapes:
    """Shapes one by one, each with a weight: of a trace, say."""

    shapes: Weighted[Shape]

    def shape(self, u: Sequence[float]) -> Shape:
        return self.shapes.choose(u[0])

    def to_document(self) -> dict[str, Any]:
        return {"shapes": {str(shape): weight for shape, weight in sorted(self.shapes.weight_of.items())}}


@dataclass(frozen=True)
class Domain:
    """A mixture of sources."""

    sources: Weighted[Source]

    def shape(self, u: Sequence[float]) -> Shape:
        """The shape at a point [1 + COORDINATES] of the unit cube."""
        return self.sources.choose(u[0]).shape(u[1:])

    def to_document(self) -> list[dict[str, Any]]:
        return [source.to_document() | {"weight": weight} for source, weight in self.sources.weight_of.items()]


def _split(weight: str, n: int, k: int, over: int) -> tuple[int, int]:
    leaves = weight in ("attention output", "down")
    return (n, max(1, k // over)) if leaves else (max(1, n // over), k)


def item_at(items: Sequence[T], u: float) -> T:
    """The item at the share `u` of a list, where all are equally likely."""
    return items[min(int(u * len(items)), len(items) - 1)]


def model_named(name: str) -> ModelDimensions:
    """The model of that name. Raises KeyError."""
    return {model.name: model for model in MODELS}[name]


def named_domains() -> dict[str, Domain]:
    """The domains that a campaign file can name."""
    general = Ranges(
        LogRange(1, 16384),
        LogRange(16, 32768),
        LogRange(16, 32768),
        Weighted({1: 0.25, 8: 0.25, 64: 0.25, 256: 0.25}),
    )
    serving = Layers(tuple(sorted(model.name for model in MODELS)), LogRange(1, 16384), (1, 2, 4, 8))
    return {"serving-and-general": Domain(Weighted({general: 0.6, serving: 0.4}))}


Points = Callable[[int, int], Iterator[Sequence[float]]]
"""Makes an endless sequence of points of the unit cube, of its dimensions and a seed."""


def random_points(dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Independent points, the same on every machine."""
    numbers = random.Random(f"gemm-farm {seed}")
    while True:
        yield tuple(numbers.random() for _ in range(dimensions))


def sobol_points(dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """The points of a Sobol sequence, scrambled by a random digital shift, the same on every machine.

    Their first 2^i fill the cube more evenly than random ones: Sobol, USSR Computational Mathematics 7, 1967; the shift as
    in Cranley and Patterson, SIAM Journal on Numerical Analysis 13, 1976, digit by digit.
    """
    import numpy as np
    from scipy.stats import qmc  # takes half a second to import

    bits = 30
    sequence = qmc.Sobol(dimensions, scramble=False, bits=bits)
    numbers = random.Random(f"gemm-farm {seed}")
    shift = np.array([numbers.getrandbits(bits) for _ in range(dimensions)], dtype="int64")
    while True:
        points = (sequence.random(256) * 2.0**bits).astype("int64") ^ shift
        yield from map(tuple, ((points + 0.5) / 2.0**bits).tolist())
