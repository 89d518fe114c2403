"""Blocks of problems: shapes that are listed, the product of three axes, or a domain, each with variants.

`farm.campaign.expert_blocks` has those of mixtures of experts.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from farm.campaign.axes import Axis, AxisKey, shown
from farm.campaign.domain import Domain, Source, Weight, mixture
from farm.campaign.named_shapes import shape_sets
from farm.campaign.suggestions import did_you_mean
from farm.campaign.values import NUMBER, FileModel, Values, as_list, ordered, wrong_key
from farm.campaign.weighted import Weighted
from farm.errors import BadGate, BadGroups, OddExtent, ScaleOfOtherTypes
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS, INPUT_TYPES, MAX_EXTENT, ElementTypes, Layout, Problem, Shape
from farm.groups import NONE, Groups
from farm.scale import Scale
from farm.sparsity import Sparsity

_EXTENTS = range(1, MAX_EXTENT + 1)
_AXIS = "an axis, from 1 to 2147483647"
_ONE = Axis([(1,)])
_SHAPE_FORMS = "write [m, n, k], 512x512x1024 or {set: paper-27}"


def types_of(written: object) -> ElementTypes:
    """Reads element types. Raises `ValueError`, which says what to write."""
    if not isinstance(written, str):
        raise ValueError(f"{shown(written)} is not an element type; write f32, or f16:f16:f32")  # noqa: TRY004
    return ElementTypes.parse(written)


_Word = TypeVar("_Word", Layout, Scale, Fusion, Sparsity)


def words(kind: type[_Word]) -> Values:
    """Declares a key whose values are words, which a class can parse."""
    return Values(
        lambda written: kind.parse(shown(written) if isinstance(written, (list, dict)) else written),
        write=str,
        gather=ordered(),
    )


def _scalar_of(written: object) -> float:
    try:
        if isinstance(written, (int, float)) and math.isfinite(written):
            return float(written) + 0.0
    except OverflowError:
        pass
    raise ValueError(f"{shown(written)} is not a finite number; write a number such as 1 or 0.5")


def _groups_of(written: object) -> Groups | None:
    if not isinstance(written, (str, int)):
        raise ValueError(f"{shown(written)} is not the groups of a product; write their rows as '16*8,3,0', or none")  # noqa: TRY004
    return Groups.parse(written)


def groups_text(groups: Groups | None) -> str:
    """As a file has them."""
    return NONE if groups is None else str(groups)


def _shapes_of(written: object) -> tuple[Shape, ...]:
    if isinstance(written, list):
        if len(written) != 3 or not all(type(extent) is int for extent in written):
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


def _as_shapes(written: object) -> list[Any]:
    """A list of shapes. Three numbers are one shape."""
    if isinstance(written, list) and len(written) == 3 and all(isinstance(extent, int) for extent in written):
        return [written]
    return as_list(written)


def _distinct(entries: Iterable[Shape | tuple[Shape, ...]]) -> tuple[Shape, ...]:
    """The shapes of all entries, each once, in rising order."""
    return tuple(sorted({shape for entry in entries for shape in (entry if isinstance(entry, tuple) else (entry,))}))


_SHAPE = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object", "properties": {"set": {"enum": list(shape_sets())}}, "required": ["set"]},
    ]
}


class Block(FileModel):
    """A block of problems."""

    @abstractmethod
    def lengths(self) -> dict[str, int]:
        """The length of each axis, without expanding one: values that two entries of an axis share count twice."""


class ListingBlock(Block):
    """A block that lists its problems."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many problems the block has."""

    @abstractmethod
    def problems(self) -> Iterator[Problem]:
        """The problems, one after another."""


