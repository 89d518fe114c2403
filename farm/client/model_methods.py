"""What a client asks of models, and plans with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.api import models, plans
from farm.api.models import ModelLine, Predicted, Recommended
from farm.api.plans import Planned as PlannedModel
from farm.campaign.workloads import architecture_of, configuration_of, gemm_columns, gemms_by_tokens
from farm.client.requests import Requests, whole_numbers
from farm.client.submissions import checked_model, flag, layer_choice, whole
from farm.client.table import Table
from farm.language_models.steps import Parallelism
from farm.protocols import Time


class ModelMethods:
    """Methods of `Client`: predictions, recommendations, and plans of language models."""

    _requests: Requests

    def predict(
        self,
        configurations: str | Sequence[str],
        *,
        device_type: str | None = None,
        version: str | None = None,
        time: Time | None = None,
    ) -> Predicted:
        """Time (ms), power (W) and energy (mJ) of configurations, by a registered model, with 90% intervals.

        Args:
            configurations: As the farm writes them: `tiled(tile=16) 512x512x512 f32`.
            device_type: May be left out where there is one model.
            version: A number or an alias. The default is the champion, or the newest version where there is none.
            time: `burst` or `settled`, where the model must know it. Predictions have both where it does.

        Raises:
            NoSuchModel: The device type has no model.
            NotPredictable: The model cannot predict a configuration.
        """
        return self._requests.run(
            "predict",
            models.predict,
            configurations=configurations,
            device_type=device_type,
            version=version,
            time=time,
        )

    def recommend(self, shape: str, *, device_type: str | None = None, **options: Any) -> Recommended:
        """The kernels for a problem, ranked by a registered model, the best first.

        Args:
            shape: M x N x K, as `4096x4096x1024`.
            device_type: May be left out where there is one model.
            options: The other options of `farm recommend`, as `types`, `layout`, `batch`, `family`, `objective` and `top`.

        Raises:
            NoSuchModel: The device type has no model.
            NotPredictable: The model knows no such problem.
        """
        return self._requests.run("recommend", models.recommend, shape=shape, device_type=device_type, **options)

    def models(self) -> list[ModelLine]:
        """Every version of every registered model, with its errors in %."""
        return self._requests.run("models", models.list_)

    def plan(
        self,
        model: str | Path | None = None,
        *,
        gemms: Sequence[Mapping[str, Any]] | None = None,
        on: str | Sequence[str] | None = None,
        tokens: int | Sequence[int] | None = None,
        price: Mapping[str, float] | Sequence[str] | None = None,
        **options: Any,
    ) -> PlannedModel:
        """Plans a step of a language model on each card: time (ms), energy (J) and cost, from rows and predictions.

        Args:
            model: A built-in language model, or the path of a `config.json` or its folder.
            gemms: The GEMMs of a step on one card instead, each with `name`, `problem` and `count`, how often it runs, as in
                `{"name": "qkv", "problem": "512x6144x4096 bf16 nt", "count": 32}`.
            on: Device types. The default is every type with a model.
            tokens: Numbers of tokens of a step, as in `[1, 128]`. Of given GEMMs, one: the tokens of their step.
            price: Money per hour of a card, as in `{"nvidia-h200": 3.5}`.
            options: The other options of `farm plan`, as `tp`, `ep`, `load`, `max_latency`, `campaign` and `any_source`, and `cards`
                of given GEMMs.

        Raises:
            BadInput: Neither a model nor GEMMs are given, or both.
            NoPlan: No card has the rows or the predictions.
        """
        name = None if model is None else checked_model(model)
        return self._requests.run(
            "plan",
            plans.plan,
            model=name,
            config=None if name is None else configuration_of(name),
            gemms=gemms,
            on=on,
            tokens=None if tokens is None else whole_numbers("tokens", tokens),
            price=[f"{kind}={value}" for kind, value in price.items()] if isinstance(price, Mapping) else price,
            **options,
        )

    def shapes(
        self,
        model: str | Path,
        *,
        tokens: int | Sequence[int] = 128,
        tp: int = 1,
        ep: int = 1,
        sequences: int | None = None,
        training: bool = False,
        lora_rank: int = 0,
        layers: str = "all",
    ) -> Table:
        """The GEMMs of a step of a language model on one GPU: a row for each, with `tokens` and `count`, how often it runs.

        Takes what `submit_model` takes, and sends no request.
        """
        found = gemms_by_tokens(
            architecture_of(checked_model(model)),
            whole_numbers("tokens", tokens),
            Parallelism(whole("tp", tp), whole("ep", ep)),
            sequences=None if sequences is None else whole("sequences", sequences),
            training=flag("training", training),
            lora_rank=whole("lora_rank", lora_rank, least=0),
            layers=layer_choice(layers),
        )
        rows = [{"tokens": number, **gemm_columns(gemm)} for number, gemms in found.items() for gemm in gemms]
        return Table(rows)
