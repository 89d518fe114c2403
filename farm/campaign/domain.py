"""A domain is a distribution over shapes: what a campaign draws from where it does not list its problems (pure).

It is a mixture of sources. Each makes a shape of `COORDINATES` numbers from [0, 1), so that the same source serves random
numbers and low-discrepancy points.
"""

from __future__ import annotations

import json
import math
import random
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator, ValidationInfo

from farm.campaign.axes import shown
from farm.campaign.named_shapes import MODELS, layer_weights
from farm.campaign.shape_files import FileContext, among, parse_shapes
from farm.campaign.suggestions import did_you_mean
from farm.campaign.values import NUMBER, TEXT, FileModel, Mappings, Value, Values, as_list, ordered
from farm.campaign.weighted import Weighted
from farm.gemm import MAX_EXTENT, Shape
from farm.language_models.built_in import built_in

T = TypeVar("T")

COORDINATES = 6
"""How many numbers a source makes a shape of."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole numbers from `low` to `high`, log-uniform: each factor of two is as likely as any other."""

    low: int
    high: int

    def at(self, u: float) -> int:
        # From half a number below the first to half a number above the last: the ends are as likely as their neighbours.
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


_MAX_DEGREE = 1024
_RANGE = re.compile(r"(-?\d{1,12})(?:\s*\.\.\s*(-?\d{1,12}))?", re.ASCII)


def _log_range(written: object) -> LogRange:
    """`1..16384`, or one number."""
    found = _RANGE.fullmatch(str(written).strip()) if isinstance(written, (str, int)) else None
    if found is None:
        raise ValueError(f"{shown(written)} is not a range; write for example 16..32768, or one number")
    low, high = int(found[1]), int(found[2] or found[1])
    if low > high:
        raise ValueError(f"the range {low}..{high} counts down; write {high}..{low}")
    if not 1 <= low <= high <= MAX_EXTENT:
        raise ValueError(f"the range {low}..{high} leaves 1..{MAX_EXTENT}; write for example 16..32768")
    return LogRange(low, high)


def _weight_of(written: object) -> float:
    if isinstance(written, (int, float)) and not isinstance(written, bool) and 0 < written < math.inf:
        return float(written)
    raise ValueError(f"{shown(written)} is not a weight; write a number above 0, such as 1 or 0.5")


def weights_of(
    written: object, parse: Callable[[Any], T], example: str, *, key: Callable[[T], Any] = lambda value: value
) -> Weighted[T]:
    """A mapping from values to weights. A list, or one value, gives each the same weight.

    Args:
        written: What a file has.
        parse: Makes a value of its text.
        example: What to write.
        key: What the values are sorted by.
    """
    if not isinstance(written, dict):
        written = dict.fromkeys(map(str, as_list(written)), 1.0)
    if not written:
        raise ValueError(f"it is empty; write for example {example}")
    weights = defaultdict[T, float](float)  # 512 and 512x512x512 are one shape
    for value, weight in written.items():
        weights[parse(value)] += _weight_of(weight)
    return Weighted({value: weights[value] for value in sorted(weights, key=key)})


def _alignment(written: object) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", str(written)):
        raise ValueError(f"{shown(written)} is not an alignment; write a whole number of elements, such as 8")
    return int(str(written))


def _degree(written: object) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", str(written)) or int(str(written)) > _MAX_DEGREE:
        raise ValueError(f"{shown(written)} is not a number of devices; write a whole number from 1 to {_MAX_DEGREE:,}")
    return int(str(written))


def _model_name(written: object) -> str:
    name = str(written)
    try:
        layer_weights(built_in(name))
    except KeyError:
        raise ValueError(
            f"{name} has no layers of queries, keys and values at once; use problems: {{model: {name}}}"
        ) from None
    return name


def _shapes_of_file(written: object, info: ValidationInfo) -> Weighted[Shape]:
    if not isinstance(written, str) or not written.strip():
        raise ValueError(f"{shown(written)} is not the name of a file; write for example shapes.csv")
    context: FileContext | None = info.context
    read = among({}) if context is None else context.read_text
    return parse_shapes(read(written.strip()), written.strip())


def _weighted(parse: Callable[[Any], Any], example: str, entry: Mapping[str, Any]) -> Value:
    """Declares a mapping from values to weights."""
    weights = {"type": "object", "additionalProperties": NUMBER, "minProperties": 1}
    return Value(
        lambda written: weights_of(written, parse, example),
        write=lambda weighted: {str(value): weight for value, weight in weighted.weight_of.items()},
        schema={"anyOf": [entry, {"type": "array", "items": entry}, weights]},
    )