class ProblemBlock(Block):
    """Problems with every combination of types, layouts, alpha, beta, scale, fused and sparsity."""

    types: Annotated[tuple[ElementTypes, ...], Values(types_of, write=str, gather=ordered(str))] = Field(
        description=f"`{' '.join(INPUT_TYPES)}`, or inputs:output:accumulator as in `f16:f16:f32`", examples=["f32"]
    )
    layouts: Annotated[tuple[Layout, ...], words(Layout)] = Field(
        default=(Layout.NN,),
        description="`nn nt tn tt`, A's letter first: `n` stored as written, `t` stored transposed",
    )
    alpha: Annotated[tuple[float, ...], Values(_scalar_of, gather=ordered(), schema=NUMBER)] = Field(
        default=(1.0,), description="factors of A · B"
    )
    beta: Annotated[tuple[float, ...], Values(_scalar_of, gather=ordered(), schema=NUMBER)] = Field(
        default=(0.0,), description="factors of C"
    )
    scale: Annotated[tuple[Scale, ...], words(Scale)] = Field(
        default=(Scale.NONE,), description=f"scale factors of A and B: `{' '.join(Scale)}`"
    )
    fused: Annotated[tuple[Fusion, ...], words(Fusion)] = Field(
        default=(Fusion.NONE,), description=f"operations that follow the product: `{' '.join(Fusion)}`"
    )
    sparsity: Annotated[tuple[Sparsity, ...], words(Sparsity)] = Field(
        default=(Sparsity.NONE,), description=f"sparsity of B: `{' '.join(Sparsity)}`"
    )

    @model_validator(mode="after")
    def _has_fitting_scale(self) -> Self:
        for types, scale in product(self.types, self.scale):
            try:
                Problem(Shape(2, 2, 2), types, scale=scale)
            except ScaleOfOtherTypes as error:
                raise wrong_key(type(self), "scale", f"{error} Other types need a block of their own.") from None
        return self

    @model_validator(mode="after")
    def _has_fitting_gates(self) -> Self:
        gated = next((fused for fused in self.fused if fused.gated), None)
        if gated is not None:
            for n, beta in product(self._deciding_n(), self.beta):
                try:
                    Problem(Shape(1, n, 2), self.types[0], Layout.NT, beta=beta, fused=gated)
                except BadGate as error:
                    raise wrong_key(type(self), "fused", str(error)) from None
        return self

    def _deciding_n(self) -> Sequence[int]:
        """Values of n. One of them is odd if any n is, but for those that are drawn."""
        return (2,)

    @model_serializer(mode="wrap")
    def _to_document(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the usual values of `ADDED_COLUMNS`, so that older campaigns keep their documents and digests."""
        document: dict[str, Any] = write(self)
        fields = type(self).model_fields
        for name in ADDED_COLUMNS.keys() & fields.keys():
            if getattr(self, name) == fields[name].default:
                del document[name]
        return document

    def lengths(self) -> dict[str, int]:
        names = ("types", "layouts", "alpha", "beta", "scale", "fused", "sparsity")
        return {name: len(getattr(self, name)) for name in names}


class BatchedBlock(ProblemBlock):
    """A block whose problems may be batches."""

    batch: Annotated[Axis, AxisKey("batch", _EXTENTS)] = Field(
        default=_ONE, description="numbers of products with matrices of their own, computed in one launch: an axis"
    )

    def lengths(self) -> dict[str, int]:
        return super().lengths() | {"batch": self.batch.max_length}

    @property
    def added(self) -> tuple[Sequence[Any], ...]:
        """What follows beta in a problem: the values of batch, scale, fused, groups and sparsity."""
        return self.batch.values, self.scale, self.fused, self.groupings, self.sparsity

    @property
    def groupings(self) -> Sequence[Groups | None]:
        """The values of groups."""
        return (None,)


class ListedBlock(ListingBlock, ProblemBlock):
    """A block that lists every combination of its keys."""

    @abstractmethod
    def extents(self, name: str) -> Sequence[int]:
        """Every value of m, n or k."""

    def _deciding(self, name: str) -> Sequence[int]:
        """Values of an extent. One of them is odd if any is: values that are equally spaced may be many, and the first two decide."""
        along = self.extents(name)
        return along[:2] if isinstance(along, range) else along

    def _deciding_n(self) -> Sequence[int]:
        return self._deciding("n")

    @model_validator(mode="after")
    def _has_even_extents(self) -> Self:
        packed = (types for types in self.types if types.ab.of_b.per_item > 1)
        for types, layout in product(packed, self.layouts):
            odd = next((extent for extent in self._deciding("k" if layout.b_transposed else "n") if extent % 2), None)
            if odd is not None:
                try:
                    Problem(Shape(1, odd, odd), types, layout)
                except OddExtent as error:
                    raise wrong_key(type(self), "types", str(error)) from None
        return self


class ShapedBlock(ListedBlock, BatchedBlock):
    """A block that names its shapes: each with every combination of the other keys."""

    groups: Annotated[
        tuple[Groups | None, ...],
        Values(_groups_of, write=groups_text, gather=ordered(groups_text)),
    ] = Field(
        default=(None,),
        description="the rows of each group, with a matrix B of its own: `16*8,3,0` are 8 groups of 16 rows, one of 3 and an empty one; "
        "m is their sum",
    )

    @model_validator(mode="after")
    def _has_fitting_groups(self) -> Self:
        if self.groups != (None,):
            # All values of m are the sum of all groups, so the second one is wrong already.
            variants = product(self.extents("m")[:2], self.layouts, self.batch.values[:2], self.scale, self.groups)
            for m, layout, batch, scale, groups in variants:
                try:
                    Problem(Shape(m, 2, 2), self.types[0], layout, batch=batch, scale=scale, groups=groups)
                except BadGroups as error:
                    raise wrong_key(type(self), "groups", str(error)) from None
        return self

    @property
    def groupings(self) -> Sequence[Groups | None]:
        return self.groups

    @abstractmethod
    def each_shape(self) -> Iterator[Shape]:
        """The shapes, one after another."""

    @abstractmethod
    def shape_count(self) -> int:
        """How many shapes the block has."""

    @property
    def size(self) -> int:
        return self.shape_count() * math.prod(map(len, self._variants()))

    def problems(self) -> Iterator[Problem]:
        variants = list(product(*self._variants()))
        return (Problem(shape, *variant) for shape in self.each_shape() for variant in variants)

    def lengths(self) -> dict[str, int]:
        return super().lengths() | {"groups": len(self.groups)}

    def _variants(self) -> tuple[Sequence[Any], ...]:
        """What follows the shape in a problem."""
        return self.types, self.layouts, self.alpha, self.beta, *self.added


class ShapesBlock(ShapedBlock):
    """A block that lists its shapes."""

    shapes: Annotated[tuple[Shape, ...], Values(_shapes_of, write=str, gather=_distinct, split=_as_shapes, schema=_SHAPE)] = Field(
        description="`512x512x1024`, `[512, 512, 1024]` (m, n, k), or `{set: paper-27}`"
    )  # fmt: skip

    def each_shape(self) -> Iterator[Shape]:
        return iter(self.shapes)

    def extents(self, name: str) -> Sequence[int]:
        return tuple(dict.fromkeys(getattr(shape, name) for shape in self.shapes))

    def shape_count(self) -> int:
        return len(self.shapes)

    def lengths(self) -> dict[str, int]:
        return {"shapes": len(self.shapes)} | super().lengths()


class AxesBlock(ShapedBlock):
    """A block with every combination of three axes."""

    m: Annotated[Axis, AxisKey("m", _EXTENTS)] = Field(description=_AXIS, examples=["512..8192 x2"])
    n: Annotated[Axis, AxisKey("n", _EXTENTS)] = Field(description=_AXIS, examples=["512..8192 x2"])
    k: Annotated[Axis, AxisKey("k", _EXTENTS)] = Field(description=_AXIS, examples=["512..8192 x2"])

    def each_shape(self) -> Iterator[Shape]:
        # itertools.product would hold each axis in memory; these stay ranges.
        return (Shape(m, n, k) for m in self.m for n in self.n for k in self.k)

    def extents(self, name: str) -> Sequence[int]:
        axis: Axis = getattr(self, name)
        return axis.values

    def shape_count(self) -> int:
        return len(self.m) * len(self.n) * len(self.k)

    def lengths(self) -> dict[str, int]:
        return {name: getattr(self, name).max_length for name in "mnk"} | super().lengths()


class DomainBlock(BatchedBlock):
    """A block whose problems are drawn: shapes of a domain; the values of each other key have equal probability."""

    domain: Domain = Field(description="the name of a domain, one source, or a list of both")
    # In a campaign, see `with_whole_weights`.
    weight: Weight = Field(
        default=1.0,
        description="the block's share of the problems, relative to other blocks: only the ratios count, so 1 and 1 are the "
        "same campaign as 2 and 2",
    )

    @cached_property
    def _sources(self) -> Weighted[Source]:
        return mixture(self.domain)

    def shape_at(self, u: Sequence[float]) -> Shape:
        """The shape at a point [1 + COORDINATES] of the unit cube."""
        return self._sources.choose(u[0]).shape(u[1:])


def with_whole_weights(blocks: Sequence[DomainBlock]) -> list[DomainBlock]:
    """The same blocks with weights of the same ratios in their normal form: the smallest whole numbers.

    Weights do not change if a whole number would be too large for a float.
    """
    exact = [Fraction(repr(block.weight)) for block in blocks]  # 0.1 is a tenth here
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*whole)
    if any(weight // divisor > 2**sys.float_info.mant_dig for weight in whole):
        return list(blocks)
    return [block.model_copy(update={"weight": float(w // divisor)}) for block, w in zip(blocks, whole, strict=True)]
