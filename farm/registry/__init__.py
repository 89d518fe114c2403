"""The model registry: which models there are, fetching one, asking it, and which version others pull.

MLflow and pandas are imported only when they are needed (about a second), so importing this package costs nothing.
"""

from farm.registry.client import load_mlflow, load_pyfunc, mlflow_warnings_ignored, registry_client
from farm.registry.details import ERRORS, Metrics, metrics_of, model_card
from farm.registry.models import (
    CHALLENGER,
    CHAMPION,
    PREFIX,
    ModelInfo,
    download,
    list_models,
    model_info,
    model_name,
    packed,
    pull,
    unpack,
)
from farm.registry.predictions import (
    ANSWERS,
    OUTPUTS,
    Prediction,
    predict,
    predict_table,
    read_configurations,
    records,
)
from farm.registry.promotions import Reign, champions, crown, promote, rollback
from farm.registry.recommending import Objective, Recommendation, recommend

__all__ = [
    "ANSWERS",
    "CHALLENGER",
    "CHAMPION",
    "ERRORS",
    "OUTPUTS",
    "PREFIX",
    "Metrics",
    "ModelInfo",
    "Objective",
    "Prediction",
    "Recommendation",
    "Reign",
    "champions",
    "crown",
    "download",
    "list_models",
    "load_mlflow",
    "load_pyfunc",
    "metrics_of",
    "mlflow_warnings_ignored",
    "model_card",
    "model_info",
    "model_name",
    "packed",
    "predict",
    "predict_table",
    "promote",
    "pull",
    "read_configurations",
    "recommend",
    "records",
    "registry_client",
    "rollback",
    "unpack",
]
