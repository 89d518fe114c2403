"""`halving` is successive halving (Jamieson and Talwalkar, arXiv 1502.07943).

All kernels are measured under rules that cost little, the best share of them again under stricter ones, and so on; the
finalists under the campaign's own rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from farm.campaign.strategies.strategy import ShortRounds
from farm.measurement import MeasuringRules

FIRST_RSE = 0.03
"""Relative standard error that the first of several rounds is content with: a quarter of the kernels goes on, and those that
matter are further apart than that."""

FIRST_SAMPLES = 3
"""Fewest samples of a short round: what a median takes. They are what a slow kernel costs."""

FIRST_SHARE = 0.1
"""Share of the campaign's time budget that the first round has for the samples of a kernel."""

WARM_UP_SHARE = 0.25
"""Share of the campaign's warm-up in a short round."""


class Halving(ShortRounds):
    """The strategy `halving`.

    >>> Halving().rounds(100)
    [100, 25, 7, 4]
    """

    meaning: ClassVar[str] = "many briefly and the best closely"

    strategy: Literal["halving"] = "halving"
    keep: float = Field(default=0.25, gt=0, le=0.5, description="share of a problem's kernels that a round leaves")

    @classmethod
    def mistakes_written(cls, written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if "seed" in written and "kernels" not in written:
            yield "seed", "nothing is drawn, as all kernels are tried; remove it, or say how many kernels to draw"
        kernels = written.get("kernels")
        finalists = written.get("finalists", cls.model_fields["finalists"].default)
        if type(kernels) is int and type(finalists) is int and kernels <= finalists:
            yield "kernels", f"all of {kernels} kernels would be finalists ({finalists}); draw more, or use random"

    def mistakes_in(self, *, kernels: int, families: Sequence[str], draws: bool) -> Iterator[tuple[str, str]]:
        if kernels <= self.finalists:
            yield (
                "finalists",
                f"all of the campaign's {kernels} kernels would be finalists ({self.finalists}); ask for fewer, or use grid",
            )

    def going_on(self, kernels: int) -> int:
        if kernels <= self.finalists:
            return kernels
        # Rounded first: 0.1 of 30 is 3.0000000000000004.
        return max(self.finalists, math.ceil(round(self.keep * kernels, 9)))

    def samples_factor(self, number: int) -> float:
        """A round has as many times the samples of the one before as that had kernels: they take about the same time."""
        return (1 / self.keep) ** number

    def short_rules(self, full: MeasuringRules, number: int) -> MeasuringRules:
        """What makes a measurement cheap: no power, few samples of a slow kernel, a loose target for a fast one."""
        more, timing = self.samples_factor(number), full.timing
        short = timing.model_copy(
            update={
                "target_rse": max(timing.target_rse, FIRST_RSE / math.sqrt(more)),
                "min_samples": min(timing.min_samples, FIRST_SAMPLES),
                "max_seconds": min(timing.max_seconds, FIRST_SHARE * timing.max_seconds * more),
                "warmup_seconds": WARM_UP_SHARE * timing.warmup_seconds,
                "warm_l2": False,
            }
        )
        return full.model_copy(update={"timing": short, "power": "none"})
