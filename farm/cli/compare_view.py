"""Prints a comparison on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rich.markup import escape

from farm.api.comparing import Compared
from farm.cli.output import configuration_text, console, remarks
from farm.cli.tables import Column, Table
from farm.compare.money import MIN_SHAPES
from farm.compare.statistics import BOUNDS_CONFIDENCE
from farm.compare.summaries import (
    FillSummary,
    Findings,
    ForecastSummary,
    GroupComparison,
    GroupSummary,
    Ratio,
    RatioSummary,
)
from farm.formatting import seconds_text, some_of
from farm.registry import CHAMPION

_BASELINE = ascii_uppercase[0]


def show(found: Compared, *, filled: bool, every_note: bool = False) -> None:
    """Groups get letters, because their names may be long; the baseline is A.

    Args:
        filled: Whether the missing configurations were submitted.
        every_note: Print the minor notes too, instead of one line about them.
    """
    letters = dict(zip((group.name for group in found.sides), ascii_uppercase[1:], strict=False))
    named = [(letters[group.name], group) for group in found.sides]
    every = [(_BASELINE, found.baseline), *((letter, group) for letter, group in named)]
    _print_groups_table(every)
    measured: list[tuple[str, Findings]] = [(letter, group) for letter, group in named if group.overall is not None]
    predicted: list[tuple[str, Findings]] = [
        (letter, group.predicted) for letter, group in named if group.predicted is not None
    ]
    if measured:
        _print_overall(measured, found.tie, what="")
    _print_costs(measured, what="")
    for letter, one in measured:
        _print_groups(letter, one, what="")
        if one.top:
            _print_top(letter, one.top, what="")
    if predicted:
        _print_forecasts(every, named)
        _print_overall(predicted, found.tie, what=_PREDICTED)
        _print_costs(predicted, what=_PREDICTED)
        for letter, one in predicted:
            _print_groups(letter, one, what=_PREDICTED)
            if one.top:
                _print_top(letter, one.top, what=_PREDICTED)
    for note in (*found.notes, *(found.minor_notes if every_note else ())):
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if found.minor_notes and not every_note:
        about = some_of([note.partition(":")[0] for note in found.minor_notes], most=4)
        many = f"{len(found.minor_notes)} more note{'s' if len(found.minor_notes) > 1 else ''}"
        console.print(f"{many} on versions ({escape(about)}): [bold]--notes[/] shows them.", soft_wrap=True)
    shown = [f for _, one in (*measured, *predicted) for f in (one.overall, *_figures_of_groups(one)) if f is not None]
    if any(figures.shapes < MIN_SHAPES for figures in shown):
        remarks.print(f"Fewer than {MIN_SHAPES} shapes have no interval (–).")
    if not filled and any(summary.missing for _, summary in every):
        asks = "" if found.predicting else ", [bold]--predict[/] asks models for it"
        remarks.print(f"[bold]--fill[/] submits what is missing{asks}.")


_PREDICTED = "PREDICTED: "


def _figures_of_groups(one: Findings) -> list[RatioSummary]:
    return [figures for grouped in (one.by_type, one.by_size, one.by_bound) for figures in grouped.values()]


_GROUP_SUMMARIES = Table(
    "groups",
    Column(""),
    Column("group", folds=True),
    Column("devices", folds=True, priority=2),
    Column("rows", number=True, priority=1),
    Column("configurations", number=True),
    Column("missing", number=True),
)


def _print_groups_table(groups: Sequence[tuple[str, GroupSummary]]) -> None:
    lines = [
        (
            letter,
            f"{summary.name}{' (baseline)' if letter == _BASELINE else ''}",
            _devices(summary) if summary.devices else None,
            summary.rows,
            summary.configurations,
            summary.missing,
        )
        for letter, summary in groups
    ]
    _GROUP_SUMMARIES.print(lines, title="groups")


def _print_forecasts(every: Sequence[tuple[str, GroupSummary]], named: Sequence[tuple[str, GroupComparison]]) -> None:
    """Prints how many pairs have a predicted figure, and by which model."""
    for letter, group in named:
        if group.predicted is None or group.predicted.overall is None:
            continue
        figures, measured = group.predicted.overall, group.overall
        total = figures.configurations + (0 if measured is None else measured.configurations)
        summary = dict(every)
        whose = [
            f"{count:,} of {of} by {_champion(forecast)}"
            for of, count in ((_BASELINE, group.predicted.baseline_predicted), (letter, group.predicted.side_predicted))
            if count and (forecast := summary[of].forecast) is not None
        ]
        console.print(
            f"Of {total:,} pairs of {letter} and {_BASELINE}, {figures.configurations:,} have one figure that is "
            f"predicted: {', '.join(whose)}.",
            markup=False,
        )
    models = {f"{f.model} v{f.version}": f for _, summary in every if (f := summary.forecast) is not None}
    for name, forecast in models.items():
        console.print(f"{name} learned from", markup=False)
        for line in forecast.conditions.lines() if forecast.conditions is not None else ["conditions: unknown"]:
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _champion(forecast: ForecastSummary) -> str:
    off = "" if forecast.error_pct is None else f" (± {forecast.error_pct:.2g}% holds nine of ten)"
    label = "" if forecast.standing == CHAMPION else f" ({forecast.standing.upper()}, not the champion)"
    return f"{forecast.model} v{forecast.version}{label}{off}"


def _devices(summary: GroupSummary) -> str:
    types = sorted({device.type for device in summary.devices})
    hosts = sorted({device.host for device in summary.devices})
    return f"{len(summary.devices):,} x {some_of(types, most=3)} on {some_of(hosts, most=3)}"


def _ratio_columns(**priorities: int) -> list[Column]:
    """A ratio and its interval, for each of these quantities; intervals are left out before ratios."""
    return [
        Column(heading.format(name), number=True, priority=priority + further)
        for name, priority in priorities.items()
        for heading, further in (("{}", 0), ("{} 95%", 4))
    ]


def _ratio_cells(*ratios: Ratio | None) -> list[str | None]:
    return [
        cell
        for ratio in ratios
        for cell in (
            (None, None) if ratio is None else (_factor(ratio.ratio), _between(ratio.low, ratio.high))
        )
    ]  # fmt: skip


_OVERALL = Table(
    "overall ratios",
    Column(""),
    Column("{pairs}", number=True, priority=4),
    Column("shapes", number=True, priority=3),
    *_ratio_columns(**{"time": 0, "TFLOP/s": 3, "power": 1, "energy": 2}),
)

_VERDICTS = Table(
    "verdicts",
    Column(""),
    Column("faster", number=True),
    Column("tie", number=True),
    Column("slower", number=True),
    Column("unsure", number=True),
    Column("{baseline} reaches", number=True, priority=1),
    Column("it reaches", number=True, priority=1),
)


def _print_overall(groups: Sequence[tuple[str, Findings]], tie: float, *, what: str) -> None:
    """`what` is the start of the titles."""
    figured = [(letter, one.overall) for letter, one in groups if one.overall is not None]
    lines = [
        (f"{letter} / {_BASELINE}", f.configurations, f.shapes, *_ratio_cells(f.time, f.tflops, f.power, f.energy))
        for letter, f in figured
    ]
    bounds = f", with the model's {BOUNDS_CONFIDENCE:.0%} bounds" if what else ""
    title = f"{what}median ratio over shapes (95% interval{bounds})"
    _OVERALL.print(lines, title=title, names={"pairs": "predicted" if what else "shared"})
    lines_of_verdicts = [
        (letter, f.faster, f.ties, f.slower, f.unsure, _percent(f.baseline_roofline), _percent(f.roofline))
        for letter, f in figured
    ]
    title = f"{what}configurations by time (a tie is within {100 * tie:g}%), and median share of the roofline"
    _VERDICTS.print(lines_of_verdicts, title=title, names={"baseline": _BASELINE})


_COSTS = Table(
    "costs",
    Column(""),
    Column("per PFLOP"),
    Column("{baseline}", number=True),
    Column("group", number=True),
    Column("ratio", number=True),
    Column("95%", number=True, priority=1),
    Column("configurations", number=True, priority=2),
)


def _print_costs(groups: Sequence[tuple[str, Findings]], *, what: str) -> None:
    lines = [
        (
            f"{letter} / {_BASELINE}", of, cost.baseline, cost.side,
            *((None, None) if cost.ratio is None else (_factor(cost.ratio), _between(cost.low, cost.high))),
            cost.configurations,
        )
        for letter, group in groups
        for of, cost in (("money", group.money_per_pflop), ("g CO2", group.co2_g_per_pflop))
        if cost is not None
    ]  # fmt: skip
    title = f"{what}cost of 1e15 operations, of every {'predicted' if what else 'shared'} configuration once"
    if lines:
        _COSTS.print(lines, title=title, names={"baseline": _BASELINE})


_GROUPS = Table(
    "ratios by group",
    Column("", folds=True),
    Column("{pairs}", number=True, priority=4),
    Column("shapes", number=True, priority=3),
    *_ratio_columns(time=0, power=1, energy=2),
    Column("faster", number=True, priority=2),
    Column("tie", number=True, priority=3),
    Column("slower", number=True, priority=2),
    Column("unsure", number=True, priority=3),
)


def _print_groups(letter: str, group: Findings, *, what: str) -> None:
    lines = [
        (
            label, f.configurations, f.shapes, *_ratio_cells(f.time, f.power, f.energy),
            f.faster, f.ties, f.slower, f.unsure,
        )
        for grouped in (group.by_type, group.by_size, group.by_bound)
        for label, f in grouped.items()
    ]  # fmt: skip
    by = f"type, size, and bound on {_BASELINE}" if group.by_bound else "type and size"
    names = {"pairs": "predicted" if what else "shared"}
    _GROUPS.print(lines, title=f"{what}{letter} / {_BASELINE} by {by}", names=names)


_TOP = Table(
    "largest differences",
    Column("configuration", folds=True),
    Column("{baseline}", "ms", number=True),
    Column("{side}", "ms", number=True),
    Column("ratio", number=True),
    Column("verdict", folds=True, priority=1),
)


def _print_top(letter: str, rows: Sequence[Mapping[str, Any]], *, what: str) -> None:
    lines = [
        (
            configuration_text(row),
            _marked(row["baseline_runtime_ms"], row["baseline_predicted"]),
            _marked(row["runtime_ms"], row["predicted"]),
            row["time_ratio"],
            row["verdict"],
        )
        for row in rows
    ]
    title = f"{what}{letter} / {_BASELINE}: what differs most in time"
    _TOP.print(lines, title=title, names={"baseline": _BASELINE, "side": letter})


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_factor(low)}–{_factor(high)}"


def _factor(value: float) -> str:
    """Four digits, which show a difference of a tenth of a percent."""
    return f"{value:.4f}" if value < 10 else f"{value:.4g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f}%"


def _marked(value: float, predicted: bool) -> float | str:
    """A time, marked where it is predicted."""
    return f"{value:.4g} (predicted)" if predicted else value


_FILLS = Table(
    "fills",
    Column("group", folds=True),
    Column("missing", number=True),
    Column("cannot run", number=True, priority=1),
    Column("under way", number=True, priority=2),
    Column("jobs", number=True),
    Column("campaign", folds=True),
    Column("device time, at most", number=True, priority=1),
)


def show_fills(fills: Sequence[FillSummary]) -> None:
    """Prints what was submitted for each group, and why other configurations were not."""
    if not fills:
        console.print("No group lacks anything that another one has: nothing is submitted.")
        return
    lines = [
        (
            one.side,
            one.missing,
            *(3 * [None] if one.why_not else [one.cannot_run, sum(one.underway.values()), one.jobs]),
            one.campaign,
            seconds_text(sum(one.estimated_seconds.values())) if one.campaign else None,
        )
        for one in fills
    ]
    _FILLS.print(lines, title="filling what is missing")
    for one in fills:
        for line in _fill_lines(one):
            console.print(line, markup=False, soft_wrap=True)
    submitted = [one.campaign for one in fills if one.campaign]
    if submitted:
        remarks.print(f"[bold]farm watch {escape(submitted[0])}[/] follows it.")


def _fill_lines(one: FillSummary) -> list[str]:
    lines = [f"{one.side} is not filled: {one.why_not}."] if one.why_not else []
    if one.campaign and not one.new:
        lines.append(f"{one.campaign} is known already; {one.new_jobs:,} jobs are new.")
    lines += [f"{one.side}: {count:,} are under way in {name}." for name, count in one.underway.items()]
    lines += [f"{one.side} cannot run {reason.count:,}: {reason.reason}." for reason in one.left_out]
    return [*lines, *one.notes]
