"""The linear layers of feed-forward blocks: dense ones, and mixtures of experts with their router and shared experts."""

from __future__ import annotations

from farm.groups import MAX_GROUPS
from farm.language_models.architecture import Experts, Features, Linear
from farm.language_models.attention import entering, leaving, whole
from farm.language_models.fields import Fields

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_k")
_WITHOUT_GATES = ("relu2", "relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""Activations of feed-forward blocks with two matrices. Gated ones are named by the activation of their gates."""


def is_gated(fields: Fields, kind: str) -> bool:
    """Whether the first product has gates and values."""
    activation = str(fields.value("mlp_hidden_act", "hidden_act", "hidden_activation", default="silu"))
    return activation not in _WITHOUT_GATES or "gemma" in kind


def dense(hidden: int, intermediate: int, *, gated: bool, name: str = "", module: str = "mlp") -> list[Linear]:
    """A dense feed-forward block, or shared experts, which are one.

    Args:
        hidden: Width of the model.
        intermediate: Inner width.
        gated: Whether gates are computed with the values.
        name: What the names of its layers begin with.
        module: The module of a checkpoint that has them.
    """
    of = "columns of the feed-forward block"
    parts = [Features("gate_proj", intermediate, of=of)] if gated else []
    parts.append(Features("up_proj", intermediate, of=of))
    return [
        entering(f"{name}gate_up_proj" if gated else f"{name}up_proj", module, hidden, *parts),
        leaving(f"{name}down_proj", module, hidden, Features("down_proj", intermediate, of=of)),
    ]


def mixture(fields: Fields, hidden: int, kind: str) -> tuple[list[Linear], Experts]:
    """A layer of routed experts: its router, shared experts and projections, and the experts themselves."""
    gated = is_gated(fields, kind)
    count, intermediate = fields.number(*EXPERT_COUNTS, largest=MAX_GROUPS), fields.number(
        "moe_intermediate_size", "expert_intermediate_size", "intermediate_size"
    )  # fmt: skip
    router = entering("router", "mlp", hidden, whole("gate", count), adapts=False, quantized=False)
    linears = [router]
    shared = _shared_width(fields, kind, intermediate)
    if shared:
        linears += dense(hidden, shared, gated=gated, name="shared_experts.", module="mlp.shared_experts")
        if kind.startswith(("qwen2_moe", "qwen3_5", "qwen3_next")):
            linears.append(
                entering(
                    "shared_experts.gate", "mlp", hidden, whole("shared_expert_gate", 1), adapts=False, quantized=False
                )
            )
    inner = fields.value("moe_latent_size", "routed_expert_hidden_size")
    if inner:
        quantized = not kind.startswith("kimi")
        into, out_of = whole("fc1_latent_proj", inner), whole("fc2_latent_proj", hidden)
        linears += [
            entering("experts.latent_in", "mlp", hidden, into, adapts=False, quantized=quantized),
            entering("experts.latent_out", "mlp", inner, out_of, adapts=False, quantized=quantized),
        ]
    module = "experts" if kind.startswith("gemma4") else "mlp.experts"
    return linears, Experts(module, count, fields.number(*_TOP_K), inner or hidden, intermediate, gated)


def _shared_width(fields: Fields, kind: str, intermediate: int) -> int:
    """Inner width of all shared experts of a layer together; 0 without any."""
    if kind.startswith("llama4"):
        return intermediate
    names = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")  # fmt: skip
    of_one = fields.value(*names)
    number = fields.value("n_shared_experts", "num_shared_experts", default=0 if of_one is None else 1)
    if kind.startswith("gemma4"):
        return 0
    return int(number) * int(intermediate if of_one is None else of_one)
