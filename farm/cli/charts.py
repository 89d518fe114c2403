"""Numbers as a few lines of text: bars, a histogram, a curve over time. In ASCII where the terminal has no more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farm.cli.streams import REPLACE

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:-=+*%#"

FAR_OFF = 3.0
"""Quartile distances beyond the quartiles: what lies further out is counted in one line, or it would flatten the rest."""


@dataclass(frozen=True, slots=True)
class Paper:
    """What is drawn on: its width in characters, and whether it takes no more than ASCII."""

    width: int
    ascii_only: bool = False

    def fitting(self, text: str) -> str:
        """The text in characters that the paper takes."""
        return text.encode("ascii", REPLACE).decode() if self.ascii_only else text

    def bar(self, share: float, width: int) -> str:
        """A bar of `width` characters for a share of 1. Of any share above 0 something is seen."""
        if self.ascii_only:
            return "#" * max(round(share * width), int(share > 0))
        whole, eighths = divmod(max(round(share * width * 8), int(share > 0)), 8)
        return _EIGHTHS[8] * whole + _EIGHTHS[eighths].strip()

    def line(self, values: Sequence[float], width: int) -> str:
        """The values in their order, from the lowest to the highest level, in one line of at most `width` characters."""
        levels = _ASCII_LEVELS if self.ascii_only else _LEVELS
        means = _grouped(values, math.ceil(len(values) / width))
        low, high = min(means), max(means)
        if low == high:
            return ""
        return "".join(levels[1 + round((v - low) / (high - low) * 7)] for v in means)

    def histogram(self, values: Sequence[float], *, most_bins: int = 12) -> list[str]:
        """How many values lie where: a line for each bin, with its bounds and its count."""
        q1, q3 = quantile(values, 0.25), quantile(values, 0.75)
        reach = FAR_OFF * (q3 - q1)
        inside = [v for v in values if q1 - reach <= v <= q3 + reach] if reach else values
        low, high = min(inside), max(inside)
        bins = min(most_bins, max(1, math.ceil(math.sqrt(len(values))))) if low < high else 1
        step = (high - low) / bins
        counts = [0] * bins
        for value in inside:
            counts[min(int((value - low) / step), bins - 1) if step else 0] += 1
        edges = _distinct([low + step * i for i in range(bins + 1)], step)
        rows = [(f"{a} to {b}", n) for a, b, n in zip(edges, edges[1:], counts, strict=False)]
        below, above = (sum(v < low for v in values), sum(v > high for v in values))
        rows = [(f"below {edges[0]}", below)] * (below > 0) + rows + [(f"above {edges[-1]}", above)] * (above > 0)
        return self.bars(rows)

    def bars(self, rows: Sequence[tuple[str, float]], *, shown: str = "{:,}") -> list[str]:
        """A line for each name and number, with a bar as long as its share of the largest."""
        numbers = [shown.format(number) for _, number in rows]
        name_width, number_width = max(len(name) for name, _ in rows), max(map(len, numbers))
        most, room = max(number for _, number in rows), self.width - name_width - number_width - 4
        return [
            f"{name:>{name_width}}  {text:>{number_width}}  {self.bar(number / most if most else 0.0, room)}".rstrip()
            for (name, number), text in zip(rows, numbers, strict=True)
        ]

    def curve(self, left_out: Sequence[float], values: Sequence[float], *, unit: str, height: int = 6) -> list[str]:
        """Values at equal times as columns, from the lowest to the highest.

        Those left out come first and have crosses below; what of them is lower or higher than the rest is cut off.
        """
        low, high = min(values or left_out), max(values or left_out)
        ends = [f"{high:,.0f} {unit} ", f"{low:,.0f} {unit} "]
        margin = max(map(len, ends))
        size = math.ceil((len(left_out) + len(values)) / (self.width - margin - 1))
        crossed, columns = _grouped(left_out, size), _grouped(values, size)
        full = 8 * height
        shares = [(v - low) / (high - low) if high > low else 1.0 for v in (*crossed, *columns)]
        levels = [min(max(round(share * full), 1), full) for share in shares]
        lines = []
        for row in reversed(range(height)):
            label = ends[0] if row == height - 1 else ends[1] if row == 0 else ""
            lines.append(f"{label:>{margin}}{self._axis}" + "".join(self._cell(n - 8 * row) for n in levels).rstrip())
        rule = ("x" if self.ascii_only else "×") * len(crossed) + ("-" if self.ascii_only else "─") * len(columns)
        return [*lines, f"{'':>{margin}}{'+' if self.ascii_only else '└'}{rule}"]

    @property
    def _axis(self) -> str:
        return "|" if self.ascii_only else "│"

    def _cell(self, eighths: int) -> str:
        """One character of a column of which so many eighths are above the foot of the character."""
        if self.ascii_only:
            return "#" if eighths >= 4 else "." if eighths > 0 else " "
        return _LEVELS[min(max(eighths, 0), 8)]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies, between neighbours in proportion, as NumPy's `percentile` has it."""
    ordered, place = sorted(values), share * (len(values) - 1)
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def _grouped(values: Sequence[float], size: int) -> list[float]:
    """The means of so many neighbours each."""
    return [statistics.fmean(values[i : i + size]) for i in range(0, len(values), size)]


def _distinct(edges: Sequence[float], step: float) -> list[str]:
    """Numbers with the digits that tell them apart: two of their distance."""
    if step == 0:
        return [f"{edge:.4g}" for edge in edges] * 2
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [f"{edge:.{digits}f}" for edge in edges]
