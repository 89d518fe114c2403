"""Registered models, and their predictions for GEMMs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from farm import registry
from farm.api.access import Access
from farm.api.operation import Cli, Document, Download, InTable, made_file, operation
from farm.db.states import Role
from farm.errors import ModelRefused, NoSuchModel, NotPredictable
from farm.fusion import Fusion
from farm.gemm import MAX_EXTENT, ElementTypes, Layout, Problem, Shape
from farm.groups import NONE, Groups
from farm.kernels import Configuration
from farm.protocols import Time
from farm.registry import ModelInfo, Objective, Prediction, PromotionRecord, Recommendation
from farm.scale import Scale
from farm.sparsity import Sparsity

TypeAsked = Annotated[
    str | None,
    Field(description="A device type or a model's name. Optional where there is one model."),
    Cli(("--type", "-t")),
]
Name = Annotated[
    str,
    Field(description="A model or a device type: gemm-forest-nvidia-h200 or nvidia-h200."),
    Cli(argument=True),
]
VersionAsked = Annotated[
    str | None,
    Field(description="A version number or an alias."),
    Cli(default="the champion, or the newest where there is none"),
]
TimeAsked = Annotated[
    Time | None,
    Field(
        description="The time that counts: the burst time after a rest, or the settled time under load. A model that does not "
        "know it is refused. Without it, the time of the model's rows, which is the settled time for the protocol `farm`.",
    ),
]
Reason = Annotated[str | None, Field(description="Why; kept in the model's history.")]


MAX_CONFIGURATIONS = 200_000
"""Configurations in one prediction."""


class ModelLine(Document):
    """A registered version of a model."""

    name: Annotated[str, InTable("model", folds=True)]
    version: Annotated[str, InTable(number=True)]
    device_type: str
    aliases: Annotated[list[str], InTable(folds=True)]
    created_at: Annotated[datetime, InTable("created", priority=5)]
    run_id: str | None
    rows: Annotated[int | None, InTable(priority=3)]
    configurations: int | None
    shapes: Annotated[int | None, InTable(priority=4)]
    burst_configurations: int | None = Field(
        default=None, description="configurations with a burst time; none: an older version"
    )
    sources: str | None
    table_hash: str | None
    tested_on: Annotated[str, InTable(folds=True, priority=2)] = Field(description="the rows that the errors are of")
    median_error_pct: Annotated[float | None, InTable("median error", "%", priority=1)] = Field(
        description="of the runtime"
    )
    mean_error_pct: float | None
    decision: Annotated[str | None, InTable("decision: it …", folds=True, priority=2)]
    sound: bool | None
    conditions: registry.Conditions | None = Field(
        description="where its rows come from and how they were measured; none: unknown"
    )


class AnsweringModel(Document):
    """The version that predicts: its errors, whether it is the champion, and its training rows."""

    name: str
    version: str
    device_type: str
    standing: str = Field(description="champion, challenger, or older version")
    tested_on: str = Field(description="the rows that the errors are of")
    errors: dict[str, dict[str, float]] = Field(description="target, name of the number: in percent")
    decision: str | None
    why_not_champion: str | None = Field(description="the test that it failed; none for a champion")
    to_get_a_champion: str | None = Field(description="what to do; none where the device type has a champion")
    conditions: registry.Conditions | None = Field(
        description="where its rows come from and how they were measured; none: unknown"
    )

    @classmethod
    def of(cls, model: ModelInfo, *, has_champion: bool) -> AnsweringModel:
        """`has_champion`: whether a version of that name is the champion."""
        is_champion = registry.CHAMPION in model.aliases
        why = None if is_champion else str(model.verdict or f"It {model.decision or 'was not judged'}.")
        what = registry.remedy(
            name=model.name,
            version=model.version,
            device_type=model.device_type,
            sound=model.sound,
            verdict=model.verdict,
        )
        return cls(
            name=model.name,
            version=model.version,
            device_type=model.device_type,
            standing=model.standing,
            tested_on=model.tested_on,
            errors=model.errors,
            decision=model.decision,
            why_not_champion=why,
            to_get_a_champion=None if has_champion else what,
            conditions=model.conditions,
        )


class ModelNow(ModelLine):
    """Everything the registry knows about a version."""

    metrics: registry.Metrics = Field(description="fold kind, target, name of the number")
    champions: list[PromotionRecord]
    card: str | None = Field(default=None, description="the model card, in Markdown")


class PredictQuery(Document):
    """What to predict: configurations, or rows of a table of them."""

    configurations: Annotated[list[str], Cli(argument=True)] = Field(
        default=[],
        max_length=MAX_CONFIGURATIONS,
        description='Configurations, as in "tiled(tile=16) 512x512x512 f32".',
        examples=[["tiled(tile=16) 512x512x512 f32"]],
    )
    rows: list[dict[str, Any]] = Field(
        default=[],
        max_length=MAX_CONFIGURATIONS,
        description="Objects with m, n, k, ab, cd, acc, layout, family and its parameters.",
    )
    rows_from: str = Field(default="", description="The name of those rows in error messages.")
    time: TimeAsked = None
    device_type: TypeAsked = None
    version: VersionAsked = None


class Promotion(Document):
    """Request to promote a model version."""

    version: Annotated[str, Cli(argument=True)] = Field(description="A version number or an alias.")
    reason: Reason = None
    force: bool = Field(
        default=False,
        strict=True,
        description="Promote even a version that leaked test rows or is no better than a baseline.",
    )


class Rollback(Document):
    """Request to make the previous champion the champion again."""

    reason: Reason = None


class Promoted(Document):
    """The champion after a promotion or a rollback."""

    champion: ModelLine
    changed: bool
    instead_of: str | None = Field(default=None, description="the version that was taken back")


class Predicted(Document):
    """Predictions of a model."""

    model: str
    version: str
    answered_by: AnsweringModel
    time: Time | None = Field(default=None, description="the time of the request; none: that of the model's rows")
    predictions: list[Prediction]
    rows: list[dict[str, Any]] = Field(default=[], description="the rows of the request, with predictions")


class Recommended(Document):
    """Kernels for a problem, ranked by a model, the best first."""

    model: str
    version: str
    answered_by: AnsweringModel
    problem: str
    objective: Objective
    time: Time | None = Field(default=None, description="the time of the request; none: that of the model's rows")
    kernels: int
    ranking: list[Prediction]
    safe: Prediction | None
    safe_costs_pct: float | None


class CostOn(Document):
    """What a GEMM is expected to cost on a type of card, by the type's champion, or its newest model without one."""

    device_type: str
    model: str
    version: str
    answered_by: AnsweringModel
    group: int = Field(
        description="from 1: answers of one group are of the same measuring protocol, and ranked together"
    )
    rank: int | None = Field(default=None, description="from 1, in its group; none where the model cannot say")
    found: Recommendation | None
    why_not: str | None = Field(default=None, description="why the model has no prediction")


