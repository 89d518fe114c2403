"""`farm models` and `farm predict`: the registry of models, and predictions with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from farm import registry
from farm.api import Direct, farm_of
from farm.api import models as operations
from farm.api.models import ModelLine, ModelNow, PredictQuery, Promoted
from farm.atomic_write import own_name
from farm.both_times import burst_apart
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.result_table import ResultTable
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
from farm.fusion import Fusion
from farm.gemm import MAX_EXTENT, ElementTypes, Layout, Problem, Shape
from farm.groups import NONE, Groups
from farm.kernels import Configuration, Kernel
from farm.kernels.families import TILE_STUDY
from farm.protocols import Time
from farm.scale import Scale
from farm.settings import settings
from farm.sparsity import Sparsity

app = typer.Typer(help="List and manage registered models.", invoke_without_command=True)

_MODELS = ResultTable(
    "models", ModelLine, first=("name", "version", "aliases", "rows", "shapes", "median_error_pct", "tested_on")
)


@app.callback()
@asks(operations.list_)
def _list(found: list[ModelLine]) -> None:
    """List the registered models."""
    _MODELS.show(found, otherwise="The registry has no models yet. Train one: farm train")


@app.command()
@takes(operations.show, without=("card",))
def pull(
    query: dict[str, Any],
    *,
    to: Annotated[Path, typer.Option("--to", help="Folder to put the model in.", show_default="./NAME")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Download a model. mlflow.pyfunc.load_model(FOLDER) loads it, also on a machine without the farm.

    Examples:
        farm models pull nvidia-h200 --to h200-model
    """
    with farm_of(settings()) as farm:
        model = farm.ask(operations.show, **query)
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
@asks(operations.show, json_of=lambda model: model.model_dump(exclude=set() if model.card else {"card"}))
def show(model: ModelNow) -> None:
    """Show a version: errors by fold and target, sources, the decision on it, previous champions.

    Examples:
        farm models show nvidia-h200
        farm models show nvidia-h200 --version 3 --card
    """
    if model.card is not None:
        console.print(model.card, markup=False)
        return
    print_facts(model)
    print_errors(model.metrics)
    print_history(model.champions)


