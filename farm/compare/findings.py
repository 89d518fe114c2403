"""Summarizes pairs of figures: ratios, verdicts, shares of the roofline and costs (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farm import both_times
from farm.compare import breakdowns, money
from farm.compare.breakdowns import Breakdown, Problems
from farm.compare.statistics import (
    RUN_ERROR,
    Bools,
    Floats,
    Ints,
    Medians,
    PairVerdict,
    medians_by,
    ratio_of,
    verdicts,
    verdicts_within,
)
from farm.compare.summaries import Cost, Findings, Ratio, RatioSummary
from farm.gpus import Gpu

if TYPE_CHECKING:
    from farm.db.arrow_columns import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioBounds:
    """The smallest and the largest ratio of each pair, by the bounds of the predicted figure.

    Figures of the baseline and of the group, [pairs] each: those with the smallest ratio, and those with the largest. NaN
    where a model has no bounds.
    """

    min: tuple[Medians, Medians]
    max: tuple[Medians, Medians]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The configurations that a group shares with the baseline: [pairs] each. Ratios are group / baseline."""

    ids: Words
    baseline: Medians
    side: Medians
    verdict: Ints
    # Which figures are predicted; at most one of a pair.
    baseline_predicted: Bools
    predicted: Bools
    # None where all figures are measured.
    bounds: RatioBounds | None = None

    @classmethod
    def measured(cls, ids: Words, baseline: Medians, side: Medians, tie: float) -> Pairs:
        none = np.zeros(len(ids), bool)
        return cls(
            ids=ids,
            baseline=baseline,
            side=side,
            verdict=verdicts(np.log(side.runtime_ms / baseline.runtime_ms), _errors(baseline, side), tie=tie),
            baseline_predicted=none,
            predicted=none,
        )

    @classmethod
    def with_a_prediction(
        cls, ids: Words, baseline: Medians, side: Medians, of_baseline: Bools, bounds: RatioBounds, tie: float
    ) -> Pairs:
        """`of_baseline`: pairs whose baseline is predicted. In the others, the group's figure is predicted."""
        low, middle, high = (
            np.log(pair[1].runtime_ms / pair[0].runtime_ms) for pair in (bounds.min, (baseline, side), bounds.max)
        )
        return cls(
            ids=ids,
            baseline=baseline,
            side=side,
            verdict=verdicts_within(middle, low, high, _errors(baseline, side), tie=tie),
            baseline_predicted=of_baseline,
            predicted=~of_baseline,
            bounds=bounds,
        )

    @property
    def time_ratio(self) -> Floats:
        return self.side.runtime_ms / self.baseline.runtime_ms

    def most_different(self, count: int) -> Ints:
        """The pairs that differ most in time, the largest difference first."""
        return np.argsort(-np.abs(np.log(self.time_ratio)), kind="stable")[:count]


def _errors(baseline: Medians, side: Medians) -> Floats:
    """Standard errors of the ratios of times, from the scatter of the samples: [pairs]."""
    found: Floats = np.sqrt(baseline.runtime_rse**2 + side.runtime_rse**2 + RUN_ERROR**2)
    return found


@dataclass(frozen=True, slots=True)
class ConfigurationFacts:
    """Properties of configurations that do not depend on measurements: [configurations] each."""

    problems: Problems
    shapes: Ints
    flops: Floats
    traffic: Floats
    breakdowns: Mapping[str, Breakdown]

    @classmethod
    def of(cls, problems: Problems, card: Gpu | None) -> ConfigurationFacts:
        """`card` is the baseline's: its ridge point separates memory-bound from compute-bound configurations."""
        flops, traffic = breakdowns.flops_of(problems), breakdowns.bytes_of(problems)
        return cls(
            problems,
            breakdowns.shapes_of(problems),
            flops,
            traffic,
            {
                "by_type": breakdowns.by_type(problems),
                "by_size": breakdowns.by_size(flops),
                "by_bound": breakdowns.by_bound(problems, flops, traffic, card),
            },
        )

    def taken(self, which: Bools) -> ConfigurationFacts:
        if which.all():
            return self
        return ConfigurationFacts(
            self.problems.at(np.flatnonzero(which)),
            self.shapes[which],
            self.flops[which],
            self.traffic[which],
            {name: Breakdown(one.labels, one.which[which]) for name, one in self.breakdowns.items()},
        )


def summarize(
    pairs: Pairs,
    facts: ConfigurationFacts,
    cards: tuple[Gpu | None, Gpu | None],
    *,
    prices: tuple[float | None, float | None],
    grams_per_kwh: float | None,
    top: tuple[Mapping[str, Any], ...] = (),
) -> Findings:
    """Summarizes one pair or more.

    Args:
        facts: Of the configurations of the pairs.
        cards: The cards of the baseline and of the group.
        prices: Money per hour of a card of the baseline and of the group.
        top: The rows of the pairs that differ most.
    """
    measures = _Measures.of(pairs, facts, cards)
    overall = measures.summary()
    assert overall is not None
    return Findings(
        overall=overall,
        **{name: dict(_by_label(measures, one, overall)) for name, one in facts.breakdowns.items()},
        money_per_pflop=_with_bounds(
            pairs, lambda one, other: money.money(facts.flops, facts.shapes, one.runtime_ms, other.runtime_ms, prices)
        ),
        co2_g_per_pflop=_with_bounds(
            pairs,
            lambda one, other: money.carbon(facts.flops, facts.shapes, one.energy_mj, other.energy_mj, grams_per_kwh),
        ),
        top=top,
    )


