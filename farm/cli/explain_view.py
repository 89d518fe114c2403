"""The presenter of `farm measure --explain`: samples, power and clocks of one measurement."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from textwrap import fill
from typing import Any

import numpy as np

from farm.charts.bars import bar_chart, histogram
from farm.charts.chart import Axis, Chart, Series
from farm.charts.terminal_renderer import Terminal
from farm.cli.streams import ascii_text

MAX_WIDTH = 100
"""Maximum length of a line, in characters. Longer lines are hard to read."""

MIN_SHOWN_S = 0.0005
"""A shorter part is left out: it is only the time between two readings of the clock."""

DRIFT = 3.0
"""The time drifted if the halves of the samples differ by more than this multiple of their noise."""

MAX_STEPS = 24
"""Maximum number of steps of the energy counter; of more, neighbours are combined."""

_MIN_SAMPLES = 4  # samples in a half whose median says something
_AFTER = (10, 20, 50)

Section = tuple[str, list[str]]
"""A title and its lines."""


def sections(explanation: Mapping[str, Any], row: Mapping[str, Any], terminal: Terminal) -> Iterator[Section]:
    """The parts of an explanation that are not empty, in the order of the measurement."""
    burst = explanation.get("burst_ms", [])
    made = (
        ("what was decided", _notes(explanation["notes"], terminal)),
        ("where the time went, s", _seconds(explanation["seconds"], terminal)),
        (f"samples after a rest, the burst time: {len(burst):,}, ms of one GEMM", _short(burst)),
        (
            f"samples: {len(explanation['samples_ms']):,}, ms of one GEMM",
            _samples(explanation["samples_ms"], explanation["warm_up_ms"], terminal),
        ),
        (
            f"samples with operands in the cache: {len(explanation['warm_l2_ms']):,}, ms",
            _short(explanation["warm_l2_ms"]),
        ),
        ("power", _power(explanation, row, terminal)),
        (f"readings of clocks and temperature: {len(explanation['telemetry']):,}", _looks(explanation, terminal)),
    )
    for title, lines in made:
        if lines:
            yield _fitting(title, terminal), [_fitting(line, terminal) for line in lines]


def _fitting(text: str, terminal: Terminal) -> str:
    return ascii_text(text) if terminal.ascii_only else text


def _folded(text: str, terminal: Terminal) -> list[str]:
    """Lines of the terminal's width. They do not break at a no-break space."""
    folded = fill(text, terminal.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return folded.replace("\N{NO-BREAK SPACE}", " ").splitlines()


def _notes(notes: Sequence[str], terminal: Terminal) -> list[str]:
    return [line for note in notes for line in _folded(note, terminal)]


def _seconds(seconds: Mapping[str, float], terminal: Terminal) -> list[str]:
    parts = [(name, spent) for name, spent in seconds.items() if spent >= MIN_SHOWN_S]
    return terminal.lines(bar_chart("time", parts, Axis(label="time", unit="s", decimals=3))) if parts else []


# --- samples -----------------------------------------------------------------------------------------


def _samples(samples: Sequence[float], warm_up: Sequence[float], terminal: Terminal) -> list[str]:
    if not samples:
        return []
    lines = [_in_a_line(samples), "", *terminal.lines(histogram("samples", samples)), ""]
    lines += _folded(_halves(samples), terminal)
    lines += _folded(_convergence(samples), terminal)
    if warm_up:
        lines += _folded(
            f"before them, to warm up: {len(warm_up):,}, from {warm_up[0]:.4g} to {warm_up[-1]:.4g}", terminal
        )
    return lines


def _in_a_line(samples: Sequence[float]) -> str:
    q1, median, q3 = np.quantile(samples, (0.25, 0.5, 0.75))
    return f"min {min(samples):.4g}, quartiles {q1:.4g}  {median:.4g}  {q3:.4g}, max {max(samples):.4g}"


def _short(samples: Sequence[float]) -> list[str]:
    """Samples in one line, without their order."""
    if not samples:
        return []
    return [f"{_in_a_line(samples)}; standard error {_percent(relative_standard_error(samples))}"]


def _halves(samples: Sequence[float]) -> str:
    """Whether the medians of the two halves differ by more than their noise.

    The standard error of a median of normal values, 1.253 s/√n, with s from the quartiles, which outliers do not move.
    """
    middle = len(samples) // 2
    halves = samples[:middle], samples[middle:]
    if len(halves[0]) < _MIN_SAMPLES:
        return ""
    first, second = (statistics.median(half) for half in halves)
    spreads = [float(np.subtract(*np.quantile(half, (0.75, 0.25)))) / 1.349 for half in halves]
    noise = math.hypot(*(1.253 * s / math.sqrt(len(half)) for s, half in zip(spreads, halves, strict=True)))
    apart = abs(second - first)
    times = f": {apart / noise:.1f} times the noise" if noise else ""
    verdict = f"a drift{times}" if apart > DRIFT * noise else "within the noise"
    return f"median of the first half {first:.4g}, of the second {second:.4g}: {second / first - 1:+.2%}, {verdict}"


def _convergence(samples: Sequence[float]) -> str:
    """The relative standard error after 10, 20, 50, 100, 200 … samples, and at the end."""
    counts = [step * 10**power for power in range(len(str(len(samples)))) for step in _AFTER]
    after = [*(n for n in counts if n < len(samples)), len(samples)]
    parts = (
        f"{_percent(relative_standard_error(samples[:n]))}\N{NO-BREAK SPACE}after\N{NO-BREAK SPACE}{n:,}" for n in after
    )
    return f"standard error of the mean: {', '.join(parts)}"


def relative_standard_error(samples: Sequence[float]) -> float:
    """Standard error of the mean divided by the mean; infinite for fewer than two samples."""
    if len(samples) < 2:
        return math.inf
    return statistics.stdev(samples) / math.sqrt(len(samples)) / statistics.fmean(samples)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if math.isfinite(share) else "unknown"


# --- power -------------------------------------------------------------------------------------------


def _power(explanation: Mapping[str, Any], row: Mapping[str, Any], terminal: Terminal) -> list[str]:
    steps, ring = explanation["energy_steps"], explanation["power_samples"]
    if not (steps or ring):
        return []
    dropped_s, details = explanation["power_dropped_s"], row["details"]
    lines = [
        *_source("energy counter", f"{len(steps):,} steps", details, "power_counter"),
        *_source("ring of samples", f"{len(ring):,} samples", details, "power_samples"),
    ]
    if row["power_disagrees"] is not None:
        lines.append("the two disagree" if row["power_disagrees"] else "the two agree")
    if len(steps) > 1:
        lines += _folded(_between_steps(steps, dropped_s), terminal)
    if len(ring) > 1:
        lines += ["", f"ring of samples, W over {ring[-1][0] - ring[0][0]:.2f} s"]
        # Each sample is an average since the one before, so one whose predecessor is too early is left out too.
        early = 1 + sum(at_s < dropped_s for at_s, _ in ring[:-1])
        watts = [power_w for _, power_w in ring]
        lines += terminal.lines(_power_chart(ring, early))
        lines.append(
            f"×: of the first {dropped_s:g} s, left out ({min(watts[:early]):,.0f} to {max(watts[:early]):,.0f} W)"
        )
    return lines


def _power_chart(samples: Sequence[tuple[float, float]], early: int) -> Chart:
    """Power over time; the first `early` samples are faint."""
    at_s, power_w = np.array(samples, np.float64).T
    return Chart(
        name="power",
        title="Power",
        message="",
        x=Axis(label="time", unit="s"),
        y=Axis(label="power", unit="W"),
        series=(
            Series(name="left out", x=at_s[:early], y=power_w[:early], faint=True),
            Series(name="counted", x=at_s[early:], y=power_w[early:]),
        ),
    )


def _source(name: str, seen: str, details: Mapping[str, Any], prefix: str) -> Iterator[str]:
    watts, rse = details.get(f"{prefix}_w"), details.get(f"{prefix}_rse")
    if watts is not None:
        error = "" if rse is None else f" ± {_percent(rse)}"
        yield f"{name}: {watts:,.1f} W{error}, {seen}"


def _between_steps(steps: Sequence[tuple[float, int]], dropped_s: float) -> str:
    """The power between steps of the counter, by the time of the later step. Brackets mark what is not used."""
    stride = math.ceil((len(steps) - 1) / MAX_STEPS)
    parts = []
    for (since_s, before_mj), (at_s, after_mj) in pairwise([*steps[:-1:stride], steps[-1]]):
        text = f"{(after_mj - before_mj) / 1e3 / (at_s - since_s):,.0f}\N{NO-BREAK SPACE}W"
        text += f"\N{NO-BREAK SPACE}at\N{NO-BREAK SPACE}{at_s:.2f}\N{NO-BREAK SPACE}s"
        parts.append(text if since_s >= dropped_s else f"({text})")
    each = "its steps" if stride == 1 else f"every {stride} of its steps"
    return f"counter, between {each} (in brackets: too early to count): {', '.join(parts)}"


# --- clocks and temperature --------------------------------------------------------------------------

_LOOKED_AT = {"SM clock MHz": "sm_clock_mhz", "memory clock MHz": "memory_clock_mhz", "temperature °C": "temperature_c"}


def _looks(explanation: Mapping[str, Any], terminal: Terminal) -> list[str]:
    looks = explanation["telemetry"]
    lines = []
    for name, field in _LOOKED_AT.items():
        values = [look[field] for look in looks if look[field] is not None]
        if values:
            text = f"{_fitting(name, terminal):<18}{_range(values):<16}"
            lines.append((text + terminal.sparkline(values, terminal.width - len(text))).rstrip())
    reasons = [look["throttle_reasons"] for look in looks]
    if any(reason is not None for reason in reasons):
        lines += _folded(f"{'throttled by':<18}{_runs(reasons)}", terminal)
    return lines


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _runs(reasons: Sequence[str | None]) -> str:
    """`none (readings 1 to 3), sw_power_cap (readings 4 to 20)`, or only the reason if it never changed."""
    parts, first = [], 1
    for reason, run in groupby(reasons):
        last = first + len(list(run)) - 1
        where = f"reading {first}" if first == last else f"readings {first} to {last}"
        parts.append((reason or "not reported", f" ({where})".replace(" ", "\N{NO-BREAK SPACE}")))
        first = last + 1
    return parts[0][0] if len(parts) == 1 else ", ".join(name + where for name, where in parts)
