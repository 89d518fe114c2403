"""Signs that a card does not yet run a kernel as it will go on running it."""

from __future__ import annotations

import pytest

from benchmarks import limiter_traces
from workers.measure.nvml import Telemetry
from workers.measure.replay import Lot
from workers.measure.settling import (
    POWER_EXPONENT,
    Interval,
    agreeing,
    drawn_w,
    intervals,
    is_held,
    is_untouched,
    why_unsettled,
)

CAP, IDLE = 0x4, 0x1


def looks(*clocks_mhz: int | None, events: int | None = 0) -> list[Telemetry]:
    return [Telemetry(sm_clock_mhz=clock, clock_events=events) for clock in clocks_mhz]


@pytest.mark.parametrize(
    ("seen", "drawn_w", "limit_w", "fastest_mhz", "sign"),
    [
        (looks(1980, 1980), [400.0, 610.0], 700.0, 1980, None),
        (looks(1980, 1965), [], 700.0, 1980, None),  # a step of the clock is no sign
        (looks(1530, 1980), [], 700.0, 1980, "between 1530 and 1980 MHz"),
        (looks(1980, 1980), [450.0, 860.0, 400.0], 700.0, 1980, "860 W of 700 W"),
        (looks(1980, 1980), [631.0], 700.0, 1980, "631 W of 700 W"),
        (looks(1530, 1530, events=CAP | IDLE), [], None, 1980, "limiter is at work"),
        (looks(1530, 1530, events=CAP), [], None, None, "limiter is at work"),
        (looks(1965, 1965, events=CAP), [], None, 1980, None),  # it lets go of the last percent slowly
        (looks(1530, 1530, events=IDLE), [], None, 1980, None),  # clocks that a user has set
        (looks(None, events=CAP), [], None, None, "limiter is at work"),
        (looks(1980, 1980), [900.0], None, 1980, None),  # a card that does not tell its limit
        (looks(None, None, events=None), [], None, None, None),  # one that tells nothing
        ([], [], 700.0, None, None),
    ],
)
def test_signs(
    seen: list[Telemetry], drawn_w: list[float], limit_w: float | None, fastest_mhz: int | None, sign: str | None
) -> None:
    why = why_unsettled(seen, drawn_w, limit_w, fastest_mhz)
    assert (why is None) == (sign is None)
    assert sign is None or sign in str(why)


def test_the_draw_of_a_kernel_is_told_by_samples_of_it_alone() -> None:
    samples = [(9.99, 300.0), (10.01, 650.0), (10.03, 640.0), (10.05, 690.0), (10.07, 700.0)]
    assert drawn_w(samples, 10.0) == [690.0, 700.0]
    assert drawn_w(samples[:3], 10.0) == []


# --- the time at the limit ----------------------------------------------------------------------------


def test_an_interval_has_the_mean_time_of_the_lots_within_it() -> None:
    lots = [Lot(0.01, 1.0, 10), Lot(0.03, 2.0, 10), Lot(0.05, 2.0, 10)]
    found = intervals(lots, [(0.005, 100.0), (0.02, 650.0), (0.04, 700.0), (0.055, 700.0), (0.2, 1.0)])
    assert [(one.begin_s, one.end_s, one.watts) for one in found] == [(0.005, 0.02, 650.0), (0.02, 0.04, 700.0)]
    assert [one.gemm_ms for one in found] == pytest.approx([15 / 10, 2.0])  # 5 launches of 1 ms and 5 of 2 ms
    assert intervals([], [(0.005, 100.0), (0.02, 650.0)]) == []


def at(watts: float, gemm_ms: float) -> Interval:
    return Interval(0.2, 0.22, watts, gemm_ms)


def test_power_and_time_of_one_moment_tell_the_time_at_the_limit() -> None:
    assert at(700.0, 2.0).at_limit_ms(700.0) == 2.0
    assert at(800.0, 2.0).at_limit_ms(700.0) == pytest.approx(2.0 * (8 / 7) ** POWER_EXPONENT)
    assert at(600.0, 2.0).at_limit_ms(700.0) < 2.0


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        ([at(780.0, 1.1), at(690.0, 1.15)], True),
        ([at(690.0, 1.005)], False),  # as fast as its burst
        ([at(500.0, 1.1)], False),  # slower, but not for its power
        ([], False),
    ],
)
def test_a_kernel_is_held_where_it_is_slower_and_its_power_is_near_the_limit(seen: list[Interval], held: bool) -> None:
    assert is_held(seen, 700.0, 1.0) is held


def test_a_kernel_that_was_never_slower_than_its_burst_is_untouched() -> None:
    steady = [1.0] * 45
    assert is_untouched(steady, 1.0)
    assert is_untouched([*steady, 1.5], 1.0)  # one hiccup
    assert not is_untouched([*steady, 1.05, 1.05], 1.0)
    assert not is_untouched([1.0, 1.0, 1.05], 1.0)
    assert is_untouched([], 1.0)


def test_times_at_the_limit_agree_where_the_last_ones_do() -> None:
    swinging = [at(700.0, ms) for ms in (2.0, 1.5, 1.1)]
    steady = [at(700.0, ms) for ms in (1.0, 1.01, 1.005, 1.0)]
    assert not agreeing(swinging, 700.0)
    assert not agreeing(steady[:3], 700.0)
    assert agreeing([*swinging, *steady], 700.0)
    assert not agreeing([*steady, at(700.0, 1.05)], 700.0)


def test_recorded_loads_tell_the_settled_time_from_a_fraction_of_a_second() -> None:
    """The figures of docs/measuring.md."""
    figures = limiter_traces.judged(limiter_traces.load())
    assert figures["cases"] >= 50
    assert figures["early"][0] < 0.6
    assert figures["early"][2] < 3
    assert figures["window"][0] < 0.5
    assert figures["window"][2] < 1.6
    assert figures["burst_after_rest"]["0.1"][0] < 0.6 < figures["burst_after_rest"]["0"][0]
    assert abs(figures["exponent_median"] - POWER_EXPONENT) < 0.02
