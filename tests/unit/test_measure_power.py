"""Power: what is made of an energy counter that steps, a ring of samples, and processor counters that turn over."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.measurement import MeasuringRules
from farm.vendors.nvidia import event_names
from workers.measure.explain import Explanation
from workers.measure.nvml import Telemetry
from workers.measure.power.nvml_power import REGIME_RSE, CardReading, measure_power
from workers.measure.power.rapl_power import RaplPower, packages
from workers.measure.power.series import (
    DROPPED_SECONDS,
    EnergySteps,
    Mean,
    averages,
    better,
    disagree,
    mean_of,
    settled_from,
    standard_error,
)
from workers.measure.telemetry import TelemetryLog

MS = 1000
LONGEST_S = 3.0
WATTS = 500.0
Draw = Callable[[np.ndarray], np.ndarray]


def steady(_: np.ndarray) -> float:
    return WATTS


def lagged(seconds: float, before_w: float = 130.0) -> Draw:
    """From `before_w` to WATTS at time 0, through a first-order lag."""
    return lambda at: np.where(at < 0, before_w, WATTS + (before_w - WATTS) * np.exp(-np.maximum(at, 0) / seconds))


class FakeCard:
    """A card that draws `draw` of the seconds since a window's beginning, and what its sources make of it.

    Noise is a share of WATTS, alike over some 50 ms. The counter's steps and the ring's samples come every so many
    milliseconds, and are exact integrals and averages. A call takes the milliseconds that it takes on an H200.
    """

    WALL = 1_700_000_000.0
    EARLIER = 500  # milliseconds on record before the window

    def __init__(
        self,
        draw: Callable[[np.ndarray], Any] = steady,
        *,
        noise: float = 0.0,
        seed: int = 0,
        counter_ms: int | None = 100,
        ring_ms: int | None = 20,
        instant_ms: int | None = None,
        counter_gain: float = 1.0,
        limit_w: float | None = 700.0,
        looks: Callable[[float], Telemetry] = lambda _: Telemetry(sm_clock_mhz=1980, temperature_c=61, clock_events=0),
    ) -> None:
        at = np.arange(-self.EARLIER, LONGEST_S * MS) / MS
        watts = np.broadcast_to(draw(at), at.shape) + WATTS * noise * alike_noise(len(at), seed)
        self.joules = np.concatenate([[0.0], np.cumsum(watts) / MS])
        self.counter_ms, self.ring_ms, self.instant_ms = counter_ms, ring_ms, instant_ms
        self.counter_gain = counter_gain
        self.power_limit_w = limit_w
        self.looks = looks
        self.now = 0.0
        self.fed: list[float] = []

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.WALL + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def keep_busy(self) -> None:
        self.fed.append(self.now)

    def average_w(self, until_ms: int, over_ms: int) -> float:
        joules = self.joules[[until_ms - over_ms, until_ms]]
        return float((joules[1] - joules[0]) * MS / over_ms)

    def _passed(self, period_ms: int, phase_ms: int) -> int:
        """The millisecond on record at which the period before now ended."""
        return (int(self.now * MS) + self.EARLIER - phase_ms) // period_ms * period_ms + phase_ms

    def total_energy_mj(self) -> int | None:
        self.now += 0.0016
        energy = None
        if self.counter_ms is not None:
            energy = round(1e3 * self.counter_gain * self.joules[self._passed(self.counter_ms, 37)])
        self.now += 0.0016
        return energy

    def power_samples(self, since_us: int) -> list[tuple[int, float]]:
        self.now += 0.0002
        period = self.ring_ms
        if period is None:
            return []
        found = [
            (round(1e6 * (self.WALL + (end - self.EARLIER) / MS)), self.average_w(end, period))
            for end in range(period + 5, self._passed(period, 5) + 1, period)
        ]
        return [sample for sample in found if sample[0] > since_us]

    def instant_power_w(self) -> float | None:
        if self.instant_ms is None:
            return None
        return self.average_w(self._passed(self.instant_ms, 11), self.instant_ms)

    def telemetry(self) -> Telemetry:
        return self.looks(self.now)


def alike_noise(count: int, seed: int, alike: float = 0.98) -> np.ndarray:
    """First-order autoregressive noise with a standard deviation of one."""
    pushes = np.random.default_rng(seed).normal(size=count) * (1 - alike**2) ** 0.5
    found = np.empty(count)
    last = pushes[0] / (1 - alike**2) ** 0.5
    for index, push in enumerate(pushes):
        last = alike * last + push
        found[index] = last
    return found


def read(card: FakeCard, target: float = 0.02, longest: float = 1.0, **more: Any) -> CardReading | None:
    clocks: Any = {"clock": card.clock, "wall": card.wall, "sleep": card.sleep}
    return measure_power(
        card, card.keep_busy, target_rse=target, max_seconds=longest, **{"log": TelemetryLog(), **clocks, **more}
    )


def reading_of(card: FakeCard, target: float = 0.02, longest: float = 1.0) -> CardReading:
    reading = read(card, target, longest)
    assert reading is not None
    return reading


# --- what is measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before_w", [130.0, 690.0])
@pytest.mark.parametrize("lag_s", [0.005, 0.03, 0.06])
def test_a_kernels_power_is_found_after_another_one(lag_s: float, before_w: float) -> None:
    reading = reading_of(FakeCard(lagged(lag_s, before_w), noise=0.01))
    assert reading.source == "nvml-counter+samples"
    assert reading.power_w == pytest.approx(WATTS, rel=0.02)
    assert (reading.disagrees, reading.limited) == (False, False)


def test_what_was_queued_before_is_dropped() -> None:
    reading = reading_of(FakeCard(lambda at: np.where(at < 0.095, 5 * WATTS, WATTS)), target=1e-9, longest=0.3)
    assert (reading.samples.watts, reading.counter.watts) == (pytest.approx(WATTS), pytest.approx(WATTS, rel=0.05))


def test_a_slow_rise_is_cut_off() -> None:
    reading = reading_of(FakeCard(lambda at: np.where(at < 0.25, 0.6 * WATTS, WATTS)), target=1e-9, longest=0.6)
    assert reading.power_w == pytest.approx(WATTS)


@pytest.mark.parametrize(("counter_ms", "ring_ms"), [(100, 100), (20, 20), (50, 10), (100, 25), (20, 100)])
def test_periods_of_other_cards_are_seen_in_what_they_say(counter_ms: int, ring_ms: int) -> None:
    card = FakeCard(lagged(0.03), noise=0.01, counter_ms=counter_ms, ring_ms=ring_ms)
    reading = reading_of(card)
    assert reading.power_w == pytest.approx(WATTS, rel=0.02)
    assert reading.stop_reason == "converged"
    assert not reading.disagrees


def test_the_source_that_knows_better_is_taken() -> None:
    good, bad = Mean(500.0, 2.0, 10, 510.0), Mean(510.0, 9.0, 4, 520.0)
    assert better(good, bad, apart=False) == better(bad, good, apart=False) == good
    assert better(None, bad, apart=False) == bad
    assert better(None, None, apart=False) is None


# --- how well it is known ------------------------------------------------------------------------------------


def within(errors: Sequence[float], ses: Sequence[float]) -> tuple[float, float]:
    sizes = np.abs(errors) / np.asarray(ses)
    return float((sizes <= 1).mean()), float((sizes <= 2).mean())


@pytest.mark.parametrize(("alike", "count"), [(0.0, 6), (0.0, 20), (0.5, 12), (0.7, 30)])
def test_the_mean_is_as_close_as_its_standard_error_says(alike: float, count: int) -> None:
    errors, ses = [], []
    for seed in range(400):
        values = list(500 + 10 * alike_noise(count, seed, alike))
        errors.append(float(np.mean(values)) - 500)
        ses.append(standard_error(values))
    one, two = within(errors, ses)
    assert 0.65 <= one <= 0.90
    assert two >= 0.92


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_a_reading_is_as_close_to_the_long_run_as_it_says(noise: float) -> None:
    # What the die's warming adds over seconds is no part of the window: it is drawn here as `REGIME_RSE` has it.
    drift = np.random.default_rng(7).normal(size=200) * REGIME_RSE["free"]
    readings = [reading_of(FakeCard(lagged(0.03), noise=noise, seed=seed), longest=0.5) for seed in range(200)]
    errors = [reading.power_w / WATTS - 1 + off for reading, off in zip(readings, drift, strict=True)]
    one, two = within(errors, [reading.rse for reading in readings])
    assert 0.60 <= one <= 0.85
    assert two >= 0.90


def test_a_standard_error_sees_that_values_still_rise() -> None:
    assert standard_error([500.0 + step for step in range(11)]) > 5
    assert standard_error([500.0, 501.0] * 6) < 0.5
    assert standard_error([500.0] * 4) == 0.0


def test_few_values_or_none_that_draw_say_nothing() -> None:
    assert mean_of([]) is mean_of([500.0]) is mean_of([0.0, 0.0]) is None
    assert mean_of([499.0, 501.0]) is not None


def test_the_beginning_is_cut_where_the_rest_is_quietest() -> None:
    assert settled_from([100.0, 300.0, *[500.0, 501.0] * 5]) == 2
    assert settled_from([500.0, 501.0] * 6) == 0
    assert settled_from([100.0] * 9 + [500.0] * 3) == 0  # a third is kept
    assert settled_from([100.0, 500.0, 500.0]) == 0


# --- when it stops -------------------------------------------------------------------------------------------


def test_a_quiet_card_is_read_no_longer_than_needed() -> None:
    reading = reading_of(FakeCard(noise=0.005))
    assert reading.stop_reason == "converged"
    assert reading.rse <= 0.02
    assert 0.3 <= reading.seconds <= 0.4


def test_a_loud_card_is_read_for_longer_and_no_longer_than_allowed() -> None:
    longer = reading_of(FakeCard(noise=0.08), longest=2.5)
    assert longer.seconds > 0.4
    reading = reading_of(FakeCard(noise=0.08), target=0.001, longest=0.8)
    assert (reading.stop_reason, reading.seconds) == ("budget", pytest.approx(0.8, abs=0.02))
    assert reading.rse > 0.001


def test_a_window_does_not_end_while_the_clock_moves() -> None:
    def looks(at: float) -> Telemetry:
        return Telemetry(sm_clock_mhz=1500 if at < 0.28 else 1980, clock_events=0)

    def draw(at: np.ndarray) -> np.ndarray:
        return np.where(at < 0.28, 0.8 * WATTS, WATTS)

    reading = reading_of(FakeCard(draw, looks=looks))
    assert reading.seconds > 0.45
    assert reading.power_w == pytest.approx(WATTS, rel=0.01)
    stopped = reading_of(FakeCard(looks=looks), longest=0.35)
    assert (stopped.stop_reason, stopped.rse) == ("budget", pytest.approx(0.32, abs=0.01))


@pytest.mark.parametrize("card", [FakeCard(noise=0.08), FakeCard(noise=0.08, counter_ms=None)])
def test_the_card_is_never_idle(card: FakeCard) -> None:
    end = reading_of(card, target=0.001).seconds
    assert card.fed[0] <= 0.01
    assert max(np.diff([*card.fed, end])) <= 0.02


# --- the power limit -----------------------------------------------------------------------------------------


def held(_: float) -> Telemetry:
    return Telemetry(sm_clock_mhz=1500, clock_events=0x4)


def swinging(around_w: float) -> Draw:
    return lambda at: around_w * (1 + 0.08 * np.sin(2 * np.pi * at))


def test_a_card_at_its_power_limit_settles_there() -> None:
    reading = reading_of(FakeCard(swinging(WATTS), limit_w=WATTS, looks=held))
    assert (reading.power_w, reading.limited, reading.stop_reason) == (WATTS, True, "converged")
    assert reading.source == "nvml-limit"
    assert reading.window_w > 1.02 * WATTS
    assert reading.details()["power_window_w"] == reading.window_w


def test_a_card_cannot_stay_above_its_limit_though_no_reason_is_told_yet() -> None:
    reading = reading_of(FakeCard(limit_w=0.9 * WATTS))
    assert (reading.power_w, reading.limited) == (pytest.approx(0.9 * WATTS), True)


def test_a_reason_left_over_from_the_kernel_before_limits_nothing() -> None:
    reading = reading_of(FakeCard(looks=held))
    assert (reading.power_w, reading.limited, reading.stop_reason) == (pytest.approx(WATTS), False, "converged")


@pytest.mark.parametrize("limit_w", [None, 1.04 * WATTS])
def test_a_card_that_swings_below_its_limit_is_not_well_known(limit_w: float | None) -> None:
    reading = reading_of(FakeCard(limit_w=limit_w, looks=held))
    assert (reading.limited, reading.stop_reason) == (False, "budget")
    assert reading.rse == pytest.approx(0.05, abs=0.01)


# --- what a card does not have -------------------------------------------------------------------------------


def test_a_card_without_a_counter_answers_from_its_samples() -> None:
    reading = reading_of(FakeCard(counter_ms=None, instant_ms=100))
    assert (reading.source, reading.power_w, reading.counter) == ("nvml-samples", pytest.approx(WATTS), None)
    assert reading.disagrees is None


def test_a_card_without_samples_answers_from_its_counter() -> None:
    reading = reading_of(FakeCard(lagged(0.03), ring_ms=None, instant_ms=100))
    assert (reading.source, reading.samples, reading.disagrees) == ("nvml-counter", None, None)
    assert (reading.power_w, reading.stop_reason) == (pytest.approx(WATTS, rel=0.03), "converged")


def test_one_step_of_a_counter_is_a_reading_that_is_not_well_known() -> None:
    reading = reading_of(FakeCard(ring_ms=None), longest=0.3)
    assert (reading.source, reading.stop_reason) == ("nvml-counter", "budget")
    assert reading.rse > 0.05


def test_the_instant_field_is_the_last_resort() -> None:
    card = FakeCard(lagged(0.03), noise=0.01, counter_ms=None, ring_ms=None, instant_ms=100)
    reading = reading_of(card)
    assert (reading.source, reading.disagrees) == ("nvml-instant", None)
    assert reading.power_w == pytest.approx(WATTS, rel=0.02)


def test_an_instant_field_that_never_changes_is_from_before() -> None:
    assert read(FakeCard(counter_ms=None, ring_ms=None, instant_ms=100)) is None


def test_a_card_that_measures_no_power_is_not_kept_busy_for_it() -> None:
    card = FakeCard(counter_ms=None, ring_ms=None)
    assert read(card) is None
    assert card.fed == []


# --- sources against each other ------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "apart"), [(1.0, False), (1.03, False), (1.12, True), (0.85, True)])
def test_sources_that_disagree_flag_the_row(gain: float, apart: bool) -> None:
    reading = reading_of(FakeCard(noise=0.005, counter_gain=gain), target=0.001, longest=0.6)
    assert reading.disagrees is apart
    assert (reading.rse > 0.08) is apart


def test_a_step_of_the_draw_is_no_disagreement() -> None:
    reading = reading_of(FakeCard(lambda at: np.where(at < 0.2, 0.5 * WATTS, WATTS)), target=0.001, longest=0.6)
    assert reading.disagrees is False


@pytest.mark.parametrize(("poll_s", "apart"), [(0.003, True), (0.04, False)])
def test_noise_that_explains_a_distance_is_no_disagreement(poll_s: float, apart: bool) -> None:
    steps = EnergySteps()
    for at in np.arange(0.1, 0.46, poll_s).tolist():  # a step every 100 ms, seen as well as polls are dense
        steps.add(at, at + poll_s, int(at * 10) * 56_000)
    ring = [(tick / 50, WATTS) for tick in range(25)]
    assert disagree(steps, ring, DROPPED_SECONDS) is apart


def test_a_sample_that_averages_over_the_dropped_beginning_is_dropped() -> None:
    assert averages([(0.0, 900.0), (0.08, 800.0), (0.11, 700.0), (0.2, 500.0), (0.3, 400.0)], 0.1, 0.25) == [500.0]


def test_only_the_steps_of_a_counter_count() -> None:
    steps = EnergySteps()
    for tick in range(200):  # 100 W, in steps of 100 ms, read every 5 ms
        steps.add(tick / 200, tick / 200 + 0.003, tick // 20 * 10_000)
    at, width, energy = steps.steps[0]  # seen at 0.100 to 0.103, not yet at 0.095
    assert (at, width, energy) == (pytest.approx(0.099), pytest.approx(0.008), 10_000)
    found = steps.mean(0.0)
    assert found is not None
    assert (found.watts, found.values) == (pytest.approx(100), 8)
    assert 0 < found.error_w < 1
    assert steps.mean(0.85) is None


# --- what is kept --------------------------------------------------------------------------------------------


def test_a_row_has_what_each_source_said() -> None:
    details = reading_of(FakeCard(noise=0.005)).details()
    assert json.loads(json.dumps(details)) == details
    assert details["power_samples_w"] == pytest.approx(WATTS, rel=0.01)
    assert details["power_counter_w"] == pytest.approx(WATTS, rel=0.05)
    assert 0 < details["power_samples_rse"] < details["power_counter_rse"] < 0.1
    assert (details["power_stop_reason"], details["power_limited"]) == ("converged", False)


def test_an_explanation_has_all_that_was_seen() -> None:
    explanation, log = Explanation(), TelemetryLog()
    card = FakeCard(swinging(WATTS), limit_w=WATTS, looks=held)
    assert read(card, explanation=explanation, log=log) is not None
    assert [at for at, _ in explanation.energy_steps] == pytest.approx([0.037, 0.137, 0.237], abs=0.005)
    assert all(0 <= at <= 0.32 for at, _ in explanation.power_samples)
    assert len(explanation.power_samples) in (15, 16)
    assert explanation.notes[0].startswith("power: 500 W ± 1.0% from nvml-limit, held at its limit")
    assert log.columns()["throttle_reasons"] == "sw_power_cap"


def test_a_row_has_median_clocks_both_temperatures_and_every_reason_seen() -> None:
    looks = [(1980, 50, 0x4), (1410, 55, 0x40), (1410, 60, 0x1)]
    log = TelemetryLog([Telemetry(sm_clock_mhz=c, temperature_c=t, clock_events=e) for c, t, e in looks])
    columns = log.columns()
    assert columns["sm_clock_mhz"] == 1410
    assert (columns["temperature_before_c"], columns["temperature_c"]) == (50, 60)
    assert columns["throttle_reasons"] == "sw_power_cap,hw_thermal"
    log.before = Telemetry(sm_clock_mhz=345, temperature_c=31, clock_events=0x8)
    assert log.columns() == {**columns, "temperature_before_c": 31}  # the clocks at rest are not those of the work


@pytest.mark.parametrize(
    ("look", "application_clocks_mhz", "policy"),
    [
        ((1410, 0x2), (1500, 1980), "locked:1500"),
        ((1410, 0x2), (1980, 1980), "locked:1410"),
        ((1410, 0x2), (None, None), "locked:1410"),
        ((1980, 0x2), (1980, 1980), "default"),
        ((1200, 0x4), (None, None), "default"),
    ],
)
def test_clocks_that_a_user_set_are_the_policy(
    look: tuple[int, int], application_clocks_mhz: tuple[int | None, int | None], policy: str
) -> None:
    looks = [Telemetry(sm_clock_mhz=look[0], clock_events=look[1])]
    log = TelemetryLog(looks, application_clocks_mhz=application_clocks_mhz)
    assert log.columns()["clock_policy"] == policy


def test_a_card_that_says_nothing_leaves_the_columns_empty() -> None:
    columns = TelemetryLog([Telemetry(), Telemetry()]).columns()
    assert columns.pop("clock_policy") == "default"
    assert set(columns.values()) == {None}


def test_clock_events_are_named() -> None:
    assert event_names(0x1) == "none"
    assert event_names(0x4 | 0x40) == "sw_power_cap,hw_thermal"


# --- RAPL ---------------------------------------------------------------------------------------------


def zone(root: Path, name: str, label: str, energy: str, largest: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    return folder


def test_only_whole_readable_packages_are_counted(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", "10")
    zone(tmp_path, "intel-rapl:0:0", "core", "10")
    zone(tmp_path, "intel-rapl:1", "package-1", "not for you")
    zone(tmp_path, "intel-rapl:2", "psys", "10")
    assert [package.counter.parent.name for package in packages(tmp_path)] == ["intel-rapl:0"]
    assert packages(tmp_path / "nowhere") == []


def test_packages_are_summed_and_a_counter_may_turn_over(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", "900000")
    second = zone(tmp_path, "intel-rapl:1", "package-1", "0")
    times = iter([10.0, 10.5, 11.0, 12.0, 12.0])

    def run() -> None:
        (first / "energy_uj").write_text("100000")  # 0.2 J, past the end of its range of 1 J
        (second / "energy_uj").write_text("600000")

    reading = RaplPower(tmp_path, lambda: next(times)).measure(run, MeasuringRules(power_seconds=1.5))
    assert reading is not None
    assert reading.columns() == {
        "power_w": pytest.approx(0.8 / 2), "power_source": "rapl", "power_rse": None, "power_disagrees": None,
    }  # fmt: skip


def test_a_machine_without_counters_has_no_power(tmp_path: Path) -> None:
    assert RaplPower(tmp_path).measure(lambda: None, MeasuringRules()) is None
