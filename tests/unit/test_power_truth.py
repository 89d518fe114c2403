"""The benchmark of power, time and energy: what is recorded of a card answers like the card, and is judged right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import power_truth, power_windows
from benchmarks import time_energy_truth as time_energy
from workers.measure.nvml import Telemetry
from workers.measure.power.nvml_power import measure_power
from workers.measure.replay import Lot
from workers.measure.telemetry import TelemetryLog

WALL = 1_700_000_000.0


class SteadyCard:
    """Draws the same watts all the time; its counter steps every 100 ms, its ring every 20 ms."""

    name = "Steady"
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


def recorded(watts: float, seconds: float, **about: Any) -> dict[str, Any]:
    card = SteadyCard(watts)
    window = power_windows.windows_of(card, lambda: None, seconds, clock=card.clock, wall=card.wall)
    return json.loads(json.dumps({"kernel": "k", "round": 0, **about, **window}))  # type: ignore[no-any-return]


def test_a_recorded_card_answers_as_the_card_did() -> None:
    card, meter = SteadyCard(500.0), power_truth.ReplayedMeter(recorded(500.0, 0.8))
    of_card, of_record = (
        measure_power(
            source,
            lambda: None,
            target_rse=0.001,
            max_seconds=0.7,
            log=TelemetryLog(),
            clock=source.clock,
            wall=source.wall,
        )
        for source in (card, meter)
    )
    assert of_card is not None
    assert of_record is not None
    assert (of_record.source, of_record.disagrees, of_record.limited) == ("nvml-counter+samples", False, False)
    assert of_record.samples.watts == of_card.samples.watts == 500.0
    assert of_record.counter.watts == pytest.approx(of_card.counter.watts, rel=0.02)


def test_a_recorded_card_tells_nothing_before_its_time() -> None:
    meter = power_truth.ReplayedMeter(recorded(500.0, 0.8))
    first = meter.total_energy_mj()
    assert max(at_us for at_us, _ in meter.power_samples(0)) <= 1e6 * meter.wall()
    meter.sleep(0.3)
    assert meter.total_energy_mj() == first + 3 * 50_000
    assert max(at_us for at_us, _ in meter.power_samples(0)) > 1e6 * (meter.WALL + 0.28)


def test_methods_are_judged_by_the_mean_of_both_truths() -> None:
    windows = [recorded(watts, 4.5, role="truth") for watts in (490.0, 510.0)]
    windows += [recorded(watts, 0.8, role="short") for watts in (500.0, 505.0)]
    windows[-1]["round"] = 1
    figures = power_truth.evaluate(windows, 0.75, None)
    assert figures["truth_w"]["k"] == pytest.approx(500, rel=0.003)
    assert figures["truths_apart_pct"]["worst"] == pytest.approx(4.1, abs=0.3)
    assert figures["worst_error_pct"] == pytest.approx(1.0, abs=0.3)
    assert figures["by_method_and_window_s"]["ring"]["0.75"]["worst_error_pct"] == pytest.approx(1.0, abs=0.3)
    assert figures["coverage"] == {"within_1_se": 1.0, "within_2_se": 1.0}
    assert figures["seconds_per_configuration"] == pytest.approx(0.31, abs=0.03)
    assert "| farm |" in power_truth.tables(figures)
    assert not [name for name in figures if "time" in name or "energy" in name], "an older recording has neither"


def test_what_a_killed_recording_left_is_judged_as_far_as_it_goes() -> None:
    windows = [recorded(500.0, 4.5, role="truth"), recorded(505.0, 0.8, role="short")]
    windows.append(windows[1] | {"kernel": "has no truth yet"})
    figures = power_truth.evaluate(windows, 0.75, None)
    assert (figures["windows"], list(figures["stopping"])) == (1, ["all", "even rounds", "limit not told"])
    assert "truths_apart_pct" not in figures
    assert "no kernel has two truths" in power_truth.tables(figures)
    with pytest.raises(SystemExit, match="at least the first truths and one round"):
        power_truth.evaluate(windows[:1], 0.75, None)


# --- time and energy -----------------------------------------------------------------------------------

LIMITER, OTHER_EVENT = 0x4, 0x1


def truth_of(kernel: str, reference_ms: float = 1.0, events: tuple[int | None, ...] = (0,), **more: Any) -> Any:
    """500 W throughout; a lot of work every 50 ms, slow until the card has settled."""
    counter = [(None, 0.0, 0.0, 0), (1.0, 1.0, 1.0, 500_000), (3.9, 4.0, 4.0, 2_000_000)]
    lots = [(tick / 20, 9.0 if tick < 20 else 2.0, 25) for tick in range(1, 90)]
    tele = [(0.04 * index, 1980, 50, mask) for index, mask in enumerate(events)]
    about = {"kernel": kernel, "role": "truth", "seconds": 4.5, "counter": counter, "pace": lots, "tele": tele}
    timed = {"timing_ms": reference_ms, "timing_s": 0.05, "reference_ms": reference_ms, "reference_launches": 1000}
    return about | timed | more


def short_of(kernel: str, timing_ms: float, **more: Any) -> Any:
    return {"kernel": kernel, "role": "short", "timing_ms": timing_ms, "timing_s": 0.07, "tele": [], **more}


def test_times_are_judged_by_the_mean_reference_of_their_kernel() -> None:
    windows = [truth_of("a", 0.99), truth_of("a", 1.01), truth_of("b", 4.0), short_of("b", 4.2), short_of("a", 0.97)]
    windows += [short_of("without a truth", 5.0), {"kernel": "a", "role": "short", "tele": []}]
    found = time_energy.time_errors(windows)
    assert found["windows"] == 5
    assert found["all"] == found["others"]
    assert found["others"]["median_error_pct"] == pytest.approx(1)  # of 0, 1, 1, 3, 5
    assert found["others"]["worst_error_pct"] == pytest.approx(5)
    assert found["tier_seconds"] == 0.05
    a, b = found["by_kernel"]["a"], found["by_kernel"]["b"]
    assert (a["reference_ms"], a["reference_launches"], a["references_apart_pct"]) == (
        1.0,
        2000,
        pytest.approx(2.02, abs=0.01),
    )
    assert (a["worst_error_pct"], a["bias_pct"]) == (pytest.approx(3), pytest.approx(-1))
    assert (b["worst_error_pct"], b["references_apart_pct"]) == (pytest.approx(5), None)
    assert "| a |  | 1 | 2,000 | 2.02 | 1.00 | 3.00 | -1.00 |" in time_energy.time_table(found)
    assert time_energy.time_errors([{"kernel": "a", "role": "truth", "tele": []}, short_of("a", 1.0)]) is None


def test_kernels_at_the_power_limit_are_judged_apart() -> None:
    windows = [
        truth_of("held", events=(LIMITER, LIMITER | OTHER_EVENT, 0)),
        truth_of("half", events=(LIMITER, LIMITER, 0, None)),
        truth_of("other reason", events=(OTHER_EVENT, OTHER_EVENT)),
        *(short_of(kernel, ms, tele=[(0, 0, 0, LIMITER)]) for kernel, ms in (("held", 0.9), ("half", 1.01))),
    ]
    assert time_energy.held_kernels(windows) == {"held"}
    found = time_energy.time_errors(windows)
    worst = {name: found[name]["worst_error_pct"] for name in ("all", "others", "held")}
    assert worst == {"all": pytest.approx(10), "others": pytest.approx(1), "held": pytest.approx(10)}
    alone = time_energy.time_errors(windows[:1])
    assert alone["others"] == {"answered": 0.0}
    assert "| others | - | - |" in time_energy.time_table(alone)


def test_the_energy_of_a_gemm_is_judged_by_power_and_pace_of_the_settled_truth() -> None:
    paces = {0.05: 1.8, 0.15: 1.9, 0.25: 2.0, 0.35: 2.0, 0.4: 2.0, 0.5: 99.0}
    lots = [(end_s, ms, 25) for end_s, ms in paces.items()]
    windows = [truth_of("a"), short_of("a", 1.7, pace=lots)]
    found = time_energy.energy_errors(windows, [(windows[1], 505.0, 0.31)])  # 0.35 and 0.4 lay before the card by then
    assert found["by_kernel"]["a"]["truth_mj"] == pytest.approx(1000)
    told = {name: errors["others"]["bias_pct"] for name, errors in found["candidates"].items()}
    assert told == {
        "settled time": pytest.approx(100 * (0.505 * 1.7 - 1)),
        "pace after 0 s": pytest.approx(100 * (0.505 * 1.94 - 1)),
        "pace after 0.1 s": pytest.approx(100 * (0.505 * 1.975 - 1)),
        "pace after 0.2 s": pytest.approx(1),
        "pace after 0.3 s": pytest.approx(1),
    }
    assert found["by_kernel"]["a"]["bias_pct"] == told["settled time"]
    assert "| pace after 0.2 s | 1.00 / 1.00 / 1.00 | 1.00 / 1.00 / 1.00 | - | +1.00 | - |" in time_energy.energy_table(
        found
    )


@pytest.mark.parametrize(("role", "missing"), [("truth", "pace"), ("short", "pace"), ("short", "timing_ms")])
def test_energy_is_left_out_where_its_records_are(role: str, missing: str) -> None:
    truth, short = truth_of("a"), short_of("a", 2.0, pace=[(0.05, 2.0, 25)])
    assert time_energy.energy_errors([truth, short], [(short, 500.0, 0.3)]) is not None
    del (truth if role == "truth" else short)[missing]
    assert time_energy.energy_errors([truth, short], [(short, 500.0, 0.3)]) is None


def test_the_first_figures_are_those_of_kernels_that_the_limiter_leaves_alone() -> None:
    lots = [(tick / 20, 2.0, 25) for tick in range(1, 90)]
    held = [(0.0, 1400, 60, LIMITER)]
    windows = []
    for kernel, timing_ms, more in (("free", 2.02, {}), ("held", 1.8, {"tele": held})):
        timed = {"kernel": kernel, "pace": lots, "timing_ms": timing_ms, "timing_s": 0.05}
        windows.append(recorded(500.0, 4.5, role="truth") | timed | more)
        windows[-1] |= {"reference_ms": 2.0, "reference_launches": 1000}
        windows.append(recorded(510.0, 0.8, role="short") | timed)
    figures = power_truth.evaluate(windows, 0.75, None)
    assert figures["time_worst_error_pct"] == pytest.approx(1)
    assert figures["time"]["held"]["worst_error_pct"] == pytest.approx(10)
    assert figures["energy_median_error_pct"] == pytest.approx(3, abs=0.3)  # power 2% and time 1% too high
    by_timing = figures["energy"]["candidates"]["settled time"]
    assert by_timing["held"]["bias_pct"] == pytest.approx(-8.2, abs=0.3)
    text = power_truth.tables(figures)
    assert "Time: the timing tier's median in 4 windows" in text
    assert "Energy of a GEMM" in text
    assert json.loads(json.dumps(figures))["time"]["by_kernel"]["held"]["held"] is True


# --- recording -----------------------------------------------------------------------------------------


class FakeDevice:
    """Kernels of 0.5 ms, ten to a replay; the work is interrupted when that many kernels were asked for."""

    launches = 10

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.meter = SteadyCard(500.0)
        self.asked: list[str] = []
        self.did: list[str] = []
        self._interrupted_at = interrupted_at
        self.tiers = SimpleNamespace(measure=self._time, needs_rest=lambda: self.did.append("rest"))

    @contextmanager
    def replaying(self, configuration: Any, rules: Any) -> Iterator[Any]:
        self.asked.append(str(configuration))
        if len(self.asked) == self._interrupted_at:
            raise KeyboardInterrupt
        yield SimpleNamespace(
            runs=self, gemm_ms=0.1, keep_busy=lambda: self._did("busy"), drain=lambda: self._did("drain")
        )

    def _did(self, what: str) -> None:
        if self.did[-1:] != [what]:
            self.did.append(what)

    def _time(self, work: Any, rules: Any, log: Any) -> Any:
        self._did("time")
        work.gemm_ms = 0.5
        return SimpleNamespace(timing=SimpleNamespace(median_ms=0.5, rse=0.001)), None

    def sample(self, replays: int) -> list[float]:
        self._did(f"{replays} replays")
        return [0.5] * replays

    def pace(self) -> list[Lot]:
        self._did("pace")
        return [Lot(0.002, 0.5, 4), Lot(0.05, 0.5, 96), Lot(0.051, 0.5, 2)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(power_windows, "TRUTH_SECONDS", 0.02)
    monkeypatch.setattr(power_windows, "SHORT_SECONDS", 0.01)
    monkeypatch.setattr(power_windows, "KERNELS", ["tiled(tile=16) 64x64x64 f32", "tiled(tile=32) 64x64x64 f32"])
    return power_windows


def test_a_window_is_timed_and_its_power_recorded_without_a_gap(quick: ModuleType, tmp_path: Path) -> None:
    device, file = FakeDevice(), tmp_path / "windows.json.gz"
    quick.collect(device, "a card", file, rounds=1, seed=0)
    truth, short = ["time", "100 replays", "busy", "drain", "rest", "pace"], ["time", "busy", "drain", "rest", "pace"]
    assert device.did == [*truth, *truth, *short, *short, *truth, *truth]
    windows = quick.load(file)
    assert [(w["role"], w["round"]) for w in windows[::2]] == [("truth", 0), ("short", 0), ("truth", 1)]
    assert [w.get("reference_launches") for w in windows] == [1000, 1000, None, None, 1000, 1000]
    one = windows[2]
    assert (one["timing_ms"], one["timing_rse"], one["pace"]) == (0.5, 0.001, [[0.05, 0.5, 100]])
    assert (one["card"], one["seconds"], bool(one["counter"])) == ("a card", 0.01, True)
    assert 0 <= one["timing_s"] < 60


def test_a_recording_that_is_broken_off_leaves_what_it_had(quick: ModuleType, tmp_path: Path) -> None:
    device, file = FakeDevice(interrupted_at=4), tmp_path / "windows.json.gz"
    with pytest.raises(KeyboardInterrupt):
        quick.collect(device, "a card", file, rounds=3, seed=0)
    left = quick.load(file)
    assert [window["role"] for window in left] == ["truth", "truth", "short"]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("gemm_ms", "launches_per_replay", "replays"),
    [(0.005, 250, 240), (0.2, 8, 188), (0.5, 10, 100), (1.0, 1, 1000), (2.0, 1, 1000), (57.0, 1, 53)],
)
def test_a_reference_has_a_thousand_launches_unless_they_take_too_short_or_too_long(
    gemm_ms: float, launches_per_replay: int, replays: int
) -> None:
    asked = []

    def sample(count: int) -> list[float]:
        asked.append(count)
        return [gemm_ms, *[gemm_ms * 1.1] * (count - 1)]

    found = power_windows.reference(SimpleNamespace(launches=launches_per_replay, sample=sample), gemm_ms)
    assert asked == [replays]
    assert found["reference_launches"] == replays * launches_per_replay
    assert found["reference_ms"] == pytest.approx(gemm_ms * (1.1 - 0.1 / replays))


def test_the_pace_is_the_mean_of_what_ran_after_a_time() -> None:
    lots = [Lot(0.05, 1.0, 50), Lot(0.11, 1.2, 50), Lot(0.24, 1.3, 100)]
    assert time_energy.mean_ms(lots, 0.0) == pytest.approx((50 * 1.0 + 50 * 1.2 + 100 * 1.3) / 200)
    assert time_energy.mean_ms(lots, 0.1) == pytest.approx((50 * 1.2 + 100 * 1.3) / 150)
    assert time_energy.mean_ms(lots, 5.0) == 1.3  # the last one, where none is as late
    assert time_energy.mean_ms([], 0.0) is None
