"""How far is the power of a short window from what the card draws in the long run? And time and energy of a GEMM?

    python -m benchmarks.power_truth FILE [--power-limit-w W] [--longest 0.75]
    python -m benchmarks.power_truth --collect FILE [--rounds 6]

The first replays recorded windows through the farm's own estimator and beside it through the usual ones; it needs no GPU.
The second records windows on the first card of this host: each kernel for 4.5 s (its truth is the mean of the last 3.5 s,
between steps of the energy counter), then rounds of all kernels in shuffled order for 0.8 s each, then each for 4.5 s again.
See power_windows.py for what is recorded, and time_energy_truth.py for how time and energy are judged.

Methods: `difference` of the counter between the first and the last poll; counter `edges` after the first 100 ms; the mean
of the `ring`'s samples after 100 ms; the mean of the `instant` field after 100 ms; `farm` is `measure_power` of
workers/measure/power/nvml_power.py to the end of a window of that length, and `farm, stopping` with its own rule at 2%.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import end_like_interrupted, first_card, markdown, write
from benchmarks.power_windows import SETTLING_SECONDS, Window, collect, counter_power_w, load
from benchmarks.time_energy_truth import (
    FARM_CANDIDATE,
    apart_pct,
    cell,
    energy_errors,
    energy_table,
    errors,
    time_errors,
    time_table,
)
from workers.measure.nvml import Telemetry
from workers.measure.power.nvml_power import measure_power
from workers.measure.power.series import DROPPED_SECONDS
from workers.measure.telemetry import TelemetryLog

LENGTHS = (0.15, 0.25, 0.35, 0.4, 0.5, 0.75)
TARGET_RSE = 0.02


# --- replaying -----------------------------------------------------------------------------------------


class ReplayedMeter:
    """Answers from a recorded window, by a clock that only its calls move."""

    WALL = 1e6
    CALL_SECONDS = 0.0032
    """What a read of the counter took on the card of the first recording."""

    def __init__(self, window: Window, power_limit_w: float | None = None) -> None:
        self.now = 0.0
        self._limit_w = window.get("power_limit_w") or power_limit_w
        steps = window["counter"]
        self._steps_s = [(began + ended) / 2 for _, began, ended, _ in steps[1:]]
        self._energies = [energy for *_, energy in steps]
        self._ring = [(round(1e6 * (self.WALL + at)), watts) for at, watts in window["ring"]]
        self._inst = [(look[0], look[1] / 1e3) for look in window["inst"]]
        self._tele = window["tele"]

    @property
    def power_limit_w(self) -> float | None:
        return self._limit_w

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.WALL + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def total_energy_mj(self) -> int | None:
        if not self._energies:
            return None
        self.now += self.CALL_SECONDS / 2
        energy: int = self._energies[bisect.bisect_right(self._steps_s, self.now)]
        self.now += self.CALL_SECONDS / 2
        return energy

    def power_samples(self, since_us: int) -> list[tuple[int, float]]:
        now_us = round(1e6 * self.wall())
        return [sample for sample in self._ring if since_us < sample[0] <= now_us]

    def instant_power_w(self) -> float | None:
        known = bisect.bisect_right(self._inst, self.now, key=lambda look: look[0])
        return self._inst[max(known - 1, 0)][1] if self._inst else None

    def telemetry(self) -> Telemetry:
        known = bisect.bisect_right(self._tele, self.now, key=lambda look: look[0])
        _, clock, temperature, events = self._tele[max(known - 1, 0)][:4]
        return Telemetry(sm_clock_mhz=clock, temperature_c=temperature, clock_events=events)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method said of a window."""

    power_w: float
    rse: float | None = None
    seconds: float = 0.0
    disagrees: bool | None = None


def farm(window: Window, longest_s: float, target_rse: float, power_limit_w: float | None) -> Answer | None:
    """The farm's own reading of a window."""
    meter = ReplayedMeter(window, power_limit_w)
    reading = measure_power(
        meter,
        lambda: None,
        target_rse=target_rse,
        max_seconds=longest_s,
        log=TelemetryLog(),
        clock=meter.clock,
        wall=meter.wall,
        sleep=meter.sleep,
    )
    return None if reading is None else Answer(reading.power_w, reading.rse, reading.seconds, reading.disagrees)


