"""How far is the power of a short window from what the card draws in the long run?

    python benchmarks/power_truth.py FILE [--power-limit-w W] [--longest 0.75]
    python benchmarks/power_truth.py --collect FILE [--rounds 6]

The first replays recorded windows through the farm's own estimator and beside it through the usual ones; it needs no GPU.
The second records windows on the first card of this host: each kernel for 4.5 s (its truth is the mean of the last 3.5 s,
between steps of the energy counter), then rounds of all kernels in shuffled order for 0.8 s each, then each for 4.5 s again.

Methods: `difference` of the counter between the first and the last poll; counter `edges` after the first 100 ms; the mean
of the `ring`'s samples after 100 ms; the mean of the `instant` field after 100 ms; `farm` is `measure_power` of
workers/measure/power.py to the end of a window of that length, and `farm, stopping` with its own rule at 2%.
A recorded window, in seconds from its beginning: `counter` (start of the poll before, start and end of this poll, mJ) where
it changed, `ring` (s, W), `inst` (s, mW), `tele` (s, SM MHz, degrees C, clock-event mask).
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import markdown, write

from farm.kernels import Configuration
from farm.measurement import OperandRules
from workers.measure.nvml import Telemetry
from workers.measure.power import DROPPED_SECONDS, PowerMeter, measure_power
from workers.measure.telemetry import TelemetryLog

Window = dict[str, Any]

LENGTHS = (0.15, 0.25, 0.35, 0.4, 0.5, 0.75)
TARGET_RSE = 0.02
TRUTH_SECONDS, SETTLING_SECONDS, SHORT_SECONDS = 4.5, 1.0, 0.8
RING_SECONDS = 0.6
"""So much of the ring from before a window is kept with it."""
LOOK_SECONDS = 0.04
RAN_BEFORE_SECONDS = 0.2
"""The timing tier runs the same kernel before its power is measured."""

KERNELS = [
    "cublaslt(algorithm=0) 8192x8192x8192 bf16:bf16:f32",
    "cublaslt(algorithm=0) 4096x4096x4096 f16:f16:f32",
    "cublaslt(algorithm=0) 512x512x512 f16:f16:f32",
    "cublaslt(algorithm=0) 8x8192x8192 bf16:bf16:f32",
    "cublaslt(algorithm=0) 128x8192x512 f16:f16:f32",
    "cublaslt(algorithm=0) 4096x4096x4096 f32",
    "cublaslt(algorithm=0) 256x256x256 f32",
    "cublaslt(algorithm=0) 4096x4096x4096 f64",
    "tiled(tile=1) 1024x1024x1024 f32",
    "tiled(tile=4) 2048x2048x2048 f32",
    "tiled(tile=16) 2048x2048x2048 f32",
    "tiled(tile=32) 2048x2048x2048 f32",
    "tiled(tile=32) 512x512x512 f32",
    "tiled(tile=16) 1024x1024x1024 f64",
]


# --- recording -----------------------------------------------------------------------------------------


def windows_of(
    meter: PowerMeter,
    keep_busy: Callable[[], None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
) -> Window:
    """All that a meter says in a window of that length, as it said it."""
    keep_busy()
    start, wall_start = clock(), wall()
    counter: list[tuple[float | None, float, float, int]] = []
    inst, tele = [], []
    before_s: float | None = None
    looked = -LOOK_SECONDS
    while (now := clock() - start) < seconds:
        keep_busy()
        began = clock() - start
        energy = meter.total_energy_mj()
        if energy is not None and (not counter or energy != counter[-1][3]):
            counter.append((before_s, began, clock() - start, energy))
        before_s = began
        if now - looked >= LOOK_SECONDS:
            looked = now
            watts, seen = meter.instant_power_w(), meter.telemetry()
            if watts is not None:
                inst.append((clock() - start, 1e3 * watts))
            tele.append((now, seen.sm_clock_mhz, seen.temperature_c, seen.clock_events))
    ring = [(us / 1e6 - wall_start, w) for us, w in meter.power_samples(int(1e6 * (wall_start - RING_SECONDS)))]
    limit = meter.power_limit_w
    return {"seconds": seconds, "power_limit_w": limit, "counter": counter, "ring": ring, "inst": inst, "tele": tele}


def collect(file: Path, rounds: int, seed: int) -> None:
    """Records the windows of `KERNELS` on the first card, and writes them to `file`."""
    from workers.devices import open_device
    from workers.devices.cards import find_cards

    device: Any = open_device(find_cards()[0])
    device.open()
    found: list[Window] = []
    shuffled = random.Random(seed)

    def one_round(role: str, seconds: float, number: int) -> None:
        for line in shuffled.sample(KERNELS, len(KERNELS)):
            with device.replaying(Configuration.parse(line), OperandRules()) as work:
                until = time.perf_counter() + RAN_BEFORE_SECONDS
                while time.perf_counter() < until:
                    work.keep_busy()
                    time.sleep(0.005)
                work.drain()
                window = windows_of(device.meter, work.keep_busy, seconds)
                work.drain()
            about = {"kernel": line, "role": role, "round": number, "card": device.meter.name}
            found.append(about | window)
        print(f"{role} {number} done", file=sys.stderr)

    try:
        one_round("truth", TRUTH_SECONDS, 0)
        for number in range(rounds):
            one_round("short", SHORT_SECONDS, number)
        one_round("truth", TRUTH_SECONDS, 1)
    finally:
        device.close()
    with gzip.open(file, "wt") as out:
        json.dump(found, out)


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
        longest_s=longest_s,
        log=TelemetryLog(),
        clock=meter.clock,
        wall=meter.wall,
        sleep=meter.sleep,
    )
    return None if reading is None else Answer(reading.power_w, reading.rse, reading.seconds, reading.disagrees)


def counter_power_w(window: Window, after_s: float, until_s: float) -> float | None:
    """Mean power between the first and the last step of the counter that were seen between the two times."""
    steps = [step for step in window["counter"][1:] if step[0] >= after_s and step[2] <= until_s]
    return (steps[-1][3] - steps[0][3]) / 1e3 / (steps[-1][2] - steps[0][2]) if len(steps) > 1 else None


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


def errors(errors_pct: Sequence[float], asked: int) -> dict[str, float]:
    """Median, 90th percentile and worst of the sizes of errors; of how many windows there was an answer at all."""
    sizes = sorted(abs(error) for error in errors_pct)
    if not sizes:
        return {"answered": 0.0}
    return {
        "answered": len(sizes) / asked,
        "median_error_pct": statistics.median(sizes),
        "p90_error_pct": sizes[min(round(0.9 * len(sizes)), len(sizes) - 1)],
        "worst_error_pct": sizes[-1],
    }


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


def evaluate(windows: Sequence[Window], longest_s: float, power_limit_w: float | None) -> dict[str, Any]:
    """Every method at every length over the short windows, and the farm's stopping rule."""
    truth = truths(windows)
    short = [window for window in windows if window["role"] == "short" and window["kernel"] in truth]
    methods: dict[str, dict[str, Any]] = defaultdict(dict)
    for length in LENGTHS:
        said = [usual(window, length) for window in short]
        for method in said[0]:
            answers = [None if watts[method] is None else Answer(watts[method]) for watts in said]  # type: ignore[arg-type]
            methods[method][str(length)] = judged(short, answers, truth) | {"seconds_per_configuration": length}
        whole = [farm(window, length, 0.0, power_limit_w) for window in short]
        methods["farm"][str(length)] = judged(short, whole, truth) | {"seconds_per_configuration": length}
    stopping: dict[str, Any] = {}
    for name, limit, kept in (
        ("all", power_limit_w, short),
        ("even rounds", power_limit_w, [w for w in short if w["round"] % 2 == 0]),
        ("odd rounds", power_limit_w, [w for w in short if w["round"] % 2 == 1]),
        ("limit not told", None, [window | {"power_limit_w": None} for window in short]),
    ):
        answers = [farm(window, longest_s, TARGET_RSE, limit) for window in kept]
        seconds = statistics.fmean(answer.seconds for answer in answers if answer is not None)
        stopping[name] = judged(kept, answers, truth) | {"seconds_per_configuration": seconds}
    apart = {kernel: 100 * abs(watts[-1] / watts[0] - 1) for kernel, watts in truth.items()}
    return {
        "median_error_pct": stopping["all"]["median_error_pct"],
        "worst_error_pct": stopping["all"]["worst_error_pct"],
        "seconds_per_configuration": stopping["all"]["seconds_per_configuration"],
        "coverage": {name: stopping["all"][name] for name in ("within_1_se", "within_2_se")},
        "stopping": stopping,
        "by_method_and_window_s": methods,
        "cards": sorted({window["card"] for window in windows if "card" in window}),
        "kernels": len(truth),
        "windows": len(short),
        "truth_w": {kernel: statistics.fmean(watts) for kernel, watts in truth.items()},
        "truths_apart_pct": {"median": statistics.median(apart.values()), "worst": max(apart.values())},
    }