def _with_bounds(pairs: Pairs, cost: Callable[[Medians, Medians], Cost | None]) -> Cost | None:
    """The cost of pairs. With a prediction, the interval reaches from the smallest ratios' start to the largest ratios' end."""
    found = cost(pairs.baseline, pairs.side)
    if found is None or pairs.bounds is None:
        return found
    low, high = cost(*pairs.bounds.min), cost(*pairs.bounds.max)
    if low is None or high is None or low.configurations != found.configurations:
        return replace(found, low=None, high=None)
    return replace(found, low=low.low, high=high.high)


def _by_label(measures: _Measures, breakdown: Breakdown, overall: RatioSummary) -> Iterator[tuple[str, RatioSummary]]:
    for number, label in enumerate(breakdown.labels):
        inside = breakdown.which == number
        # A label that all configurations have needs no second summary.
        found = overall if inside.all() else measures.taken(inside).summary()
        if found is not None:
            yield label, found


_QUANTITIES = {"time": "runtime_ms", "power": "power_w", "energy": "energy_mj", "burst": "burst_ms"}


def _apart(figures: Medians) -> Bools:
    """Where both times differ so much that both are shown: [pairs]."""
    found: Bools = np.abs(figures.burst_ms / figures.runtime_ms - 1) > both_times.APART
    return found


def _log_ratios(baseline: Medians, side: Medians) -> dict[str, Floats]:
    """Logarithms of ratios by quantity: [pairs] each, NaN where one of the two has no such figure."""
    return {name: np.log(getattr(side, field) / getattr(baseline, field)) for name, field in _QUANTITIES.items()}


@dataclass(frozen=True, slots=True)
class _Measures:
    """What a summary needs of pairs: [pairs] each."""

    shapes: Ints
    verdict: Ints
    baseline_roofline: Floats
    roofline: Floats
    # Whether the burst time of the baseline or of the group differs from its compared time: see `farm.both_times`.
    apart: Bools
    # By quantity: logarithms of the ratios, then of the smallest and the largest ones where a figure is predicted.
    logs: Mapping[str, tuple[Floats, ...]]

    @classmethod
    def of(cls, pairs: Pairs, facts: ConfigurationFacts, cards: tuple[Gpu | None, Gpu | None]) -> _Measures:
        def share(card: Gpu | None, times: Floats) -> Floats:
            return breakdowns.attainable_ms(facts.problems, facts.flops, facts.traffic, card) / times

        ratios = [_log_ratios(pairs.baseline, pairs.side)]
        if pairs.bounds is not None:
            ratios += [_log_ratios(*pairs.bounds.min), _log_ratios(*pairs.bounds.max)]
        return cls(
            facts.shapes,
            pairs.verdict,
            share(cards[0], pairs.baseline.runtime_ms),
            share(cards[1], pairs.side.runtime_ms),
            _apart(pairs.baseline) | _apart(pairs.side),
            {name: tuple(one[name] for one in ratios) for name in _QUANTITIES},
        )

    def taken(self, which: Bools) -> _Measures:
        return _Measures(
            self.shapes[which],
            self.verdict[which],
            self.baseline_roofline[which],
            self.roofline[which],
            self.apart[which],
            {name: tuple(one[which] for one in logs) for name, logs in self.logs.items()},
        )

    def summary(self) -> RatioSummary | None:
        """None where there is no pair."""
        time = self._ratio("time")
        if time is None:
            return None
        verdict = np.bincount(self.verdict, minlength=len(PairVerdict))
        return RatioSummary(
            configurations=len(self.verdict),
            shapes=time.shapes,
            time=time,
            tflops=_inverse(time),
            power=self._ratio("power"),
            energy=self._ratio("energy"),
            burst=self._ratio("burst") if self.apart.any() else None,
            faster=int(verdict[PairVerdict.FASTER]),
            ties=int(verdict[PairVerdict.TIE]),
            slower=int(verdict[PairVerdict.SLOWER]),
            unsure=int(verdict[PairVerdict.UNSURE]),
            baseline_roofline=self._median(self.baseline_roofline),
            roofline=self._median(self.roofline),
        )

    def _ratio(self, quantity: str) -> Ratio | None:
        middle, *bounds = self.logs[quantity]
        known = np.isfinite(middle)
        of_known = (bounds[0][known], bounds[1][known]) if bounds else None
        return ratio_of(middle[known], self.shapes[known], bounds=of_known)

    def _median(self, shares: Floats) -> float | None:
        known = np.isfinite(shares)
        return float(np.median(medians_by(shares[known], self.shapes[known]))) if known.any() else None


def _inverse(ratio: Ratio) -> Ratio:
    """The ratio of TFLOP/s: both groups run the same number of operations."""
    return replace(
        ratio,
        ratio=1 / ratio.ratio,
        low=None if ratio.high is None else 1 / ratio.high,
        high=None if ratio.low is None else 1 / ratio.low,
    )
