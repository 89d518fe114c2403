"""Whether a new model version becomes the champion: the same rows for both, on shapes that neither has seen (pure).

A model's score is the mean of min(1, |ln(predicted / measured)|) over the rows, averaged over the targets that were
measured: about its relative error, with outliers bounded, and the same for an error of half and of double. A row that a
model cannot predict counts 1. Less is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from farm.registry.promotion_verdict import PromotionTest, PromotionVerdict

TARGETS = ("runtime_ms", "runtime_burst_ms", "power_w")
"""What is judged: energy and rate follow from these."""

MARGIN = 0.02
"""The share by which a challenger's score must be below the champion's: less is not worth a change of what others pull."""

CONFIDENCE = 0.9
"""The share of resamples over shapes in which it must be below the champion's."""

SANITY_MARGIN, SANITY_CONFIDENCE = 0.1, 0.95
"""The same against the baselines. A forest is far below them; one that learned noise from a small table may come out a
tenth below by chance, but hardly in as many resamples."""

RESAMPLES = 1000
SEED = 20241116

_AT_ONCE = 100
"""Resamples held in memory together: 8 MB for 10,000 shapes."""

_Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two models on the same rows."""

    score: float
    other: float
    better_in: float  # share of the resamples over shapes in which `score` is below `other`

    def holds(self, margin: float, confidence: float) -> bool:
        return self.score < (1 - margin) * self.other and self.better_in >= confidence

    def verdict(
        self, test: PromotionTest, against: str, margin: float, confidence: float, *, promoted: bool
    ) -> PromotionVerdict:
        """This comparison as the test that decided."""
        return PromotionVerdict(
            promoted=promoted,
            test=test,
            score=self.score,
            against=against,
            against_score=self.other,
            needed_score=(1 - margin) * self.other,
            better_in=self.better_in,
            needed_in=confidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """The present champion."""

    version: str
    predicted: pd.DataFrame  # of the same rows
    # Kinds of rows that it predicts and the challenger does not, as `tiled f32:f32:f32 nn`.
    only_it_knows: tuple[str, ...] = ()
    # In what the comparison favours it, as the end of a sentence; empty where it does not.
    favoured: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on a new version, and why."""

    promoted: bool
    # False where the version is worth nothing: it leaked, or is no better than a baseline.
    sound: bool
    reason: str
    verdict: PromotionVerdict
    score: float | None = None
    # Of the better one of the baselines.
    baseline_score: float | None = None
    champion: str | None = None
    champion_score: float | None = None
    better_in: float | None = None


def losses(measured: pd.DataFrame, predicted: pd.DataFrame) -> _Array:
    """min(1, |ln(predicted / measured)|) [rows, targets]; NaN where a target was not measured, 1 where not predicted."""
    targets = [target for target in TARGETS if target in measured]
    y, p = (frame.reindex(columns=targets).to_numpy("float64") for frame in (measured, predicted))
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(np.log(p / y))
    bounded: _Array = np.where(np.isnan(off), 1.0, np.minimum(off, 1.0))
    return np.where(np.isnan(y), np.nan, bounded)


