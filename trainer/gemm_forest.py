"""The entry point that MLflow runs to load a model ("models from code").

It loads the rest of this package from the model's own files, under a name made of their content: models trained by
different versions of the farm live side by side in one process, and nothing needs to be installed for them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext


def predictor_module(folder: Path) -> ModuleType:
    """The module `predictor` of the package in `folder`, which is imported under a name made of its content."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    name = f"gemm_forest_{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"the model's code is missing: {folder}")
        package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        sys.modules[name] = package
    return importlib.import_module(f"{name}.predictor")


class NotPredictable(MlflowException, ValueError):
    """Rows that the model does not know. MLflow's server answers it as HTTP 400, with these words and no stack trace."""

    def __init__(self, why: str) -> None:
        super().__init__(why, error_code=INVALID_PARAMETER_VALUE)
        self._why = why

    def serialize_as_json(self) -> str:
        """Returns the message alone. MLflow's server would put the whole table before it."""
        return json.dumps({"error_code": self.error_code, "message": self._why})


class GemmForest(PythonModel):
    """Predicts runtime_ms, runtime_burst_ms, power_w, energy_mj and tflops from the raw columns of a configuration."""

    def load_context(self, context: PythonModelContext) -> None:
        code = predictor_module(Path(context.artifacts["code"]))
        self._predictor = code.Predictor.load(Path(context.artifacts["forest"]))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        try:
            result: pd.DataFrame = self._predictor.predict(model_input)
        except ValueError as error:
            raise NotPredictable(str(error)) from None
        return result


set_model(GemmForest())
