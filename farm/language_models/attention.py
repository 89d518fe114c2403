"""The linear layers of attention and of what takes its place: state spaces and linear attention.

The products of queries, keys and values are not among them: no matrix of weights takes part.
"""

from __future__ import annotations

from farm.language_models.architecture import Features, Linear, Phase, Sharing
from farm.language_models.fields import Fields

_HEADS, _KV_HEADS = "attention heads", "heads of keys and values"


def whole(name: str, count: int) -> Features:
    return Features(name, count, sharing=Sharing.WHOLE)


def entering(
    name: str, module: str, inputs: int, *outputs: Features, adapts: bool = True, quantized: bool = True
) -> Linear:
    """A layer whose outputs the GPUs share."""
    return Linear(name, module, outputs, whole(name, inputs), adapts=adapts, quantized=quantized)


def leaving(name: str, module: str, outputs: int, inputs: Features) -> Linear:
    """A layer whose inputs the GPUs share; their results are added up."""
    return Linear(name, module, (whole(inputs.name, outputs),), inputs, adapts=True)


def grouped_query(
    hidden: int, heads: int, kv_heads: int, head_dim: int, *, value_dim: int | None = None, gate: bool = False,
    keys_are_values: bool = False,
) -> list[Linear]:  # fmt: skip
    """Attention whose queries share heads of keys and values (Ainslie et al., arXiv 2305.13245).

    Args:
        hidden: Width of the model.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        value_dim: Width of a head of values, if it differs.
        gate: Whether a gate for each output is computed with the queries.
        keys_are_values: Whether the keys are the values too.
    """
    values = head_dim if value_dim is None else value_dim
    parts = [
        Features("q_proj", heads, head_dim * (2 if gate else 1), of=_HEADS),
        Features("k_proj", kv_heads, head_dim, Sharing.COPIED, _KV_HEADS),
    ]
    if not keys_are_values:
        parts.append(Features("v_proj", kv_heads, values, Sharing.COPIED, _KV_HEADS))
    return [
        entering("qkv_proj", "self_attn", hidden, *parts),
        leaving("o_proj", "self_attn", hidden, Features("o_proj", heads, values, of=_HEADS)),
    ]


