"""What pairs of figures say of a side beside the baseline: ratios, verdicts, shares of the roofline, costs (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.compare import groups, money
from farm.compare.groups import Grouping, Problems
from farm.compare.money import Cost
from farm.compare.statistics import (
    RUN_ERROR,
    Bools,
    Floats,
    Ints,
    Ratio,
    Reduced,
    Verdict,
    medians_by,
    ratio_of,
    verdicts,
    verdicts_within,
)
from farm.gpus import Gpu

if TYPE_CHECKING:
    from farm.db.columns import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the pairs of some configurations say: by what factor the side's figures are the baseline's."""

    configurations: int
    shapes: int
    time: Ratio
    tflops: Ratio
    power: Ratio | None
    energy: Ratio | None
    # Configurations on which the side takes less time, as much, more, or nobody can tell.
    faster: int
    ties: int
    slower: int
    unsure: int
    # Median over shapes of the share of the roofline that is reached; None where a card has no figures.
    baseline_roofline: float | None
    roofline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the ratios of pairs are at the least and at the most, by the bounds of the figure that is predicted.

    Figures of baseline and side, [pairs] each: those by which side / baseline is least, and those by which it is most. NaN where
    a model knows no bounds.
    """

    least: tuple[Reduced, Reduced]
    most: tuple[Reduced, Reduced]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The configurations that a side shares with the baseline: [pairs] each, ratios are side / baseline."""

    ids: Words
    baseline: Reduced
    side: Reduced
    verdict: Ints
    # Whose figures are a model's, and not measured; never both.
    baseline_predicted: Bools
    predicted: Bools
    # None where all is measured.
    bounds: Bounds | None = None

    @classmethod
    def measured(cls, ids: Words, baseline: Reduced, side: Reduced, tie: float) -> Pairs:
        nobody = np.zeros(len(ids), bool)
        return cls(
            ids=ids,
            baseline=baseline,
            side=side,
            verdict=verdicts(np.log(side.runtime_ms / baseline.runtime_ms), _errors(baseline, side), tie=tie),
            baseline_predicted=nobody,
            predicted=nobody,
        )

    @classmethod
    def with_a_prediction(
        cls, ids: Words, baseline: Reduced, side: Reduced, of_baseline: Bools, bounds: Bounds, tie: float
    ) -> Pairs:
        """`of_baseline`: which pairs have a baseline that is predicted; of the others it is the side."""
        low, middle, high = (
            np.log(pair[1].runtime_ms / pair[0].runtime_ms) for pair in (bounds.least, (baseline, side), bounds.most)
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
        """Which pairs differ most in time, the most different first."""
        apart = np.abs(np.log(self.time_ratio))
        return np.argsort(-apart, kind="stable")[:count]


def _errors(baseline: Reduced, side: Reduced) -> Floats:
    """Standard errors of the ratios of times, from what samples scatter: [pairs]."""
    found: Floats = np.sqrt(baseline.runtime_rse**2 + side.runtime_rse**2 + RUN_ERROR**2)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What all pairs say, and those of each element type, size and bound."""

    # None, and nothing else either, where there is no pair.
    overall: Figures | None
    by_type: Mapping[str, Figures]
    by_size: Mapping[str, Figures]
    by_bound: Mapping[str, Figures]
    money: Cost | None
    carbon: Cost | None
    # None where none is: then the others are empty too.
    pairs: Pairs | None = field(repr=False)
    # What differs most in time, as columns of a configuration and figures of both sides; where that was asked for.
    top: tuple[Mapping[str, Any], ...] = ()


NOTHING = Findings(overall=None, by_type={}, by_size={}, by_bound={}, money=None, carbon=None, pairs=None)


@dataclass(frozen=True, slots=True)
class About:
    """What is known of configurations beside their figures: [configurations] each."""

    problems: Problems
    shapes: Ints
    flops: Floats
    traffic: Floats
    groupings: Mapping[str, Grouping]

    @classmethod
    def of(cls, problems: Problems, card: Gpu | None) -> About:
        """`card` is the baseline's, whose ridge tells what is bound by memory."""
        flops, traffic = groups.flops_of(problems), groups.bytes_of(problems)
        return cls(
            problems,
            groups.shapes_of(problems),
            flops,
            traffic,
            {
                "by_type": groups.by_type(problems),
                "by_size": groups.by_size(flops),
                "by_bound": groups.by_bound(problems, flops, traffic, card),
            },
        )

    def taken(self, which: Bools) -> About:
        if which.all():
            return self
        return About(
            self.problems.at(np.flatnonzero(which)),
            self.shapes[which],
            self.flops[which],
            self.traffic[which],
            {name: Grouping(one.labels, one.which[which]) for name, one in self.groupings.items()},
        )


def findings(
    pairs: Pairs,
    about: About,
    cards: tuple[Gpu | None, Gpu | None],
    *,
    prices: tuple[float | None, float | None],
    grams_per_kwh: float | None,
) -> Findings:
    """Of baseline and side: their cards, and what an hour of each costs. `about` is of the pairs, of which there is one at least."""
    measures = _Measures.of(pairs, about, cards)
    overall = measures.figures()
    assert overall is not None
    by = {
        name: dict(_of_groups(measures, about.groupings[name], overall)) for name in ("by_type", "by_size", "by_bound")
    }
    return Findings(
        overall=overall,
        by_type=by["by_type"],
        by_size=by["by_size"],
        by_bound=by["by_bound"],
        money=_with_bounds(pairs, lambda baseline, side: _money(about, baseline, side, prices)),
        carbon=_with_bounds(pairs, lambda baseline, side: _carbon(about, baseline, side, grams_per_kwh)),
        pairs=pairs,
    )


def _money(about: About, baseline: Reduced, side: Reduced, prices: tuple[float | None, float | None]) -> Cost | None:
    return money.money(
        about.flops, about.shapes, baseline.runtime_ms, side.runtime_ms, baseline_price=prices[0], price=prices[1]
    )


def _carbon(about: About, baseline: Reduced, side: Reduced, grams_per_kwh: float | None) -> Cost | None:
    return money.carbon(about.flops, about.shapes, baseline.energy_mj, side.energy_mj, grams_per_kwh=grams_per_kwh)


def _with_bounds(pairs: Pairs, cost: Callable[[Reduced, Reduced], Cost | None]) -> Cost | None:
    """The cost of pairs, whose interval begins where the least ratios put it, and ends where the most do."""
    found = cost(pairs.baseline, pairs.side)
    if found is None or pairs.bounds is None:
        return found
    least, most = cost(*pairs.bounds.least), cost(*pairs.bounds.most)
    known = least is not None and most is not None and least.configurations == found.configurations
    return replace(
        found,
        low=least.low if known and least is not None else None,
        high=most.high if known and most is not None else None,
    )


def _of_groups(measures: _Measures, grouping: Grouping, overall: Figures) -> Iterator[tuple[str, Figures]]:
    for number, label in enumerate(grouping.labels):
        inside = grouping.which == number
        # Where all are in one group, all is known of it already.
        found = overall if inside.all() else measures.taken(inside).figures()
        if found is not None:
            yield label, found


@dataclass(frozen=True, slots=True)
class _Logs:
    """Logarithms of ratios: [pairs] each, NaN where one of the two has no such figure."""

    time: Floats
    power: Floats
    energy: Floats

    @classmethod
    def of(cls, baseline: Reduced, side: Reduced) -> _Logs:
        return cls(*(np.log(getattr(side, n) / getattr(baseline, n)) for n in ("runtime_ms", "power_w", "energy_mj")))

    def taken(self, which: Bools) -> _Logs:
        return _Logs(self.time[which], self.power[which], self.energy[which])


@dataclass(frozen=True, slots=True)
class _Measures:
    """What is told of pairs: [pairs] each."""

    shapes: Ints
    logs: _Logs
    # At the least and at the most; None where all is measured.
    bounds: tuple[_Logs, _Logs] | None
    verdict: Ints
    baseline_roofline: Floats
    roofline: Floats

    @classmethod
    def of(cls, pairs: Pairs, about: About, cards: tuple[Gpu | None, Gpu | None]) -> _Measures:
        def share(of: Gpu | None, times: Floats) -> Floats:
            return groups.attainable_ms(about.problems, about.flops, about.traffic, of) / times

        bounds = pairs.bounds
        return cls(
            about.shapes,
            _Logs.of(pairs.baseline, pairs.side),
            None if bounds is None else (_Logs.of(*bounds.least), _Logs.of(*bounds.most)),
            pairs.verdict,
            share(cards[0], pairs.baseline.runtime_ms),
            share(cards[1], pairs.side.runtime_ms),
        )

    def taken(self, which: Bools) -> _Measures:
        return _Measures(
            self.shapes[which],
            self.logs.taken(which),
            None if self.bounds is None else (self.bounds[0].taken(which), self.bounds[1].taken(which)),
            self.verdict[which],
            self.baseline_roofline[which],
            self.roofline[which],
        )

    def figures(self) -> Figures | None:
        """None where there is no pair."""
        time = self._ratio("time")
        if time is None:
            return None
        verdict = np.bincount(self.verdict, minlength=len(Verdict))
        return Figures(
            configurations=len(self.logs.time),
            shapes=time.shapes,
            time=time,
            tflops=_inverse(time),
            power=self._ratio("power"),
            energy=self._ratio("energy"),
            faster=int(verdict[Verdict.LESS]),
            ties=int(verdict[Verdict.TIE]),
            slower=int(verdict[Verdict.MORE]),
            unsure=int(verdict[Verdict.UNSURE]),
            baseline_roofline=self._median(self.baseline_roofline),
            roofline=self._median(self.roofline),
        )

    def _ratio(self, name: str) -> Ratio | None:
        middle = getattr(self.logs, name)
        known = np.isfinite(middle)
        bounds = None
        if self.bounds is not None:
            bounds = (getattr(self.bounds[0], name)[known], getattr(self.bounds[1], name)[known])
        return ratio_of(middle[known], self.shapes[known], bounds=bounds)

    def _median(self, shares: Floats) -> float | None:
        known = np.isfinite(shares)
        return float(np.median(medians_by(shares[known], self.shapes[known]))) if known.any() else None


def _inverse(ratio: Ratio) -> Ratio:
    """Of TFLOP/s, as the operations of a configuration are the same on both sides."""
    return replace(
        ratio,
        ratio=1 / ratio.ratio,
        low=None if ratio.high is None else 1 / ratio.high,
        high=None if ratio.low is None else 1 / ratio.low,
    )
