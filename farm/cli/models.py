"""`farm train`, `farm models`, `farm predict`: learning, the registry, and what it says of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from farm import registry
from farm.api import Direct, farm_of
from farm.api import models as operations
from farm.api.models import Asked, Promotion, Rollback
from farm.cli.asking import TypeOption, VersionOption
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.cli.training import train_types
from farm.cli.versions import (
    named,
    print_answered_by,
    print_errors,
    print_facts,
    print_history,
    print_side_by_side,
    standing,
)
from farm.db import campaigns, trainings
from farm.errors import BadInput, TrainingFailed
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration, Kernel
from farm.services import Stack
from farm.services.session import session
from farm.settings import settings

app = typer.Typer(help="The registered models.", invoke_without_command=True)

NameArgument = Annotated[str, typer.Argument(help="A model or a device type: gemm-forest-nvidia-h200 or nvidia-h200.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; kept in the model's history.")]


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
    """Train a model per device type, evaluate it on shapes held out, and register it; the better one is champion.

    Examples:
        farm train
        farm train nvidia-h200 --any-source
    """
    with session(broker=True) as opened:
        with opened.engine.connect() as connection:
            campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
            known = trainings.trainable_types(connection, campaign_id=campaign_id, any_source=any_source)
            missing = sorted(set(device_types or ()) - set(known))
            rows = {} if known and not missing else trainings.rows_by_source(connection, campaign_id=campaign_id)
        wanted = device_types or known
        if missing or not wanted:
            raise BadInput(detail=nothing_to_learn_from(missing, known, rows))
        with Stack.attach_or_start(opened.settings, opened.urls, ["trainer"]) as stack:
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
    """What each training came to: the model's errors on shapes held out, and whether it is the champion."""
    rows = []
    for kind, training in outcomes.items():
        if training["error"] is not None:
            remarks.print(f"No model for {kind}: {escape(training['error'])}")
            continue
        outcome = training["outcome"]
        name = f"{outcome['model_name']} v{outcome['version']}"
        rows += [
            (name, target, int(m["rows"]), outcome["shapes"], m.get("r2"), *(m[number] for number in registry.ERRORS))
            for target in registry.OUTPUTS
            if (m := outcome["metrics"]["unseen_shapes"].get(target))
        ]
    if rows:
        _OUTCOMES.print(rows, title="error on shapes held out")
    for training in outcomes.values():
        if training["error"] is None:
            outcome = training["outcome"]
            text = standing(outcome["model_name"], outcome["version"], outcome["alias"], outcome["decision"])
            again = " Nothing was trained: its rows and the code are the same." if outcome["reused"] else ""
            console.print(f"{text}.{again}", markup=False)


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the registered models; `farm models show NAME` says more, `farm models pull NAME` fetches one."""
    if context.invoked_subcommand is not None:
        return
    with farm_of(settings()) as farm:
        found = farm.ask(operations.list_)
    if as_json:
        emit_json(found)
        return
    if not found:
        console.print("The registry has no models yet. Train one: farm train")
        return
    rows = [
        (
            m.name,
            m.version,
            ", ".join(m.aliases),
            m.rows,
            m.shapes,
            m.median_error_pct,
            f"{m.created_at:%Y-%m-%d %H:%M}",
            m.decision,
        )
        for m in found
    ]
    _MODELS.print(rows)


_MODELS = Table(
    "models",
    Column("model", folds=True),
    Column("version", number=True),
    Column("aliases", folds=True),
    Column("rows", number=True, priority=3),
    Column("shapes", number=True, priority=4),
    Column("median error % (unseen shapes)", number=True, priority=1),
    Column("created", "(UTC)", priority=5),
    Column("decision: it …", folds=True, priority=2),
)


@app.command()
def pull(
    name: NameArgument,
    to: Annotated[Path, typer.Option("--to", help="Folder to put the model in.", show_default="./NAME")] = Path(),
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download a model: mlflow.pyfunc.load_model(FOLDER) loads it where the farm is not installed.

    Examples:
        farm models pull nvidia-h200 --to h200-model
    """
    with farm_of(settings()) as farm:
        model = farm.ask(operations.show, name, version=version)
        folder = to if to.name else Path(model.name)
        if isinstance(farm, Direct):
            registry.download(settings().tracking_uri, model.name, model.version, to=folder)
        else:
            sent = farm.ask(operations.files, model.name, version=model.version)
            try:
                registry.unpack(sent.path, folder)
            finally:
                sent.path.unlink()
    if as_json:
        emit_json({**model.model_dump(exclude={"metrics", "champions", "card"}), "folder": str(folder)})
    else:
        alias = "" if registry.CHAMPION in model.aliases else ", which is not the champion,"
        console.print(f"{model.name} version {model.version}{alias} is in {folder}")


