"""Windows of a kernel on a card, recorded with all that the card says of them; power_truth.py replays and judges them.

A window is what the farm does with a kernel: its timing tier, and without a gap its power, here for a given time. The
truths are longer, and begin with a reference of the time. A recorded window has, in seconds from its beginning:

    counter  (start of the poll before, start and end of this poll, mJ) where the energy counter changed
    ring     (s, W) of the driver's ring of samples
    inst     (s, mW) of the instant field
    tele     (s, SM MHz, degrees C, clock-event mask)
    pace     (end of a lot of queued work, mean ms per GEMM within it, GEMMs in it)

and `timing_ms` (median), `timing_rse` and `timing_s` of the tier before it, a truth also `reference_ms` (mean) and
`reference_launches`. A recording that is older has no `pace`, no `timing_…` and no `reference_…`.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import OperandRules
from workers.measure.power.nvml_power import PowerMeter
from workers.measure.replay import Lot, Runs
from workers.measure.telemetry import TelemetryLog

Window = dict[str, Any]

TRUTH_SECONDS, SETTLING_SECONDS, SHORT_SECONDS = 4.5, 1.0, 0.8
RING_SECONDS = 0.6
"""So much of the ring from before a window is kept with it."""
LOOK_SECONDS = 0.04

REFERENCE_LAUNCHES = 1000
REFERENCE_SHORTEST_SECONDS, REFERENCE_LONGEST_SECONDS = 0.3, 3.0
"""A thousand launches of 5 us would be a shorter look at the kernel than the timing tier's; of 57 ms a minute of it."""

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

LOT_SECONDS = 0.01
"""Lots of a window's pace are at least this long."""


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


def reference(runs: Runs, gemm_ms: float) -> dict[str, Any]:
    """The mean time of a GEMM over `REFERENCE_LAUNCHES` launches in a row, or of as many as its times allow."""
    least, most = (1e3 * s / gemm_ms for s in (REFERENCE_SHORTEST_SECONDS, REFERENCE_LONGEST_SECONDS))
    launches = min(max(REFERENCE_LAUNCHES, least), most)
    samples = runs.sample(math.ceil(launches / runs.launches))
    return {"reference_ms": statistics.fmean(samples), "reference_launches": len(samples) * runs.launches}


def record(device: Any, line: str, seconds: float, *, referenced: bool) -> Window:
    """A window of that kernel on an open CUDA device, after its timing tier and, where asked for, its reference."""
    with device.replaying(Configuration.parse(line), OperandRules()) as work:
        began = time.perf_counter()
        timing = device.tiers.measure(work, MeasuringRules(), TelemetryLog())[0].timing
        found = {"timing_ms": timing.median_ms, "timing_rse": timing.rse, "timing_s": time.perf_counter() - began}
        if referenced:
            found |= reference(work.runs, work.gemm_ms)
        found |= windows_of(device.meter, work.keep_busy, seconds)
        work.drain()
        device.tiers.needs_rest()
        return found | {"pace": merged(work.runs.pace())}


def merged(lots: Sequence[Lot]) -> list[tuple[float, float, int]]:
    """Lots of at least `LOT_SECONDS`, from shorter ones: seconds of their end, the mean ms of a GEMM, and GEMMs."""
    found = list[tuple[float, float, int]]()
    began_s, launches = 0.0, 0
    for lot in lots:
        launches += lot.launches
        if lot.ended_s - began_s >= LOT_SECONDS:
            ms = 1e3 * (lot.ended_s - began_s) / launches
            found.append((round(lot.ended_s, 6), float(f"{ms:.6g}"), launches))
            began_s, launches = lot.ended_s, 0
    return found


def collect(device: Any, card: str, file: Path, rounds: int, seed: int) -> None:
    """Records truths of all `KERNELS`, that many rounds of short windows, and truths again; each in shuffled order.

    After each round, and where one is broken off, `file` has all windows so far. Each says `card`.
    """
    began, shuffled = time.perf_counter(), random.Random(seed)
    windows: list[Window] = []
    for role, number in [("truth", 0), *(("short", number) for number in range(rounds)), ("truth", 1)]:
        truth = role == "truth"
        try:
            for line in shuffled.sample(KERNELS, len(KERNELS)):
                about = {"kernel": line, "role": role, "round": number, "card": card}
                window = record(device, line, TRUTH_SECONDS if truth else SHORT_SECONDS, referenced=truth)
                windows.append(about | window)
        finally:
            if windows:
                save(file, windows)
        print(f"{role} round {number} recorded, {time.perf_counter() - began:.0f} s", file=sys.stderr)


# --- files ---------------------------------------------------------------------------------------------


def save(file: Path, windows: list[Window]) -> None:
    """Writes the windows in one step: whenever this process is ended, the file is whole."""
    part = file.with_name(f"{file.name}.part")
    with gzip.open(part, "wt") as out:
        out.write(json.dumps(windows))
    part.replace(file)


def load(file: Path) -> list[Window]:
    with gzip.open(file, "rt") as recorded:
        windows: list[Window] = json.load(recorded)
    return windows


# --- reading a window ----------------------------------------------------------------------------------


def counter_power_w(window: Window, after_s: float, until_s: float) -> float | None:
    """Mean power between the first and the last step of the counter that were seen between the two times."""
    steps = [step for step in window["counter"][1:] if step[0] >= after_s and step[2] <= until_s]
    return (steps[-1][3] - steps[0][3]) / 1e3 / (steps[-1][2] - steps[0][2]) if len(steps) > 1 else None
