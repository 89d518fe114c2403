"""One GEMM of a step of a program, and how often it runs."""

from __future__ import annotations

from dataclasses import dataclass

from farm.gemm import Problem


@dataclass(frozen=True, slots=True)
class LayerGemm:
    """A GEMM of one step on one GPU: one forward pass or one training step of a language model, or what a trace recorded.

    Attributes:
        name: The layer, such as `qkv_proj`, `o_proj`, `gate_up_proj`, `down_proj`, `lm_head` or `experts.gate_up`.
        problem: A linear layer y = x · Wᵀ with m tokens and weights [n, k] is m×n×k in layout `nt`.
        count: How often it runs in the step.
    """

    name: str
    problem: Problem
    count: float
