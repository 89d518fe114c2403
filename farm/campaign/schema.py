"""The fields of a campaign file, as pydantic models: what may stand where, before anything is expanded."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationInfo, create_model

from farm.campaign.axes import AxisPart, parse_part, shown
from farm.campaign.constraints import Constraint, parse_constraint
from farm.campaign.domain import Layers, ListedShapes, LogRange, Ranges, Source, Weighted, named_domains
from farm.campaign.named_shapes import MODELS, shape_sets
from farm.campaign.shape_files import ReadText, among, parse_shapes
from farm.campaign.strategies import Search, search_model
from farm.campaign.suggestions import did_you_mean
from farm.campaign.targets import ANY, Target, TargetKind
from farm.errors import FarmError
from farm.gemm import LARGEST_EXTENT, ElementTypes, Layout, Shape
from farm.kernels import FAMILIES, Configuration, Parameter
from farm.measurement import MeasuringRules

T = TypeVar("T")


class FileModel(BaseModel):
    """A mapping of a campaign file: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _as_list(written: object) -> object:
    """One value may stand for a list of one."""
    return written if isinstance(written, list) else [written]


OneOrMore = Annotated[list[T], BeforeValidator(_as_list), Field(min_length=1)]


def _parsed(parse: Callable[[Any], T]) -> PlainValidator:
    """A validator from a parser: what the farm's own errors say becomes the text of the problem."""

    def validate(written: object) -> T:
        try:
            return parse(written)
        except FarmError as error:
            raise ValueError(str(error)) from None

    return PlainValidator(validate)


# --- problems --------------------------------------------------------------------------------------


def _axis_value(name: str, allowed: Sequence[int]) -> PlainValidator:
    def parse(written: object) -> AxisPart:
        return parse_part(written, name=name, allowed=allowed)

    return _parsed(parse)


_SHAPE_FORMS = "write [m, n, k], 512x512x1024 or {set: paper-27}"


def _shapes_of(written: object) -> tuple[Shape, ...]:
    if isinstance(written, list):
        if len(written) != 3 or not all(type(e) is int for e in written):
            raise ValueError(f"a shape is three whole numbers; {_SHAPE_FORMS}")
        return (Shape(*written),)
    if isinstance(written, dict):
        name = written.get("set")
        if set(written) != {"set"} or not isinstance(name, str):
            raise ValueError(f"this is not a shape; {_SHAPE_FORMS}")
        if name not in shape_sets():
            raise ValueError(f"there is no shape set {name!r}; {did_you_mean(name, shape_sets())}")
        return shape_sets()[name].shapes
    if not isinstance(written, str) or "x" not in written.replace("×", "x"):
        raise ValueError(f"{shown(written)} is not a shape; {_SHAPE_FORMS}")
    return (Shape.parse(written),)


def _shape_list(written: object) -> object:
    """A lone shape may stand for a list of one; three numbers are a lone shape."""
    if isinstance(written, list) and len(written) == 3 and all(isinstance(e, int) for e in written):
        return [written]
    return _as_list(written)


def _types_of(written: object) -> ElementTypes:
    if not isinstance(written, str):
        raise ValueError(f"{shown(written)} is not an element type; write f32, or f16:f16:f32")  # noqa: TRY004
    return ElementTypes.parse(written)


def _layout_of(written: object) -> Layout:
    return Layout.parse(shown(written) if isinstance(written, (list, dict)) else written)


def _scalar_of(written: object) -> float:
    try:
        if isinstance(written, (int, float)) and math.isfinite(written):
            return float(written) + 0.0
    except OverflowError:
        pass
    raise ValueError(f"{shown(written)} is not a finite number; write a number such as 1 or 0.5")


_EXTENTS = range(1, LARGEST_EXTENT + 1)


class ProblemFields(FileModel):
    """What every block of problems has, however it gives its shapes."""

    types: OneOrMore[Annotated[ElementTypes, _parsed(_types_of)]]
    layouts: OneOrMore[Annotated[Layout, _parsed(_layout_of)]] = [Layout.NN]
    alpha: OneOrMore[Annotated[float, _parsed(_scalar_of)]] = [1.0]
    beta: OneOrMore[Annotated[float, _parsed(_scalar_of)]] = [0.0]


