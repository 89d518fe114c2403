"""`farm metrics`: what Prometheus can scrape, and whether a dashboard or a file of rules fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.metrics import VERSION
from farm.monitoring import checking
from farm.monitoring.catalogue import metrics

app = typer.Typer(
    help="List the metrics for Prometheus, and check dashboards and rules against them.", invoke_without_command=True
)


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List every metric that programs of the farm export, and which program exports it."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        lines = [
            {
                "name": one.name,
                "type": one.type,
                "unit": one.unit,
                "labels": list(one.labels),
                "program": one.program,
                "setting": one.program.setting,
                "meaning": one.meaning,
            }
            for one in metrics()
        ]
        emit_json({"version": VERSION, "metrics": lines})
        return
    _METRICS.print((one.name, one.type, one.unit, ", ".join(one.labels), one.program, one.meaning) for one in metrics())


_METRICS = Table(
    "metrics",
    Column("metric"),
    Column("type", priority=2),
    Column("unit", priority=3),
    Column("labels", folds=True, priority=1),
    Column("program", priority=4),
    Column("meaning", folds=True),
)


@app.command()
def check(
    files: Annotated[
        list[Path],
        typer.Argument(help="Dashboards of Grafana (JSON) and files of Prometheus rules (YAML).", show_default=False),
    ],
    target_label: Annotated[
        list[str] | None,
        typer.Option("--target-label", help="A label that your Prometheus adds, besides instance and job."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check dashboards and rules against the metrics of this version. Needs no services.

    Ends with exit code 2 and names each metric and label that this version does not export.

    Examples:
        farm metrics check dashboard.json rules.yaml
        farm metrics check rules.yaml --target-label cluster
    """
    found = {path: checking.check(path, target_label or ()) for path in files}
    if as_json:
        emit_json(
            [{"file": path, "kind": one.kind, "expressions": len(one.expressions)} for path, one in found.items()]
        )
        return
    for path, one in found.items():
        console.print(
            f"{path}: {one.kind} with {len(one.expressions)} expressions, fits version {VERSION} of the metrics",
            markup=False,
            soft_wrap=True,
        )
