"""Training as a whole: from a training table to an evaluated, registered model that other programs pull."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import trainer
from farm.registry import CHAMPION, ModelInfo, list_models, model_name, registry_client
from trainer.evaluate import Metrics
from trainer.folds import FOLD_KINDS, HEADLINE
from trainer.forest import ForestSettings
from trainer.learn import MODEL_FOLDER, RUN_FOLDER, MetricsByFold, TableFacts, learn
from trainer.table import check_training_table

EXPERIMENT = "gemm-farm"

_RECIPE_FILES = ("table.py", "folds.py", "forest.py", "evaluate.py", "learn.py", "packaging.py", "model/*.py")
"""The files of this package that decide what a training produces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """What a training came to. Every field is JSON as it stands."""

    device_type: str
    # Measurements in the training table, different configurations, those with power, and shapes (m, n, k).
    rows: int
    configurations: int
    power_configurations: int
    shapes: int
    sources: list[str]
    table_hash: str
    # Fold kind -> target -> name -> number; see `trainer.evaluate.metrics`.
    metrics: dict[str, dict[str, Metrics]]
    run_id: str
    experiment: str
    model_name: str
    version: str
    alias: str
    # True where the champion was already trained from this very table by this very code.
    reused: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Run:
    """An MLflow run that is being filled."""

    client: Any
    id: str
    experiment_id: str
    facts: TableFacts
    tags: Mapping[str, str]


def train_and_register(
    table: pd.DataFrame,
    device_type: str,
    *,
    tracking_uri: str,
    campaign: str | None = None,
    code_version: str,
    settings: ForestSettings | None = None,
    before_registering: Callable[[], None] = lambda: None,
) -> TrainingOutcome:
    """Evaluates and fits a model on the table, logs it to MLflow, registers it, and makes it the champion.

    Where the champion was trained from an equal table by equal code, nothing is done and the outcome says `reused`.
    What `before_registering` raises ends it before other programs can pull the model.
    Raises `MissingColumns`, `TooFewMeasurements`, `RegistryUnreachable`, `MlflowMissing`.
    """
    began = time.monotonic()
    settings = settings or ForestSettings()
    check_training_table(table, device_type)
    facts = TableFacts.of(table, device_type)
    tags = {
        "device_type": device_type,
        "table_hash": facts.table_hash,
        "code_version": code_version,
        "recipe": recipe_hash(code_version, settings),
        "sources": ",".join(facts.sources),
        **({"campaign": campaign} if campaign is not None else {}),
    }
    reusable = _reusable(tracking_uri, facts, tags["recipe"])
    if reusable is not None:
        champion, metrics = reusable
        return _outcome(facts, metrics, champion.version, champion.run_id or "", began, reused=True)
    with TemporaryDirectory(prefix="gemm-forest-") as made:
        metrics = learn(table, facts, settings, Path(made))
        with registry_client(tracking_uri) as client:
            experiment = _experiment(client, tracking_uri)
            run_id = client.create_run(experiment, run_name=device_type, tags=tags).info.run_id
            run = _Run(client, run_id, experiment, facts, tags)
            try:
                _log(run, settings, metrics, Path(made) / RUN_FOLDER)
                before_registering()
                version = _register(run, metrics, Path(made) / MODEL_FOLDER)
            except BaseException:
                client.set_terminated(run_id, "FAILED")
                raise
            client.set_terminated(run_id)
    return _outcome(facts, metrics, version, run_id, began, reused=False)


