"""Reading the model registry: which models there are, fetching one, and asking it.

MLflow and pandas are imported only when they are needed (about a second), so importing this package costs nothing.
"""

from farm.registry.client import load_mlflow, load_pyfunc, mlflow_warnings_ignored, registry_client
from farm.registry.models import CHAMPION, PREFIX, ModelInfo, download, list_models, model_info, model_name, pull
from farm.registry.predictions import (
    ANSWERS,
    OUTPUTS,
    Prediction,
    predict,
    predict_table,
    read_configurations,
    records,
)
from farm.registry.recommending import Objective, Recommendation, recommend

__all__ = [
    "ANSWERS",
    "CHAMPION",
    "OUTPUTS",
    "PREFIX",
    "ModelInfo",
    "Objective",
    "Prediction",
    "Recommendation",
    "download",
    "list_models",
    "load_mlflow",
    "load_pyfunc",
    "mlflow_warnings_ignored",
    "model_info",
    "model_name",
    "predict",
    "predict_table",
    "pull",
    "read_configurations",
    "recommend",
    "records",
    "registry_client",
]
