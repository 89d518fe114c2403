"""How two versions of a kernel differ in time, told from paired measurements: A-B-B-A, then B-A-A-B, and so on (pure).

A round has two measurements of each version. Its result is the mean logarithm of the head's times less that of the base's,
so a device that becomes slower or faster at a steady pace changes nothing. After each round the interval below may be
looked at, and measuring may stop at any of these looks: with the probability `confidence`, the true ratio is in all of
the intervals together. A fixed-sample interval of 95% that is looked at after each of 64 rounds misses it far more often.

The interval is that of the sequential t-test with a normal mixture over effect sizes: H. Wang and A. Ramdas,
Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance, arXiv 2310.03722. Its statistic is
the Bayes factor of M. Gönen et al., The Bayesian two-sample t test, The American Statistician 59 (2005).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

THRESHOLD = 0.02
"""The change that is to be shown or excluded, unless the user names another one."""

CONFIDENCE = 0.95

EFFECT_SIZE = 5.0
"""Standard deviation of the mixture over effect sizes: the true change in standard deviations of a round. It makes intervals
narrow after few rounds. Any value keeps the error probability."""


class Arm(StrEnum):
    """One of the two versions that are compared."""

    BASE = "base"
    HEAD = "head"


class Verdict(StrEnum):
    """What is known about the head's time."""

    SLOWER = "slower"
    FASTER = "faster"
    UNCHANGED = "unchanged"  # by less than the threshold
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The ratio of two times.

    Attributes:
        ratio: The head's time over the base's.
        interval: The ends of its interval; infinitely wide before there are enough rounds.
        rounds: How many rounds of four measurements it rests on.
        verdict: Slower or faster: the interval excludes 1, and the ratio is beyond the threshold. Unchanged: the interval
            excludes every change beyond the threshold.
    """

    ratio: float
    interval: tuple[float, float]
    rounds: int
    verdict: Verdict


def order_of(number: int) -> tuple[Arm, Arm, Arm, Arm]:
    """In which order a round measures. Rounds are numbered from 0."""
    first, second = (Arm.BASE, Arm.HEAD) if number % 2 == 0 else (Arm.HEAD, Arm.BASE)
    return first, second, second, first


def log_ratio(base_ms: Sequence[float], head_ms: Sequence[float]) -> float:
    """The result of a round: the logarithm of the head's time over the base's."""
    return statistics.fmean(map(math.log, head_ms)) - statistics.fmean(map(math.log, base_ms))


def half_width(log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half the width of the interval around the mean; infinite before there are enough rounds."""
    n = len(log_ratios)
    if n < 2:
        return math.inf
    shrunk = 1 / (1 + n * EFFECT_SIZE**2)
    likelihood = (1 / ((1 - confidence) * math.sqrt(shrunk))) ** (2 / n)
    if shrunk * likelihood >= 1:
        return math.inf
    mean = statistics.fmean(log_ratios)
    squares = math.fsum((one - mean) ** 2 for one in log_ratios)
    return math.sqrt(squares / n * (likelihood - 1) / (1 - shrunk * likelihood))  # of the critical t times the error


def compared(
    log_ratios: Sequence[float], *, threshold: float = THRESHOLD, confidence: float = CONFIDENCE
) -> PairedResult:
    """What at least one round says.

    Args:
        log_ratios: The result of each round, see `log_ratio`.
        threshold: The change that matters, as a share: 0.02 is 2%.
        confidence: The probability that the true ratio is in the intervals of all rounds.
    """
    mean, half = statistics.fmean(log_ratios), half_width(log_ratios, confidence)
    low, high, limit = mean - half, mean + half, math.log1p(threshold)
    if low > 0 and mean >= limit:
        verdict = Verdict.SLOWER
    elif high < 0 and mean <= -limit:
        verdict = Verdict.FASTER
    elif -limit < low and high < limit:
        verdict = Verdict.UNCHANGED
    else:
        verdict = Verdict.UNDECIDED
    ends = (0.0, math.inf) if half == math.inf else (math.exp(low), math.exp(high))
    return PairedResult(math.exp(mean), ends, len(log_ratios), verdict)