def recipe_hash(code_version: str, settings: ForestSettings) -> str:
    """Names everything but the table that decides a model: the code, its version, and the settings."""
    digest = hashlib.sha256(json.dumps([code_version, asdict(settings)]).encode())
    folder = Path(trainer.__path__[0])
    for path in sorted(path for pattern in _RECIPE_FILES for path in folder.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _reusable(tracking_uri: str, facts: TableFacts, recipe: str) -> tuple[ModelInfo, MetricsByFold] | None:
    """The champion and its metrics, where training again would give the same model."""
    name = model_name(facts.device_type)
    for model in list_models(tracking_uri):
        if model.name == name and CHAMPION in model.aliases and model.table_hash == facts.table_hash and model.run_id:
            with registry_client(tracking_uri) as client:
                run = client.get_run(model.run_id)
            if run.data.tags.get("recipe") == recipe:
                return model, _nested(run.data.metrics)
    return None


def _experiment(client: Any, tracking_uri: str) -> str:
    """The experiment's id. On a SQLite store its artifacts lie beside the database, never in the current folder."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    location = None
    if tracking_uri.startswith("sqlite:///"):
        location = (Path(tracking_uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts").as_uri()
    return str(client.create_experiment(EXPERIMENT, artifact_location=location))


def _log(run: _Run, settings: ForestSettings, metrics: MetricsByFold, files: Path) -> None:
    """Parameters, metrics, files, and the training table as the run's input, by which MLflow finds runs that share it."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

    now = int(time.time() * 1000)
    parameters = {**asdict(settings), **run.facts.counts, "folds": ",".join(FOLD_KINDS)}
    run.client.log_batch(
        run.id,
        metrics=[Metric(name, value, now, 0) for name, value in _flat(metrics).items()],
        params=[Param(name, str(value)) for name, value in parameters.items()],
    )
    run.client.log_artifacts(run.id, str(files))
    digest = run.facts.table_hash
    dataset = Dataset(
        name="training table",
        digest=digest[:36],  # as long as MLflow stores
        source_type="v_measurements",
        source=json.dumps({"artifact": "training/table.parquet", "sha256": digest}),
        profile=json.dumps({"num_rows": run.facts.rows}),
    )
    run.client.log_inputs(run.id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _flat(metrics: MetricsByFold) -> dict[str, float]:
    """`unseen_shapes.runtime_ms.median_error_pct` and so on."""
    return {
        f"{kind}.{target}.{name}": value
        for kind, targets in metrics.items()
        for target, found in targets.items()
        for name, value in found.items()
    }


def _nested(numbers: Mapping[str, float]) -> MetricsByFold:
    """What `_flat` was made from."""
    metrics: dict[str, dict[str, Metrics]] = {}
    for path, value in numbers.items():
        kind, target, name = path.split(".")
        metrics.setdefault(kind, {}).setdefault(target, {})[name] = value
    return metrics


def _register(run: _Run, metrics: MetricsByFold, files: Path) -> str:
    """Uploads the model, registers it as a new version and moves the alias: from here on it is what others pull."""
    client, name = run.client, model_name(run.facts.device_type)
    logged = client.create_logged_model(run.experiment_id, name=name, source_run_id=run.id, tags=dict(run.tags))
    client.log_model_artifacts(logged.model_id, str(files))
    client.finalize_logged_model(logged.model_id, "READY")
    if not client.search_registered_models(filter_string=f"name = '{name}'"):
        description = f"Runtime, power, energy and TFLOP/s of a GEMM on {run.facts.device_type}, from its raw columns."
        client.create_registered_model(name, {"device_type": run.facts.device_type}, description)
    version = client.create_model_version(
        name,
        source=logged.artifact_location,
        run_id=run.id,
        model_id=logged.model_id,
        tags={**run.tags, **_version_tags(run.facts, metrics)},
    ).version
    client.set_registered_model_alias(name, CHAMPION, version)
    return str(version)


def _version_tags(facts: TableFacts, metrics: MetricsByFold) -> dict[str, str]:
    """What a list of models shows: sizes, and each target's errors on shapes held out."""
    errors = {
        f"{target.rsplit('_', 1)[0]}_{name}": f"{found[name]:.6g}"
        for target, found in metrics[HEADLINE].items()
        for name in ("median_error_pct", "mean_error_pct", "p90_error_pct")
    }
    return {**{name: str(count) for name, count in facts.counts.items()}, **errors}


def _outcome(
    facts: TableFacts, metrics: MetricsByFold, version: str, run_id: str, began: float, *, reused: bool
) -> TrainingOutcome:
    return TrainingOutcome(
        **asdict(facts),
        metrics={kind: {target: dict(found) for target, found in each.items()} for kind, each in metrics.items()},
        run_id=run_id,
        experiment=EXPERIMENT,
        model_name=model_name(facts.device_type),
        version=version,
        alias=CHAMPION,
        reused=reused,
        seconds=time.monotonic() - began,
    )