_DEGREE = {"type": "integer", "minimum": 1, "maximum": _MAX_DEGREE}
_EXTENT = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_EXTENT}, {"type": "string"}]}

Weight = Annotated[float, Value(_weight_of, schema={"type": "number", "exclusiveMinimum": 0})]
Extent = Annotated[LogRange, Value(_log_range, write=str, schema=_EXTENT)]
Shapes = Annotated[Weighted[Shape], _weighted(Shape.parse, "{512x512x512: 1}", TEXT)]


class SourceKeys(FileModel):
    """What every part of a domain has."""

    weight: Weight = Field(default=1.0, description="the source's share of the block's problems")


class Source(SourceKeys):
    """One part of a mixture."""

    @abstractmethod
    def shape(self, u: Sequence[float]) -> Shape:
        """The shape at a point [COORDINATES] of the unit cube."""


class Ranges(Source):
    """m, n and k log-uniform and independent, each rounded to a multiple of an alignment that is drawn for it."""

    m: Extent = Field(
        description="`16..32768`, or one number. Log-uniform: each factor of two has the same probability",
        examples=["16..32768"],
    )
    n: Extent = Field(description="the same", examples=["16..32768"])
    k: Extent = Field(description="the same", examples=["16..32768"])
    align: Annotated[Weighted[int], _weighted(_alignment, "{1: 1, 8: 1, 64: 2}", {"type": "integer", "minimum": 1})] = Field(
        default=Weighted({1: 1.0}), description="an alignment, a list, or a mapping from alignments to weights. Each of m, n and k is rounded to a multiple of an "
        "alignment that is drawn for it; a number smaller than its alignment takes the largest alignment that fits"
    )  # fmt: skip

    def shape(self, u: Sequence[float]) -> Shape:
        extents = zip((self.m, self.n, self.k), u[:3], u[3:6], strict=True)
        return Shape(*(self._extent(extent, where, choice) for extent, where, choice in extents))

    def _extent(self, extent: LogRange, where: float, choice: float) -> int:
        value, multiple = extent.at(where), self.align.choose(choice)
        if multiple > value:  # as large an alignment as the value allows
            multiple = max((a for a in self.align.weight_of if a <= value), default=1)
        first, last = math.ceil(extent.low / multiple), extent.high // multiple
        # A narrow range may have no multiple.
        return value if first > last else min(max(round(value / multiple), first), last) * multiple


class Layers(Source):
    """The matrix products of models' layers, for any number of tokens, with their weights split over some devices.

    A model is as likely as any other, and so is each of its weights. Tensor parallelism splits the columns (n) of what
    enters a block, and the rows (k) of what leaves it (Shoeybi et al., arXiv 1909.08053).
    """

    layers: Annotated[tuple[str, ...], Values(_model_name, gather=ordered())] = Field(
        description="one or more models: the weights of a decoder layer and the output head, all with equal probability",
        examples=["llama-3.1-8b"],
    )
    tokens: Extent = Field(description="`1..16384`, or one number. m is log-uniform", examples=["1..16384"])
    tensor_parallel: Annotated[tuple[int, ...], Values(_degree, gather=ordered(), schema=_DEGREE)] = Field(
        default=(1,),
        description="one or more numbers of devices, from 1 to 1,024: n of what enters a block, or k of what leaves it, is divided by "
        "a number that is drawn",
    )

    @cached_property
    def _weights(self) -> list[list[list[tuple[int, int]]]]:
        """(n, k) by model, weight and degree of tensor parallelism."""
        models = [layer_weights(built_in(name)) for name in self.layers]
        return [[[_split(name, n, k, over) for over in self.tensor_parallel] for name, (n, k) in weights.items()]
                for weights in models]  # fmt: skip

    def shape(self, u: Sequence[float]) -> Shape:
        weights = item_at(self._weights, u[1])
        n, k = item_at(item_at(weights, u[2]), u[3])
        return Shape(self.tokens.at(u[0]), n, k)


class ListedShapes(Source):
    """Shapes one by one, each with a weight: of a trace, for example."""

    shapes: Shapes = Field(description="a list of shapes, or a mapping from shapes to weights")

    def shape(self, u: Sequence[float]) -> Shape:
        return self.shapes.choose(u[0])


class ShapeFile(SourceKeys):
    """The shapes of a file. A campaign has them as `ListedShapes`."""

    file: Annotated[Weighted[Shape], PlainValidator(_shapes_of_file, json_schema_input_type=str)] = Field(
        description="the name of a CSV file of shapes, relative to the campaign file"
    )