@operation("GET", "/models")
def list_(access: Access) -> list[ModelLine]:
    """Every version of every model, by name and newest first."""
    return [_line(model) for model in registry.list_models(access.settings.tracking_uri)]


def _line(model: ModelInfo) -> ModelLine:
    return ModelLine.model_validate(model)


@operation("GET", "/models/{name}")
def show(
    access: Access,
    name: Name,
    *,
    version: VersionAsked = None,
    card: Annotated[bool, Field(description="Include the model card, which is Markdown.")] = False,
) -> ModelNow:
    """Everything about a version: errors by fold and target, sources, the decision on it, the champions so far."""
    uri = access.settings.tracking_uri
    model = registry.model_info(uri, name, version) if version else registry.answering_model(uri, name)
    written = registry.model_card(uri, model) if card else None
    if card and written is None:
        raise NoSuchModel(name=f"model card of {model.name} version {model.version}", known="none")
    return ModelNow(
        **_line(model).model_dump(),
        metrics=registry.metrics_of(uri, model),
        champions=registry.champions(uri, model.name),
        card=written,
    )


@operation("GET", "/models/{name}/files", sends="application/zip")
def files(access: Access, name: Name, *, version: VersionAsked = None) -> Download:
    """The files of a version, as a ZIP file: unpacked, mlflow.pyfunc.load_model loads them where the farm is not installed."""
    uri = access.settings.tracking_uri
    model = registry.model_info(uri, name, version) if version else registry.answering_model(uri, name)
    with TemporaryDirectory(prefix="farm-model-") as folder:
        made = registry.packed(uri, model, Path(folder), trust=access.models.trust)
        with made_file("model.zip") as path:
            made.replace(path)
    return Download(path=path, media_type="application/zip", name=f"{model.name}-v{model.version}.zip")