def difference_w(window: Window, seconds: float) -> float | None:
    """Energy at the end less energy at the beginning, over the length of the window."""
    steps = [step for step in window["counter"] if step[2] <= seconds]
    return (steps[-1][3] - steps[0][3]) / 1e3 / seconds if steps else None


def mean_w(looks: Sequence[Sequence[float]], seconds: float) -> float | None:
    values = [look[1] for look in looks if DROPPED_SECONDS <= look[0] <= seconds]
    return statistics.fmean(values) if values else None


def usual(window: Window, seconds: float) -> dict[str, float | None]:
    """What the usual methods make of a window's beginning of that length."""
    instant = mean_w(window["inst"], seconds)
    return {
        "difference": difference_w(window, seconds),
        "edges": counter_power_w(window, DROPPED_SECONDS, seconds),
        "ring": mean_w(window["ring"], seconds),
        "instant": None if instant is None else instant / 1e3,
    }


# --- judging -------------------------------------------------------------------------------------------


def truths(windows: Sequence[Window]) -> dict[str, list[float]]:
    """The long means of each kernel, in W, in the order in which they were measured."""
    found: dict[str, list[float]] = defaultdict(list)
    for window in windows:
        if window["role"] == "truth":
            watts = counter_power_w(window, SETTLING_SECONDS, window["seconds"] + 1)
            if watts is not None:
                found[window["kernel"]].append(watts)
    return dict(found)


def judged(
    windows: Sequence[Window], answers: Sequence[Answer | None], truth: dict[str, list[float]]
) -> dict[str, Any]:
    """The errors of a method's answers, and where it tells its own error, how often the truth is within it."""
    told = [
        (answer, 100 * (answer.power_w / statistics.fmean(truth[window["kernel"]]) - 1))
        for window, answer in zip(windows, answers, strict=True)
        if answer is not None
    ]
    found: dict[str, Any] = errors([error for _, error in told], len(windows))
    spread = [abs(error) / (100 * answer.rse) for answer, error in told if answer.rse]
    if spread:
        found["within_1_se"] = sum(size <= 1 for size in spread) / len(spread)
        found["within_2_se"] = sum(size <= 2 for size in spread) / len(spread)
        found["disagree"] = sum(bool(answer.disagrees) for answer, _ in told) / len(told)
    return found


def stopped(
    windows: Sequence[Window], answers: Sequence[Answer | None], truth: dict[str, list[float]]
) -> dict[str, Any] | None:
    """The errors of the farm's own stopping rule, and the seconds it took. None where it answered nowhere."""
    seconds = [answer.seconds for answer in answers if answer is not None]
    if not seconds:
        return None
    return judged(windows, answers, truth) | {"seconds_per_configuration": statistics.fmean(seconds)}


def headline(quantity: str, found: dict[str, float]) -> dict[str, float]:
    return {f"{quantity}_{name}": found[name] for name in ("median_error_pct", "worst_error_pct") if name in found}


