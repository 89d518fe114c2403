"""How near is the settled time that the farm tells from a fraction of a second to that of seconds under load?

    python -m benchmarks.limiter_traces                        judges the recorded traces, without a GPU
    python -m benchmarks.limiter_traces --record [--rounds 5]  records them anew on a card

A trace is a load of one kernel from rest, in lots of some milliseconds, with the driver's power samples meanwhile. Long traces (4 s
after 1 s of rest, twice) give the truth: the mean time from 1 s on. Short ones (0.7 s) come in shuffled order after another kernel, as in
a campaign, with 0.1, 0.05 and no rest between. Of each kernel whose truth is above its burst, the settled time is told as
`workers.measure.settling` does, from the first moments at which it may stop (`early`), and from all until 0.45 s, as while the
power is read (`window`). Figures are errors in percent of the truth: median, 90th percentile, worst.

`exponent` is the slope of log t over log P of each kernel between 0.3 and 4 s, whose median is `settling.POWER_EXPONENT`.
`burst` compares burst times after so much rest with those after 1 s.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, cards, first_card, markdown, write
from farm.kernels import Configuration
from farm.operands import OperandRules
from workers.measure.replay import Lot
from workers.measure.settling import (
    AGREEING,
    ANSWER_SECONDS,
    BURST_FROM_SECONDS,
    BURST_UNTIL_SECONDS,
    SWINGING_SECONDS,
    Interval,
    agreeing,
    intervals,
)

FILE = RESULTS / "limiter_traces.json.gz"

KERNELS = (
    "512x4096x4096 bf16:bf16:f32", "2048x4096x14336 bf16:bf16:f32", "2048x6144x4096 bf16:bf16:f32",
    "1024x8192x8192 bf16:bf16:f32", "8192x8192x8192 bf16:bf16:f32", "4096x4096x4096 f16:f16:f32",
    "4096x4096x4096 f8e4m3:bf16:f32 nt", "4096x4096x4096 tf32:f32:f32", "4096x4096x4096 f64", "4096x4096x4096 f32",
    "4096x4096x4096 i8:i32:i32 nt",
)  # fmt: skip

LONG_SECONDS, SHORT_SECONDS, TRUTH_FROM_SECONDS, WINDOW_SECONDS = 4.0, 0.7, 1.0, 0.45
RESTS = (0.1, 0.1, 0.05, 0.1, 0.0)
HELD = 0.02

Trace = dict[str, Any]


def lots_of(trace: Trace) -> list[Lot]:
    """The lots of a trace, whose marks are (seconds since it began, launches)."""
    ends = [0.0, *(end_s for end_s, _ in trace["lots"])]
    return [
        Lot(end_s, 1e3 * (end_s - begin_s) / launches, launches)
        for begin_s, (end_s, launches) in zip(ends, trace["lots"], strict=False)
    ]


def seen_of(trace: Trace) -> list[Interval]:
    return intervals(lots_of(trace), [(at_s, watts) for at_s, watts in trace["ring"]])


def mean_between(trace: Trace, begin_s: float, end_s: float) -> float:
    """The mean time of a GEMM between two times of a trace, in ms."""
    ends, launches = np.array([(0.0, 0), *trace["lots"]]).T
    of = np.interp([begin_s, end_s], ends, np.cumsum(launches))
    return float(1e3 * (end_s - begin_s) / (of[1] - of[0]))


def early_ms(seen: list[Interval], limit_w: float) -> float:
    """The settled time from the first moment at which the times at the limit agree."""
    late = [one for one in seen if one.begin_s >= ANSWER_SECONDS and one.end_s <= SWINGING_SECONDS]
    for count in range(AGREEING, len(late) + 1):
        if agreeing(late[:count], limit_w):
            return statistics.median(one.at_limit_ms(limit_w) for one in late[count - AGREEING : count])
    return statistics.median(one.at_limit_ms(limit_w) for one in late)


def window_ms(seen: list[Interval], limit_w: float) -> float:
    """The settled time from all that was seen while the power was read."""
    late = [one for one in seen if one.begin_s >= ANSWER_SECONDS and one.end_s <= WINDOW_SECONDS]
    return statistics.median(one.at_limit_ms(limit_w) for one in late)


def judged(traces: list[Trace]) -> dict[str, Any]:
    """The figures of the document."""
    long, short = ([trace for trace in traces if trace["role"] == role] for role in ("long", "short"))
    truth, burst = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for trace in long:
        truth[trace["kernel"]].append(mean_between(trace, TRUTH_FROM_SECONDS, trace["lots"][-1][0]))
        burst[trace["kernel"]].append(mean_between(trace, BURST_FROM_SECONDS, BURST_UNTIL_SECONDS))
    truths, bursts = ({name: statistics.fmean(times) for name, times in of.items()} for of in (truth, burst))
    held = [name for name in truths if truths[name] > (1 + HELD) * bursts[name]]
    errors, rested, exponents = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list), {}
    for trace in (*long, *short):
        name, limit_w = trace["kernel"], trace["limit_w"]
        off = 100 * abs(mean_between(trace, BURST_FROM_SECONDS, BURST_UNTIL_SECONDS) / bursts[name] - 1)
        rested[f"{trace['rest_s']:g}"].append(off)
        if name in held and trace["rest_s"] > 0:
            seen = seen_of(trace)
            errors["early"].append(100 * abs(early_ms(seen, limit_w) / truths[name] - 1))
            errors["window"].append(100 * abs(window_ms(seen, limit_w) / truths[name] - 1))
    for trace in long:
        if trace["kernel"] in held:
            seen = [one for one in seen_of(trace) if one.begin_s >= 0.3]
            logs = np.log([(one.watts, one.gemm_ms) for one in seen])
            exponents[trace["kernel"]] = round(-float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]), 3)
    return {
        "recorded_on": traces[0]["card"],
        "held": len(held),
        "cases": len(errors["early"]),
        **{way: _spread(found) for way, found in errors.items()},
        "burst_after_rest": {rest: _spread(found) for rest, found in sorted(rested.items(), reverse=True)},
        "exponent": exponents,
        "exponent_median": round(statistics.median(exponents.values()), 3),
    }


def _spread(errors: list[float]) -> list[float]:
    """Median, 90th percentile and worst."""
    return [round(float(value), 2) for value in np.percentile(errors, (50, 90, 100))]


def record(rounds: int) -> list[Trace]:
    chance, traces = random.Random(5), list[Trace]()
    card = f"{cards()[0]}, {datetime.now(UTC).date()}"
    with first_card() as device:

        def trace(line: str, role: str, rest_s: float, seconds: float) -> Trace:
            with device.replaying(Configuration.parse(f"cublaslt(algorithm=0) {line}"), OperandRules()) as work:
                device._stream.synchronize()
                time.sleep(rest_s)
                samples: dict[int, float] = {}
                began = time.perf_counter()
                while time.perf_counter() - began < seconds:
                    work.keep_busy()
                    time.sleep(0.002)
                    samples.update(device.meter.power_samples(int(1e6 * (time.time() - 0.3))))
                work.drain()
                samples.update(device.meter.power_samples(int(1e6 * (time.time() - 0.3))))
                busy_s, launches = work.runs.busy_since_s, 0
                found = list[tuple[float, int]]()
                for lot in work.runs.pace():
                    launches += lot.launches
                    if not found or lot.ended_s - found[-1][0] >= 0.004 or lot.ended_s < 0.03:
                        found.append((round(lot.ended_s, 6), launches))
                        launches = 0
                ring = [(round(us / 1e6 - busy_s, 6), watts) for us, watts in sorted(samples.items())]
                limit_w = device.meter.power_limit_w
            about = {"kernel": line, "card": card, "role": role, "rest_s": rest_s, "limit_w": limit_w}
            return {**about, "lots": found, "ring": ring}

        for _ in range(2):
            traces += [trace(line, "long", 1.0, LONG_SECONDS) for line in chance.sample(KERNELS, len(KERNELS))]
        for number in range(rounds):
            rest_s = RESTS[number % len(RESTS)]
            traces += [trace(line, "short", rest_s, SHORT_SECONDS) for line in chance.sample(KERNELS, len(KERNELS))]
    return traces


def load(file: Path = FILE) -> list[Trace]:
    found: list[Trace] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=len(RESTS))
    asked = parser.parse_args()
    if asked.record:
        FILE.write_bytes(gzip.compress(json.dumps(record(asked.rounds)).encode()))
    figures = judged(load())
    ways = [[f"settled, {way}", *figures[way]] for way in ("early", "window")]
    bursts = [[f"burst after {rest} s of rest", *found] for rest, found in figures["burst_after_rest"].items()]
    table = markdown(["error in %", "median", "90th percentile", "worst"], [*ways, *bursts])
    write("limiter_traces", figures, table, repetitions=1)


if __name__ == "__main__":
    main()