@app.command()
@takes(operations.show, without=("version", "card"))
def compare(
    query: dict[str, Any],
    *,
    first: Annotated[str, typer.Argument(help="A version number or an alias.")] = registry.CHAMPION,
    second: Annotated[str, typer.Argument(help="A version number or an alias.")] = registry.CHALLENGER,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions: errors by fold and target, each on its own table.

    Examples:
        farm models compare nvidia-h200 2 3
    """
    with farm_of(settings()) as farm:
        models = [farm.ask(operations.show, **query, version=version) for version in (first, second)]
    if as_json:
        emit_json([model.model_dump(exclude={"champions", "card"}) for model in models])
        return
    print_side_by_side([model.version for model in models], [model.metrics for model in models])
    for m in models:
        alias = next((alias for alias in (registry.CHAMPION, registry.CHALLENGER) if alias in m.aliases), None)
        console.print(standing(m.name, m.version, alias, m.decision), markup=False)


@app.command()
@asks(operations.promote, json_of=lambda done: done.champion)
def promote(done: Promoted) -> None:
    """Make a version the champion.

    Examples:
        farm models promote nvidia-h200 3 --reason "better on large shapes"
    """
    champion, already = done.champion, "" if done.changed else " already"
    console.print(f"{champion.name} version {champion.version} is the champion{already}.")


@app.command()
@takes(operations.show, without=("version", "card"))
def sign(
    query: dict[str, Any],
    *,
    version: Annotated[str, typer.Argument(help="A version number or an alias.")],
    as_json: JsonOption = False,
) -> None:
    """Sign the present files of a version in the registry, as the trainer does.

    Examine the version first: anyone who can write to the registry may have put the files there, and programs that trust your key
    will load them. Use this for versions that were registered before signatures existed, and after a key was replaced.

    Examples:
        farm models sign nvidia-h200 3
    """
    # Imported here: SQLAlchemy takes longer to import than a model takes to answer.
    from farm.services.session import session

    current = settings()
    with session() as opened:
        model = registry.model_info(current.tracking_uri, query["name"], version)
        manifest = registry.vouch(current.tracking_uri, model, registry.Trust(current, opened.engine))
    if as_json:
        emit_json({"model": model.name, "version": model.version, "files": len(manifest.model) + len(manifest.run)})
        return
    files = f"{len(manifest.model):,} files of the model and {len(manifest.run):,} of its run"
    console.print(f"{model.name} version {model.version} is signed: {files}.")


@app.command()
@asks(operations.rollback, json_of=lambda done: done.champion)
def rollback(done: Promoted) -> None:
    """Make the previous champion the champion again.

    Examples:
        farm models rollback nvidia-h200
    """
    champion = done.champion
    console.print(f"{champion.name} version {champion.version} is the champion again, instead of {done.instead_of}.")


@takes(PredictQuery, without=("rows", "rows_from"))
def predict(
    request: PredictQuery,
    *,
    shape: Annotated[str | None, typer.Option("--shape", help="m x n x k, as in 512x512x1024.")] = None,
    types: Annotated[str, typer.Option("--dtype", help="Element types, with --shape.")] = "f32",
    layout: Annotated[str, typer.Option("--layout", help="nn, nt, tn or tt, with --shape.")] = "nn",
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=MAX_EXTENT, help="Number of products in one launch, with --shape.")
    ] = 1,
    scale: Annotated[Scale, typer.Option("--scale", help="Scale factors of A and B, with --shape.")] = Scale.NONE,
    fused: Annotated[
        Fusion, typer.Option("--fused", help="Operations that follow the product, with --shape.")
    ] = Fusion.NONE,
    groups: Annotated[str, typer.Option("--groups", help="Rows of each group, as in 16*8,3,0, with --shape.")] = NONE,
    sparsity: Annotated[Sparsity, typer.Option("--sparsity", help="Sparsity of B, with --shape.")] = Sparsity.NONE,
    family: Annotated[str, typer.Option("--family", help="Kernel family, with --shape.")] = TILE_STUDY.name,
    parameter: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A kernel parameter, with --shape, as in tile=16.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="CSV or Parquet file with columns m, n, k, ab, family, tile, and so on."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict time, power, energy and TFLOP/s with the registered model of a device type.

    Examples:
        farm predict "tiled(tile=16) 512x512x512 f32"
        farm predict --shape 512x512x1024 --family tiled -p tile=32
        farm predict "cublaslt() 4096x4096x4096 bf16" --type nvidia-h200 --time burst
        farm predict --file configurations.csv --type nvidia-h200 --json
    """
    configurations = [Configuration.parse(text) for text in request.configurations]
    if shape is not None:
        problem = Problem(
            Shape.parse(shape), ElementTypes.parse(types), Layout.parse(layout),
            batch=batch, scale=scale, fused=fused, groups=Groups.parse(groups), sparsity=sparsity,
        )  # fmt: skip
        configurations.append(Configuration(problem, Kernel.of(family, **_parameters(parameter or []))))
    if not configurations and file is None:
        raise BadInput(detail='Nothing to predict: give "tiled(tile=16) 512x512x512 f32", --shape or --file.')
    changes: dict[str, Any] = {"configurations": [one.canonical for one in configurations]}
    if file is not None:
        changes |= {"rows": registry.records(registry.read_configurations(file)), "rows_from": str(file)}
    with farm_of(settings()) as farm:
        result = farm.ask(operations.predict, request.model_copy(update=changes))
    predicted = [*(p.to_json() for p in result.predictions), *result.rows]
    if as_json:
        head = {
            "model": result.model,
            "version": result.version,
            "answered_by": result.answered_by,
            "time": result.time,
        }
        emit_json({**head, "predictions": predicted})
        return
    outputs = _shown(predicted, result.time)
    lines = [(_named(p), *(_with_bound(p, name) for name in outputs), p.get("outside")) for p in predicted]
    table = _TABLES[outputs[: outputs.index("power_w")]]
    table.print(lines, title=f"{named(result.answered_by)}; ± is the 90% interval")
    print_answered_by([result.answered_by])


_AFTER_TIMES = (
    Column("power", "W", number=True, priority=2),
    Column("energy", "mJ", number=True, priority=3),
    Column("outside what was measured", folds=True),
)
_RATE = Column("TFLOP/s", number=True, priority=1)

_PREDICTIONS = Table(
    "predictions", Column("configuration", folds=True), Column("runtime", "ms", number=True), _RATE, *_AFTER_TIMES
)
_OF_BOTH = Table(
    "predictions of both times",
    Column("configuration", folds=True),
    Column("settled", "ms", number=True),
    Column("burst", "ms", number=True),
    _RATE,
    *_AFTER_TIMES,
)
_OF_BURST = Table(
    "predictions of burst times", Column("configuration", folds=True), Column("burst", "ms", number=True), *_AFTER_TIMES
)
_BURST_FIRST = Table(
    "predictions of both times, burst first",
    Column("configuration", folds=True),
    Column("burst", "ms", number=True),
    Column("settled", "ms", number=True),
    *_AFTER_TIMES,
)
_TABLES = {
    ("runtime_ms", "tflops"): _PREDICTIONS,
    ("runtime_ms", "runtime_burst_ms", "tflops"): _OF_BOTH,
    ("runtime_burst_ms",): _OF_BURST,
    ("runtime_burst_ms", "runtime_ms"): _BURST_FIRST,
}
"""By the columns before those of power."""


def _shown(predicted: Sequence[dict[str, Any]], time: Time | None) -> tuple[str, ...]:
    """The columns to show: both times where some differ by more than `APART`, the wanted one first."""
    apart = any(burst_apart(p.get("runtime_burst_ms"), p["runtime_ms"]) is not None for p in predicted)
    if time == "burst":
        return ("runtime_burst_ms", *(("runtime_ms",) if apart else ()), "power_w", "energy_mj")
    return ("runtime_ms", *(("runtime_burst_ms",) if apart else ()), "tflops", "power_w", "energy_mj")


def _with_bound(prediction: dict[str, Any], output: str) -> str | None:
    """`0.123 ± 4 %`, by the upper bound: the lower one is the same factor below the value."""
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