class ShapesFields(ProblemFields):
    shapes: Annotated[
        list[Annotated[tuple[Shape, ...], _parsed(_shapes_of)]], BeforeValidator(_shape_list), Field(min_length=1)
    ]


class AxesFields(ProblemFields):
    m: OneOrMore[Annotated[AxisPart, _axis_value("m", _EXTENTS)]]
    n: OneOrMore[Annotated[AxisPart, _axis_value("n", _EXTENTS)]]
    k: OneOrMore[Annotated[AxisPart, _axis_value("k", _EXTENTS)]]


def _log_range(written: object) -> LogRange:
    """`1..16384`, or one number."""
    found = _RANGE.fullmatch(str(written).strip()) if isinstance(written, (str, int)) else None
    if found is None:
        raise ValueError(f"{shown(written)} is not a range; write for example 16..32768, or one number")
    low, high = int(found[1]), int(found[2] or found[1])
    if low > high:
        raise ValueError(f"the range {low}..{high} counts down; write {high}..{low}")
    if not 1 <= low <= high <= LARGEST_EXTENT:
        raise ValueError(f"the range {low}..{high} leaves 1..{LARGEST_EXTENT}; write for example 16..32768")
    return LogRange(low, high)


_RANGE = re.compile(r"(-?\d{1,12})(?:\s*\.\.\s*(-?\d{1,12}))?", re.ASCII)


def _weight_of(written: object) -> float:
    if isinstance(written, (int, float)) and not isinstance(written, bool) and 0 < written < math.inf:
        return float(written)
    raise ValueError(f"{shown(written)} is not a weight; write a number above 0, such as 1 or 0.5")


Weight = Annotated[float, _parsed(_weight_of)]


def _weights_of(written: object, parse: Callable[[Any], T], example: str) -> Weighted[T]:
    """A mapping from values to weights; a list, or one value, gives each the same weight."""
    if not isinstance(written, dict):
        values = _as_list(written)
        assert isinstance(values, list)
        written = dict.fromkeys(map(str, values), 1.0)
    if not written:
        raise ValueError(f"it is empty; write for example {example}")
    weights = defaultdict[T, float](float)  # 512 and 512x512x512 are one shape
    for value, weight in written.items():
        weights[parse(value)] += _weight_of(weight)
    return Weighted(dict(sorted(weights.items())))


def _alignments_of(written: object) -> Weighted[int]:
    def parse(value: Any) -> int:
        if not re.fullmatch(r"[1-9]\d{0,5}", str(value)):
            raise ValueError(f"{shown(value)} is not an alignment; write a whole number of elements, such as 8")
        return int(value)

    return _weights_of(written, parse, "{1: 1, 8: 1, 64: 2}")


def _weighted_shapes_of(written: object) -> Weighted[Shape]:
    return _weights_of(written, Shape.parse, "{512x512x512: 1}")


def _layers_of(written: object) -> str:
    known = [model.name for model in MODELS]
    if isinstance(written, str) and written in known:
        return written
    raise ValueError(f"there is no model {shown(written)}; {did_you_mean(str(written), known)}")


Extent = Annotated[LogRange, _parsed(_log_range)]


class SourceFields(FileModel):
    """A part of a domain."""

    weight: Weight = 1.0


class RangesFields(SourceFields):
    m: Extent
    n: Extent
    k: Extent
    align: Annotated[Weighted[int], _parsed(_alignments_of)] = Weighted({1: 1.0})

    def source(self) -> Source:
        return Ranges(self.m, self.n, self.k, self.align)


class LayersFields(SourceFields):
    layers: OneOrMore[Annotated[str, _parsed(_layers_of)]]
    tokens: Extent
    tensor_parallel: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = [1]

    def source(self) -> Source:
        split = tuple(sorted(set(self.tensor_parallel)))
        return Layers(tuple(sorted(set(self.layers))), self.tokens, split)