def evaluate(windows: Sequence[Window], longest_s: float, power_limit_w: float | None) -> dict[str, Any]:
    """Every method at every length over the short windows, and the farm's stopping rule; where recorded, time and energy.

    Exits with a message where no kernel has both a truth and a short window.
    """
    truth = truths(windows)
    short = [window for window in windows if window["role"] == "short" and window["kernel"] in truth]
    if not short:
        sys.exit("No kernel has both a truth and a short window: record at least the first truths and one round.")
    methods: dict[str, dict[str, Any]] = defaultdict(dict)
    for length in LENGTHS:
        said = [usual(window, length) for window in short]
        for method in said[0]:
            answers = [None if watts[method] is None else Answer(watts[method]) for watts in said]  # type: ignore[arg-type]
            methods[method][str(length)] = judged(short, answers, truth) | {"seconds_per_configuration": length}
        whole = [farm(window, length, 0.0, power_limit_w) for window in short]
        methods["farm"][str(length)] = judged(short, whole, truth) | {"seconds_per_configuration": length}
    read = [(window, farm(window, longest_s, TARGET_RSE, power_limit_w)) for window in short]
    untold = [window | {"power_limit_w": None} for window in short]
    groups = {
        "all": read,
        "even rounds": [(window, answer) for window, answer in read if window["round"] % 2 == 0],
        "odd rounds": [(window, answer) for window, answer in read if window["round"] % 2 == 1],
        "limit not told": [(window, farm(window, longest_s, TARGET_RSE, None)) for window in untold],
    }
    stopping = {
        name: found
        for name, group in groups.items()
        if (found := stopped([window for window, _ in group], [answer for _, answer in group], truth)) is not None
    }
    apart = [pct for watts in truth.values() if (pct := apart_pct(watts)) is not None]
    time = time_errors(windows)
    energy = energy_errors(windows, [(w, answer.power_w, answer.seconds) for w, answer in read if answer is not None])
    return {
        "median_error_pct": stopping["all"]["median_error_pct"],
        "worst_error_pct": stopping["all"]["worst_error_pct"],
        "seconds_per_configuration": stopping["all"]["seconds_per_configuration"],
        "coverage": {name: stopping["all"][name] for name in ("within_1_se", "within_2_se")},
        **({} if time is None else headline("time", time["others"])),
        **({} if energy is None else headline("energy", energy["candidates"][FARM_CANDIDATE]["others"])),
        "stopping": stopping,
        "by_method_and_window_s": methods,
        "cards": sorted({window["card"] for window in windows if "card" in window}),
        "kernels": len(truth),
        "windows": len(short),
        "truth_w": {kernel: statistics.fmean(watts) for kernel, watts in truth.items()},
        **({"truths_apart_pct": {"median": statistics.median(apart), "worst": max(apart)}} if apart else {}),
        **({} if time is None else {"time": time}),
        **({} if energy is None else {"energy": energy}),
    }


def tables(figures: dict[str, Any]) -> str:
    """Errors in percent: median / 90th percentile / worst."""
    methods = figures["by_method_and_window_s"]
    rows = [[method, *(cell(by_length[str(length)]) for length in LENGTHS)] for method, by_length in methods.items()]
    stopping = [
        [
            name,
            cell(found),
            f"{found['seconds_per_configuration']:.2f}",
            *(f"{found[f'within_{n}_se']:.0%}" for n in (1, 2)),
        ]
        for name, found in figures["stopping"].items()
    ]
    apart = figures.get("truths_apart_pct")
    truths_apart = (
        "no kernel has two truths"
        if apart is None
        else f"the two truths of a kernel are {apart['median']:.1f}% apart (median; worst {apart['worst']:.1f}%)"
    )
    said = [
        f"{figures['windows']} windows of {figures['kernels']} kernels, recorded on {' and '.join(figures['cards'])};"
        f" {truths_apart}. Error in percent, median / 90th"
        " percentile / worst, by the length of the window in seconds; in brackets the share of windows that had an answer:",
        markdown(["method", *(str(length) for length in LENGTHS)], rows),
        f"The farm, stopping at {TARGET_RSE:.0%}:",
        markdown(["windows", "error", "mean seconds", "truth within 1 SE", "within 2 SE"], stopping),
    ]
    if "time" in figures:
        said.append(time_table(figures["time"]))
    if "energy" in figures:
        said.append(energy_table(figures["energy"]))
    return "\n\n".join(said)


def collect_here(file: Path, rounds: int, seed: int) -> None:
    """Records on the first card of this host. Ctrl-C and SIGTERM leave what there is by then."""
    end_like_interrupted()
    with first_card() as device:
        try:
            said = [
                device.meter.name,
                f"driver {device.identity.facts['driver']}",
                datetime.now(UTC).date().isoformat(),
            ]
            collect(device, ", ".join(said), file, rounds, seed)
        except KeyboardInterrupt:
            print(f"Interrupted: {file} has the windows that were recorded, if any.", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="recorded windows, .json.gz")
    parser.add_argument("--collect", action="store_true", help="record them on a card of this host")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of short windows to record")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the kernels")
    parser.add_argument("--longest", type=float, default=0.75, help="the longest window of the stopping rule, seconds")
    parser.add_argument("--power-limit-w", type=float, help="of the card, where the file does not tell it")
    asked = parser.parse_args()
    if asked.collect:
        collect_here(asked.file, asked.rounds, asked.seed)
        return
    windows = load(asked.file)
    figures = evaluate(windows, asked.longest, asked.power_limit_w)
    rounds = 1 + max(window["round"] for window in windows if window["role"] == "short")
    write("power_truth", figures, tables(figures), repetitions=rounds)


if __name__ == "__main__":
    main()
