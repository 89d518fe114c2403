"""The model card: what a version is, how far to trust it, and why it is or is not the champion, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from farm.both_times import time_of
from farm.forest.burst import BURST_ROWS
from farm.forest.predictor import CLAIM
from farm.groups import Groups
from farm.registry import ERRORS, model_name
from farm.registry.models import TEST_SET
from farm.registry.outputs import UNITS, definitions
from trainer.folds import HEADLINE
from trainer.held_out import kinds_of
from trainer.learn import Learned, TableFacts
from trainer.promotion import Decision
from trainer.table import kernel_columns, vocabulary_of

_FOLDS = {
    TEST_SET: "an independent test set, drawn from the domain and never learned from: the number to quote",
    "unseen_shapes": "whole shapes were held out: interpolation inside the training table",
    "unseen_nk": "pairs (n, k) were held out, as of new weights",
    "unseen_m": "every m was held out, as of new batch sizes",
    "unseen_kernels": "families with their parameters were held out",
    "largest_tenth": "the tenth of the shapes with the most operations was held out: extrapolation",
    "another_card": "what one card alone measured was held out, card by card",
    "random_rows": "other kernels of the same shape were in training: flatters, and is what papers report",
}
_INSIDE = f"in the {CLAIM:.0%} interval, %"
_MAX_KINDS = 12


def model_card(
    facts: TableFacts,
    table: pd.DataFrame,
    learned: Learned,
    decision: Decision,
    *,
    code_version: str,
    campaign: str | None = None,
) -> str:
    """The card. Its first half fits into what MLflow keeps as a version's description."""
    name = model_name(facts.device_type)
    power = f"{facts.power_configurations:,} of them with power" if facts.power_configurations else "none with power"
    parts = [
        f"# {name}\n\nPredicts times, power, energy and TFLOP/s of one GEMM on `{facts.device_type}` from the raw "
        "columns of its configuration.",
        f"## Decision\n\n{'Became the champion' if decision.promoted else 'Did not become the champion'}: it "
        f"{decision.reason}.",
        "## Errors\n\n" + _errors(learned),
        "## What it predicts\n\n" + _outputs(facts),
        f"## Learned from\n\n{facts.rows:,} measurements of {facts.configurations:,} configurations ({power}) over "
        f"{facts.shapes:,} shapes, {_kernels(learned.configured)}{_devices(table)}. Sources: "
        f"{', '.join(facts.sources)}.{f' Trained for the campaign {campaign}.' if campaign else ''}\n\n"
        + _bullets(kinds_of(learned.configured))
        + _left_out(facts),
        "## How the rows were measured\n\n" + "\n".join(f"- {line}" for line in facts.conditions.lines()),
        "## When to trust it\n\n" + _trust(facts, learned),
        "## Load it\n\n```python\nimport mlflow\n\n"
        f'model = mlflow.pyfunc.load_model("models:/{name}@champion")  # or models:/{name}/VERSION\n```\n\n'
        f"Made by version {code_version} of the farm from the table `{facts.table_hash[:12]}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _errors(learned: Learned) -> str:
    rows = [
        (
            kind,
            target,
            f"{found['rows']:,.0f}",
            *(f"{found[number]:.2f}" for number in ERRORS),
            f"{found['coverage_pct']:.0f}" if "coverage_pct" in found else "–",
        )
        for kind, by_target in learned.metrics.items()
        for target, found in by_target.items()
        if set(ERRORS) <= set(found)
    ]
    meanings = [f"- `{kind}`: {_FOLDS[kind]}." for kind in learned.metrics if kind in _FOLDS]
    return (
        _table(("held out", "target", "configurations", *ERRORS.values(), _INSIDE), rows) + "\n\n" + "\n".join(meanings)
    )


def _outputs(facts: TableFacts) -> str:
    time = time_of(facts.protocol)
    rows = [(f"`{name}`", UNITS[name], text) for name, text in definitions(facts.protocol, time).items()]
    burst = f"{facts.burst_configurations:,} configurations have a burst time"
    if time == "burst":
        note = f"The times of the protocol {facts.protocol} are burst times: both columns are the same."
    elif time == "settled" and facts.burst_configurations >= BURST_ROWS:
        note = f"{burst}. Of kernels and types without one, `runtime_burst_ms` is NaN."
    elif time == "settled":
        note = f"`runtime_burst_ms` is NaN: {burst}, and a model needs {BURST_ROWS}."
    else:
        note = f"`runtime_burst_ms` is NaN: the times of the protocol {facts.protocol} are neither settled nor burst times."
    return _table(("column", "unit", "definition"), rows) + f"\n\n{note}"


def _trust(facts: TableFacts, learned: Learned) -> str:
    rows = learned.configured
    axes = ["m", "n", "k", *(["batch"] if rows["batch"].max() > 1 else [])]
    extents = ", ".join(f"{axis} {rows[axis].min():,} to {rows[axis].max():,}" for axis in axes) + _numbers_of_groups(
        rows
    )
    quoted = learned.metrics.get(TEST_SET, learned.metrics[HEADLINE]).get("runtime_ms", {})
    lines = [
        f"Inside the shapes it learned from ({extents}), and for kernels and types of the list above.",
        "It predicts any shape and any parameter, also far outside of the measured ones. The column `outside` names how far.",
        "It refuses families, types, scale factors, fused operations, groups, sparsity and layouts that it has not seen together.",
        _batches(rows),
        _added(rows),
        f"It predicts `{facts.device_type}` only, and no other card.",
    ]
    if quoted:
        lines.insert(
            1, f"One configuration in ten is more than {quoted['p90_error_pct']:.2g}% off in time, even there."
        )
    if not facts.power_configurations:
        lines.append("Power and energy are NaN: power was never measured.")
    if facts.sources != ["measured"]:
        lines.append("Some rows were not measured by this farm: see the sources.")
    return "\n".join(f"- {line}" for line in lines)


def _numbers_of_groups(rows: pd.DataFrame) -> str:
    read = (Groups.parse(text) for text in rows["groups"].unique())
    numbers = [len(groups.sizes) for groups in read if groups is not None]
    return f", {min(numbers):,} to {max(numbers):,} groups" if numbers else ""


def _batches(rows: pd.DataFrame) -> str:
    return (
        "It predicts batches only of families and types that it has seen in batches: it has learned from "
        f"{vocabulary_of(rows).batches}."
    )


def _added(rows: pd.DataFrame) -> str:
    """Which scale factors, fused operations, groups and sparsity it knows, in full: the list of kinds may be cut."""
    known = []
    for family, of_family in vocabulary_of(rows).families.items():
        by_elements: dict[str, list[str]] = {}
        for elements, *added in (types.split(" ", 1) for types in of_family.layouts):
            by_elements.setdefault(elements, []).extend(added)
        known += [f"{family} with {elements} ({', '.join(each)})" for elements, each in by_elements.items() if each]
    learned = "; ".join(known) if known else "none"
    return f"It predicts scale factors, fused operations, groups and sparsity only as it has seen them: it has learned from {learned}."


def _left_out(facts: TableFacts) -> str:
    if not facts.left_out:
        return ""
    rows = ", ".join(f"{count:,} of `{name}`" for name, count in facts.left_out.items())
    return f"\n\nRows of other protocols than `{facts.protocol}` were left out: {rows}."


def _kernels(configured: pd.DataFrame) -> str:
    count = len(configured[kernel_columns(configured)].drop_duplicates())
    return f"{count:,} kernels (families: {', '.join(sorted(configured['family'].unique()))})"


def _devices(table: pd.DataFrame) -> str:
    return f", on {table['device_uuid'].nunique()} devices" if "device_uuid" in table else ""


def _bullets(names: Sequence[str]) -> str:
    more = [f"- and {len(names) - _MAX_KINDS} more"] if len(names) > _MAX_KINDS else []
    return "\n".join([*(f"- `{name}`" for name in names[:_MAX_KINDS]), *more])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
