"""`farm train`: a model for each device type, and what its training came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from farm import registry
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.cli.training import train_types
from farm.cli.versions import print_test_errors, standing
from farm.db import campaigns, trainings
from farm.errors import BadInput, TrainingFailed
from farm.registry.evaluations import FOLDS_ARE
from farm.services import Stack
from farm.services.session import session


def train(
    device_types: Annotated[
        list[str] | None, typer.Argument(help="Device types; all with measurements if none.")
    ] = None,
    campaign: Annotated[str | None, typer.Option("--campaign", "-c", help="The types of this campaign.")] = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Learn from recorded and imported rows too; the model says so.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model for each device type, evaluate it on held-out shapes, and register it. The better version is champion.

    Examples:
        farm train
        farm train nvidia-h200 --any-source
    """
    with session() as opened, opened.engine.connect() as connection:  # what cannot be trained needs no broker
        campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
        known = trainings.trainable_types(connection, campaign_id=campaign_id, any_source=any_source)
        missing = sorted(set(device_types or ()) - set(known))
        rows = {} if known and not missing else trainings.rows_by_source(connection, campaign_id=campaign_id)
    wanted = device_types or known
    if missing or not wanted:
        raise BadInput(detail=nothing_to_learn_from(missing, known, rows))
    with (
        session(broker=True) as opened,
        Stack.attach_or_start(opened.settings, opened.urls, ["trainer"]) as stack,
    ):
        outcomes = train_types(opened, wanted, any_source=any_source, check=stack.check)
    failed = {kind: o["error"] for kind, o in outcomes.items() if o["error"] is not None}
    if as_json:
        emit_json(outcomes)
    else:
        print_outcomes(outcomes)
    for kind, why in failed.items():
        raise TrainingFailed(device_type=kind, why=why)


_OUTCOMES = Table(
    "outcomes of trainings",
    Column("model", folds=True),
    Column("target"),
    Column("configurations", number=True, priority=3),
    Column("shapes", number=True, priority=2),
    Column("R²", number=True, priority=4),
    *(Column(name, number=True, priority=rank) for rank, name in enumerate(registry.ERRORS.values())),
)


def nothing_to_learn_from(missing: Sequence[str], known: Sequence[str], rows: dict[str, dict[str, int]]) -> str:
    """`missing` are the types that were named and have no measured rows; none: no type has any."""
    others = {name: rows[name] for name in (missing or rows) if rows.get(name)}
    if others:
        counts = "; ".join(
            f"{name} has no measured rows, but {' and '.join(f'{n:,} {source}' for source, n in found.items())}"
            for name, found in others.items()
        )
        command = f"`farm train {' '.join(others)} --any-source`"
        without = [name for name in missing if name not in others]
        also = f" {', '.join(without)}: no rows of any source." if without else ""
        return f"{counts}. {command} learns from them.{also}"
    what = f"{', '.join(missing)}: no measurements" if missing else "There are no measurements to learn from"
    return f"{what}. Measured: {', '.join(known) or 'nothing yet'}. Run a campaign first."


def print_outcomes(outcomes: dict[str, dict[str, Any]]) -> None:
    """What each training came to: the model's errors on the test set and on folds, and whether it is the champion."""
    rows, metrics = [], dict[str, registry.Metrics]()
    for kind, training in outcomes.items():
        if training["error"] is not None:
            remarks.print(f"No model for {kind}: {escape(training['error'])}")
            continue
        outcome = training["outcome"]
        name = f"{outcome['model_name']} v{outcome['version']}"
        metrics[name] = outcome["metrics"]
        rows += [
            (name, target, int(m["rows"]), outcome["shapes"], m.get("r2"), *(m[number] for number in registry.ERRORS))
            for target in registry.OUTPUTS
            if (m := outcome["metrics"]["unseen_shapes"].get(target))
        ]
    print_test_errors(metrics)
    if rows:
        _OUTCOMES.print(rows, title=f"error on shapes held out: {FOLDS_ARE}")
    for training in outcomes.values():
        if training["error"] is None:
            outcome = training["outcome"]
            text = standing(outcome["model_name"], outcome["version"], outcome["alias"], outcome["decision"])
            again = " Nothing was trained: its rows and the code are the same." if outcome["reused"] else ""
            console.print(f"{text}.{again}", markup=False)