class WeightedShapesFields(SourceFields):
    shapes: Annotated[Weighted[Shape], _parsed(_weighted_shapes_of)]

    def source(self) -> Source:
        return ListedShapes(self.shapes)


def _shapes_of_file(written: object, info: ValidationInfo) -> Weighted[Shape]:
    if not isinstance(written, str) or not written.strip():
        raise ValueError(f"{shown(written)} is not the name of a file; write for example shapes.csv")
    read: ReadText = (info.context or {}).get(READ_TEXT) or among({})
    return parse_shapes(read(written.strip()), written.strip())


READ_TEXT = "read_text"
"""The key of the context of a validation that has a `ReadText`, for the files that a campaign names."""


class ShapeFileFields(SourceFields):
    file: Annotated[Weighted[Shape], PlainValidator(_shapes_of_file)]

    def source(self) -> Source:
        return ListedShapes(self.file)


SOURCE_MODELS: dict[str, type[RangesFields | LayersFields | WeightedShapesFields | ShapeFileFields]] = {
    "file": ShapeFileFields,
    "layers": LayersFields,
    "shapes": WeightedShapesFields,
    **dict.fromkeys("mnk", RangesFields),
}
"""The models of a part of a domain, by the fields that tell them apart."""

_SOURCE_FORMS = (
    "write the name of a domain, {m: 1..16384, n: 16..32768, k: 16..32768}, {layers: llama-3.1-8b, tokens: 1..16384}, "
    "{shapes: {512x4096x4096: 2}} or {file: shapes.csv}"
)


def source_model(written: object) -> type[RangesFields | LayersFields | WeightedShapesFields | ShapeFileFields]:
    """The model of a part of a domain."""
    names = written if isinstance(written, dict) else {}
    return next((model for name, model in SOURCE_MODELS.items() if name in names), RangesFields)


def _sources_of(written: object, info: ValidationInfo) -> Mapping[Source, float]:
    """The sources of a named domain; or the one that is described, with its weight."""
    if isinstance(written, str):
        known = named_domains()
        if written not in known:
            raise ValueError(f"there is no domain {shown(written)}; {did_you_mean(written, known)}")
        return known[written].sources.weight_of
    if not isinstance(written, dict) or not SOURCE_MODELS.keys() & written.keys():
        raise ValueError(f"{shown(written)} is not part of a domain; {_SOURCE_FORMS}")
    fields = source_model(written).model_validate(written, context=info.context)
    return {fields.source(): fields.weight}


class DrawnFields(ProblemFields):
    """Problems whose shapes are drawn from a domain: a mixture of sources."""

    domain: OneOrMore[Annotated[Mapping[Source, float], PlainValidator(_sources_of)]]
    weight: Weight = 1.0


def problem_model(written: object) -> type[ProblemFields]:
    """The model of a block of problems: drawn where it names a domain, with axes where it names one, else with shapes."""
    if isinstance(written, dict) and "domain" in written:
        return DrawnFields
    has_axes = isinstance(written, dict) and "shapes" not in written and {"m", "n", "k"} & written.keys()
    return AxesFields if has_axes else ShapesFields


def _problems_of(written: object, info: ValidationInfo) -> ProblemFields:
    return problem_model(written).model_validate(written, context=info.context)


# --- kernels ---------------------------------------------------------------------------------------


class KernelFields(FileModel):
    family: str


@cache
def _kernel_models() -> dict[str, type[KernelFields]]:
    models = {}
    for family in FAMILIES.values():
        fields: dict[str, Any] = {p.name: (_axis_type(p), _default(p)) for p in family.parameters}
        models[family.name] = create_model(f"{family.name.capitalize()}Fields", __base__=KernelFields, **fields)
    return models


def _axis_type(parameter: Parameter) -> Any:
    value = _axis_value(parameter.name, parameter.values)
    return OneOrMore[Annotated[AxisPart, value]]


def _default(parameter: Parameter) -> Any:
    return Field(default_factory=lambda: [AxisPart((parameter.default,))], description=parameter.meaning)


def kernel_model(written: object) -> type[KernelFields]:
    """The model of a block of kernels, by its family; without a known family, one that has the family alone."""
    family = written.get("family") if isinstance(written, dict) else None
    return _kernel_models().get(family, KernelFields) if isinstance(family, str) else KernelFields


