"""How a comparison is laid out on a terminal of a hundred columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rich.markup import escape

from farm.cli.output import configuration_text, console, remarks, table
from farm.compare.comparing import Beside, Comparison, Figures, Held
from farm.compare.costs import FEWEST_SHAPES, Cost
from farm.compare.statistics import Ratio
from farm.texts import some_of

_BASELINE = ascii_uppercase[0]


def show(found: Comparison, tops: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Sides get letters, as their names may be long; the baseline is A."""
    letters = dict(zip((side.held.name for side in found.sides), ascii_uppercase[1:], strict=False))
    _print_sides([(_BASELINE, found.baseline), *((letters[side.held.name], side.held) for side in found.sides)])
    named = [(letters[side.held.name], side) for side in found.sides]
    _print_overall(named, found.tie)
    _print_costs(named)
    for letter, side in named:
        _print_groups(letter, side)
    for letter, side in named:
        if tops:
            _print_top(letter, tops[side.held.name])
    for note in found.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    shown = [f for side in found.sides for f in (side.overall, *_figures_of_groups(side))]
    if any(figures.shapes < FEWEST_SHAPES for figures in shown):
        remarks.print(f"Fewer than {FEWEST_SHAPES} shapes have no interval (–).")


def _figures_of_groups(side: Beside) -> list[Figures]:
    return [figures for grouped in (side.by_type, side.by_size, side.by_bound) for figures in grouped.values()]


def _print_sides(sides: Sequence[tuple[str, Held]]) -> None:
    columns = ["", "side", "devices", "rows", "configurations"]
    lines = [
        (
            letter,
            f"{held.name}{' (baseline)' if letter == _BASELINE else ''}",
            _devices(held),
            held.rows,
            held.configurations,
        )
        for letter, held in sides
    ]
    console.print(table("sides", columns, lines, right=columns[3:]))


def _devices(held: Held) -> str:
    types = sorted({device.type for device in held.devices})
    hosts = sorted({device.host for device in held.devices})
    return f"{len(held.devices):,} x {some_of(types, most=3)} on {some_of(hosts, most=3)}"


def _print_overall(sides: Sequence[tuple[str, Beside]], tie: float) -> None:
    columns = ["", "shared", "shapes", "time", "TFLOP/s", "power", "energy"]
    lines = [
        (f"{letter} / {_BASELINE}", f.configurations, f.shapes, *map(_ratio, (f.time, f.tflops, f.power, f.energy)))
        for letter, f in ((letter, side.overall) for letter, side in sides)
    ]
    title = "median ratio over shapes (95% interval)"
    console.print(table(title, columns, lines, right=columns[1:], whole=columns))
    columns = ["", "faster", "tie", "slower", "unsure", f"{_BASELINE} reaches", "it reaches"]
    lines_of_verdicts = [
        (
            letter, f.faster, f.ties, f.slower, f.unsure,
            _percent(f.baseline_roofline), _percent(f.roofline),
        )
        for letter, f in ((letter, side.overall) for letter, side in sides)
    ]  # fmt: skip
    title = f"configurations by time (a tie is within {100 * tie:g}%), and median share of the roofline"
    console.print(table(title, columns, lines_of_verdicts, right=columns[1:]))


def _print_costs(sides: Sequence[tuple[str, Beside]]) -> None:
    lines = [
        (f"{letter} / {_BASELINE}", what, cost.baseline, cost.side, _interval(cost), cost.configurations)
        for letter, side in sides
        for what, cost in (("money", side.money), ("g CO2", side.carbon))
        if cost is not None
    ]
    columns = ["", "per PFLOP", _BASELINE, "side", "ratio", "configurations"]
    if lines:
        console.print(
            table("cost of 1e15 operations, of every shared configuration once", columns, lines, right=columns[2:])
        )


def _print_groups(letter: str, side: Beside) -> None:
    columns = ["", "shared,\nshapes", "time", "power", "energy", "faster / tie /\nslower / unsure"]
    lines = [
        (label, f"{f.configurations:,}\n{f.shapes:,}", *map(_ratio, (f.time, f.power, f.energy)), _verdicts(f))
        for grouped in (side.by_type, side.by_size, side.by_bound)
        for label, f in grouped.items()
    ]
    what = f"type, size, and bound on {_BASELINE}" if side.by_bound else "type and size"
    console.print(table(f"{letter} / {_BASELINE} by {what}", columns, lines, right=columns[1:], whole=columns))


def _verdicts(figures: Figures) -> str:
    counts = (figures.faster, figures.ties, figures.slower, figures.unsure)
    return " / ".join(f"{count:,}" for count in counts[:2]) + " /\n" + " / ".join(f"{count:,}" for count in counts[2:])


def _print_top(letter: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["configuration", f"{_BASELINE} ms", f"{letter} ms", "ratio", ""]
    lines = [
        (configuration_text(row), row["baseline_runtime_ms"], row["runtime_ms"], row["time_ratio"], row["verdict"])
        for row in rows
    ]
    console.print(table(f"{letter} / {_BASELINE}: what differs most in time", columns, lines, right=columns[1:4]))


def _ratio(ratio: Ratio | None) -> str | None:
    if ratio is None:
        return None
    return f"{_factor(ratio.ratio)}\n{_between(ratio.low, ratio.high)}"


def _interval(cost: Cost) -> str | None:
    return None if cost.ratio is None else f"{_factor(cost.ratio)}  {_between(cost.low, cost.high)}"


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_factor(low)}–{_factor(high)}"


def _factor(value: float) -> str:
    """Four digits, as differences of a tenth of a percent are seen."""
    return f"{value:.4f}" if value < 10 else f"{value:.4g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f}%"
