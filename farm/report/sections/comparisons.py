"""Comparisons of devices, and of the model with what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from farm.both_times import protocol_text
from farm.charts.chart import Figure
from farm.compare.comparison import Comparison
from farm.compare.summaries import Ratio, RatioSummary
from farm.formatting import counted
from farm.protocols import ProtocolName
from farm.registry import ERRORS, Metrics, ModelInfo
from farm.registry.evaluations import FOLDS_ARE, in_order, kind_name
from farm.report.accuracy import Accuracy
from farm.report.document import Cell, Section, Table
from farm.report.figures.comparison_charts import QUANTITIES, errors_pct, parities, ratios, short_names
from farm.report.report_data import CampaignData
from farm.report.result_points import Results


def comparison(data: CampaignData) -> Section:
    comparisons = data.comparisons
    return Section(
        name="devices",
        title="Comparison of devices",
        about=(
            "On the configurations that a device or type shares with the baseline: medians over shapes of the ratio to it, with "
            "95% intervals over shapes. A ratio of time above 1 is slower. Faster, tie, slower and unsure count configurations; a "
            "difference of up to 1% is a tie. farm compare shows more, and explains the counts."
        ),
        sentences=[
            *(_shortened(one, note) for one in comparisons for note in one.notes),
            *(data.not_compared if comparisons else ()),
        ],
        charts=[ratios(one) for one in comparisons],
        tables=[_table(one) for one in comparisons],
        why_empty=None if comparisons else " ".join(data.not_compared),
        data=[
            {
                "baseline": one.baseline.name,
                "notes": list(one.notes),
                "sides": [
                    {"name": group.name, "overall": asdict(group.overall)}
                    for group in one.groups
                    if group.overall is not None
                ],
            }
            for one in comparisons
        ]
        or None,
    )


def _shortened(one: Comparison, text: str) -> str:
    for name, short in short_names(one).items():
        text = text.replace(name, short)
    return text


def _table(one: Comparison) -> Table:
    short = short_names(one)
    columns = [
        "group",
        "shared",
        "time",
        "burst time",
        "TFLOP/s",
        "power",
        "energy",
        "faster",
        "tie",
        "slower",
        "unsure",
    ]
    rows = [_row(group.name, group.overall, short) for group in one.groups if group.overall is not None]
    if not any(group.overall.burst for group in one.groups if group.overall is not None):
        at = columns.index("burst time")
        columns, rows = _without(columns, at), [_without(row, at) for row in rows]
    return Table(
        caption=f"Compared with {short[one.baseline.name]}: ratios of medians over shapes (95% interval)",
        columns=columns,
        rows=rows,
    )


def _row(name: str, of: RatioSummary, short: Mapping[str, str]) -> Sequence[Any]:
    return (
        Cell(short[name], title=name), of.configurations, _ratio(of.time), _ratio(of.burst), _ratio(of.tflops), _ratio(of.power),
        _ratio(of.energy), of.faster, of.ties, of.slower, of.unsure,
    )  # fmt: skip


def _without(cells: Sequence[Any], at: int) -> list[Any]:
    return [*cells[:at], *cells[at + 1 :]]


def _ratio(ratio: Ratio | None) -> Cell | None:
    if ratio is None:
        return None
    interval = "" if ratio.low is None else f" ({ratio.low:.3f} – {ratio.high:.3f})"
    return Cell(f"{ratio.ratio:.3f}{interval}", ratio.ratio)


def accuracy(data: CampaignData) -> Section:
    known = [(one, one.model) for one in data.accuracies if one.model is not None]
    charts = list[Figure]()
    for one, _ in known:
        if one.predicted is not None:
            charts += parities(data.results, one.device_type, one.predicted, one.learned)
    missing = [one.why for one in data.accuracies if one.model is None and one.why is not None]
    return Section(
        name="model",
        title="Accuracy of the model",
        about=(
            "The champion of each device type in the registry: the errors of its own evaluation, on the independent test set where "
            f"there is one and on folds ({FOLDS_ARE}), and its predictions compared with what this campaign measured. Predictions "
            "of configurations that it was trained on do not show its accuracy on others; the folds do."
        ),
        sentences=[*(_sentence(one, model) for one, model in known), *(missing if known else ()), *_on_protocols(data)],
        charts=charts,
        tables=[_evaluation(model, one.metrics) for one, model in known if one.metrics],
        why_empty=None if known else " ".join(missing) or "Nothing was measured that a model could be compared with.",
        data=[
            {"model": model.to_json(), "evaluation": one.metrics, "here": _errors(data.results, one)}
            for one, model in known
        ]
        or None,
    )


def _on_protocols(data: CampaignData) -> Iterator[str]:
    for protocol in sorted({origin.protocol for origin in data.origins} - {ProtocolName.FARM}):
        yield (
            f"Rows of this campaign were measured by the protocol {protocol_text(protocol)}. If the model learned from rows of "
            "another protocol, its errors here contain the difference between both."
        )


def _sentence(one: Accuracy, model: ModelInfo) -> str:
    learned = [f"{model.rows:,} rows"] if model.rows is not None else []
    learned += [f"{model.configurations:,} configurations"] if model.configurations is not None else []
    text = f"{model.name} version {model.version}, of {model.created_at:%Y-%m-%d %H:%M} UTC"
    if learned:
        text += f", was trained on {' and '.join(learned)}" + (f" ({model.sources})" if model.sources else "")
    text += "."
    if one.learned is not None:
        among = int(one.learned.sum())
        text += f" {counted(among, 'configuration')} of this campaign {'is' if among == 1 else 'are'} among them."
    if model.sound is False:
        text += " It is not sound: it is no better than a baseline, or learned from what it was judged on."
    return text if one.why is None else f"{text} {one.why}"


def _evaluation(model: ModelInfo, metrics: Metrics) -> Table:
    columns = ["held out", "target", *ERRORS.values(), "R²"]
    return Table(
        caption=f"{model.name} version {model.version}: errors of its own evaluation",
        columns=columns,
        rows=[
            (kind_name(kind), target, *(errors.get(name) for name in ERRORS), errors.get("r2"))
            for kind, targets in in_order(metrics).items()
            for target, errors in targets.items()
        ],
    )


def _errors(results: Results, one: Accuracy) -> dict[str, Any]:
    """By target the median error on this campaign, of what the model learned from and of what it did not."""
    if one.predicted is None:
        return {}
    of_type = results.type == results.types.index(one.device_type)
    found = dict[str, Any]()
    for target in QUANTITIES:
        measured = getattr(results, target)
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
