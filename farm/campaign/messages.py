"""From the errors of pydantic to lines with the file, the line, the field, the mistake and what to write instead."""

from __future__ import annotations

import types
import typing
from enum import Enum
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from farm.campaign.axes import shown
from farm.campaign.expert_blocks import ExpertsBlock, GroupedBlock, ModelBlock
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.language_model_blocks import LanguageModelBlock
from farm.campaign.problem_blocks import AxesBlock, DomainBlock, ShapesBlock
from farm.campaign.reading import Located, Location, item_of
from farm.campaign.strategies import STRATEGIES, Search, readers_of, search_model
from farm.campaign.suggestions import did_you_mean
from farm.campaign.trace_blocks import TraceBlock
from farm.campaign.values import Mappings

PRODUCT_KEYS = {"problems", "kernels", "constraints", "search"}
"""The keys that a campaign cannot have if it lists its configurations."""


def add_findings(error: ValidationError, file: Located, model: type[BaseModel]) -> None:
    """Adds one line to the file's problems for each error of a validation of the whole file by its model."""
    for detail in error.errors(include_url=False):
        location = file.written(detail["loc"])
        file.add(location, _text_of(detail, location, file, model))


def _text_of(detail: ErrorDetails, location: Location, file: Located, root: type[BaseModel]) -> str:
    kind, given, name = detail["type"], detail["input"], str(location[-1]) if location else ""
    model = _model_at(location[:-1], file, root)
    if kind == "extra_forbidden":
        return _unknown_field(name, model, file, root)
    if kind == "missing":
        return missing_key(model, name)
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "too_short":
        return "the list is empty; write at least one value, or remove the field"
    right = _expected(model.model_fields.get(name))
    if given is None:
        return f"it has no value; write {right}, or remove the field"
    if kind in ("greater_than", "greater_than_equal"):
        return f"{shown(given)} is too small; write {right}"
    if kind in ("less_than", "less_than_equal"):
        return f"{shown(given)} is too large; write {right}"
    if kind in ("literal_error", "enum"):
        return f"{shown(given)} is not known here; write {right}"
    if kind == "int_from_float":
        return f"{shown(given)} is not a whole number; write {right}"
    if kind.startswith("model"):
        return f"{shown(given)} is not a mapping; {_fields_of(_model_at(location, file, root))}"
    return f"{shown(given)} does not fit here; write {right}"


def _unknown_field(name: str, model: type[BaseModel], file: Located, root: type[BaseModel]) -> str:
    if model is ShapesBlock and name in ("m", "n", "k"):
        return f"a block of problems has shapes, or m, n and k, not both; remove shapes or {name}"
    if model is AxesBlock and name == "shapes":
        return "a block of problems has shapes, or m, n and k, not both"
    if model is DomainBlock and name in ("shapes", "m", "n", "k"):
        return f"a block of problems has a domain, or its shapes, not both; move {name} into the domain, or remove the domain"
    if model is DomainBlock and name == "groups":
        return "the shapes of a domain have no groups; list shapes, or describe experts, in a campaign of their own"
    if model is GemmsBlock:
        return f"the problems of gemms are whole; write {name} in their lines, or remove it"
    if model is TraceBlock:
        return f"the trace decides the problems; remove {name}, or list them as gemms"
    if issubclass(model, GroupedBlock) and name in ("groups", "batch", "shapes", "m", "n", "k"):
        return f"routing and weights decide the problems of a block of experts; remove {name}"
    if model is ModelBlock and name in LanguageModelBlock.model_fields:
        return f"a block with routing and without layers has experts alone; write layers: all, or layers: experts, to use {name}"
    if model is LanguageModelBlock and name in (*ModelBlock.model_fields, *ExpertsBlock.model_fields):
        return f"the model decides its problems; remove {name}, or write routing instead of layers for experts alone"
    if model is ModelBlock and name in ("experts", "top_k", "weights"):
        return f"the model has its {name}; remove {name}, or write experts, top_k and weights instead of model"
    unused = PRODUCT_KEYS if model is root and "configurations" in file.data else set[str]()
    known = [key for key in model.model_fields if key not in unused]
    if issubclass(model, Search) and (others := readers_of(name)):
        return f"{file.data['search']['strategy']} does not read it; remove it, or use {' or '.join(others)}"
    return f"there is no such field here; {did_you_mean(name, known, what='the fields are')}"


def missing_key(model: type[BaseModel], key: str) -> str:
    """What to write for a key that is missing."""
    if model is ShapesBlock and key == "shapes":
        return "it is missing; give shapes (shapes: [512x512x512]), or the axes m, n and k"
    (example,) = model.model_fields[key].examples or ["…"]
    written = yaml.safe_dump(example, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"it is missing; write for example {key}: {written}"


def _fields_of(model: type[BaseModel]) -> str:
    models = STRATEGIES.values() if model is Search else (model,)
    return f"its fields are {', '.join(dict.fromkeys(name for each in models for name in each.model_fields))}"


def _model_at(location: Location, file: Located, model: type[BaseModel]) -> type[BaseModel]:
    """The model whose keys stand at a location of a file, whose model it takes."""
    declared: Mappings | None = None
    here: Any = file.data
    for step in location:
        here = item_of(here, step)
        if isinstance(step, str):
            field = model.model_fields.get(step)
            declared = None if field is None else next((m for m in field.metadata if isinstance(m, Mappings)), None)
            if field is not None and declared is None:
                model = _model_in(field, here) or model
        if declared is not None and not isinstance(here, list):
            model = declared.read(here)
    return model


def _model_in(field: FieldInfo, written: object) -> type[BaseModel] | None:
    """The model that a field takes, if any."""
    kinds = (field.annotation, *typing.get_args(field.annotation))  # a field that may be left out is a model or None
    if Search in kinds:
        return search_model(written)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _expected(field: FieldInfo | None) -> str:
    """What to write: `a number above 0 and up to 600 (time budget …)`."""
    if field is None:
        return "a value of the documented form"
    text = values_of(field)
    return f"{text} ({field.description})" if field.description else text


def values_of(field: FieldInfo) -> str:
    """The values that a key may have, by its type and bounds: `a number above 0 and up to 600`."""
    words = {"gt": "above {:,}", "ge": "from {:,}", "lt": "below {:,}", "le": "up to {:,}"}
    limits = [
        text.format(getattr(bound, name))
        for bound in field.metadata
        for name, text in words.items()
        if hasattr(bound, name)
    ]
    return f"{_noun(field.annotation)} {' and '.join(limits)}".strip().replace("and up to", "up to")


def _noun(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(str(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_noun(a) for a in typing.get_args(annotation) if a is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(str(member.value) for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a mapping of {', '.join(annotation.model_fields)}"
    return {int: "a whole number", float: "a number", str: "text"}.get(annotation, "a value")
