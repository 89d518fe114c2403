"""The benchmark of power readings: what is recorded of a card answers like the card, and methods are judged right."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workers.measure.nvml import Telemetry
from workers.measure.power import measure_power
from workers.measure.telemetry import TelemetryLog

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WALL = 1_700_000_000.0


class SteadyCard:
    """Draws the same watts all the time; its counter steps every 100 ms, its ring every 20 ms."""

    power_limit_w = 700.0

    def __init__(self, watts: float) -> None:
        self.watts = watts
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now

    def total_energy_mj(self) -> int | None:
        self.now += 0.003
        return int((self.now + 10) * 10) * round(100 * self.watts)

    def power_samples(self, since_us: int) -> list[tuple[int, float]]:
        samples = [(round(1e6 * WALL) + tick * 20_000, self.watts) for tick in range(-50, int(self.now * 50) + 1)]
        return [sample for sample in samples if sample[0] > since_us]

    def instant_power_w(self) -> float | None:
        return self.watts

    def telemetry(self) -> Telemetry:
        return Telemetry(sm_clock_mhz=1980, temperature_c=50, clock_events=0)


@pytest.fixture
def power_truth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("power_truth")


def recorded(power_truth: ModuleType, watts: float, seconds: float, **about: Any) -> dict[str, Any]:
    card = SteadyCard(watts)
    window = power_truth.windows_of(card, lambda: None, seconds, clock=card.clock, wall=card.wall)
    return json.loads(json.dumps({"kernel": "k", "round": 0, **about, **window}))  # type: ignore[no-any-return]


def test_a_recorded_card_answers_as_the_card_did(power_truth: ModuleType) -> None:
    card, meter = SteadyCard(500.0), power_truth.ReplayedMeter(recorded(power_truth, 500.0, 0.8))
    of_card, of_record = (
        measure_power(
            source,
            lambda: None,
            target_rse=0.001,
            longest_s=0.7,
            log=TelemetryLog(),
            clock=source.clock,
            wall=source.wall,
        )
        for source in (card, meter)
    )
    assert of_card is not None
    assert of_record is not None
    assert (of_record.source, of_record.disagrees, of_record.limited) == ("nvml-counter+samples", False, False)
    assert of_record.samples_w == of_card.samples_w == 500.0
    assert of_record.counter_w == pytest.approx(of_card.counter_w, rel=0.02)


def test_a_recorded_card_tells_nothing_before_its_time(power_truth: ModuleType) -> None:
    meter = power_truth.ReplayedMeter(recorded(power_truth, 500.0, 0.8))
    first = meter.total_energy_mj()
    assert max(at_us for at_us, _ in meter.power_samples(0)) <= 1e6 * meter.wall()
    meter.sleep(0.3)
    assert meter.total_energy_mj() == first + 3 * 50_000
    assert max(at_us for at_us, _ in meter.power_samples(0)) > 1e6 * (meter.WALL + 0.28)


def test_methods_are_judged_by_the_mean_of_both_truths(power_truth: ModuleType) -> None:
    windows = [recorded(power_truth, watts, 4.5, role="truth") for watts in (490.0, 510.0)]
    windows += [recorded(power_truth, watts, 0.8, role="short") for watts in (500.0, 505.0)]
    windows[-1]["round"] = 1
    figures = power_truth.evaluate(windows, 0.75, None)
    assert figures["truth_w"]["k"] == pytest.approx(500, rel=0.003)
    assert figures["truths_apart_pct"]["worst"] == pytest.approx(4.1, abs=0.3)
    assert figures["worst_error_pct"] == pytest.approx(1.0, abs=0.3)
    assert figures["by_method_and_window_s"]["ring"]["0.75"]["worst_error_pct"] == pytest.approx(1.0, abs=0.3)
    assert figures["coverage"] == {"within_1_se": 1.0, "within_2_se": 1.0}
    assert figures["seconds_per_configuration"] == pytest.approx(0.31, abs=0.03)
    assert "| farm |" in power_truth.tables(figures)
