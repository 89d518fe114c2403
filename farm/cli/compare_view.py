"""The presenter of a comparison on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rich.markup import escape

from farm.api.comparing import Compared
from farm.both_times import burst_apart
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
from farm.protocols import ProtocolName
from farm.registry import CHAMPION

_BASELINE = ascii_uppercase[0]


def show(found: Compared, *, filled: bool, every_note: bool = False) -> None:
    """Prints a comparison. Groups get letters, because their names may be long; the baseline is A.

    Args:
        found: the comparison.
        filled: missing measurements were submitted.
        every_note: print minor notes too, instead of one line about them.
    """
    named = list(zip(ascii_uppercase[1:], found.sides, strict=False))
    every = [(_BASELINE, found.baseline), *named]
    _print_summaries(every)
    measured: list[tuple[str, Findings]] = [(letter, one) for letter, one in named if one.overall is not None]
    predicted: list[tuple[str, Findings]] = [
        (letter, one.predicted) for letter, one in named if one.predicted is not None
    ]
    for label, groups in (("", measured), (_PREDICTED, predicted)):
        if not groups:
            continue
        if groups is predicted:
            _print_forecasts(every, named)
        _print_overall(groups, found, label)
        _print_costs(groups, label)
        for letter, one in groups:
            _print_breakdowns(letter, one, found, label)
            if one.top:
                _print_top(letter, one.top, label)
    for note in (*found.notes, *(found.minor_notes if every_note else ())):
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if found.minor_notes and not every_note:
        about = some_of([note.partition(":")[0] for note in found.minor_notes], limit=4)
        many = f"{len(found.minor_notes)} more note{'s' if len(found.minor_notes) > 1 else ''}"
        console.print(f"{many} on versions ({escape(about)}). To show them: [bold]--notes[/]", soft_wrap=True)
    shown = [
        ratios for _, one in (*measured, *predicted) for ratios in (one.overall, *_breakdowns(one).values()) if ratios
    ]
    if any(ratios.shapes < MIN_SHAPES for ratios in shown):
        remarks.print(f"Fewer than {MIN_SHAPES} shapes have no interval (–).")
    if not filled and any(summary.missing for _, summary in every):
        ask = "" if found.predicting else ", [bold]--predict[/] predicts it"
        remarks.print(f"[bold]--fill[/] submits what is missing{ask}.")


_PREDICTED = "PREDICTED: "


def _breakdowns(one: Findings) -> dict[str, RatioSummary]:
    """Ratios by type, size and bound, by their labels."""
    return {**one.by_type, **one.by_size, **one.by_bound}


_SUMMARIES = Table(
    "groups",
    Column(""),
    Column("group", folds=True),
    Column("devices", folds=True, priority=2),
    Column("protocol", folds=True, priority=3),
    Column("rows", number=True, priority=1),
    Column("configurations", number=True),
    Column("missing", number=True),
)


def _print_summaries(groups: Sequence[tuple[str, GroupSummary]]) -> None:
    _SUMMARIES.print(
        [
            (
                letter, f"{one.name}{' (baseline)' if letter == _BASELINE else ''}", _devices(one) if one.devices else None,
                ", ".join(one.protocols) or None, one.rows, one.configurations, one.missing,
            )
            for letter, one in groups
        ],
        title="groups",
        without=["protocol"] if all(set(one.protocols) <= {ProtocolName.FARM} for _, one in groups) else [],
    )  # fmt: skip


def _print_forecasts(every: Sequence[tuple[str, GroupSummary]], named: Sequence[tuple[str, GroupComparison]]) -> None:
    """Prints which pairs have one predicted value, and which model predicted it."""
    for letter, side in named:
        if side.predicted is None or side.predicted.overall is None:
            continue
        figures, measured = side.predicted.overall, side.overall
        total = figures.configurations + (0 if measured is None else measured.configurations)
        whose = [
            f"{count:,} of {of} by {_champion(forecast)}"
            for of, count in ((_BASELINE, side.predicted.baseline_predicted), (letter, side.predicted.side_predicted))
            if count and (forecast := dict(every)[of].forecast) is not None
        ]
        console.print(
            f"Of {total:,} pairs of {letter} and {_BASELINE}, {figures.configurations:,} have one predicted "
            f"value: {', '.join(whose)}.",
            markup=False,
        )
    models = {f"{f.model} v{f.version}": f for _, summary in every if (f := summary.forecast) is not None}
    for name, forecast in models.items():
        console.print(f"training data of {name}", markup=False)
        for line in forecast.conditions.lines() if forecast.conditions is not None else ["conditions: unknown"]:
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _champion(forecast: ForecastSummary) -> str:
    off = "" if forecast.error_pct is None else f" (90% of its errors are within ±{forecast.error_pct:.2g}%)"
    label = "" if forecast.standing == CHAMPION else f" ({forecast.standing.upper()}, not the champion)"
    return f"{forecast.model} v{forecast.version}{label}{off}"


def _devices(summary: GroupSummary) -> str:
    types = sorted({device.type for device in summary.devices})
    hosts = sorted({device.host for device in summary.devices})
    return f"{len(summary.devices):,} x {some_of(types, limit=3)} on {some_of(hosts, limit=3)}"


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
    *_ratio_columns(**{"{compared}": 0, "burst": 1, "TFLOP/s": 3, "power": 1, "energy": 2}),
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


def _print_overall(groups: Sequence[tuple[str, Findings]], found: Compared, label: str) -> None:
    figured = [(letter, one.overall) for letter, one in groups if one.overall is not None]
    lines = [
        (
            f"{letter} / {_BASELINE}",
            f.configurations,
            f.shapes,
            *_ratio_cells(f.time, f.burst, f.tflops, f.power, f.energy),
        )
        for letter, f in figured
    ]
    bounds = f", with the model's {BOUNDS_CONFIDENCE:.0%} bounds" if label else ""
    title = f"{label}median ratio over shapes (95% interval{bounds})"
    names = {"pairs": "predicted" if label else "shared", "compared": found.time_name}
    _OVERALL.print(lines, title=title, names=names, without=_without_burst([f for _, f in figured]))
    lines_of_verdicts = [
        (letter, f.faster, f.ties, f.slower, f.unsure, _percent(f.baseline_roofline), _percent(f.roofline))
        for letter, f in figured
    ]
    title = f"{label}configurations by time (a tie is within {100 * found.tie:g}%), and median share of the roofline"
    _VERDICTS.print(lines_of_verdicts, title=title, names={"baseline": _BASELINE})


def _without_burst(shown: Sequence[RatioSummary]) -> list[str]:
    """The columns to leave out where no burst time differs from the compared one."""
    return [] if any(ratios.burst is not None for ratios in shown) else ["burst", "burst 95%"]


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


def _print_costs(groups: Sequence[tuple[str, Findings]], label: str) -> None:
    lines = [
        (
            f"{letter} / {_BASELINE}", of, cost.baseline, cost.side,
            *((None, None) if cost.ratio is None else (_factor(cost.ratio), _between(cost.low, cost.high))),
            cost.configurations,
        )
        for letter, one in groups
        for of, cost in (("money", one.money_per_pflop), ("g CO2", one.co2_g_per_pflop))
        if cost is not None
    ]  # fmt: skip
    title = f"{label}cost of 1e15 operations, of every {'predicted' if label else 'shared'} configuration once"
    if lines:
        _COSTS.print(lines, title=title, names={"baseline": _BASELINE})


_BREAKDOWNS = Table(
    "ratios by group",
    Column("", folds=True),
    Column("{pairs}", number=True, priority=4),
    Column("shapes", number=True, priority=3),
    *_ratio_columns(**{"{compared}": 0, "burst": 1, "power": 1, "energy": 2}),
    Column("faster", number=True, priority=2),
    Column("tie", number=True, priority=3),
    Column("slower", number=True, priority=2),
    Column("unsure", number=True, priority=3),
)


def _print_breakdowns(letter: str, one: Findings, found: Compared, label: str) -> None:
    lines = [
        (
            name, f.configurations, f.shapes, *_ratio_cells(f.time, f.burst, f.power, f.energy),
            f.faster, f.ties, f.slower, f.unsure,
        )
        for name, f in _breakdowns(one).items()
    ]  # fmt: skip
    by = f"type, size, and bound on {_BASELINE}" if one.by_bound else "type and size"
    names = {"pairs": "predicted" if label else "shared", "compared": found.time_name}
    without = _without_burst([*_breakdowns(one).values()])
    _BREAKDOWNS.print(lines, title=f"{label}{letter} / {_BASELINE} by {by}", names=names, without=without)


_TOP = Table(
    "largest differences",
    Column("configuration", folds=True),
    Column("{baseline}", "ms", number=True),
    Column("{side}", "ms", number=True),
    Column("ratio", number=True),
    Column("{baseline} burst", "ms", number=True, priority=2),
    Column("{side} burst", "ms", number=True, priority=2),
    Column("verdict", folds=True, priority=1),
    sparse=True,
)


def _print_top(letter: str, rows: Sequence[Mapping[str, Any]], label: str) -> None:
    lines = [
        (
            configuration_text(row),
            _marked(row["baseline_runtime_ms"], row["baseline_predicted"]),
            _marked(row["runtime_ms"], row["predicted"]),
            row["time_ratio"],
            burst_apart(row["baseline_runtime_burst_ms"], row["baseline_runtime_ms"]),
            burst_apart(row["runtime_burst_ms"], row["runtime_ms"]),
            row["verdict"],
        )
        for row in rows
    ]
    title = f"{label}{letter} / {_BASELINE}: largest differences in time"
    _TOP.print(lines, title=title, names={"baseline": _BASELINE, "side": letter})


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_factor(low)}–{_factor(high)}"


def _factor(value: float) -> str:
    """Four digits, as differences of a tenth of a percent are seen."""
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
    Column("in progress", number=True, priority=2),
    Column("jobs", number=True),
    Column("campaign", folds=True),
    Column("device time, at most", number=True, priority=1),
)


def show_fills(fills: Sequence[FillSummary]) -> None:
    """Prints what was submitted for each group, and why other configurations were not."""
    if not fills:
        console.print("No group lacks configurations of another group, so nothing is submitted.")
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
    _FILLS.print(lines, title="missing configurations")
    for one in fills:
        for line in _remarks_on(one):
            console.print(line, markup=False, soft_wrap=True)
    submitted = [one.campaign for one in fills if one.campaign]
    if submitted:
        remarks.print(f"To follow it: [bold]farm watch {escape(submitted[0])}[/]")


def _remarks_on(one: FillSummary) -> list[str]:
    lines = [f"{one.side} is not filled: {one.why_not}."] if one.why_not else []
    if one.campaign and not one.new:
        lines.append(f"{one.campaign} is known already; {one.new_jobs:,} jobs are new.")
    lines += [f"{one.side}: {count:,} are in progress in {name}." for name, count in one.underway.items()]
    lines += [f"{one.side} cannot run {group.count:,}: {group.reason}." for group in one.left_out]
    return [*lines, *one.notes]
