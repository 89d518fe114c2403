"""What a training leaves in MLflow: its run with a child for each fold kind, the registered version, and reading them back."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from farm.registry import CHALLENGER, ERRORS, Trust, conditions, make_champion, model_name, promotion_verdict
from farm.registry.files import sign
from farm.registry.manifest import MANIFEST, Manifest
from farm.registry.models import QUOTED_TAG, TEST_SET
from farm.registry.version_details import FOLD_TAG
from trainer.evaluate import Metrics
from trainer.folds import FOLD_KINDS, HEADLINE
from trainer.forest import ForestSettings
from trainer.learn import MODEL_FOLDER, RUN_FOLDER, MetricsByFold, TableFacts
from trainer.promotion import Decision

EXPERIMENT = "gemm-farm"

_MAX_DESCRIPTION = 5000
"""Of a model version, in MLflow's SQL stores."""


@dataclass(frozen=True, slots=True)
class Run:
    """The MLflow run of a training, which is being filled."""

    client: Any
    id: str
    experiment_id: str
    facts: TableFacts
    tags: Mapping[str, str]


def start_run(client: Any, tracking_uri: str, facts: TableFacts, tags: Mapping[str, str]) -> Run:
    experiment = _experiment(client, tracking_uri)
    run_id = client.create_run(experiment, run_name=facts.device_type, tags=dict(tags)).info.run_id
    return Run(client, run_id, experiment, facts, tags)


def _experiment(client: Any, tracking_uri: str) -> str:
    """The experiment's id. With a SQLite store its artifacts are in the folder of the database, never in the current folder."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    location = None
    if tracking_uri.startswith("sqlite:///"):
        location = (Path(tracking_uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts").as_uri()
    return str(client.create_experiment(EXPERIMENT, artifact_location=location))


def log_training(run: Run, settings: ForestSettings, metrics: MetricsByFold, files: Path) -> None:
    """Parameters, the headline's metrics, files, and the training table as the run's input, by which MLflow finds runs
    that share it."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param

    parameters = {**asdict(settings), **run.facts.counts, "folds": ",".join(FOLD_KINDS)}
    run.client.log_batch(
        run.id,
        metrics=_as_metrics({f"{HEADLINE}.{path}": value for path, value in _flat(metrics[HEADLINE]).items()}),
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


def log_folds(run: Run, metrics: MetricsByFold, folder: Path) -> None:
    """A child run for each fold kind, with its metrics and the files of the folder of its name."""
    for kind, by_target in metrics.items():
        tags = {"mlflow.parentRunId": run.id, FOLD_TAG: kind, "device_type": run.facts.device_type}
        child = run.client.create_run(run.experiment_id, run_name=kind, tags=tags).info.run_id
        run.client.log_batch(child, metrics=_as_metrics(_flat(by_target)))
        run.client.log_artifacts(child, str(folder / kind))
        run.client.set_terminated(child)


def log_decision(run: Run, decision: Decision, card: Path) -> None:
    """The scores by which it was decided, and the model card."""
    scores = {
        "score": decision.score,
        "baseline_score": decision.baseline_score,
        "champion_score": decision.champion_score,
        "better_in": decision.better_in,
    }
    known = {f"promotion.{name}": value for name, value in scores.items() if value is not None}
    run.client.log_batch(run.id, metrics=_as_metrics(known))
    run.client.set_tag(run.id, "decision", decision.reason)
    run.client.log_artifact(run.id, str(card))


def register(run: Run, metrics: MetricsByFold, decision: Decision, card: str, learned: Path, trust: Trust) -> str:
    """Uploads the model of what was `learned`, and registers it as a new, signed version: the challenger, and the champion where
    it was so decided."""
    files = learned / MODEL_FOLDER
    manifest = Manifest.of(files, learned / RUN_FOLDER)
    (files / MANIFEST).write_bytes(manifest.to_bytes())
    client, name = run.client, model_name(run.facts.device_type)
    logged = client.create_logged_model(run.experiment_id, name=name, source_run_id=run.id, tags=dict(run.tags))
    client.log_model_artifacts(logged.model_id, str(files))
    client.finalize_logged_model(logged.model_id, "READY")
    if not client.search_registered_models(filter_string=f"name = '{name}'"):
        description = f"Times, power, energy and TFLOP/s of a GEMM on {run.facts.device_type}, from its raw columns."
        client.create_registered_model(name, {"device_type": run.facts.device_type}, description)
    judged = {
        "decision": decision.reason,
        "sound": str(decision.sound).lower(),
        promotion_verdict.TAG: decision.verdict.to_tag(),
        conditions.TAG: run.facts.conditions.to_tag(),
    }
    version = str(
        client.create_model_version(
            name,
            source=logged.artifact_location,
            run_id=run.id,
            model_id=logged.model_id,
            tags={**run.tags, **_version_tags(run.facts, metrics), **judged},
            description=card[:_MAX_DESCRIPTION],
        ).version
    )
    sign(client, name, version, manifest, trust)
    client.set_registered_model_alias(name, CHALLENGER, version)
    if decision.promoted:
        make_champion(client, name, version, decision.reason)
    return version


def _flat(by_target: Mapping[str, Metrics]) -> dict[str, float]:
    """`runtime_ms.median_error_pct` and so on."""
    return {f"{target}.{name}": value for target, found in by_target.items() for name, value in found.items()}


def _as_metrics(numbers: Mapping[str, float]) -> list[Any]:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(name, value, now, 0) for name, value in numbers.items()]


def _version_tags(facts: TableFacts, metrics: MetricsByFold) -> dict[str, str]:
    """What a list of models shows: sizes, and each target's errors on the test set, or on shapes held out without one."""
    quoted = TEST_SET if metrics.get(TEST_SET) else HEADLINE
    errors = {
        f"{target.rsplit('_', 1)[0]}_{name}": f"{found[name]:.6g}"
        for target, found in metrics[quoted].items()
        for name in ERRORS
    }
    return {**{name: str(count) for name, count in facts.counts.items()}, **errors, QUOTED_TAG: quoted}