@operation("POST", "/models/{name}/promote", role=Role.OPERATE)
def promote(access: Access, name: Name, promotion: Promotion) -> Promoted:
    """Make a version the champion by hand."""
    with access.change(promote) as change:
        model, changed = registry.promote(
            access.settings.tracking_uri,
            name,
            promotion.version,
            reason=promotion.reason or "promoted by hand",
            force=promotion.force,
        )
        change.record(
            "model", f"{model.name}/{model.version}",
            after={"champion": model.version, "changed": changed, "reason": promotion.reason, "force": promotion.force},
        )  # fmt: skip
    return Promoted(champion=_line(model), changed=changed)


@operation("POST", "/models/{name}/rollback", role=Role.OPERATE)
def rollback(access: Access, name: Name, rollback_request: Rollback) -> Promoted:
    """Make the champion before the present one the champion again."""
    with access.change(rollback) as change:
        model, taken_back = registry.rollback(access.settings.tracking_uri, name, reason=rollback_request.reason)
        change.record(
            "model", f"{model.name}/{model.version}",
            before={"champion": taken_back.version}, after={"champion": model.version, "reason": rollback_request.reason},
        )  # fmt: skip
    return Promoted(champion=_line(model), changed=True, instead_of=taken_back.version)


@operation("POST", "/predict", seconds=60)
def predict(access: Access, prediction: PredictQuery) -> Predicted:
    """Predict time, power, energy and TFLOP/s with the registered model of a device type."""
    rows_from = prediction.rows_from or "the rows"
    registry.require_few_columns(prediction.rows, rows_from)
    configurations = [Configuration.parse(text) for text in prediction.configurations]
    info, model = access.models.pull(prediction.device_type, prediction.version)
    rows = []
    if prediction.rows:
        import pandas as pd

        table = pd.DataFrame.from_records(prediction.rows)
        rows = registry.records(registry.predict_table(model, table, path=rows_from, time=prediction.time))
    return Predicted(
        model=info.name,
        version=info.version,
        answered_by=_answering(access, info),
        time=prediction.time,
        predictions=registry.predict(model, configurations, time=prediction.time),
        rows=rows,
    )


def _answering(access: Access, model: ModelInfo) -> AnsweringModel:
    champion = registry.CHAMPION in model.aliases or any(
        registry.CHAMPION in one.aliases and one.name == model.name
        for one in registry.list_models(access.settings.tracking_uri)
    )
    return AnsweringModel.of(model, has_champion=champion)


Dimensions = Annotated[
    str, Field(description="M x N x K, as in 4096x4096x1024.", examples=["4096x4096x1024"]), Cli(argument=True)
]
Types = Annotated[str, Field(description="Element types: f16, or f16:f32:f32."), Cli(("--dtype",))]
Layouts = Annotated[str, Field(description="Layout: nn, nt, tn or tt.")]
Alpha = Annotated[float, Field(description="Factor of the product.")]
Beta = Annotated[float, Field(description="Factor of the matrix that is added.")]
Batch = Annotated[
    int,
    Field(ge=1, le=MAX_EXTENT, description="Number of products with matrices of their own, computed in one launch."),
]
Scales = Annotated[Scale, Field(description="Scale factors of A and B.")]
Fusions = Annotated[Fusion, Field(description="Operations that follow the product.")]
Sparsities = Annotated[Sparsity, Field(description="Sparsity of B.")]
RowsOfGroups = Annotated[
    str, Field(description="Rows of each group, as in 16*8,3,0. Their sum is m.", examples=["16*8,3,0"])
]
Families = Annotated[list[str] | None, Field(description="Only kernels of this family; may be repeated.")]
Objectives = Annotated[Objective, Field(description="What to minimize."), Cli(("--objective", "-o"))]


