"""Named sets of shapes, and where each comes from.

The `llm-…` sets hold the matrix products of one decoder layer and of the output head, computed from the dimensions
that the model's publisher gives in its `config.json`. The activations are A [m, k] with m tokens; the weights are B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from farm.gemm import Shape
from farm.language_models.architecture import Architecture, Linear
from farm.language_models.built_in import built_in

DECODE_TOKENS = (1, 8, 32, 128)
"""Tokens in one decode step: one for each sequence of the batch."""

PREFILL_TOKENS = (512, 2048, 8192)
"""Tokens of the prompts processed in one prefill step."""


MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "mixtral-8x7b", "gpt-oss-20b")
"""The language models that have sets. Feed-forward products of a mixture of experts are those of one expert."""


def layer_weights(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(n, k) of each weight matrix [k, n] of a layer and of the output head, fused as inference engines fuse them.

    Raises:
        KeyError: The layers are of another kind.
    """
    qkv, output = architecture.linear("qkv_proj"), architecture.linear("o_proj")
    if architecture.experts:
        (_, *gate_up), (_, *down) = architecture.experts[0].matrices
    else:
        gate_up, down = ([*extents(architecture.linear(name))] for name in ("gate_up_proj", "down_proj"))
    return {
        "qkv": extents(qkv),
        "attention output": extents(output),
        "gate and up": (gate_up[0], gate_up[1]),
        "down": (down[0], down[1]),
        "output head": (architecture.vocabulary, architecture.hidden),
    }


def extents(linear: Linear) -> tuple[int, int]:
    """n and k of a linear layer that one GPU has alone."""
    return sum(output.units * output.width for output in linear.outputs), linear.inputs.units * linear.inputs.width


def model_shapes(name: str, tokens: tuple[int, ...]) -> tuple[Shape, ...]:
    """The shapes of a model for these numbers of tokens."""
    weights = layer_weights(built_in(name))
    return tuple(Shape(m, n, k) for m in tokens for n, k in weights.values())


@dataclass(frozen=True, slots=True)
class ShapeSet:
    """A named set of shapes with its origin."""

    name: str
    source: str
    shapes: tuple[Shape, ...]


@cache
def shape_sets() -> Mapping[str, ShapeSet]:
    """Every named set, by name."""
    paper = "GPPerf (arXiv 2411.16954)"
    sizes = (512, 1024, 2048)
    sets = [
        ShapeSet(
            "paper-27", f"{paper}: m, n, k each 512, 1024, 2048", tuple(Shape(*e) for e in product(sizes, repeat=3))
        ),
        ShapeSet(
            "paper-36",
            f"{paper}, with a language model's vocabulary (128256) as a fourth m",
            tuple(Shape(*e) for e in product((*sizes, 128256), sizes, sizes)),
        ),
    ]
    phases = {"decode": DECODE_TOKENS, "prefill": PREFILL_TOKENS}
    for model in MODELS:
        for phase, tokens in phases.items():
            sets.append(ShapeSet(f"llm-{model}-{phase}", built_in(model).source, model_shapes(model, tokens)))
    for phase, tokens in phases.items():
        together = tuple(dict.fromkeys(shape for model in MODELS for shape in model_shapes(model, tokens)))
        sets.append(ShapeSet(f"llm-{phase}", "the llm sets of every model together", together))
    return {shape_set.name: shape_set for shape_set in sets}
