"""Blocks of the GEMMs of a language model: those of one step on one GPU, for each number of tokens and each way to share the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, ValidationInfo, model_validator

from farm.campaign.axes import Axis, AxisKey, shown
from farm.campaign.expert_blocks import MAX_SEED
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.problem_blocks import Block, types_of
from farm.campaign.shape_files import FileContext, among
from farm.campaign.values import Value, Values, ordered, wrong_key
from farm.errors import BadStep, DoesNotDivide, FarmError
from farm.gemm import ElementTypes
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in
from farm.language_models.configuration import is_file, parse_configuration
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.steps import MAX_GPUS, MAX_RANK, MAX_TOKENS, Parallelism, Step, layer_gemms
from farm.routing import MAX_DRAWS, Routing
from farm.scale import Scale

MAX_STEPS = 4096
"""Steps of one block: numbers of tokens times ways to share the model."""


class _Word(StrEnum):
    @classmethod
    def parse(cls, text: object) -> Self:
        """Raises `ValueError`, which says what to write."""
        try:
            return cls(str(text))
        except ValueError:
            raise ValueError(f"{shown(text)} is not known here; write {' or '.join(cls)}") from None


class Projections(_Word):
    """How layers that share their inputs are computed."""

    FUSED = "fused"
    SPLIT = "split"


class LayerChoice(_Word):
    """Which GEMMs of a language model a block has."""

    ALL = "all"
    DENSE = "dense"
    EXPERTS = "experts"

    def has(self, gemm: LayerGemm) -> bool:
        """Whether it is one of them: those of experts are in groups, or gradients of such."""
        return self is LayerChoice.ALL or (self is LayerChoice.EXPERTS) == gemm.name.startswith(
            ("experts.gate_up", "experts.up", "experts.down")
        )


def _architecture_of(written: object, info: ValidationInfo) -> Architecture:
    if isinstance(written, Architecture):
        return written
    if not isinstance(written, str) or not written.strip():
        raise ValueError(
            f"{shown(written)} is no language model; write for example llama-3.1-8b, or the name of a file config.json"
        )
    name, context = written.strip(), info.context
    try:
        if not is_file(name):
            return built_in(name)
        read = context.read_text if isinstance(context, FileContext) else among({})
        return parse_configuration(read(name), name)
    except FarmError as error:
        raise ValueError(str(error)) from None


def _number_of(name: str, largest: int, smallest: int = 1) -> Callable[[object], int]:
    def read(written: object) -> int:
        if type(written) is not int or not smallest <= written <= largest:
            raise ValueError(f"{shown(written)} does not fit; {name} is a whole number from {smallest} to {largest:,}")
        return written

    return read


def _yes_or_no(written: object) -> bool:
    found = {"true": True, "yes": True, "false": False, "no": False}.get(str(written).lower())
    if found is None:
        raise ValueError(f"{shown(written)} is neither true nor false")
    return found


_YES_OR_NO: Mapping[str, Any] = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false", "yes", "no"]}]}


def _whole(smallest: int, largest: int) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": smallest, "maximum": largest}


def _gpus(name: str) -> Values:
    return Values(_number_of(name, MAX_GPUS), gather=ordered(), schema=_whole(1, MAX_GPUS))


class LanguageModelBlock(Block):
    """The GEMMs of a language model. A campaign has them as `GemmsBlock`."""

    model: Annotated[Architecture, PlainValidator(_architecture_of, json_schema_input_type=str)] = Field(
        description="a [built-in language model](language_models.md), or the name of its `config.json`, relative to the campaign file",
        examples=["llama-3.1-8b"],
    )
    layers: Annotated[LayerChoice, Value(LayerChoice.parse, write=str)] = Field(
        default=LayerChoice.ALL,
        description="`all`, `dense` or `experts`. A block with `routing` and without `layers` is one of [experts](#experts)",
    )
    tokens: Annotated[Axis, AxisKey("tokens", range(1, MAX_TOKENS + 1))] = Field(
        description=f"numbers of tokens of a step, from 1 to {MAX_TOKENS:,}: an axis", examples=["1..2048 x4"]
    )
    tp: Annotated[tuple[int, ...], _gpus("tp")] = Field(
        default=(1,), description="tensor parallelism: one or more numbers of GPUs that share each layer"
    )
    ep: Annotated[tuple[int, ...], _gpus("ep")] = Field(
        default=(1,), description="expert parallelism: one or more numbers of groups of GPUs with different experts"
    )
    sequences: Annotated[int, Value(_number_of("sequences", MAX_TOKENS, 0), schema=_whole(0, MAX_TOKENS))] = Field(
        default=0, description="sequences that the tokens are of, which decide the rows of the output head. 0: a step that decodes one "
        "token of each"
    )  # fmt: skip
    training: Annotated[bool, Value(_yes_or_no, schema=_YES_OR_NO)] = Field(
        default=False, description="with the GEMMs of gradients: `true` or `false`"
    )
    lora_rank: Annotated[int, Value(_number_of("lora_rank", MAX_RANK, 0), schema=_whole(0, MAX_RANK))] = Field(
        default=0, description="rank of low-rank adapters; 0 without"
    )
    projections: Annotated[Projections, Value(Projections.parse, write=str)] = Field(
        default=Projections.FUSED, description="layers that share their inputs: `fused` in one GEMM, or `split`"
    )
    types: Annotated[ElementTypes | None, Value(types_of, write=str)] = Field(
        default=None,
        description="types instead of those of the checkpoint. Types of 8 bits and less do not change the router and the output head",
    )
    scale: Annotated[Scale, Value(Scale.parse, write=str)] = Field(
        default=Scale.NONE, description="scale factors that go with `types`"
    )
    routing: Annotated[Routing, Value(lambda written: Routing.parse(str(written)), write=str)] = Field(
        default=Routing.parse("uniform"), description="how the tokens choose experts: `balanced`, `uniform`, or `zipf` with an exponent"
    )  # fmt: skip
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="seed of the choices")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        steps = len(self.tokens) * len(self.tp) * len(self.ep)
        if steps > MAX_STEPS:
            why = f"the block has {steps:,} steps, and the limit is {MAX_STEPS:,}; use fewer numbers"
            raise wrong_key(type(self), "tokens", why)
        if self.routing.exponent is not None and self.model.experts:
            copies = sum(Parallelism(*over).replicas for over in self._ways())
            layers = self.model.experts if self.layers is not LayerChoice.DENSE else ()
            draws = self.tokens.max_sum * copies * sum(one.top_k for one in layers)
            if draws > MAX_DRAWS:
                why = f"up to {draws:,} choices of experts would be drawn, and the limit is {MAX_DRAWS:,}; use smaller numbers, or routing: balanced"
                raise wrong_key(type(self), "tokens", why)
        if self.types is None and self.scale is not Scale.NONE:
            raise wrong_key(type(self), "scale", "scale factors go with types; add types, as in types: f8e4m3")
        if not self.gemms:
            raise wrong_key(type(self), "layers", f"{self.model.name} has no layers of experts")
        return self

    def _ways(self) -> list[tuple[int, int]]:
        """tp and ep of each way to share the model. Raises `ValidationError`."""
        ways = list(product(self.tp, self.ep))
        for tp, ep in ways:
            self._checked(lambda tp=tp, ep=ep: Parallelism(tp, ep))  # type: ignore[misc]
        return ways

    def _checked(self, make: Callable[[], Any]) -> Any:
        """What is made; its error is that of a key."""
        try:
            return make()
        except (DoesNotDivide, BadStep) as error:
            named = str(error.fields.get("key") or error.fields.get("name")).split(" ")[0]
            raise wrong_key(type(self), named if named in type(self).model_fields else "model", str(error)) from None
        except FarmError as error:
            raise wrong_key(type(self), "scale" if self.types else "model", str(error)) from None

    @cached_property
    def gemms(self) -> tuple[LayerGemm, ...]:
        """The GEMMs of all steps."""
        found: list[LayerGemm] = []
        for tokens, (tp, ep) in product(self.tokens, self._ways()):
            found += self._checked(lambda tokens=tokens, tp=tp, ep=ep: self._step(tokens, Parallelism(tp, ep)))  # type: ignore[misc]
        return tuple(found)

    def _step(self, tokens: int, over: Parallelism) -> list[LayerGemm]:
        # Without the layers of experts, no choices are drawn.
        routing = Routing.parse("balanced") if self.layers is LayerChoice.DENSE else self.routing
        step = Step(
            tokens=tokens, sequences=self.sequences or None, training=self.training, fused=self.projections is Projections.FUSED,
            rank=self.lora_rank, routing=routing, seed=self.seed, types=self.types, scale=self.scale,
        )  # fmt: skip
        return [gemm for gemm in layer_gemms(self.model, step, over) if self.layers.has(gemm)]

    def lengths(self) -> dict[str, int]:
        return {"tokens": self.tokens.max_length, "tp": len(self.tp), "ep": len(self.ep)}

    def as_gemms(self) -> GemmsBlock:
        """The same block with the GEMMs written out."""
        return GemmsBlock.of(self.gemms)
