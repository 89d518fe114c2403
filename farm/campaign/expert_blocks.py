"""Blocks of problems as mixtures of experts have them: each token is multiplied with the weights of the experts that it chooses.

A block makes a product in groups of each weight, where the rows of group e are those of the tokens that chose expert e.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, model_validator

from farm.campaign.axes import Axis, AxisKey, shown
from farm.campaign.problem_blocks import ListedBlock, ProblemBlock
from farm.campaign.shape_files import FileContext, among
from farm.campaign.values import TEXT, Value, Values, ordered, wrong_key
from farm.errors import BadGroups
from farm.gemm import MAX_EXTENT, Problem, Shape
from farm.groups import MAX_GROUPS, Groups
from farm.language_models.built_in import built_in
from farm.language_models.configuration import is_file
from farm.routing import MAX_DRAWS, Routing, parse_recorded, parse_routings

MAX_TOKENS = 2**17
"""Choices that are drawn for one block, which takes up to 20 s."""

MAX_SEED = 2**32 - 1

_WEIGHT = re.compile(r"([1-9]\d{0,9})\s*[x×]\s*([1-9]\d{0,9})", re.ASCII)
_RULE_KEYS = "experts, top_k and tokens"


def _weight_of(written: object) -> tuple[int, int]:
    found = _WEIGHT.fullmatch(written.strip()) if isinstance(written, str) else None
    if found is None or max(int(found[1]), int(found[2])) > MAX_EXTENT:
        raise ValueError(f"{shown(written)} is not the weight of an expert; write n x k, as in 1536x2048")
    return int(found[1]), int(found[2])


def _weight_text(weight: tuple[int, int]) -> str:
    return f"{weight[0]}x{weight[1]}"


def _routing_of(written: object) -> Routing:
    if isinstance(written, dict):
        raise ValueError(f"a file has the rows of each expert; remove {_RULE_KEYS}")  # noqa: TRY004
    return Routing.parse(shown(written) if isinstance(written, list) else str(written))


def _model_of(written: object) -> str:
    name = str(written)
    if is_file(name):
        raise ValueError(f"a block of experts names a built-in model; for those of {name}, add layers: experts")
    if not built_in(name).experts:
        raise ValueError(f"{name} has no experts; remove routing for the list of its GEMMs")
    return name


class GroupedBlock(ProblemBlock):
    """A block of products in groups, with what they cannot have refused."""

    @model_validator(mode="after")
    def _fits_groups(self) -> Self:
        for name in ("layouts", "scale"):
            for value in getattr(self, name):
                variant = {name.removesuffix("s"): value}
                try:
                    Problem(Shape(1, 2, 2), self.types[0], groups=Groups.of([1]), **variant)
                except BadGroups as error:
                    raise wrong_key(type(self), name, error.fields["why"]) from None
        return self


class WeightsBlock(GroupedBlock, ListedBlock):
    """A block of routings, each multiplied with every weight of its experts."""

    weights: Annotated[tuple[tuple[int, int], ...], Values(_weight_of, write=_weight_text, gather=ordered())] = Field(
        description="n x k of the weights of an expert, as in `1536x2048`", examples=[["1536x2048", "2048x768"]]
    )

    @property
    @abstractmethod
    def routings(self) -> Sequence[Groups]:
        """The rows of each expert, by routing."""

    @property
    @abstractmethod
    def routing_count(self) -> int:
        """How many routings the block has."""

    def extents(self, name: str) -> Sequence[int]:
        if name == "m":
            return [groups.rows for groups in self.routings]
        return [weight["nk".index(name)] for weight in self.weights]

    @property
    def size(self) -> int:
        return self.routing_count * len(self.weights) * math.prod(map(len, self._variants(None)))

    def problems(self) -> Iterator[Problem]:
        for groups, (n, k) in product(self.routings, self.weights):
            shape = Shape(groups.rows, n, k)
            yield from (Problem(shape, *variant) for variant in product(*self._variants(groups)))

    def lengths(self) -> dict[str, int]:
        return {"weights": len(self.weights)} | super().lengths()

    def _variants(self, groups: Groups | None) -> tuple[Sequence[Any], ...]:
        """What follows the shape in a problem."""
        return self.types, self.layouts, self.alpha, self.beta, (1,), self.scale, self.fused, (groups,), self.sparsity


class RoutingKeys(GroupedBlock):
    """What tokens choose, by rules."""

    tokens: Annotated[Axis, AxisKey("tokens", range(1, MAX_TOKENS + 1))] = Field(
        description=f"numbers of tokens, from 1 to {MAX_TOKENS}: an axis. m is `top_k` times as large",
        examples=["16..4096 x16"],
    )
    routing: Annotated[tuple[Routing, ...], Values(_routing_of, write=str, gather=ordered())] = Field(
        description="how the tokens choose experts: one or more of `balanced`, `uniform`, and `zipf` with an exponent, as in `zipf 1.2`",
        examples=["uniform"],
    )
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="seed of the choices")


class ExpertsBlock(RoutingKeys, WeightsBlock):
    """Experts by their number and their weights."""

    experts: int = Field(ge=1, le=MAX_GROUPS, description="how many experts the layer has", examples=[128])
    top_k: int = Field(ge=1, le=MAX_GROUPS, description="how many different experts a token chooses", examples=[8])

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.top_k > self.experts:
            why = f"a token chooses {self.top_k:,} different experts of {self.experts:,}; lower it"
            raise wrong_key(type(self), "top_k", why)
        draws = self.tokens.max_sum * self.top_k * sum(routing.exponent is not None for routing in self.routing)
        if draws > MAX_DRAWS:
            why = f"up to {draws:,} choices of experts would be drawn, and the limit is {MAX_DRAWS:,}; use fewer or smaller numbers"
            raise wrong_key(type(self), "tokens", why)
        return self

    @cached_property
    def routings(self) -> Sequence[Groups]:
        return tuple(
            routing.groups(experts=self.experts, top_k=self.top_k, tokens=tokens, seed=self.seed)
            for tokens in self.tokens
            for routing in self.routing
        )

    @property
    def routing_count(self) -> int:
        return len(self.tokens) * len(self.routing)

    def lengths(self) -> dict[str, int]:
        return {"tokens": self.tokens.max_length, "routing": len(self.routing)} | super().lengths()


class ModelBlock(RoutingKeys):
    """Experts of a published model. A campaign has them as `ExpertsBlock`."""

    model: Annotated[str, Value(_model_of)] = Field(
        description="instead of `experts`, `top_k` and `weights`, a [built-in language model](language_models.md) that has experts"
    )

    def as_experts(self) -> ExpertsBlock:
        """The same block with the experts written out."""
        layer = built_in(self.model).experts[0]
        keys = {name: getattr(self, name) for name in type(self).model_fields if name != "model"}
        weights = tuple(sorted((n, k) for _, n, k in layer.matrices))
        return ExpertsBlock.model_construct(experts=layer.experts, top_k=layer.top_k, weights=weights, **keys)


class _Recorded(Values):
    """Declares recorded routings: texts, and files with one in a line."""

    def __init__(self) -> None:
        file = {"type": "object", "properties": {"file": TEXT}, "required": ["file"], "additionalProperties": False}
        super().__init__(parse_recorded, write=str, gather=_distinct, schema={"anyOf": [TEXT, file]})

    def read_in(self, written: Any, info: ValidationInfo) -> tuple[Groups, ...]:
        if isinstance(written, dict):
            name = written.get("file")
            if set(written) != {"file"} or not isinstance(name, str) or not name.strip():
                raise ValueError("this is not a file of routings; write {file: routing.csv}")
            context: FileContext | None = info.context
            read = among({}) if context is None else context.read_text
            return parse_routings(read(name.strip()), name.strip())
        if isinstance(written, str) and written.split(" ")[0] in ("balanced", "uniform", "zipf"):
            raise ValueError(f"{written} needs {_RULE_KEYS}, or a model")
        if not isinstance(written, (str, int)):
            raise ValueError(  # noqa: TRY004
                f"{shown(written)} is no routing; write {{file: routing.csv}}, or the rows of each expert as '16*8,3,0'"
            )
        return (parse_recorded(str(written)),)


def _distinct(entries: list[tuple[Groups, ...]]) -> tuple[Groups, ...]:
    """The routings of all entries, each once, in one order."""
    return tuple(sorted({groups for entry in entries for groups in entry}, key=str))


class RecordedBlock(WeightsBlock):
    """Experts with recorded routings."""

    routing: Annotated[tuple[Groups, ...], _Recorded()] = Field(
        description="`{file: routing.csv}`: each line has the rows of each expert, separated by commas. Or such lines as texts, "
        "in which `16*8` are 8 experts with 16 rows",
        examples=[{"file": "routing.csv"}],
    )

    @property
    def routings(self) -> Sequence[Groups]:
        return self.routing

    @property
    def routing_count(self) -> int:
        return len(self.routing)

    def lengths(self) -> dict[str, int]:
        return {"routing": len(self.routing)} | super().lengths()
