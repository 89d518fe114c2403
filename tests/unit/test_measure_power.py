"""Power: what is made of an energy counter that steps, a ring of samples, and processor counters that turn over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workers.measure import rapl
from workers.measure.nvml import Telemetry, event_names
from workers.measure.power import EnergySteps, PowerReading, TelemetryLog, combine, measure_power


class FakeCard:
    """A card that draws `watts` of the time; its counter steps every 100 ms, its ring has a sample every 20 ms."""

    WALL = 1_700_000_000.0

    def __init__(self, watts: Callable[[float], float], *, counts: bool = True, samples: bool = True) -> None:
        self.watts = watts
        self.counts = counts
        self.samples = samples
        self.now = 50.04
        self.idle = True

    def clock(self) -> float:
        self.now += 0.0002
        return self.now

    def wall(self) -> float:
        return self.WALL + self.now

    def _joules(self, until: float) -> float:
        return sum(self.watts(step / 1000) / 1000 for step in range(50_000, round(until * 1000)))

    def total_energy_mj(self) -> int | None:
        self.now += 0.004
        return round(1e3 * self._joules(int(self.now * 10) / 10)) if self.counts else None

    def power_samples(self, since_us: int) -> list[tuple[int, float]]:
        ring = ((round(1e6 * (self.WALL + tick / 50)), self.watts(tick / 50)) for tick in range(2480, 2700))
        return [(at, watts) for at, watts in ring if at > since_us] if self.samples else []

    def telemetry(self) -> Telemetry:
        self.now += 0.001
        return Telemetry(sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=61, clock_events=0x4)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def keep_busy(self) -> None:
        self.idle = False


def read(card: FakeCard, seconds: float = 1.0) -> tuple[PowerReading | None, TelemetryLog]:
    log = TelemetryLog()
    clocks = {"clock": card.clock, "wall": card.wall, "sleep": card.sleep}
    return measure_power(card, card.keep_busy, seconds, log, **clocks), log


def test_both_sources_find_a_steady_power() -> None:
    reading, log = read(FakeCard(lambda _: 650.0))
    assert reading is not None
    assert (reading.source, reading.power_w) == ("nvml-counter+samples", pytest.approx(650, rel=0.02))
    assert reading.counter_w == pytest.approx(650, rel=0.04)
    assert reading.details()["power_sources_disagree"] is False
    assert log.columns() == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 61,
        "throttle_reasons": "sw_power_cap",
    }


def test_what_the_card_drew_before_is_dropped() -> None:
    # The counter's first step comes at 50.10, and the next holds what was drawn before 50.13.
    reading, _ = read(FakeCard(lambda at: 130.0 if at < 50.13 else 500.0))
    assert reading is not None
    assert reading.counter_w == pytest.approx(500, rel=0.02)
    assert reading.samples_w == 500


def test_samples_from_after_the_window_are_left_out() -> None:
    reading, _ = read(FakeCard(lambda at: 500.0 if at < 51.1 else 90.0, counts=False))
    assert reading is not None
    assert reading.samples_w == 500


def test_a_card_without_a_counter_answers_from_its_samples() -> None:
    reading, _ = read(FakeCard(lambda _: 200.0, counts=False))
    assert reading is not None
    assert (reading.source, reading.power_w, reading.counter_w) == ("nvml-samples", 200.0, None)


def test_a_card_without_samples_answers_from_its_counter() -> None:
    reading, _ = read(FakeCard(lambda _: 200.0, samples=False))
    assert reading is not None
    assert (reading.source, reading.samples_w) == ("nvml-counter", None)


def test_a_card_that_measures_no_power_is_not_kept_busy_for_it() -> None:
    card = FakeCard(lambda _: 200.0, counts=False, samples=False)
    assert read(card)[0] is None
    assert card.idle


def test_sources_that_disagree_flag_the_row() -> None:
    reading = combine(500.0, [400.0, 410.0, 405.0])
    assert reading is not None
    assert reading.details()["power_sources_disagree"] is True


def test_only_the_steps_of_a_counter_count() -> None:
    steps = EnergySteps()
    for tick in range(100):  # 100 W, in steps of 100 ms, read every 10 ms
        steps.add(tick / 100, tick // 10 * 10_000)
    assert steps.mean_power_w(0.0) == pytest.approx(100)
    assert steps.mean_power_w(0.25) == pytest.approx(100)


def test_steps_too_close_together_say_nothing() -> None:
    steps = EnergySteps()
    for at, energy in ((0.0, 0), (0.1, 50_000), (0.2, 100_000)):
        steps.add(at, energy)
    assert steps.mean_power_w(0.0) is None


def test_a_row_has_median_clocks_the_last_temperature_and_every_reason_seen() -> None:
    looks = [(1980, 50, 0x4), (1410, 55, 0x40), (1410, 60, 0x1)]
    log = TelemetryLog([Telemetry(sm_clock_mhz=c, temperature_c=t, clock_events=e) for c, t, e in looks])
    columns = log.columns()
    assert (columns["sm_clock_mhz"], columns["temperature_c"]) == (1410, 60)
    assert columns["throttle_reasons"] == "sw_power_cap,hw_thermal"


def test_clocks_that_a_user_set_are_the_policy() -> None:
    log = TelemetryLog([Telemetry(sm_clock_mhz=1410, clock_events=0x2)])
    assert log.clock_policy(1500, 1980) == "locked:1500"
    assert log.clock_policy(1980, 1980) == "locked:1410"
    assert log.clock_policy(None, None) == "locked:1410"
    at_default = TelemetryLog([Telemetry(sm_clock_mhz=1980, clock_events=0x2)])
    assert at_default.clock_policy(1980, 1980) == "default"
    assert TelemetryLog([Telemetry(sm_clock_mhz=1200, clock_events=0x4)]).clock_policy(None, None) == "default"


def test_a_card_that_says_nothing_leaves_the_columns_empty() -> None:
    log = TelemetryLog([Telemetry(), Telemetry()])
    assert set(log.columns().values()) == {None}
    assert log.clock_policy(None, None) == "default"


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
    assert [package.counter.parent.name for package in rapl.packages(tmp_path)] == ["intel-rapl:0"]
    assert rapl.packages(tmp_path / "nowhere") == []


def test_packages_are_summed_and_a_counter_may_turn_over(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", "900000")
    second = zone(tmp_path, "intel-rapl:1", "package-1", "0")
    times = iter([10.0, 10.5, 11.0, 12.0, 12.0])

    def run() -> None:
        (first / "energy_uj").write_text("100000")  # 0.2 J, past the end of its range of 1 J
        (second / "energy_uj").write_text("600000")

    assert rapl.mean_power_w(rapl.packages(tmp_path), run, 1.5, lambda: next(times)) == pytest.approx(0.8 / 2)


def test_a_machine_without_counters_has_no_power() -> None:
    assert rapl.mean_power_w([], lambda: None, 60.0) is None
