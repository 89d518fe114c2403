"""Stopping rules and the sampling loop, with a clock and samples that the test controls."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import MeasurementFailed
from farm.measurement import TimingRules
from workers.measure.timing import NoiseSettled, Spread, time_samples, warm_up


class Work:
    """A sampler whose samples take the time they say, and the clock that shows it."""

    def __init__(self, samples_ms: Iterable[float], batch: int = 1) -> None:
        self._samples = iter(samples_ms)
        self._batch = batch
        self.now = 100.0
        self.calls = 0

    def clock(self) -> float:
        return self.now

    def sample(self) -> list[float]:
        self.calls += 1
        found = list(itertools.islice(self._samples, self._batch))
        self.now += sum(found) / 1e3
        return found


def rules(**given: float) -> TimingRules:
    return TimingRules(**{"min_samples": 5, "max_samples": 1000, "max_seconds": 10.0, **given})


def alternating(low: float, high: float) -> Iterable[float]:
    return itertools.cycle([low, high])


def test_equal_samples_converge_at_the_smallest_number_of_samples() -> None:
    work = Work(itertools.repeat(2.0))
    timing = time_samples(work.sample, rules(), work.clock)
    assert (timing.median_ms, timing.samples, timing.stop_reason, timing.rse) == (2.0, 5, "converged", 0.0)


def test_sampling_goes_on_until_the_standard_error_is_at_the_target() -> None:
    work = Work(alternating(0.9, 1.1))
    timing = time_samples(work.sample, rules(target_rse=0.02), work.clock)
    # Noise of 10% comes under 2% after some 25 samples.
    assert timing.stop_reason == "converged"
    assert 25 <= timing.samples <= 27
    assert timing.rse <= 0.02


def test_the_time_budget_ends_noisy_sampling() -> None:
    work = Work(alternating(50.0, 150.0))
    timing = time_samples(work.sample, rules(target_rse=0.001, max_seconds=2.0), work.clock)
    assert (timing.stop_reason, timing.samples) == ("budget", 20)


def test_the_smallest_number_of_samples_is_taken_even_past_the_budget() -> None:
    work = Work(itertools.repeat(1000.0))
    timing = time_samples(work.sample, rules(max_seconds=0.5), work.clock)
    assert timing.samples == 5


def test_the_cap_on_samples_ends_short_and_noisy_sampling() -> None:
    work = Work(alternating(0.001, 0.003))
    timing = time_samples(work.sample, rules(target_rse=1e-6, max_samples=40), work.clock)
    assert (timing.stop_reason, timing.samples) == ("max_samples", 40)


def test_noise_that_has_settled_ends_sampling_before_the_budget() -> None:
    work = Work(alternating(0.5, 1.5))
    timing = time_samples(work.sample, rules(target_rse=1e-6), work.clock)
    assert timing.stop_reason == "settled"
    assert NoiseSettled.WINDOW <= timing.samples <= 3 * NoiseSettled.WINDOW


def test_noise_that_still_grows_has_not_settled() -> None:
    rule, spread = NoiseSettled(), Spread()
    for number in range(2000):
        spread.add(1.0 + (-1) ** number * number / 4000)
        assert not rule.reached(spread)


def test_quartiles_and_minimum_are_those_of_the_samples() -> None:
    samples = [4.0, 1.0, 3.0, 2.0, 5.0]
    work = Work(samples)
    timing = time_samples(work.sample, rules(target_rse=0.9), work.clock)
    assert (timing.min_ms, timing.q1_ms, timing.median_ms, timing.q3_ms) == (1.0, 2.0, 3.0, 4.0)


def test_a_batch_of_samples_counts_one_by_one() -> None:
    work = Work(itertools.repeat(1.0), batch=4)
    timing = time_samples(work.sample, rules(), work.clock)
    assert (timing.samples, work.calls) == (5, 2)


@pytest.mark.parametrize("broken", [0.0, -1.0, math.nan, math.inf])
def test_a_clock_that_did_not_move_is_an_error(broken: float) -> None:
    work = Work([1.0])
    with pytest.raises(MeasurementFailed, match="clock"):
        time_samples(lambda: [broken], rules(), work.clock)


def test_warming_up_lasts_at_least_as_long_as_asked() -> None:
    work = Work(itertools.repeat(1000 / 256))
    assert warm_up(work.sample, 0.125, work.clock) == 1000 / 256
    assert work.calls == 32


def test_warming_up_goes_on_while_samples_still_change_but_not_for_ever() -> None:
    falling = Work(itertools.chain([100.0, 50.0, 20.0, 10.0, 10.0, 10.0], itertools.repeat(10.0)))
    warm_up(falling.sample, 0.1, falling.clock)
    assert falling.calls == 5
    never = Work(alternating(10.0, 20.0))
    warm_up(never.sample, 0.1, never.clock)
    assert 0.5 <= never.now - 100.0 < 0.53


def test_one_long_run_is_warm_up_enough() -> None:
    work = Work(itertools.repeat(2000.0))
    warm_up(work.sample, 0.02, work.clock)
    assert work.calls == 1


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=2, max_size=60))
def test_the_running_spread_is_that_of_the_whole_list(samples: list[float]) -> None:
    spread = Spread()
    for sample in samples:
        spread.add(sample)
    mean, deviation = statistics.fmean(samples), statistics.stdev(samples)
    assert spread.noise == pytest.approx(deviation / mean, rel=1e-6, abs=1e-9)
    assert spread.relative_standard_error == pytest.approx(deviation / mean / len(samples) ** 0.5, rel=1e-6, abs=1e-9)


@given(seed=st.integers(0, 2**16), noise=st.floats(0.0, 0.5), draw=st.sampled_from([1, 3, 16]))
def test_sampling_always_ends_within_its_bounds(seed: int, noise: float, draw: int) -> None:
    generator = random.Random(seed)
    endless: Callable[[], float] = lambda: 1.0 + noise * generator.random()  # noqa: E731
    work = Work(iter(endless, None), batch=draw)
    given_rules = rules(target_rse=0.001, max_seconds=0.3, max_samples=200)
    timing = time_samples(work.sample, given_rules, work.clock)
    assert given_rules.min_samples <= timing.samples <= given_rules.max_samples
    assert timing.min_ms <= timing.q1_ms <= timing.median_ms <= timing.q3_ms