def compare(measured: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> Comparison:
    """The scores of two models. `measured` has the shape (m, n, k) and the targets of each row.

    Whole shapes are drawn, the same for both models: rows of one shape resemble each other, and are no independent
    evidence.
    """
    shape = measured.groupby(["m", "n", "k"], sort=True).ngroup().to_numpy("int64")
    a, b = (losses(measured, predicted) for predicted in (ours, theirs))
    counts, of_ours, of_theirs = (_by_shape(shape, each) for each in (np.where(np.isnan(a), 0.0, 1.0), a, b))

    def scores(weights: _Array) -> tuple[_Array, _Array]:
        rows = weights @ counts
        with np.errstate(invalid="ignore"):
            return np.nanmean(weights @ of_ours / rows, axis=1), np.nanmean(weights @ of_theirs / rows, axis=1)

    shapes = len(counts)
    random = np.random.default_rng(SEED)
    better = 0
    for start in range(0, RESAMPLES, _AT_ONCE):
        size = min(_AT_ONCE, RESAMPLES - start)
        draws = random.multinomial(shapes, np.full(shapes, 1 / shapes), size=size).astype("float64")
        drawn, others = scores(draws)
        better += int((drawn < others).sum())
    (score,), (other,) = scores(np.ones((1, shapes)))
    return Comparison(score=float(score), other=float(other), better_in=better / RESAMPLES)


def _by_shape(shape: np.ndarray[Any, Any], values: _Array) -> _Array:
    sums = np.zeros((shape.max() + 1, values.shape[1]))
    np.add.at(sums, shape, np.nan_to_num(values))
    return sums


def decide(
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    baselines: Mapping[str, pd.DataFrame],
    champion: Champion | None,
    no_champion: str = "there was no champion before",
) -> Decision:
    """Whether a version with these predictions becomes the champion.

    All predictions are of the rows of `measured`, by models that had not seen their shapes.

    Args:
        baselines: predictions by name.
        no_champion: why there is no champion to compare with.
    """
    against = {name: compare(measured, predicted, each) for name, each in baselines.items()}
    name = min(against, key=lambda each: against[each].other)
    bar = against[name]
    known: dict[str, Any] = {"score": bar.score, "baseline_score": bar.other}
    sane = bar.holds(SANITY_MARGIN, SANITY_CONFIDENCE)
    known["verdict"] = bar.verdict(
        PromotionTest.BASELINE, f"the baseline, {name}", SANITY_MARGIN, SANITY_CONFIDENCE, promoted=sane
    )
    if not sane:
        reason = (
            f"scores {bar.score:.4f} on shapes held out, and {name}, which knows no kernels, scores {bar.other:.4f}: "
            f"a model must be {SANITY_MARGIN:.0%} below that, and below it in {SANITY_CONFIDENCE:.0%} of resamples "
            f"(this one is in {bar.better_in:.0%})"
        )
        return Decision(promoted=False, sound=False, reason=reason, **known)
    if champion is None:
        reason = f"scores {bar.score:.4f} on shapes held out, and {name} {bar.other:.4f}; {no_champion}"
        return Decision(promoted=True, sound=True, reason=reason, **known)
    contest = compare(measured, predicted, champion.predicted)
    known |= {"champion": champion.version, "champion_score": contest.other, "better_in": contest.better_in}
    promoted = contest.holds(MARGIN, CONFIDENCE) and not champion.only_it_knows
    test = PromotionTest.KINDS if champion.only_it_knows else PromotionTest.CHAMPION
    known["verdict"] = contest.verdict(
        test, f"champion version {champion.version}", MARGIN, CONFIDENCE, promoted=promoted
    )
    scores = f"scores {contest.score:.4f}, and champion version {champion.version} {contest.other:.4f}"
    where = f"on {len(measured):,} configurations of shapes that neither has seen"
    if champion.favoured:
        where = f"on {len(measured):,} configurations, {champion.favoured}"
    if champion.only_it_knows:
        kinds = ", ".join(champion.only_it_knows[:3]) + (" …" if len(champion.only_it_knows) > 3 else "")
        reason = f"does not know {kinds}, which champion version {champion.version} predicts; it {scores} {where}"
        return Decision(promoted=False, sound=True, reason=reason, **known)
    if not promoted:
        reason = (
            f"{scores} {where}; it is lower in {contest.better_in:.0%} of resamples, and must be lower by {MARGIN:.0%} "
            f"and in {CONFIDENCE:.0%} of them"
        )
        return Decision(promoted=False, sound=True, reason=reason, **known)
    reason = f"{scores} {where}; it is lower in {contest.better_in:.0%} of resamples"
    return Decision(promoted=True, sound=True, reason=reason, **known)


def of_another_protocol(decision: Decision, champion: str, protocol: str, others: str) -> Decision:
    """The decision on a sound version whose times are another quantity than those that the champion predicts."""
    against = f"champion version {champion}"
    reason = f"learned from rows of the protocol {protocol}, and {against} from those of {others}: their times cannot be compared"
    verdict = PromotionVerdict(promoted=False, test=PromotionTest.PROTOCOL, against=against)
    return replace(decision, promoted=False, reason=reason, verdict=verdict, champion=champion)


def unsound(why: str) -> Decision:
    """A version that cannot be judged."""
    verdict = PromotionVerdict(promoted=False, test=PromotionTest.LEAK)
    return Decision(promoted=False, sound=False, reason=why, verdict=verdict)
