"""Which blocks each layer of a language model has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.errors import BadLanguageModel
from farm.language_models import attention
from farm.language_models.architecture import Experts, Linear
from farm.language_models.feed_forward import EXPERT_COUNTS, dense, is_gated, mixture
from farm.language_models.fields import MAX_LAYERS, Fields


@dataclass(frozen=True, slots=True)
class Block:
    """Attention, or a feed-forward block, of a layer."""

    linears: tuple[Linear, ...] = ()
    experts: tuple[Experts, ...] = ()


class Layers:
    """Reads the layers of a configuration.

    Attributes:
        notes: What the blocks do not have.
    """

    def __init__(self, fields: Fields, kind: str) -> None:
        self.fields, self.kind = fields, kind
        self.hidden = fields.number("hidden_size")
        self.heads = fields.number("num_attention_heads")
        self.notes: dict[str, None] = {}
        self._pattern = _mixers(fields)
        self.count = len(self._pattern) if self._pattern else fields.number("num_hidden_layers")
        if self.count > MAX_LAYERS:
            raise BadLanguageModel(
                where=fields.where, why=f"num_hidden_layers is {self.count}; up to {MAX_LAYERS} can be read"
            )

    def blocks(self) -> list[list[Block]]:
        """The blocks of each layer, in the order of their computation."""
        if self._pattern:
            return [self._mixer(kind) for kind in self._pattern]
        if self.fields.value("block_configs") is not None:
            return self._searched()
        moe = self._moe_layers()
        types = self.fields.texts("layer_types", self.count)
        return [[self._attention(layer, types), self._feed_forward(moe[layer])] for layer in range(self.count)]

    def _attention(self, layer: int, types: Sequence[str] | None) -> Block:
        fields, hidden, heads = self.fields, self.hidden, self.heads
        kind = types[layer] if types else ""
        if kind not in _ATTENTION:
            raise BadLanguageModel(where=fields.where, why=f"layer_types: a layer of {kind!r} is not known")
        linear = fields.inner("linear_attn_config")
        if linear is not None and layer + 1 in (linear.value("kda_layers") or ()):
            return Block(tuple(attention.kimi_delta(linear, hidden)))
        if kind == "linear_attention":
            return Block(tuple(attention.gated_delta(fields, hidden)))
        if fields.value("compress_ratios") is not None:
            self.notes["the products of hyper-connections"] = None
            ratios = fields.value("compress_ratios")
            return Block(tuple(attention.compressed(fields, hidden, heads, int(ratios[layer]))))
        if fields.value("kv_lora_rank") is not None:
            indexers = fields.texts("indexer_types", self.count)
            indexed = indexers is None or indexers[layer] == "full"
            return Block(tuple(attention.latent(fields, hidden, heads, indexed=indexed)))
        if fields.value("sparse_attention_config") is not None:
            self.notes["the index of sparse attention"] = None
        return Block(tuple(self._grouped_query(layer, kind)))

    def _grouped_query(self, layer: int, kind: str) -> list[Linear]:
        fields, hidden, heads = self.fields, self.hidden, self.heads
        kv_heads = fields.number("num_key_value_heads", default=heads)
        width = self._head_dim("head_dim", "attention_head_dim")
        values = fields.value("v_head_dim")
        pattern = fields.flags("hybrid_layer_pattern", self.count)
        if pattern is not None and pattern[layer]:  # MiMo-V2: 1 is a layer with a sliding window
            heads = fields.number("swa_num_attention_heads", default=heads)
            kv_heads = fields.number("swa_num_key_value_heads", default=kv_heads)
            width = fields.number("swa_head_dim", default=width)
            values = fields.value("swa_v_head_dim", default=values)
        shared = False
        if kind == "full_attention" and fields.value("global_head_dim") is not None:  # Gemma 4
            width = fields.number("global_head_dim")
            kv_heads = fields.number("num_global_key_value_heads", default=kv_heads)
            shared = bool(fields.value("attention_k_eq_v"))
        gate = bool(fields.value("attn_output_gate"))
        return attention.grouped_query(
            hidden, heads, kv_heads, width, value_dim=values, gate=gate, keys_are_values=shared
        )

    def _head_dim(self, *names: str) -> int:
        """The width of a head: that of the configuration, or an equal share of the model's."""
        if self.fields.value(*names) is None and self.hidden % self.heads:
            why = f"without head_dim, {self.heads} heads do not divide hidden_size, which is {self.hidden}"
            raise BadLanguageModel(where=self.fields.where, why=why)
        return self.fields.number(*names, default=self.hidden // self.heads)

    def _feed_forward(self, moe: bool) -> Block:
        fields = self.fields
        if not moe:
            names = ("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
            width = fields.number(*names)
            return Block(tuple(dense(self.hidden, width, gated=is_gated(fields, self.kind))))
        linears, experts = mixture(fields, self.hidden, self.kind)
        if fields.value("enable_moe_block"):  # Gemma 4 has a dense block beside the experts
            width = fields.number("intermediate_size")
            linears = dense(self.hidden, width, gated=is_gated(fields, self.kind)) + linears
        return Block(tuple(linears), (experts,))

    def _moe_layers(self) -> list[bool]:
        """Whether each layer has routed experts."""
        fields, layers = self.fields, range(self.count)
        if fields.value(*EXPERT_COUNTS) is None or fields.value("enable_moe_block") is False:
            return [False] * self.count
        types = fields.texts("mlp_layer_types", self.count)
        if types is not None:
            return [kind == "sparse" for kind in types]
        flags = fields.flags("moe_layer_freq", self.count)
        if flags is not None:
            return flags
        if fields.value("interleave_moe_layer_step") is not None:
            step = fields.number("interleave_moe_layer_step")
            return [(layer + 1) % step == 0 for layer in layers]
        first = fields.number("first_k_dense_replace", default=0, smallest=0)
        every = fields.number("moe_layer_freq", "decoder_sparse_step", default=1)
        without = fields.value("mlp_only_layers", default=[])
        offset = 1 if "decoder_sparse_step" in fields.read else 0
        return [layer >= first and (layer + offset) % every == 0 and layer not in without for layer in layers]

    def _mixer(self, kind: str) -> list[Block]:
        """Nemotron-H: a layer has one block."""
        match kind:
            case "mamba":
                return [Block(tuple(attention.state_space(self.fields, self.hidden)))]
            case "attention":
                return [Block(tuple(self._grouped_query(0, "")))]
            case "moe":
                return [self._feed_forward(moe=True)]
            case "mlp":
                return [self._feed_forward(moe=False)]
        raise BadLanguageModel(where=self.fields.where, why=f"a layer of the kind {kind!r} is not known")

    def _searched(self) -> list[list[Block]]:
        """Models that an architecture search has shortened: each layer has blocks of its own, or none."""
        found: list[list[Block]] = []
        head_dim = self._head_dim("head_dim")
        for written in self.fields.value("block_configs"):
            blocks: list[Block] = []
            attending, feeding = written["attention"], written["ffn"]
            if any(block.get("replace_with_linear") for block in (attending, feeding)):
                raise BadLanguageModel(
                    where=self.fields.where, why="block_configs: replace_with_linear is not understood"
                )
            if not attending.get("no_op"):
                kv_heads = self.heads // int(attending["n_heads_in_group"])
                blocks.append(Block(tuple(attention.grouped_query(self.hidden, self.heads, kv_heads, head_dim))))
            if not feeding.get("no_op"):
                # The width of the model's own code: two thirds of the factor, in multiples of 256.
                width = -(-int(2 * feeding["ffn_mult"] * self.hidden / 3) // 256) * 256
                blocks.append(Block(tuple(dense(self.hidden, width, gated=True))))
            found.append(blocks)
        return found


_ATTENTION = ("", "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "deepseek_sparse_attention")  # fmt: skip
"""What `layer_types` calls the attention of a layer."""

_MIXERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _mixers(fields: Fields) -> list[str]:
    """The kind of each layer that has one block."""
    pattern = fields.value("hybrid_override_pattern")
    if pattern is not None:
        return [_MIXERS.get(letter, letter) for letter in str(pattern)]
    return [str(kind) for kind in fields.value("layers_block_type") or ()]