def latent(fields: Fields, hidden: int, heads: int, *, indexed: bool) -> list[Linear]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), and the indexer of sparse attention (DeepSeek-V3.2).

    Steps that decode multiply the queries with the keys' half of `kv_b_proj`, and the results with its other half, head by head.
    Sparse attention does so in all steps.
    """
    nope, rope = fields.number("qk_nope_head_dim"), fields.number("qk_rope_head_dim")
    rank, values = fields.number("kv_lora_rank"), fields.number("v_head_dim")
    q_rank = fields.value("q_lora_rank")
    down = whole("kv_a_proj_with_mqa", rank + rope)
    queries = Features("q_b_proj" if q_rank else "q_proj", heads, nope + rope, of=_HEADS)
    if q_rank:
        q_rank = fields.number("q_lora_rank")
        found = [
            entering("fused_qkv_a_proj", "self_attn", hidden, whole("q_a_proj", q_rank), down),
            entering("q_b_proj", "self_attn", q_rank, queries),
        ]
    else:
        found = [entering("q_proj", "self_attn", hidden, queries), entering("kv_a_proj_with_mqa", "self_attn", hidden, down)]  # fmt: skip
    sparse = fields.value("index_n_heads") is not None
    if sparse and indexed:
        found += indexer(fields, hidden, q_rank or hidden)
    phase = Phase.ALL if sparse else Phase.DECODE
    if not sparse:
        up = Features("kv_b_proj", heads, nope + values, of=_HEADS)
        found.append(
            Linear("kv_b_proj", "self_attn", (up,), whole("kv_b_proj", rank), phase=Phase.PREFILL, adapts=True)
        )
    batch = Features("kv_b_proj", heads, of=_HEADS)
    for name, k, n in (("kv_b_proj.keys", nope, rank), ("kv_b_proj.values", rank, values)):
        found.append(
            Linear(name, "self_attn", (whole("kv_b_proj", n),), whole("kv_b_proj", k), batch, phase, quantized=False)
        )
    if fields.value("mla_use_output_gate"):
        found.append(entering("g_proj", "self_attn", hidden, Features("g_proj", heads, values, of=_HEADS)))
    return [*found, leaving("o_proj", "self_attn", hidden, Features("o_proj", heads, values, of=_HEADS))]


def indexer(fields: Fields, hidden: int, q_rank: int, *, keys: bool = True) -> list[Linear]:
    """What chooses the tokens of sparse attention. Every GPU computes all of it."""
    heads, width = fields.number("index_n_heads"), fields.number("index_head_dim")
    module = "self_attn.indexer"
    found = [entering("indexer.wq_b", module, q_rank, whole("wq_b", heads * width), adapts=False)]
    if keys:
        found.append(entering("indexer.wk", module, hidden, whole("wk", width), adapts=False))
    weights = whole("weights_proj", heads)
    return [*found, entering("indexer.weights_proj", module, hidden, weights, adapts=False, quantized=False)]


def compressed(fields: Fields, hidden: int, heads: int, ratio: int) -> list[Linear]:
    """The attention of DeepSeek-V4: one head of keys that are the values too, compressed along the tokens, and results that leave in
    groups of low rank.

    Args:
        ratio: Tokens of one compressed key; 0 or 1 without compression. With 4, tokens overlap and an indexer chooses keys.
    """
    head_dim, q_rank = fields.number("head_dim"), fields.number("q_lora_rank")
    groups, o_rank = fields.number("o_groups"), fields.number("o_lora_rank")
    module = "self_attn"
    found = [
        entering("fused_wqa_wkv", module, hidden, whole("wq_a", q_rank), whole("wkv", head_dim)),
        entering("wq_b", module, q_rank, Features("wq_b", heads, head_dim, of=_HEADS)),
    ]
    if ratio > 1:
        overlap = 2 if ratio == 4 else 1
        found.append(_compressor("compressor", hidden, overlap * head_dim))
        if overlap == 2:
            found += indexer(fields, hidden, q_rank, keys=False)
            found.append(_compressor("indexer.compressor", hidden, overlap * fields.number("index_head_dim")))
    batch = Features("wo_a", groups, of="groups of attention heads")
    per_group = heads * head_dim // groups
    return [
        *found,
        Linear("wo_a", module, (whole("wo_a", o_rank),), whole("wo_a", per_group), batch),
        leaving("wo_b", module, hidden, Features("wo_b", groups, o_rank, of="groups of attention heads")),
    ]


def _compressor(name: str, hidden: int, width: int) -> Linear:
    return entering(
        f"{name}.wkv_gate", f"self_attn.{name}", hidden, whole("wkv", width), whole("wgate", width), adapts=False, quantized=False
    )  # fmt: skip


def gated_delta(fields: Fields, hidden: int) -> list[Linear]:
    """Linear attention with a gated delta rule (Yang et al., arXiv 2412.06464), as Qwen3.5 has it."""
    key_heads, heads = fields.number("linear_num_key_heads"), fields.number("linear_num_value_heads")
    key_dim, value_dim = fields.number("linear_key_head_dim"), fields.number("linear_value_head_dim")
    of = "heads of linear attention"
    qkv = Features("in_proj_qkv", key_heads, 2 * key_dim + heads // key_heads * value_dim, of=of)
    module = "linear_attn"
    return [
        entering("linear_attn.in_proj_qkvz", module, hidden, qkv, Features("in_proj_z", heads, value_dim, of=of)),
        entering("linear_attn.in_proj_ba", module, hidden, Features("in_proj_b", heads, of=of), Features("in_proj_a", heads, of=of)),
        leaving("linear_attn.out_proj", module, hidden, Features("out_proj", heads, value_dim, of=of)),
    ]  # fmt: skip


def kimi_delta(fields: Fields, hidden: int) -> list[Linear]:
    """Kimi delta attention: linear attention with a forget gate of low rank for each channel."""
    heads, width = fields.number("num_heads"), fields.number("head_dim")
    of, module = "heads of linear attention", "self_attn"
    parts = [Features(f"{name}_proj", heads, width, of=of) for name in "qkvg"]
    return [
        entering("linear_attn.qkvg_proj", module, hidden, *parts),
        entering("linear_attn.bf_a_proj", module, hidden, whole("b_proj", heads), whole("f_a_proj", width)),
        entering("linear_attn.f_b_proj", module, width, Features("f_b_proj", heads, width, of=of)),
        leaving("linear_attn.o_proj", module, hidden, Features("o_proj", heads, width, of=of)),
    ]


def state_space(fields: Fields, hidden: int) -> list[Linear]:
    """A Mamba-2 layer (Dao and Gu, arXiv 2405.21060): gates, values, B, C and time steps enter at once."""
    heads, width = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
    groups, state = fields.number("n_groups"), fields.number("ssm_state_size")
    parts = [
        Features("in_proj", heads, 2 * width + 1, of="heads of the state space"),
        Features("in_proj", groups, 2 * state, Sharing.COPIED, "groups of the state space"),
    ]
    # One matrix of a checkpoint: it has no parts of its own.
    return [
        Linear("mamba.in_proj", "mixer", tuple(parts), whole("in_proj", hidden), adapts=True),
        leaving("mamba.out_proj", "mixer", hidden, Features("out_proj", heads, width, of="heads of the state space")),
    ]
