"""Figures with intervals, and how the errors of many add up in a sum.

An interval has nine of ten measurements, as the bounds of predictions do. A figure has two kinds of error:

========= ================================================== ==============================
error     comes from                                         in a sum
========= ================================================== ==============================
bounds    a model, whose errors on similar shapes are alike;  added, as if all were off
          a card, which is slow or fast with all kernels      in the same direction
noise     the samples of one row                              root of the sum of squares
========= ================================================== ==============================

Adding bounds is exact where errors are fully correlated, and too wide otherwise (a sum of comonotonic variables has the sum of
their quantiles: Dhaene et al., 2002, "The concept of comonotonicity in actuarial science and finance: theory").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

NORMAL_90 = 1.645
"""Standard errors on either side of a normal distribution's mean that hold 90% of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A figure. Its bounds are None where part of it has none."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def exactly(cls, value: float) -> Amount:
        return cls(value=value, low=value, high=value)

    def __add__(self, other: Amount) -> Amount:
        """The sum, as if both were off in the same direction."""
        return Amount(value=self.value + other.value, low=_sum(self.low, other.low), high=_sum(self.high, other.high))

    def __mul__(self, factor: float) -> Amount:
        return Amount(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def under(self, numerator: float) -> Amount:
        """`numerator` over this figure: a rate from a time."""
        return Amount(
            value=numerator / self.value,
            low=None if self.high is None else numerator / self.high,
            high=numerator / self.low if self.low else None,
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure of one GEMM, with its errors apart.

    Attributes:
        low: The lower bound of errors that all GEMMs share. None: not known.
        high: The upper bound of them.
        noise: The standard error that is this GEMM's own, in the unit of the value.
    """

    value: float
    low: float | None = None
    high: float | None = None
    noise: float = 0.0

    @property
    def amount(self) -> Amount:
        """The figure with one interval."""
        return total([(self, 1.0)])

    @property
    def half_width(self) -> float:
        """Half of the interval; the whole value where no interval is known."""
        found = self.amount
        return self.value if found.low is None or found.high is None else (found.high - found.low) / 2

    def __mul__(self, factor: float) -> Estimate:
        scaled = Amount(value=self.value, low=self.low, high=self.high) * factor
        return Estimate(value=scaled.value, low=scaled.low, high=scaled.high, noise=self.noise * factor)


def total(parts: Iterable[tuple[Estimate, float]]) -> Amount:
    """The sum of estimates, each taken so many times."""
    value = low = high = squares = 0.0
    bounded = True
    for one, count in parts:
        value += count * one.value
        squares += (count * one.noise) ** 2
        if one.low is None or one.high is None:
            bounded = False
            continue
        low += count * min(one.low, one.value)
        high += count * max(one.high, one.value)
    if not bounded:
        return Amount(value=value)
    noise = NORMAL_90 * math.sqrt(squares)
    return Amount(value=value, low=max(low - noise, 0.0), high=high + noise)
