"""A fitted model as an MLflow model: files that load with MLflow alone, and the interface they declare."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import farm.forest
from farm.forest.columns import OUTPUTS, REQUIRED, TEXTS, WITH_DEFAULT
from farm.forest.predictor import BOUNDS, DISTANCE, OUTSIDE, Predictor
from farm.forest.vocabulary import Vocabulary
from farm.registry import load_pyfunc, mlflow_warnings_ignored
from farm.registry.outputs import UNITS, definitions

_NEEDS = ("mlflow", "numpy", "pandas")
"""What a model's code imports. Trees are stored as arrays, so scikit-learn is not needed to predict."""


_CODE = Path(farm.forest.__path__[0])
"""What is stored with a model, for programs that have no farm. The farm itself reads a model's files with its own."""

ENTRY_POINT = Path(__file__).with_name("gemm_forest.py")
"""What MLflow runs to load a model."""


def save_model(model: Predictor, configured: pd.DataFrame, folder: Path, *, metadata: Mapping[str, Any]) -> None:
    """Writes the model with its code, signature, example and pinned requirements to a new folder."""
    with TemporaryDirectory(prefix="gemm-forest-") as staging:
        code, forest = Path(staging) / "code", Path(staging) / "forest"
        shutil.copytree(_CODE, code, ignore=shutil.ignore_patterns("__pycache__"))
        model.save(forest)
        pyfunc = load_pyfunc()
        with mlflow_warnings_ignored():
            pyfunc.save_model(
                path=str(folder),
                python_model=str(ENTRY_POINT),
                artifacts={"code": str(code), "forest": str(forest)},
                signature=signature(model.vocabulary),
                input_example=example(configured, model.vocabulary),
                # Given, not inferred: inference would load the model in another process for several seconds.
                pip_requirements=[f"{name}=={import_module(name).__version__}" for name in _NEEDS],
                metadata={
                    "device_type": model.device_type,
                    "families": model.vocabulary.measured(),
                    "required": list(REQUIRED),
                    "protocol": model.protocol,
                    "time": model.time or "unknown",
                    "outputs": described_outputs(model),
                    **metadata,
                },
            )


def described_outputs(model: Predictor) -> dict[str, dict[str, str]]:
    """Unit and definition of each predicted column of a model, and a note on one that it does not know."""
    found = {
        name: {"unit": UNITS[name], "definition": text}
        for name, text in definitions(model.protocol, model.time).items()
    }
    if model.time != "burst" and model.bursts is None:
        found["runtime_burst_ms"]["note"] = "this model does not know it: NaN"
    return found


def signature(vocabulary: Vocabulary) -> Any:
    """The columns that a model takes and gives.

    Numbers are declared as Any: MLflow refuses an int64 column where a signature says double, and a float column
    where it says long, and tables of GEMMs come as either. Every column is declared as optional: MLflow would refuse a
    table without a required one with a message of its own. The model itself checks both, see `Vocabulary.complete`; the
    required columns are in the model's metadata, with the units and definitions of what it gives.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    anything: Any = AnyType()  # type: ignore[no-untyped-call]

    inputs: list[Any] = [
        ColSpec(DataType.string if name in TEXTS else anything, name, required=False) for name in vocabulary.raw_columns
    ]
    outputs: list[Any] = [ColSpec(DataType.double, name) for name in (*OUTPUTS, *BOUNDS, DISTANCE)]
    outputs.append(ColSpec(DataType.string, OUTSIDE))
    return ModelSignature(Schema(inputs), Schema(outputs))


def example(configured: pd.DataFrame, vocabulary: Vocabulary) -> pd.DataFrame:
    """One trained configuration of each family, with the parameters that these families have."""
    rows = configured.groupby("family", sort=True).head(1)
    used = [name for name in vocabulary.parameters if rows[name].notna().any()]
    return rows[[*REQUIRED, *WITH_DEFAULT, *used]].reset_index(drop=True)
