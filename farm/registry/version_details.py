"""Details of one version: its errors by fold and target, and its model card."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from farm.registry.mlflow_client import registry_client
from farm.registry.models import ModelInfo

CARD = "model_card.md"
"""The file of a run with the model card."""

FOLD_TAG = "fold"
"""The tag with the fold kind, on a child of a training's run."""

Metrics = dict[str, dict[str, dict[str, float]]]
"""Fold kind -> target -> name -> number."""


def metrics_of(uri: str, model: ModelInfo) -> Metrics:
    """A version's errors; empty for a version without a run."""
    if model.run_id is None:
        return {}
    with registry_client(uri) as client:
        run = client.get_run(model.run_id)
        children = client.search_runs(
            [run.info.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{model.run_id}'"
        )
    found: Metrics = {}
    _add(found, run.data.metrics.items())
    for child in children:
        kind = child.data.tags.get(FOLD_TAG)
        _add(found, ((f"{kind}.{path}", value) for path, value in child.data.metrics.items()))
    return found


def _add(metrics: Metrics, numbers: Iterable[tuple[str, float]]) -> None:
    """Adds numbers with paths such as `unseen_shapes.runtime_ms.median_error_pct`; ignores others."""
    for path, value in numbers:
        parts = path.split(".")
        if len(parts) == 3:
            kind, target, name = parts
            metrics.setdefault(kind, {}).setdefault(target, {})[name] = value


def model_card(uri: str, model: ModelInfo) -> str | None:
    """The version's model card, in Markdown; its description where the run has none."""
    with registry_client(uri) as client:
        if model.run_id is not None and any(file.path == CARD for file in client.list_artifacts(model.run_id)):
            with TemporaryDirectory(prefix="model-card-") as folder:
                return Path(client.download_artifacts(model.run_id, CARD, folder)).read_text(encoding="utf-8")
        version: Any = client.get_model_version(model.name, model.version)
        return version.description or None