def tables(figures: dict[str, Any]) -> str:
    """Errors in percent: median / 90th percentile / worst."""

    def cell(found: dict[str, Any]) -> str:
        if not found.get("answered"):
            return "-"
        text = " / ".join(f"{found[name]:.1f}" for name in ("median_error_pct", "p90_error_pct", "worst_error_pct"))
        return text if found["answered"] == 1 else f"{text} (of {found['answered']:.0%})"

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
    apart = figures["truths_apart_pct"]
    return (
        f"{figures['windows']} windows of {figures['kernels']} kernels; the two truths of a kernel are {apart['median']:.1f}%"
        f" apart (median; worst {apart['worst']:.1f}%). Error in percent, median / 90th percentile / worst, by the length of"
        " the window in seconds; in brackets the share of windows that had an answer:\n\n"
        + markdown(["method", *(str(length) for length in LENGTHS)], rows)
        + f"\n\nThe farm, stopping at {TARGET_RSE:.0%}:\n\n"
        + markdown(["windows", "error", "mean seconds", "truth within 1 SE", "within 2 SE"], stopping)
    )


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
        collect(asked.file, asked.rounds, asked.seed)
        return
    with gzip.open(asked.file, "rt") as recorded:
        windows = json.load(recorded)
    figures = evaluate(windows, asked.longest, asked.power_limit_w)
    rounds = 1 + max(window["round"] for window in windows if window["role"] == "short")
    write("power_truth", figures, tables(figures), repetitions=rounds)


if __name__ == "__main__":
    main()
