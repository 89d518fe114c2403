"""Paired measurements of two versions: what is concluded from them, and how often that is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from farm.paired import Arm, Verdict, compared, half_width, log_ratio, order_of

ROUNDS = 40
CHECKS = 600


def test_a_round_measures_each_version_twice_and_the_next_one_the_other_way_round() -> None:
    base, head = Arm.BASE, Arm.HEAD
    assert order_of(0) == (base, head, head, base)
    assert order_of(1) == (head, base, base, head)


def test_a_steady_drift_of_the_device_is_no_change() -> None:
    for number in range(2):
        times = {Arm.BASE: list[float](), Arm.HEAD: list[float]()}
        for place, arm in enumerate(order_of(number)):
            times[arm].append(math.exp(0.01 * place) * (1.03 if arm is Arm.HEAD else 1))
        assert log_ratio(times[Arm.BASE], times[Arm.HEAD]) == pytest.approx(math.log(1.03))


def test_nothing_is_concluded_from_two_rounds() -> None:
    found = compared([0.5, 0.5])
    assert (found.interval, found.verdict) == ((0.0, math.inf), Verdict.UNDECIDED)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [(0.05, Verdict.SLOWER), (-0.05, Verdict.FASTER), (0.01, Verdict.UNCHANGED), (-0.01, Verdict.UNCHANGED)],
)
def test_a_change_is_held_against_the_threshold(change: float, verdict: Verdict) -> None:
    found = compared([change + noise for noise in (-0.001, 0.001, -0.001, 0.001)])
    assert found.verdict is verdict
    assert found.ratio == pytest.approx(math.exp(change))
    assert found.interval[0] < found.ratio < found.interval[1]


def test_the_change_that_is_to_be_shown_must_be_as_large_as_the_threshold() -> None:
    rounds = [0.015 + noise for noise in (-0.004, 0.004) * 3]
    assert compared(rounds).verdict is Verdict.UNDECIDED, "1.5%, and up to 3% are not excluded"
    assert compared(rounds, threshold=0.01).verdict is Verdict.SLOWER


Noise = Callable[[random.Random], float]


def normal(chance: random.Random) -> float:
    return chance.gauss(0, 0.006)


def with_outliers(chance: random.Random) -> float:
    """One round in twenty is 3% off, as if another program had used the device."""
    return chance.gauss(0, 0.004) + (0.03 * chance.choice((-1, 1)) if chance.random() < 0.05 else 0)


def checked(change: float, noise: Noise, chance: random.Random, *, confidence: float = 0.95) -> Verdict:
    """The verdict of a check that looks after each round, and stops when it knows."""
    rounds, found = list[float](), Verdict.UNDECIDED
    while found is Verdict.UNDECIDED and len(rounds) < ROUNDS:
        rounds.append(math.log1p(change) + noise(chance))
        found = compared(rounds, confidence=confidence).verdict
    return found


@pytest.mark.parametrize("noise", [normal, with_outliers])
def test_versions_of_the_same_speed_are_rarely_told_apart_and_a_change_is_found(noise: Noise) -> None:
    chance = random.Random(0)
    alike = [checked(0.0, noise, chance) for _ in range(CHECKS)]
    wrong = sum(verdict in (Verdict.SLOWER, Verdict.FASTER) for verdict in alike)
    assert wrong <= 0.05 * CHECKS
    assert alike.count(Verdict.UNCHANGED) >= 0.95 * CHECKS
    slower = [checked(0.04, noise, chance) for _ in range(CHECKS)]
    assert slower.count(Verdict.UNCHANGED) <= 0.05 * CHECKS
    assert slower.count(Verdict.SLOWER) >= 0.95 * CHECKS


def test_the_truth_is_in_every_interval_of_a_check_with_the_stated_probability() -> None:
    chance, missed = random.Random(1), 0
    for _ in range(CHECKS):
        rounds = [chance.gauss(0, 1) for _ in range(ROUNDS)]
        looks = [(sum(rounds[:n]) / n, half_width(rounds[:n], 0.8)) for n in range(1, ROUNDS + 1)]
        missed += any(abs(mean) > half for mean, half in looks)
    assert missed <= 0.2 * CHECKS
    assert missed >= 0.05 * CHECKS, "the interval is wider than it need be"
