"""A fitted model as an MLflow model: files that load with MLflow alone, and the interface they declare."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import trainer.model
from farm.registry import load_pyfunc, mlflow_warnings_ignored
from trainer.model.columns import OUTPUTS, REQUIRED, WITH_DEFAULT, Vocabulary
from trainer.model.predictor import BOUNDS, DISTANCE, OUTSIDE, Predictor

_TEXTS = ("ab", "family", "cd", "acc", "layout")
_NEEDS = ("mlflow", "numpy", "pandas")
"""What a model's code imports. Trees are stored as arrays, so scikit-learn is not needed to predict."""


_CODE = Path(trainer.model.__path__[0])


def copy_code(to: Path) -> None:
    """Puts what a model's files need to be read into a new folder; its entry point is MLflow's affair."""
    shutil.copytree(_CODE, to, ignore=shutil.ignore_patterns("__pycache__", "gemm_forest.py"))


def save_model(model: Predictor, configured: pd.DataFrame, folder: Path, *, metadata: Mapping[str, Any]) -> None:
    """Writes the model with its code, signature, example and pinned requirements to a new folder."""
    with TemporaryDirectory(prefix="gemm-forest-") as staging:
        code, forest = Path(staging) / "code", Path(staging) / "forest"
        copy_code(code)
        model.save(forest)
        pyfunc = load_pyfunc()
        with mlflow_warnings_ignored():
            pyfunc.save_model(
                path=str(folder),
                python_model=str(_CODE / "gemm_forest.py"),
                artifacts={"code": str(code), "forest": str(forest)},
                signature=signature(model.vocabulary),
                input_example=example(configured, model.vocabulary),
                # Given, not inferred: inference would load the model in another process for several seconds.
                pip_requirements=[f"{name}=={import_module(name).__version__}" for name in _NEEDS],
                metadata={
                    "device_type": model.device_type,
                    "families": families(model.vocabulary),
                    "required": list(REQUIRED),
                    **metadata,
                },
            )


def families(vocabulary: Vocabulary) -> dict[str, Any]:
    """What of each family was measured, for programs that look for kernels: layouts by types, parameters, the values of
    these in each kernel, and by types the positions of the kernels that were measured in them."""
    return {
        name: {
            "layouts": {types: list(layouts) for types, layouts in known.layouts.items()},
            "parameters": list(known.parameters),
            "kernels": [[int(value) for value in kernel] for kernel in known.kernels],
            "kernels_by_types": {types: list(which) for types, which in known.kernels_by_types.items()},
        }
        for name, known in vocabulary.families.items()
    }


def signature(vocabulary: Vocabulary) -> Any:
    """The columns that a model takes and gives.

    Numbers are declared as Any: MLflow refuses an int64 column where a signature says double, and a float column
    where it says long, and tables of GEMMs come as either. Every column is declared as optional: MLflow would refuse a
    table without a required one with a message of its own. The model itself checks both, see `Vocabulary.complete`; the
    required columns are in the model's metadata.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    anything: Any = AnyType()  # type: ignore[no-untyped-call]

    inputs: list[Any] = [
        ColSpec(DataType.string if name in _TEXTS else anything, name, required=False)
        for name in vocabulary.raw_columns
    ]
    outputs: list[Any] = [ColSpec(DataType.double, name) for name in (*OUTPUTS, *BOUNDS, DISTANCE)]
    outputs.append(ColSpec(DataType.string, OUTSIDE))
    return ModelSignature(Schema(inputs), Schema(outputs))


def example(configured: pd.DataFrame, vocabulary: Vocabulary) -> pd.DataFrame:
    """One trained configuration of each family, with the parameters that these families have."""
    rows = configured.groupby("family", sort=True).head(1)
    used = [name for name in vocabulary.parameters if rows[name].notna().any()]
    return rows[[*REQUIRED, *WITH_DEFAULT, *used]].reset_index(drop=True)