SOURCES: dict[str, type[SourceKeys]] = {
    "file": ShapeFile, "layers": Layers, "shapes": ListedShapes, **dict.fromkeys("mnk", Ranges)
}  # fmt: skip
"""The sources, by the keys that tell them apart."""

_SOURCE_FORMS = (
    "write the name of a domain, {m: 1..16384, n: 16..32768, k: 16..32768}, {layers: llama-3.1-8b, tokens: 1..16384}, "
    "{shapes: {512x4096x4096: 2}} or {file: shapes.csv}"
)


def source_model(written: object) -> type[SourceKeys]:
    """The model of a part of a domain."""
    keys = written if isinstance(written, dict) else {}
    return next((model for name, model in SOURCES.items() if name in keys), Ranges)


class _Sources(Mappings):
    """Declares a domain: names of domains, and sources."""

    def __init__(self) -> None:
        super().__init__(source_model, gather=_merged, models=lambda: [Ranges, Layers, ListedShapes, ShapeFile])

    def read_in(self, written: Any, info: ValidationInfo) -> tuple[Source, ...]:
        if isinstance(written, str):
            known = named_domains()
            if written not in known:
                raise ValueError(f"there is no domain {shown(written)}; {did_you_mean(written, known)}")
            return known[written]
        if not isinstance(written, dict) or not SOURCES.keys() & written.keys():
            raise ValueError(f"{shown(written)} is not part of a domain; {_SOURCE_FORMS}")
        source = super().read_in(written, info)
        return (ListedShapes(shapes=source.file, weight=source.weight) if isinstance(source, ShapeFile) else source,)

    def schema_of_one(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(named_domains())}, super().schema_of_one()]}


def _merged(entries: list[Source | tuple[Source, ...]]) -> tuple[Source, ...]:
    """Each source once, in one order, with the sum of its weights."""
    sources, weights = dict[str, Source](), defaultdict[str, float](float)
    for entry in entries:
        for source in entry if isinstance(entry, tuple) else (entry,):
            name = json.dumps(source.model_dump(mode="json", exclude={"weight"}), sort_keys=True)
            sources[name] = source
            weights[name] += source.weight
    return tuple(sources[name].model_copy(update={"weight": weights[name]}) for name in sorted(sources))


Domain = Annotated[tuple[Source, ...], _Sources()]
"""A mixture of sources."""


def mixture(domain: Sequence[Source]) -> Weighted[Source]:
    """The sources of a domain with their weights."""
    return Weighted({source: source.weight for source in domain})


def _split(weight: str, n: int, k: int, over: int) -> tuple[int, int]:
    leaves = weight in ("attention output", "down")
    return (n, max(1, k // over)) if leaves else (max(1, n // over), k)


def item_at(items: Sequence[T], u: float) -> T:
    """The item at the share `u` of a list, where all are equally likely."""
    return items[min(int(u * len(items)), len(items) - 1)]


@cache
def named_domains() -> Mapping[str, tuple[Source, ...]]:
    """The domains that a campaign file can name."""
    large = LogRange(16, 32768)
    align = Weighted({1: 0.25, 8: 0.25, 64: 0.25, 256: 0.25})
    general = Ranges(m=LogRange(1, 16384), n=large, k=large, align=align, weight=0.6)
    models = tuple(sorted(MODELS))
    serving = Layers(layers=models, tokens=LogRange(1, 16384), tensor_parallel=(1, 2, 4, 8), weight=0.4)
    return {"serving-and-general": (general, serving)}


Points = Callable[[int, int], Iterator[Sequence[float]]]
"""Makes an endless sequence of points of the unit cube, of its dimensions and a seed."""


def random_points(dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Independent points, the same on every machine."""
    numbers = random.Random(f"gemm-farm {seed}")
    while True:
        yield tuple(numbers.random() for _ in range(dimensions))


def sobol_points(dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """The points of a Sobol sequence, scrambled by a random digital shift, the same on every machine.

    Their first 2^i fill the cube more evenly than random ones: Sobol, USSR Computational Mathematics 7, 1967; the shift as
    in Cranley and Patterson, SIAM Journal on Numerical Analysis 13, 1976, digit by digit.
    """
    import numpy as np
    from scipy.stats import qmc  # takes half a second to import

    bits = 30
    sequence = qmc.Sobol(dimensions, scramble=False, bits=bits)
    numbers = random.Random(f"gemm-farm {seed}")
    shift = np.array([numbers.getrandbits(bits) for _ in range(dimensions)], dtype="int64")
    while True:
        points = (sequence.random(256) * 2.0**bits).astype("int64") ^ shift
        yield from map(tuple, ((points + 0.5) / 2.0**bits).tolist())