def _kernel_of(written: object) -> KernelFields:
    if isinstance(written, dict):
        if "family" not in written:
            return KernelFields.model_validate({})  # without it, nobody can say which other fields are right
        family = written["family"]
        if not isinstance(family, str) or family not in FAMILIES:
            raise ValueError(f"there is no kernel family {shown(family)}; {did_you_mean(str(family), FAMILIES)}")
    return kernel_model(written).model_validate(written)


# --- the rest --------------------------------------------------------------------------------------


def _target_of(written: object) -> Target:
    forms = "write any, {type: nvidia-h200}, {each: nvidia-h200}, {host: gpu01} or {device: GPU-…}"
    if written == "any":
        return ANY
    if isinstance(written, dict) and len(written) == 1:
        ((kind, value),) = written.items()
        if kind in TargetKind.__members__.values() and kind != TargetKind.ANY:
            if isinstance(value, str) and value.strip():
                return Target(TargetKind(kind), value.strip())
            raise ValueError(f"{kind} names nothing; {forms}")
    what = f"{{{', '.join(written)}}}" if isinstance(written, dict) else shown(written)
    raise ValueError(f"{what} is not a target; {forms}")


_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def _name_of(written: object) -> str:
    text = str(written) if isinstance(written, (str, int)) else ""
    if _NAME.fullmatch(text):
        return text
    better = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:100]
    raise ValueError(
        f"{shown(written)} cannot name a campaign; use up to 100 lower-case letters, digits, - _ ."
        + (f", as in {better}" if better else "")
    )


def _owner_of(written: object) -> str:
    text = str(written).strip() if isinstance(written, (str, int)) else ""
    if 0 < len(text) <= 100 and text.isprintable():
        return text
    raise ValueError(f"{shown(written)} cannot be an owner; write a name of up to 100 characters")


def _description_of(written: object) -> str:
    if isinstance(written, (str, int, float)):
        return str(written).strip()
    raise ValueError("a description is text; write it after the colon, or remove the field")


def _configuration_of(written: object) -> Configuration:
    if not isinstance(written, str):
        raise ValueError(f"{shown(written)} is not a configuration; write tiled(tile=16) 512x512x512 f32")  # noqa: TRY004
    return Configuration.parse(written)


class CommonFields(FileModel):
    """What every campaign file has, however it says what is measured."""

    name: Annotated[str, _parsed(_name_of)]
    description: Annotated[str, _parsed(_description_of)] = ""
    owner: Annotated[str | None, _parsed(_owner_of)] = None
    priority: int = Field(default=0, ge=-100, le=100, description="higher goes first")
    targets: OneOrMore[Annotated[Target, _parsed(_target_of)]] = [ANY]
    measure: MeasuringRules = MeasuringRules()
    repeat: int = Field(default=0, ge=0, le=1_000_000, description="another number measures all of it once more")


class CampaignFields(CommonFields):
    """A whole campaign file that measures every kernel on every problem."""

    problems: OneOrMore[Annotated[ProblemFields, PlainValidator(_problems_of)]]
    kernels: OneOrMore[Annotated[KernelFields, _parsed(_kernel_of)]]
    constraints: Annotated[list[Annotated[Constraint, _parsed(parse_constraint)]], BeforeValidator(_as_list)] = []
    search: Search | None = None


class ListFields(CommonFields):
    """A whole campaign file that lists its configurations one by one."""

    configurations: OneOrMore[Annotated[Configuration, _parsed(_configuration_of)]]


def campaign_model(written: object) -> type[CampaignFields | ListFields]:
    """The model of a campaign file: with a list of configurations, or with problems and kernels."""
    return ListFields if isinstance(written, dict) and "configurations" in written else CampaignFields


MODEL_OF_ITEM: dict[str, Callable[[object], type[BaseModel]]] = {
    "problems": problem_model,
    "domain": source_model,
    "kernels": kernel_model,
    "search": search_model,
}
"""For the fields whose items are mappings of several kinds: the model of one item."""
