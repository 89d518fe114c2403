"""`farm models` and `farm predict`: the registry, and what it says of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm import registry
from farm.api import Direct, farm_of
from farm.api import models as operations
from farm.api.models import Asked, Promotion, Rollback
from farm.atomic_write import own_name
from farm.cli.model_options import TypeOption, VersionOption
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.cli.versions import (
    named,
    print_answered_by,
    print_errors,
    print_facts,
    print_history,
    print_side_by_side,
    standing,
)
from farm.errors import BadInput
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration, Kernel
from farm.settings import settings

app = typer.Typer(help="List and manage registered models.", invoke_without_command=True)

NameArgument = Annotated[str, typer.Argument(help="A model or a device type: gemm-forest-nvidia-h200 or nvidia-h200.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; kept in the model's history.")]


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
            m.tested_on,
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
    Column("median error %", number=True, priority=1),
    Column("tested on", folds=True, priority=2),
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
    """Download a model. mlflow.pyfunc.load_model(FOLDER) loads it, also on a machine without the farm.

    Examples:
        farm models pull nvidia-h200 --to h200-model
    """
    with farm_of(settings()) as farm:
        model = farm.ask(operations.show, name, version=version)
        folder = to if to.name else Path(own_name(model.name, option="--to"))
        if isinstance(farm, Direct):
            registry.download(
                settings().tracking_uri, model.name, model.version, to=folder, trust=farm.access.models.trust
            )
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
    """Show a version: errors by fold and target, sources, the decision on it, previous champions.

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
    """Compare two versions: errors by fold and target, each on its own table.

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
    """Make a version the champion.

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
def sign(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="A version number or an alias.")],
    as_json: JsonOption = False,
) -> None:
    """Sign the present files of a version in the registry, as the trainer does.

    Examine the version first: anyone who can write to the registry may have put the files there, and programs that trust your key
    will load them. Use this for versions that were registered before signatures existed, and after a key was replaced.

    Examples:
        farm models sign nvidia-h200 3
    """
    # Imported here: SQLAlchemy takes longer to import than a question to a model takes.
    from farm.services.session import session

    current = settings()
    with session() as opened:
        model = registry.model_info(current.tracking_uri, name, version)
        manifest = registry.vouch(current.tracking_uri, model, registry.Trust(current, opened.engine))
    if as_json:
        emit_json({"model": model.name, "version": model.version, "files": len(manifest.model) + len(manifest.run)})
        return
    files = f"{len(manifest.model):,} files of the model and {len(manifest.run):,} of its run"
    console.print(f"{model.name} version {model.version} is signed: {files}.")


@app.command()
def rollback(name: NameArgument, reason: ReasonOption = None, as_json: JsonOption = False) -> None:
    """Make the previous champion the champion again.

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
    if high is None:
        return f"{value:.4g}"
    percent = 100 * (high / value - 1)
    return f"{value:.4g} ± {percent:,.0f} %" if percent >= 100 else f"{value:.4g} ± {percent:.2g} %"


def _named(prediction: dict[str, Any]) -> str:
    if "configuration" in prediction:
        return str(prediction["configuration"])
    return f"{prediction['family']} {prediction['m']:g}x{prediction['n']:g}x{prediction['k']:g} {prediction['ab']}"


def _parameters(pairs: list[str]) -> dict[str, int]:
    parameters = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            parameters[name.strip()] = int(value)
        except ValueError:
            raise BadInput(detail=f"--param {pair}: write it as name=whole number, as in tile=16") from None
    return parameters
