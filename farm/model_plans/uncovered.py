"""What a step of a language model does besides GEMMs with weights: how often, and how large."""

from __future__ import annotations

from collections import Counter

from farm.language_models.architecture import Architecture, Sharing
from farm.language_models.steps import Parallelism, Step
from farm.model_plans.step_plans import NotCovered

ATTENTION, ALL_REDUCE, ALL_TO_ALL, ELEMENTWISE, OPTIMIZER = (
    "attention", "all-reduce", "all-to-all", "elementwise", "optimizer",
)  # fmt: skip
"""Names of operations, as a table of the user names them."""

_MIXERS = {"self_attn": ATTENTION, "linear_attn": "linear-attention", "mixer": "state-space"}
_BF16_BYTES = 2


def not_covered(architecture: Architecture, step: Step, parallelism: Parallelism) -> list[NotCovered]:
    """The operations of a step that are no GEMMs with weights.

    A tensor-parallel layer adds up its results twice (Shoeybi et al., arXiv 1909.08053): behind attention, and behind the
    feed-forward block. Experts on several groups of cards receive their tokens, and send their results back.
    """
    mixers, dense = Counter[str](), 0
    for linear in architecture.linears:
        if linear.inputs.sharing is Sharing.WHOLE or linear.batch is not None:
            continue
        if linear.module in _MIXERS:
            mixers[_MIXERS[linear.module]] += linear.count
        elif linear.module == "mlp":
            dense += linear.count
    sparse = sum(one.count for one in architecture.experts)
    passes = 2 if step.training else 1
    found = [NotCovered(name=name, count=passes * count) for name, count in mixers.items()]
    row = step.tokens * architecture.hidden * _BF16_BYTES
    if parallelism.tp > 1:
        count = sum(mixers.values()) + dense + sparse
        found.append(NotCovered(name=ALL_REDUCE, count=passes * count, each=size_text(row)))
    if parallelism.replicas > 1 and sparse:
        top_k = max(one.top_k for one in architecture.experts)
        found.append(NotCovered(name=ALL_TO_ALL, count=2 * passes * sparse, each=size_text(row * top_k)))
    found.append(NotCovered(name=ELEMENTWISE, count=passes * architecture.layers))
    if step.training:
        found.append(NotCovered(name=OPTIMIZER, count=1))
    return found


def size_text(size: int) -> str:
    """`8 MiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