@app.command()
def show(
    name: NameArgument,
    version: Annotated[
        str | None,
        typer.Option("--version", help="A version number or an alias.", show_default="the champion, or the newest"),
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Print the model card, which is Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Everything about a version: errors by fold and target, sources, the decision on it, the champions so far.

    Examples:
        farm models show nvidia-h200
        farm models show nvidia-h200 --version 3 --card
    """
    with farm_of(settings()) as farm:
        model = farm.ask(operations.show, name, version=version, card=card)
    if as_json:
        emit_json(model.model_dump(exclude=set() if card else {"card"}))
        return
    if model.card is not None:
        console.print(model.card, markup=False)
        return
    print_facts(model)
    print_errors(model.metrics)
    print_history(model.champions)


@app.command()
def compare(
    name: NameArgument,
    first: Annotated[str, typer.Argument(help="A version number or an alias.")] = registry.CHAMPION,
    second: Annotated[str, typer.Argument(help="Another.")] = registry.CHALLENGER,
    as_json: JsonOption = False,
) -> None:
    """Two versions side by side: errors by fold and target, of each on its own table.

    Examples:
        farm models compare nvidia-h200 2 3
    """
    with farm_of(settings()) as farm:
        models = [farm.ask(operations.show, name, version=version) for version in (first, second)]
    if as_json:
        emit_json([model.model_dump(exclude={"champions", "card"}) for model in models])
        return
    print_side_by_side([model.version for model in models], [model.metrics for model in models])
    for m in models:
        alias = next((alias for alias in (registry.CHAMPION, registry.CHALLENGER) if alias in m.aliases), None)
        console.print(standing(m.name, m.version, alias, m.decision), markup=False)


@app.command()
def promote(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="A version number or an alias.")],
    reason: ReasonOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a version that leaked, or that is no better than a baseline.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a version the champion by hand.

    Examples:
        farm models promote nvidia-h200 3 --reason "better on large shapes"
    """
    with farm_of(settings()) as farm:
        done = farm.ask(operations.promote, name, Promotion(version=version, reason=reason, force=force))
    if as_json:
        emit_json(done.champion)
        return
    champion = done.champion
    console.print(f"{champion.name} version {champion.version} is the champion{'' if done.changed else ' already'}.")


@app.command()
def rollback(name: NameArgument, reason: ReasonOption = None, as_json: JsonOption = False) -> None:
    """Make the champion before the present one the champion again.

    Examples:
        farm models rollback nvidia-h200
    """
    with farm_of(settings()) as farm:
        done = farm.ask(operations.rollback, name, Rollback(reason=reason))
    if as_json:
        emit_json(done.champion)
        return
    champion = done.champion
    console.print(f"{champion.name} version {champion.version} is the champion again, instead of {done.instead_of}.")


def predict(
    configurations: Annotated[
        list[str] | None,
        typer.Argument(help='As the farm writes them: "tiled(tile=16) 512x512x512 f32"; several are taken.'),
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", help="m x n x k, as in 512x512x1024.")] = None,
    types: Annotated[str, typer.Option("--dtype", help="Element types, with --shape.")] = "f32",
    layout: Annotated[str, typer.Option("--layout", help="nn, nt, tn or tt, with --shape.")] = "nn",
    family: Annotated[str | None, typer.Option("--family", help="Kernel family, with --shape.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A kernel parameter, as in tile=16.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="CSV or Parquet with columns m, n, k, ab, family, tile …")
    ] = None,
    device_type: TypeOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict time, power, energy and TFLOP/s with the registered model of a device type.

    Examples:
        farm predict "tiled(tile=16) 512x512x512 f32"
        farm predict --shape 512x512x1024 --family tiled -p tile=32
        farm predict --file configurations.csv --type nvidia-h200 --json
    """
    asked = [Configuration.parse(text) for text in configurations or []]
    if shape is not None:
        problem = Problem(Shape.parse(shape), ElementTypes.parse(types), Layout.parse(layout))
        asked.append(Configuration(problem, Kernel.of(family or "tiled", **_parameters(parameter or []))))
    if not asked and file is None:
        raise BadInput(detail='Nothing to predict: give "tiled(tile=16) 512x512x512 f32", --shape or --file.')
    of_file = None if file is None else registry.records(registry.read_configurations(file))
    question = Asked(
        configurations=[one.canonical for one in asked],
        rows=of_file or [],
        rows_from=str(file or ""),
        device_type=device_type,
        version=version,
    )
    with farm_of(settings()) as farm:
        told = farm.ask(operations.predict, question)
    predicted = [*(p.to_json() for p in told.predictions), *told.rows]
    if as_json:
        head = {"model": told.model, "version": told.version, "answered_by": told.answered_by}
        emit_json({**head, "predictions": predicted})
        return
    lines = [
        (
            _named(p),
            *(_with_bound(p, name) for name in ("runtime_ms", "tflops", "power_w", "energy_mj")),
            p.get("outside"),
        )
        for p in predicted
    ]
    _PREDICTIONS.print(lines, title=f"{named(told.answered_by)}; ± holds nine measurements of ten")
    print_answered_by([told.answered_by])


_PREDICTIONS = Table(
    "predictions",
    Column("configuration", folds=True),
    Column("runtime", "ms", number=True),
    Column("TFLOP/s", number=True, priority=1),
    Column("power", "W", number=True, priority=2),
    Column("energy", "mJ", number=True, priority=3),
    Column("outside what was measured", folds=True),
)


def _with_bound(prediction: dict[str, Any], output: str) -> str | None:
    """`0.123 ± 4 %`; bounds are a factor apart, of which the upper one is told."""
    value, high = prediction[output], prediction.get(f"{output}_high")
    if value is None:
        return None
    return f"{value:.4g}" if high is None else f"{value:.4g} ± {100 * (high / value - 1):.2g} %"


def _named(prediction: dict[str, Any]) -> str:
    if "configuration" in prediction:
        return str(prediction["configuration"])
    return f"{prediction['family']} {prediction['m']:g}x{prediction['n']:g}x{prediction['k']:g} {prediction['ab']}"


def _parameters(pairs: list[str]) -> dict[str, int]:
    parameters = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not value.strip().isdigit():
            raise BadInput(detail=f"--param {pair}: write it as name=whole number, as in tile=16")
        parameters[name.strip()] = int(value)
    return parameters
