"""When a sentinel is due, what it does to jobs where it fails, and which series of its times drift."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from farm.db.sentinels import SentinelRow, SentinelSeries, drift_of, with_ratios
from farm.errors import DevicePoisoned, InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules, Source
from workers.canary import SENTINEL_RULES, SENTINEL_SECONDS, Sentinel

CONFIGURATION = Configuration.parse("blas(threads=1) 96x96x96 f32")
ROW = Measurement(
    **dict.fromkeys(("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms"), 1.0),
    runtime_rse=0.001,
    samples=10,
    stop_reason="converged",
    l2="cold",
)


class Watching:
    """A device with a sentinel, and what it was asked to measure."""

    def __init__(
        self, answer: Measurement | Exception = ROW, configuration: Configuration | None = CONFIGURATION
    ) -> None:
        self.answer = answer
        self._configuration = configuration
        self.asked: list[tuple[Configuration, MeasuringRules]] = []

    def sentinel(self) -> Configuration | None:
        return self._configuration

    def measure(self, configuration: Configuration, rules: MeasuringRules) -> Measurement:
        self.asked.append((configuration, rules))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def sentinel(device: Watching, *, every_jobs: int = 100, clock: Callable[[], float] | None = None) -> Sentinel:
    return Sentinel(device, every_jobs=every_jobs, clock=clock or Clock())  # type: ignore[arg-type]


def test_it_is_due_at_the_first_batch_of_each_campaign() -> None:
    one = sentinel(Watching())
    assert one.is_due(1)
    one.measure(1)
    assert not one.is_due(1)
    assert one.is_due(2)
    one.measure(2)
    assert not one.is_due(1)


def test_it_is_due_again_after_so_many_jobs_and_so_much_time() -> None:
    clock = Clock()
    one = sentinel(Watching(), clock=clock)
    one.measure(1)
    clock.now += SENTINEL_SECONDS
    one.count(99)
    assert not one.is_due(1)
    one.count(1)
    assert one.is_due(1)
    one.measure(1)
    one.count(500)
    clock.now += SENTINEL_SECONDS - 1
    assert not one.is_due(1)
    clock.now += 1
    assert one.is_due(1)


def test_turned_off_or_on_a_device_that_has_none_it_is_never_due() -> None:
    assert not sentinel(Watching(), every_jobs=0).is_due(1)
    assert not sentinel(Watching(configuration=None)).is_due(1)


def test_its_row_says_that_it_is_a_sentinel_and_its_rules_are_short_and_without_power() -> None:
    device = Watching()
    found = sentinel(device).measure(1)
    assert found is not None
    assert (found[0], found[1].source) == (CONFIGURATION, Source.SENTINEL)
    assert device.asked == [(CONFIGURATION, SENTINEL_RULES)]
    assert SENTINEL_RULES.power == "none"
    assert SENTINEL_RULES.timing.warmup_seconds + SENTINEL_RULES.timing.max_seconds < 0.2


@pytest.mark.parametrize("error", [MeasurementFailed(why="a hiccup"), ZeroDivisionError("in the device")])
def test_one_that_fails_is_no_row_and_is_tried_again(error: Exception) -> None:
    one = sentinel(Watching(error))
    assert one.measure(1) is None
    assert not one.in_hand
    assert one.is_due(2)


def test_one_that_can_never_run_is_not_tried_again() -> None:
    one = sentinel(Watching(InvalidOnDevice(why="no room")))
    assert one.measure(1) is None
    assert not one.is_due(2)


def test_one_that_makes_the_context_unusable_says_that_it_was_the_sentinel() -> None:
    one = sentinel(Watching(DevicePoisoned(why="an illegal address")))
    with pytest.raises(DevicePoisoned):
        one.measure(1)
    assert one.in_hand


# --- drift -----------------------------------------------------------------------------------------------


def noise(seed: int, n: int, sigma: float) -> list[float]:
    chance = random.Random(seed)
    return [5.0 * (1 + chance.gauss(0, sigma)) for _ in range(n)]


def flagged(times_ms: list[float]) -> bool:
    found = drift_of(times_ms)
    return found is not None and found.flagged


def test_too_few_times_say_nothing() -> None:
    assert drift_of([]) is None
    assert drift_of([5.0, 5.0, 9.0]) is None


@pytest.mark.parametrize("sigma", [0.001, 0.005, 0.01, 0.02])
@pytest.mark.parametrize("n", [5, 8, 30, 103])
def test_steady_noise_is_rarely_flagged(sigma: float, n: int) -> None:
    assert sum(flagged(noise(seed, n, sigma)) for seed in range(1000)) <= 20


def test_a_slow_warm_up_of_one_percent_is_not_flagged() -> None:
    for seed in range(200):
        warming = [time * (1 + 0.01 * min(n / 20, 1)) for n, time in enumerate(noise(seed, 40, 0.002))]
        assert not flagged(warming)


@pytest.mark.parametrize("step", [0.04, -0.04])
def test_a_step_of_four_percent_is_flagged_from_where_it_came(step: float) -> None:
    for seed in range(200):
        found = drift_of([t * (1 + step * (n >= 9)) for n, t in enumerate(noise(seed, 14, 0.002))])
        assert found is not None
        assert found.flagged
        assert found.since == 9
        assert found.deviation == pytest.approx(step, abs=0.01)


def test_a_slow_rise_is_flagged_in_the_end() -> None:
    assert flagged([time * (1 + 0.001 * n) for n, time in enumerate(noise(1, 60, 0.002))])


def test_a_step_within_the_noise_is_not_flagged() -> None:
    wild = [5.0, 5.4, 4.8, 5.2, 4.7, 5.3, 4.9, 5.2, 5.4, 5.2]
    found = drift_of(wild)
    assert found is not None
    assert found.deviation > 0.03
    assert not found.flagged


def test_one_slow_time_is_no_drift_and_one_fast_one_does_not_hide_it() -> None:
    assert not flagged([5.0, 5.001, 5.002, 5.0, 5.001, 6.0])
    found = drift_of([5.0, 5.001, 5.002, 5.0, 5.001, 5.3, 5.3, 5.0, 5.3])
    assert found is not None
    assert found.since == 5
    found = drift_of([5.0, 5.001, 5.002, 5.0, 5.3, 5.3, 5.0])
    assert found is not None
    assert found.since == 4


# --- hosts -----------------------------------------------------------------------------------------------


def seen(uuid_: str, ms: float, *, kind: str = "cpu-test", configuration: int = 1) -> SentinelSeries:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = tuple(
        SentinelRow(
            measured_at=start + timedelta(seconds=30 * n),
            configuration_id=uuid.UUID(int=configuration),
            runtime_ms=ms,
            sm_clock_mhz=None,
            temperature_c=None,
        )
        for n in range(3)
    )
    return SentinelSeries(
        device_uuid=uuid_, device_type=kind, host="here", campaign="small", n=3, rows=rows, drift=None, ratio=None
    )


def test_a_device_is_compared_with_the_median_of_those_of_its_type_that_measure_the_same() -> None:
    compared = with_ratios(
        [
            seen("A", 5.0),
            seen("B", 5.5),
            seen("C", 4.5),
            seen("D", 9.0, kind="cpu-other"),
            seen("E", 7.0, configuration=2),
        ]
    )
    assert [one.ratio for one in compared] == [1.0, pytest.approx(1.1), pytest.approx(0.9), None, None]
