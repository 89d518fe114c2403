"""The model registry: lists, loads, promotes and deletes models, and predicts with them.

Its modules, MLflow and pandas are imported when they are first used, so importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.registry.conditions import Conditions, Protocol, protocol_groups, protocols_text, same_protocols
    from farm.registry.files import vouch
    from farm.registry.loaded_model import Model
    from farm.registry.mlflow_client import load_mlflow, load_pyfunc, mlflow_warnings_ignored, registry_client
    from farm.registry.model_names import PREFIX, model_name
    from farm.registry.models import (
        CHALLENGER,
        CHAMPION,
        ERRORS,
        ModelInfo,
        answering_model,
        answering_models,
        download,
        list_models,
        load,
        model_info,
        packed,
        pull,
        signed_files,
        unpack,
    )
    from farm.registry.outputs import OUTPUTS
    from farm.registry.predictions import (
        ANSWERS,
        Prediction,
        predict,
        predict_table,
        read_configurations,
        records,
        require_few_columns,
    )
    from farm.registry.promotion_verdict import PromotionTest, PromotionVerdict, remedy
    from farm.registry.promotions import PromotionRecord, champions, make_champion, promote, rollback
    from farm.registry.recommendations import Objective, Recommendation, recommend
    from farm.registry.trust import Trust
    from farm.registry.version_details import Metrics, metrics_of, model_card

__getattr__ = names_of(__name__)
