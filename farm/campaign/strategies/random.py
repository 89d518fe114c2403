"""`random` measures some of each problem's kernels, drawn at random, under the campaign's own rules."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from farm.campaign.strategies.strategy import DomainDraw

RANDOM_KERNELS = 60
"""Kernels that are drawn by default: with a probability of 95% one of them is among the best 5%
(1 - 0.95⁶⁰; Bergstra and Bengio, Journal of Machine Learning Research 13, 2012)."""


DOMAIN_KERNELS = 4
"""Kernels that are drawn for each problem of a domain by default: operands and reference are made once for all of
them, and a model learns from pairs which of two kernels is faster."""


class Random(DomainDraw):
    """The strategy `random`."""

    meaning: ClassVar[str] = "some at random"

    strategy: Literal["random"] = "random"

    def in_normal_form(self) -> Self:
        if self.kernels is not None:
            return self
        return self.model_copy(update={"kernels": RANDOM_KERNELS if self.problems is None else DOMAIN_KERNELS})
