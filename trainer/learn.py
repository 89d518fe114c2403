"""Learning without a registry: a training table becomes a folder of files and the numbers that describe them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from farm.forest.predictor import Interval
from farm.registry.conditions import Conditions
from farm.registry.held_out import FOLDER as HELD_OUT_FOLDER
from trainer.conditions import conditions_of
from trainer.evaluate import Metrics, evaluate, measured_outputs
from trainer.folds import HEADLINE
from trainer.forest import ForestSettings, fit
from trainer.held_out import FoldModelStore
from trainer.packaging import save_model
from trainer.plots import HeldOutRows, importance_plot, plots
from trainer.progress import Progress
from trainer.row_keys import distinct
from trainer.table import configurations, protocol_of
from trainer.table_hash import table_hash
from trainer.test_set import TEST_SET, check_apart, evaluate_on


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What a training table holds."""

    device_type: str
    # Measurements, different configurations, those with power, and shapes (m, n, k).
    rows: int
    configurations: int
    power_configurations: int
    shapes: int
    sources: list[str]
    table_hash: str
    conditions: Conditions
    # Configurations with a burst time, the protocol of the rows, and rows of other protocols, which are left out.
    burst_configurations: int
    protocol: str
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, table: pd.DataFrame, device_type: str, left_out: Mapping[str, int] | None = None) -> TableFacts:
        configured = configurations(table)
        return cls(
            device_type=device_type,
            rows=len(table),
            configurations=len(configured),
            power_configurations=int(configured["power_w"].notna().sum()),
            shapes=len(configured[["m", "n", "k"]].drop_duplicates()),
            sources=sorted(str(source) for source in table["source"].unique()),
            table_hash=table_hash(table),
            conditions=conditions_of(table),
            burst_configurations=int(configured["runtime_burst_ms"].notna().sum()),
            protocol=protocol_of(table),
            left_out=dict(left_out or {}),
        )

    @property
    def counts(self) -> dict[str, int]:
        return {
            "rows": self.rows,
            "configurations": self.configurations,
            "power_configurations": self.power_configurations,
            "burst_configurations": self.burst_configurations,
            "shapes": self.shapes,
        }


MetricsByFold = Mapping[str, Mapping[str, Metrics]]
"""Fold kind -> target -> name -> number; see `trainer.evaluate.metrics`."""

MODEL_FOLDER = "model"
RUN_FOLDER = "run"
FOLDS_FOLDER = "folds"


@dataclass(frozen=True, slots=True)
class Learned:
    """The results of `learn`, in addition to its files."""

    configured: pd.DataFrame
    metrics: MetricsByFold


def learn(
    table: pd.DataFrame,
    facts: TableFacts,
    settings: ForestSettings,
    folder: Path,
    progress: Progress | None = None,
    test: pd.DataFrame | None = None,
) -> Learned:
    """Evaluates and fits a model, and writes into `folder`:

    - `run/`: the training table, pictures, and in `held_out/` the models of the evaluation;
    - `folds/<kind>/`: the held-out predictions of each fold kind;
    - `model/`: the model as MLflow loads it.

    `test` has the rows of a test set. The model is evaluated on them, and not trained on them. `progress` receives the progress.
    Raises `TestRowsInTraining`.
    """
    if test is not None:
        check_apart(table, test)
    configured = configurations(table)
    progress = progress or Progress()
    progress.plan(len(configured))
    run = folder / RUN_FOLDER
    for made in ("evaluation", "training"):
        (run / made).mkdir(parents=True)
    fold_models = FoldModelStore(run / HELD_OUT_FOLDER)
    metrics: dict[str, dict[str, Metrics]] = {}
    intervals: Mapping[str, Interval] = {}
    for found in evaluate(facts.device_type, configured, settings, fold_models.keep, progress=progress):
        metrics[found.kind] = dict(found.metrics)
        (folder / FOLDS_FOLDER / found.kind).mkdir(parents=True)
        joined = configured.join(found.predicted.add_prefix("predicted_"))
        joined.to_parquet(folder / FOLDS_FOLDER / found.kind / "predictions.parquet")
        intervals = found.intervals
        if found.kind == HEADLINE:
            rows = HeldOutRows(facts.device_type, configured, measured_outputs(configured), found.predicted)
            plots(run / "evaluation", rows)
    fold_models.finish(configured)
    codes, kernels = distinct(table["parameters"])
    texts = pd.Categorical([*map(_json_text, kernels)])
    table.assign(parameters=texts[codes]).to_parquet(run / "training" / "table.parquet")
    model = fit(facts.device_type, configured, settings, intervals)
    progress.fitted(len(configured))
    importance_plot(run / "evaluation", facts.device_type, model.importance)
    described = {"rows": facts.rows, "shapes": facts.shapes, "table_hash": facts.table_hash}
    save_model(model, configured, folder / MODEL_FOLDER, metadata=described)
    if test is not None and len(test):
        tested = configurations(test)
        of_test, predicted = evaluate_on(model, tested)
        if of_test:
            metrics = {TEST_SET: of_test, **metrics}
            (folder / FOLDS_FOLDER / TEST_SET).mkdir()
            tested.join(predicted.add_prefix("predicted_")).to_parquet(
                folder / FOLDS_FOLDER / TEST_SET / "predictions.parquet"
            )
    return Learned(configured, metrics)


def _json_text(parameters: Any) -> str:
    return parameters if isinstance(parameters, str) else json.dumps(parameters, sort_keys=True)
