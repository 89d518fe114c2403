"""Devices beside each other, and the model beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from farm.charts.description import Figure
from farm.compare.comparison import Comparison
from farm.compare.summaries import Ratio, RatioSummary
from farm.registry import ERRORS
from farm.registry.evaluations import FOLDS_ARE, in_order, kind_name
from farm.report.accuracy import Accuracy
from farm.report.document import Cell, Section, Table
from farm.report.figures.comparison import QUANTITIES, errors_pct, parities, ratios, short_sides
from farm.report.figures.labelled import LabelledResults, counted


def comparison(comparisons: Sequence[Comparison], why: Sequence[str]) -> Section:
    """`why` says what could not be compared."""
    return Section(
        name="devices",
        title="Devices beside each other",
        about=(
            "On the configurations that a device or type shares with the baseline: medians over shapes of the ratio to it, with "
            "95% intervals over shapes. A ratio of time above 1 is slower. Faster, tie, slower and unsure count configurations, a "
            "tie being 1%. farm compare has more of it, and says how it counts."
        ),
        says=[*(_shortened(one, note) for one in comparisons for note in one.notes), *(why if comparisons else ())],
        charts=[ratios(one) for one in comparisons],
        tables=[_table(one) for one in comparisons],
        nothing=None if comparisons else " ".join(why),
        figures=[
            {
                "baseline": one.baseline.name,
                "notes": list(one.notes),
                "sides": [
                    {"name": side.name, "overall": asdict(side.overall)}
                    for side in one.groups
                    if side.overall is not None
                ],
            }
            for one in comparisons
        ]
        or None,
    )


def _shortened(one: Comparison, text: str) -> str:
    for name, short in short_sides(one).items():
        text = text.replace(name, short)
    return text


def _table(one: Comparison) -> Table:
    short = short_sides(one)
    columns = ["side", "shared", "time", "TFLOP/s", "power", "energy", "faster", "tie", "slower", "unsure"]
    return Table(
        caption=f"Beside {short[one.baseline.name]}: ratios of medians over shapes (95% interval)",
        columns=columns,
        rows=[_row(side.name, side.overall, short) for side in one.groups if side.overall is not None],
        numbers=frozenset(columns[1:]),
    )


def _row(name: str, of: RatioSummary, short: Mapping[str, str]) -> Sequence[Any]:
    return (
        Cell(short[name], title=name), of.configurations, _ratio(of.time), _ratio(of.tflops), _ratio(of.power), _ratio(of.energy),
        of.faster, of.ties, of.slower, of.unsure,
    )  # fmt: skip


def _ratio(ratio: Ratio | None) -> Cell | None:
    if ratio is None:
        return None
    interval = "" if ratio.low is None else f" ({ratio.low:.3f} – {ratio.high:.3f})"
    return Cell(f"{ratio.ratio:.3f}{interval}", ratio.ratio)


def accuracy(labelled: LabelledResults, found: Sequence[Accuracy]) -> Section:
    charts, tables, says, figures = list[Figure](), list[Table](), list[str](), list[dict[str, Any]]()
    for one in found:
        if one.model is None:
            continue
        says.append(_said(one))
        if one.metrics:
            tables.append(_evaluation(one))
        if one.predicted is not None:
            charts += parities(labelled, one.device_type, one.predicted, one.learned)
        figures.append({"model": one.model.to_json(), "evaluation": one.metrics, "here": _errors(labelled, one)})
    missing = [one.why for one in found if one.model is None and one.why is not None]
    return Section(
        name="model",
        title="Accuracy of the model",
        about=(
            "The champion of each device type in the registry: the errors of its own evaluation, on the independent "
            f"test set where there is one and on folds ({FOLDS_ARE}), "
            "and its predictions beside what this campaign measured. Of configurations that it was trained on, predictions say "
            "nothing about others; the folds do."
        ),
        says=[*says, *(missing if figures else ())],
        charts=charts,
        tables=tables,
        nothing=None if figures else " ".join(missing) or "Nothing was measured that a model could be held against.",
        figures=figures or None,
    )


def _said(one: Accuracy) -> str:
    model = one.model
    assert model is not None
    learned = [f"{model.rows:,} rows"] if model.rows is not None else []
    learned += [f"{model.configurations:,} configurations"] if model.configurations is not None else []
    text = f"{model.name} version {model.version}, of {model.created_at:%Y-%m-%d %H:%M} UTC"
    if learned:
        text += f", was trained on {' and '.join(learned)}" + (f" ({model.sources})" if model.sources else "")
    text += "."
    if one.learned is not None:
        text += f" {counted(int(one.learned.sum()), 'configuration')} of this campaign {'is' if one.learned.sum() == 1 else 'are'} among them."
    if model.sound is False:
        text += " It is not sound: it is no better than a baseline, or learned from what it was judged on."
    return text if one.why is None else f"{text} {one.why}"


def _evaluation(one: Accuracy) -> Table:
    assert one.model is not None
    assert one.metrics is not None
    rows = [
        (kind_name(kind), target, *(errors.get(name) for name in ERRORS), errors.get("r2"))
        for kind, targets in in_order(one.metrics).items()
        for target, errors in targets.items()
    ]
    columns = ["held out", "target", *ERRORS.values(), "R²"]
    return Table(
        caption=f"{one.model.name} version {one.model.version}: errors of its own evaluation",
        columns=columns,
        rows=rows,
        numbers=frozenset(columns[2:]),
    )


def _errors(labelled: LabelledResults, one: Accuracy) -> dict[str, Any]:
    """By target the median error on this campaign, of what the model learned from and of what it did not."""
    if one.predicted is None:
        return {}
    of_type = labelled.results.type == labelled.results.types.index(one.device_type)
    found = dict[str, Any]()
    for target in QUANTITIES:
        measured = getattr(labelled.results, target)
        points = of_type & np.isfinite(measured) & np.isfinite(one.predicted[target])
        kinds = {"all": points}
        if one.learned is not None:
            kinds |= {"trained_on": points & one.learned, "new": points & ~one.learned}
        found[target] = {
            name: {
                "configurations": int(of.sum()),
                "median_error_pct": float(np.median(errors_pct(measured[of], one.predicted[target][of]))),
            }
            for name, of in kinds.items()
            if of.any()
        }
    return found