@operation("GET", "/recommend", seconds=60)
def recommend(
    access: Access,
    *,
    shape: Dimensions,
    types: Types = "f32",
    layout: Layouts = "nn",
    alpha: Alpha = 1.0,
    beta: Beta = 0.0,
    batch: Batch = 1,
    scale: Scales = Scale.NONE,
    fused: Fusions = Fusion.NONE,
    groups: RowsOfGroups = NONE,
    sparsity: Sparsities = Sparsity.NONE,
    family: Families = None,
    objective: Objectives = Objective.TIME,
    time: TimeAsked = None,
    unmeasured: Annotated[
        bool, Field(description="Include kernels that were never measured: every combination of known values.")
    ] = False,
    top: Annotated[int, Field(ge=1, le=10_000, description="Maximum number of kernels."), Cli(("--top", "-n"))] = 10,
    device_type: TypeAsked = None,
    version: VersionAsked = None,
) -> Recommended:
    """Rank the kernels that were measured and that a card can run for a problem, the best first."""
    problem = Problem(
        Shape.parse(shape), ElementTypes.parse(types), Layout.parse(layout), alpha, beta, batch, scale, fused,
        Groups.parse(groups), sparsity,
    )  # fmt: skip
    info, model = access.models.pull(device_type, version)
    found = registry.recommend(
        model, problem, families=family or (), objective=objective, time=time, top=top, unmeasured=unmeasured
    )
    kept = ("problem", "objective", "time", "kernels", "ranking", "safe", "safe_costs_pct")
    return Recommended(
        model=info.name,
        version=info.version,
        answered_by=_answering(access, info),
        **{name: getattr(found, name) for name in kept},
    )


@operation("GET", "/costs", seconds=60)
def costs(
    access: Access,
    *,
    shape: Dimensions,
    types: Types = "f32",
    layout: Layouts = "nn",
    alpha: Alpha = 1.0,
    beta: Beta = 0.0,
    batch: Batch = 1,
    scale: Scales = Scale.NONE,
    fused: Fusions = Fusion.NONE,
    groups: RowsOfGroups = NONE,
    sparsity: Sparsities = Sparsity.NONE,
    family: Families = None,
    objective: Objectives = Objective.TIME,
    time: TimeAsked = None,
    top: Annotated[int, Field(ge=1, le=1000, description="Maximum number of kernels for each device type.")] = 5,
    mix_protocols: Annotated[
        bool, Field(description="Rank models together whose rows were measured by different protocols.")
    ] = False,
) -> list[CostOn]:
    """What a GEMM will cost on every type of card that has a model, and the best kernels for it.

    The champion of a type answers, or its newest model where it has no champion. The fastest comes first within a group;
    models whose rows were measured by different protocols are in different groups.
    """
    problem = Problem(
        Shape.parse(shape), ElementTypes.parse(types), Layout.parse(layout), alpha, beta, batch, scale, fused,
        Groups.parse(groups), sparsity,
    )  # fmt: skip
    models = registry.answering_models(access.settings.tracking_uri)
    answers = [_cost(access, info, problem, family, objective, time, top) for info in models]
    numbers = registry.protocol_groups([one.answered_by.conditions for one in answers])
    of_group: dict[int, list[CostOn]] = {}
    for number, answer in zip(numbers, answers, strict=True):
        of_group.setdefault(0 if mix_protocols else number, []).append(answer)
    found = []
    least = _least(objective, time)
    # The group with most answers comes first: most can be compared there.
    largest_first = sorted(of_group.values(), key=lambda group: -sum(one.found is not None for one in group))
    for number, group in enumerate(largest_first, 1):
        for rank, answer in enumerate(sorted(group, key=least), 1):
            found.append(answer.model_copy(update={"group": number, "rank": rank if answer.found else None}))
    return found


def _cost(
    access: Access,
    info: ModelInfo,
    problem: Problem,
    family: list[str] | None,
    objective: Objective,
    time: Time | None,
    top: int,
) -> CostOn:
    head: dict[str, Any] = {
        "device_type": info.device_type,
        "model": info.name,
        "version": info.version,
        "answered_by": AnsweringModel.of(info, has_champion=registry.CHAMPION in info.aliases),
        "group": 1,
    }
    try:
        found = registry.recommend(
            access.models.loaded(info), problem, families=family or (), objective=objective, time=time, top=top
        )
    except (NotPredictable, ModelRefused) as error:
        return CostOn(**head, found=None, why_not=str(error))
    return CostOn(**head, found=found)


def _least(objective: Objective, time: Time | None) -> Callable[[CostOn], tuple[bool, float]]:
    def key(cost: CostOn) -> tuple[bool, float]:
        value = objective.of(cost.found.ranking[0], time) if cost.found is not None and cost.found.ranking else None
        return value is None, value or 0.0

    return key
