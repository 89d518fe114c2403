"""Charts as a few lines of text: bars, a series as columns, and lines as points. In ASCII where the terminal has no more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farm.charts.chart import Axis, Chart, Floats, Scale, number

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:-=+*%#"

_COLUMN_LINES = 6
_POINT_LINES = 12

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal: its width in characters, and whether it shows ASCII only."""

    width: int
    ascii_only: bool = False

    def lines(self, chart: Chart) -> list[str]:
        """The chart in lines of at most the terminal's width: bars where a series has them, points where a line joins them, and columns
        otherwise."""
        bars = [one for one in chart.series if one.bars]
        if bars:
            decimals = chart.x.decimals or 0
            return self._bars(chart.y.names, bars[0].x.tolist(), decimals)
        if any(one.line is not None for one in chart.series):
            return self._points(chart)
        left_out = [value for one in chart.series if one.faint for value in one.y.tolist()]
        values = [value for one in chart.series if not one.faint for value in one.y.tolist()]
        return self._columns(left_out, values, chart.y.unit)

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """The values in their order in one line of at most `width` characters. Empty where all are equal."""
        levels = _ASCII_LEVELS if self.ascii_only else _LEVELS
        means = _means(values, math.ceil(len(values) / width))
        low, high = min(means), max(means)
        if low == high:
            return ""
        return "".join(levels[1 + round((v - low) / (high - low) * 7)] for v in means)

    def bar(self, share: float, width: int) -> str:
        """A bar of `width` characters for a share of 1. Any share above 0 is visible."""
        if self.ascii_only:
            return "#" * max(round(share * width), int(share > 0))
        whole, eighths = divmod(max(round(share * width * 8), int(share > 0)), 8)
        return _EIGHTHS[8] * whole + _EIGHTHS[eighths].strip()

    def _bars(self, names: Sequence[str], values: Sequence[float], decimals: int) -> list[str]:
        """A line for each name and number, with a bar as long as its share of the largest."""
        numbers = [f"{value:,.{decimals}f}" for value in values]
        name_width, number_width = max(map(len, names)), max(map(len, numbers))
        largest, room = max(values), self.width - name_width - number_width - 4
        return [
            f"{name:>{name_width}}  {text:>{number_width}}  {self.bar(value / largest if largest else 0.0, room)}".rstrip()
            for name, value, text in zip(names, values, numbers, strict=True)
        ]

    def _points(self, chart: Chart) -> list[str]:
        """A letter for each series at its points, and `*` where points of several series meet."""
        x_axis = _Span.of(chart.x, [one.x for one in chart.series])
        y_axis = _Span.of(chart.y, [one.y for one in chart.series])
        top, bottom = number(y_axis.high), number(y_axis.low)
        margin = max(len(top), len(bottom)) + 1
        width = self.width - margin - 1
        cells = [[" "] * width for _ in range(_POINT_LINES)]
        for letter, one in zip(_LETTERS, chart.series, strict=False):
            for x, y in zip(one.x.tolist(), one.y.tolist(), strict=True):
                row, column = _POINT_LINES - 1 - y_axis.place(y, _POINT_LINES), x_axis.place(x, width)
                cells[row][column] = letter if cells[row][column] in (" ", letter) else "*"
        bar, corner, dash = "|+-" if self.ascii_only else "│└─"
        labels = [top, *[""] * (_POINT_LINES - 2), bottom]
        left, right = number(x_axis.low), number(x_axis.high)
        return [
            chart.y.title,
            *(f"{label:>{margin}}{bar}{''.join(line)}".rstrip() for label, line in zip(labels, cells, strict=True)),
            f"{'':>{margin}}{corner}{dash * width}",
            f"{'':>{margin}} {left}{chart.x.title:^{max(width - len(left) - len(right), 0)}}{right}",
            *(f"{letter}  {one.name}" for letter, one in zip(_LETTERS, chart.series, strict=False)),
        ]

    def _columns(self, left_out: Sequence[float], values: Sequence[float], unit: str) -> list[str]:
        """Values in their order as columns, from the lowest to the highest.

        Faint values come first and have crosses below. The lowest and highest are those of the other values, at which faint
        ones are cut off.
        """
        low, high = min(values or left_out), max(values or left_out)
        ends = [f"{high:,.0f} {unit} ", f"{low:,.0f} {unit} "]
        margin = max(map(len, ends))
        size = math.ceil((len(left_out) + len(values)) / (self.width - margin - 1))
        crossed, columns = _means(left_out, size), _means(values, size)
        full = 8 * _COLUMN_LINES
        shares = [(v - low) / (high - low) if high > low else 1.0 for v in (*crossed, *columns)]
        levels = [min(max(round(share * full), 1), full) for share in shares]
        lines = []
        for row in reversed(range(_COLUMN_LINES)):
            label = ends[0] if row == _COLUMN_LINES - 1 else ends[1] if row == 0 else ""
            cells = "".join(self._cell(level - 8 * row) for level in levels).rstrip()
            lines.append(f"{label:>{margin}}{'|' if self.ascii_only else '│'}{cells}")
        cross, dash, corner = "x-+" if self.ascii_only else "×─└"
        return [*lines, f"{'':>{margin}}{corner}{cross * len(crossed)}{dash * len(columns)}"]

    def _cell(self, eighths: int) -> str:
        """One character of a column that is so many eighths higher than the foot of the character."""
        if self.ascii_only:
            return "#" if eighths >= 4 else "." if eighths > 0 else " "
        return _LEVELS[min(max(eighths, 0), 8)]


@dataclass(frozen=True, slots=True)
class _Span:
    """The first and the last value of an axis."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, axis: Axis, values: Sequence[Floats]) -> _Span:
        known = [value for column in values for value in column.tolist() if math.isfinite(value)]
        return cls(min(known), max(known), axis.scale is Scale.LOG)

    def place(self, value: float, places: int) -> int:
        """The cell of a value, from 0."""
        low, high, at = (math.log(one) if self.logarithmic else one for one in (self.low, self.high, value))
        return round((at - low) / (high - low) * (places - 1)) if high > low else 0


def _means(values: Sequence[float], size: int) -> list[float]:
    """The means of so many neighbours each."""
    return [statistics.fmean(values[i : i + size]) for i in range(0, len(values), size)]
