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

DECODE_TOKENS = (1, 8, 32, 128)
"""Tokens in one decode step: one for each sequence of the batch."""

PREFILL_TOKENS = (512, 2048, 8192)
"""Tokens of the prompts processed in one prefill step."""


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """The published dimensions of a decoder-only transformer that decide its matrix products."""

    name: str
    source: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    # Inner width of the feed-forward block, of one expert where it is a mixture of experts.
    intermediate: int
    vocabulary: int

    def weights(self) -> dict[str, tuple[int, int]]:
        """(n, k) of each weight matrix [k, n], fused as inference engines fuse them."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "attention output": (self.hidden, self.heads * self.head_dim),
            "gate and up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "output head": (self.vocabulary, self.hidden),
        }

    def shapes(self, tokens: tuple[int, ...]) -> tuple[Shape, ...]:
        return tuple(Shape(m, n, k) for m in tokens for n, k in self.weights().values())


MODELS = (
    ModelDimensions("llama-3.1-8b", "meta-llama/Llama-3.1-8B config.json", 4096, 32, 8, 128, 14336, 128256),
    ModelDimensions("llama-3.1-70b", "meta-llama/Llama-3.1-70B config.json", 8192, 64, 8, 128, 28672, 128256),
    ModelDimensions("qwen2.5-7b", "Qwen/Qwen2.5-7B config.json", 3584, 28, 4, 128, 18944, 152064),
    ModelDimensions("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1 config.json", 4096, 32, 8, 128, 14336, 32000),
    ModelDimensions("gpt-oss-20b", "openai/gpt-oss-20b config.json", 2880, 64, 8, 64, 2880, 201088),
)  # fmt: skip
"""In the order of the fields. Feed-forward products of a mixture of experts are those of one expert."""


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The published dimensions of a layer of experts, which decide its products in groups."""

    source: str
    experts: int
    # How many of them a token chooses.
    top_k: int
    hidden: int
    # Inner width of one expert.
    intermediate: int

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """(n, k) of the weights of an expert: gate and up, fused as inference engines fuse them, and down."""
        return (2 * self.intermediate, self.hidden), (self.hidden, self.intermediate)


EXPERT_LAYERS: Mapping[str, ExpertLayer] = {
    "mixtral-8x7b": ExpertLayer("mistralai/Mixtral-8x7B-v0.1 config.json", 8, 2, 4096, 14336),
    "qwen3-30b-a3b": ExpertLayer("Qwen/Qwen3-30B-A3B config.json", 128, 8, 2048, 768),
    "deepseek-v3": ExpertLayer("deepseek-ai/DeepSeek-V3 config.json", 256, 8, 7168, 2048),
}
"""Layers of experts by model, in the order of the fields."""


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
            sets.append(ShapeSet(f"llm-{model.name}-{phase}", model.source, model.shapes(tokens)))
    for phase, tokens in phases.items():
        together = tuple(dict.fromkeys(shape for model in MODELS for shape in model.shapes(tokens)))
        sets.append(ShapeSet(f"llm-{phase}", "the llm sets of every model together", together))
    return {shape_set.name: shape_set for shape_set in sets}
