"""Predictions of the champion of each device type for what a campaign measured, and which of it the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from farm import registry
from farm.compare.statistics import Floats, Ints
from farm.errors import FarmError, NoSuchModel
from farm.kernels import Configuration
from farm.registry import Metrics, Model, ModelInfo, Trust
from farm.registry.files import SignedFiles
from farm.report.result_points import Bools, Results

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("runtime_ms", "runtime_burst_ms", "power_w", "energy_mj")


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The champion of a device type, compared with the campaign's points of that type."""

    device_type: str
    # None: there is no champion, and `why` gives the reason.
    model: ModelInfo | None
    why: str | None = None
    # The errors of its own evaluation, by fold and target.
    metrics: Metrics | None = None
    # A value for each point of the campaign by target, NaN where the model has none.
    predicted: dict[str, Floats] | None = None
    # Whether it was trained on each configuration; None: its training table is missing.
    learned: Bools | None = None


def accuracies(uri: str, results: Results, trust: Trust) -> list[Accuracy]:
    """One for each device type of the results. A missing model is a reason in it, not an error."""
    return [_accuracy(uri, results, kind, trust) for kind in range(len(results.types))]


def _accuracy(uri: str, results: Results, kind: int, trust: Trust) -> Accuracy:
    device_type = results.types[kind]
    points = np.flatnonzero(results.type == kind)
    try:
        model = registry.model_info(uri, device_type)
    except NoSuchModel:
        return Accuracy(device_type=device_type, model=None, why=f"The registry has no champion for {device_type}.")
    except FarmError as error:
        return Accuracy(device_type=device_type, model=None, why=str(error))
    try:
        metrics = registry.metrics_of(uri, model)
        predicted = _predicted(registry.load(uri, model, trust), results, points)
        learned = _learned(registry.signed_files(uri, model, trust), results, points)
    except FarmError as error:
        return Accuracy(device_type=device_type, model=model, why=str(error))
    why = (
        None
        if np.isfinite(predicted["runtime_ms"]).any()
        else "It has learned none of the kernels and types measured here."
    )
    return Accuracy(
        device_type=device_type, model=model, why=why, metrics=metrics, predicted=predicted, learned=learned
    )


def _predicted(model: Model, results: Results, points: Ints) -> dict[str, Floats]:
    """Values by target [all points], NaN for kinds of problems and families that the model does not know."""
    table = _frame(results, points)
    can = model.known(table)
    known = points[can]
    found = {target: np.full(len(results), np.nan) for target in TARGETS}
    if len(known):
        answers = registry.predict_table(model, table[can].reset_index(drop=True))
        for target in TARGETS:
            found[target][known] = answers[target].to_numpy(np.float64)
    return found


def _frame(results: Results, points: Ints) -> pd.DataFrame:
    """The raw columns that a model reads: of the problem, the family, and a column for each parameter."""
    import pandas as pd

    problems = pd.DataFrame.from_records([_columns(Configuration(p, results.kernels[0])) for p in results.problems])
    kernels = pd.DataFrame.from_records([{"family": k.family, **dict(k.parameters)} for k in results.kernels])
    columns: Sequence[pd.DataFrame] = [
        problems.iloc[results.problem[points]].reset_index(drop=True),
        kernels.iloc[results.kernel[points]].reset_index(drop=True),
    ]
    return pd.concat(columns, axis="columns")


def _columns(configuration: Configuration) -> dict[str, Any]:
    columns = configuration.columns()
    return {name: value for name, value in columns.items() if name not in ("family", "parameters")}


def _learned(files: SignedFiles, results: Results, points: Ints) -> Bools | None:
    """Which points are configurations of the model's training table; None where the run has no table."""
    import pyarrow.parquet as pq

    if _TABLE not in files.of_run(Path(_TABLE).parent.as_posix()):
        return None
    with TemporaryDirectory(prefix="training-table-") as folder:
        files.save_of_run([_TABLE], Path(folder))
        path = Path(folder) / _TABLE
        if _ID not in pq.read_schema(path).names:
            return None
        ids = set(map(str, pq.read_table(path, columns=[_ID])[_ID].to_pylist()))
    found = np.zeros(len(results), bool)
    for point in points:
        problem, kernel = results.problems[results.problem[point]], results.kernels[results.kernel[point]]
        found[point] = str(Configuration(problem, kernel).id) in ids
    return found


_TABLE, _ID = "training/table.parquet", "configuration_id"
