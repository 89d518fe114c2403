"""Prints the Markdown tables of docs/campaigns.md that describe the keys of a campaign file, from their declarations."""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from farm.campaign.axes import Axis
from farm.campaign.campaign import Campaign
from farm.campaign.domain import Layers, ListedShapes, Ranges, ShapeFile
from farm.campaign.expert_blocks import ExpertsBlock, ModelBlock, RecordedBlock, RoutingKeys, WeightsBlock
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.language_model_blocks import LanguageModelBlock
from farm.campaign.messages import values_of
from farm.campaign.problem_blocks import AxesBlock, BatchedBlock, DomainBlock, ProblemBlock, ShapedBlock, ShapesBlock
from farm.campaign.trace_blocks import TraceBlock
from farm.campaign.weighted import Weighted
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import MatrixRules, OperandRules

TABLES: tuple[tuple[type[BaseModel], ...], ...] = (
    (Campaign,), (ShapesBlock, AxesBlock, ProblemBlock, BatchedBlock, ShapedBlock),
    (ModelBlock, ExpertsBlock, RoutingKeys, WeightsBlock), (RecordedBlock,), (GemmsBlock, TraceBlock), (LanguageModelBlock,), (DomainBlock,), (Ranges,), (Layers,), (ListedShapes, ShapeFile),
    (MeasuringRules,), (TimingRules,), (OperandRules,), (MatrixRules,),
)  # fmt: skip
"""The models whose keys are in one table. Those of kernels and searches have tables of their own."""


def markdown(*models: type[BaseModel]) -> str:
    """A table of the keys of models, without those of their bases."""
    lines = ["| key | meaning | values | default |", "| --- | --- | --- | --- |"]
    for model in models:
        inherited = {name for base in model.__bases__ for name in getattr(base, "model_fields", ())}
        for name, field in model.model_fields.items():
            if name not in inherited:
                lines.append(f"| `{name}` | {field.description} | {_values(field)} | {_default(field)} |")
    return "\n".join(lines)


def _values(field: FieldInfo) -> str:
    """The values that a key may have; nothing where the meaning says it."""
    text = values_of(field)
    return "" if text.startswith(("a value", "text", "a mapping")) or text == "a number" else text


def _default(field: FieldInfo) -> str:
    """The default as a file would have it; nothing where that is a mapping, or no value."""
    if field.is_required():
        return "required"
    default: Any = None if field.default_factory else field.default
    values = default.weight_of if isinstance(default, Weighted) else default
    if isinstance(default, Axis):
        values = tuple(default)
    if isinstance(values, (tuple, dict)):
        return ", ".join("`none`" if value is None else _text(value) for value in values)
    return _text(values)


def _text(value: Any) -> str:
    if value is None or value == "" or isinstance(value, BaseModel):
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}"
    return f"`{str(value).lower()}`"


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(markdown(*models) for models in TABLES) + "\n")
