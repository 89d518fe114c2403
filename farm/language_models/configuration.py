"""Reads the `config.json` of a language model, as Hugging Face has it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farm.errors import BadLanguageModel
from farm.language_models.architecture import Architecture, Experts, Features, Linear
from farm.language_models.attention import whole
from farm.language_models.fields import Fields
from farm.language_models.layers import Block, Layers
from farm.language_models.weight_formats import BF16, DTYPES, Quantization

KNOWN_KINDS = frozenset(
    [
        "deepseek_ref",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "glm_moe_dsa",
        "gpt_oss",
        "kimi_k2",
        "kimi_k25",
        "kimi_k3",
        "kimi_linear",
        "llama",
        "llama4",
        "llama4_text",
        "mimo",
        "mimo_v2_flash",
        "minimax_m2",
        "minimax_m3",
        "minimax_m3_vl",
        "mistral",
        "mixtral",
        "nemotron-nas",
        "nemotron_h",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "step3p7",
    ]
)
"""`model_type` of architectures whose fields are all accounted for. Another one may have no field that is not understood."""

CONFIGURATION_SUFFIX = ".json"
"""Tells the name of a file from that of a built-in model."""

_TEXT = ("text_config", "llm_config", "language_config")
"""Where models of pictures and text have the language model."""

_WITHOUT_EFFECT = re.compile(
    r"token|dropout|drop$|rope|rotary|init|eps(ilon)?$|cache|version|position|sliding|window|auto_map|aux|norm|return|output_|penalty|beam"
    r"|dtype|chunk|scor|hidden_act|activation|architectures|bias|softcap|pretraining_tp|model_type|name_or_path|routed_scaling"
    r"|vision|audio|image|video|id2label|label2id|decoder$|max_length|min_length|temperature|top_[kp]$|task|torchscript|tie_"
    r"|transformers|jitter|topk_method|n_group$|topk_group$|mtp|nextn|attention_dropout|problem_type|ep_size|multiplier|scale|_max_layers"
)
"""Fields that change no GEMM."""

_VOCABULARY_MULTIPLE = 64
"""Inference engines pad the rows of the output head to a multiple of this."""


_INSTEAD = (
    "Give its GEMMs instead, from a run of the program (--trace FILE) or as a block gemms: in a campaign file, or add the architecture "
    "(docs/language_models.md)"
)


def is_file(name: object) -> bool:
    """Whether it is the name of a configuration file, and not of a built-in model."""
    return isinstance(name, str) and name.strip().endswith(CONFIGURATION_SUFFIX)


def parse_configuration(text: str, name: str, *, source: str = "") -> Architecture:
    """The architecture of the text of a `config.json`.

    Args:
        text: The file.
        name: What the model is called.
        source: Who published it; by default `name`.

    Raises:
        BadLanguageModel: The text is no configuration, or has fields that are not understood.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply"
        if isinstance(error, json.JSONDecodeError):
            why = f"line {error.lineno}: {error.msg}"
        elif isinstance(error, ValueError):  # Python limits the digits of a number
            why = "a number has too many digits"
        raise BadLanguageModel(where=name, why=f"this is not JSON: {why}") from None
    if not isinstance(data, dict):
        raise BadLanguageModel(
            where=name, why="this is no configuration; it is a JSON object with hidden_size and others"
        )
    return read_configuration(data, name, source=source)


def read_configuration(data: Mapping[str, Any], name: str, *, source: str = "") -> Architecture:
    """The architecture of a configuration. See `parse_configuration`."""
    try:
        return _architecture(data, name, source or name)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise BadLanguageModel(where=name, why=f"a field has a value of another form: {error}") from None


def _architecture(data: Mapping[str, Any], name: str, source: str) -> Architecture:
    fields, quantization = _reading(data, name)
    kind = str(fields.value("model_type", default=""))
    try:
        layers = Layers(fields, kind)
        blocks = layers.blocks()
        vocabulary = fields.number("vocab_size")
    except BadLanguageModel as error:
        raise BadLanguageModel(
            where=name, why="; ".join([error.fields["why"], *_not_understood(fields, kind)])
        ) from None
    for why in _not_understood(fields, kind):
        raise BadLanguageModel(where=name, why=why)
    linears, experts, notes = _gathered(blocks, quantization)
    padded = -(-vocabulary // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    head = Linear(
        "lm_head", "lm_head", (Features("lm_head", padded, of="rows of the output head"),), whole("lm_head", layers.hidden),
        quantized=False, weights=quantization.plain,
    )  # fmt: skip
    return Architecture(
        name, source, kind, layers.hidden, layers.count, layers.heads, vocabulary, (*linears, head), tuple(experts),
        (*(f"not listed: {note}" for note in layers.notes), *notes),
    )  # fmt: skip


def _reading(data: Mapping[str, Any], name: str) -> tuple[Fields, Quantization]:
    """The fields of the language model in a configuration, and how its weights are quantised."""
    text: dict[str, Any] = next((data[key] for key in _TEXT if isinstance(data.get(key), dict)), {})
    merged = {**{key: value for key, value in data.items() if key not in _TEXT}, **text}
    written = data.get("quantization_config") or text.get("quantization_config") or {}
    if not isinstance(written, dict):
        raise BadLanguageModel(where=name, why="quantization_config is no mapping")
    dtype = str(merged.get("dtype") or merged.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in DTYPES:
        raise BadLanguageModel(where=name, why=f"the dtype {dtype} is not one of {', '.join(DTYPES)}")
    # Engines serve f32 checkpoints in bf16.
    plain = BF16 if dtype == "float32" else DTYPES[dtype]
    if merged.get("expert_dtype"):
        written = {**written, "expert_dtype": merged["expert_dtype"]}
    fields = Fields({key: value for key, value in merged.items() if key != "quantization_config"}, name)
    return fields, Quantization(written, plain, name)


def _not_understood(fields: Fields, kind: str) -> list[str]:
    """Why an architecture that is not known cannot be read, in a sentence; empty if all of its fields are understood."""
    unknown = sorted(
        key
        for key, value in fields.data.items()
        if key not in fields.read
        and value not in (None, False, [], {}, "")
        and not key.startswith(("_", "use_", "expert_dtype"))
        and not _WITHOUT_EFFECT.search(key)
    )
    if kind in KNOWN_KINDS or not unknown:
        return []
    what = f"the architecture {kind} is not known" if kind else "the configuration has no model_type"
    return [f"{what}, and these of its fields are not understood: {', '.join(unknown)}. {_INSTEAD}"]


def _gathered(blocks: list[list[Block]], quantization: Quantization) -> tuple[list[Linear], list[Experts], list[str]]:
    """Each linear layer and each layer of experts with its count and format: that which most layers with equal blocks have."""
    at: defaultdict[Block, list[int]] = defaultdict(list)
    for layer, of_layer in enumerate(blocks):
        for block in of_layer:
            at[block].append(layer)
    linears: list[Linear] = []
    experts: list[Experts] = []
    for block, layers in at.items():
        for linear in block.linears:
            module = f"{linear.module}.{linear.outputs[0].name}"
            weights = quantization.usual_of(layers, module) if linear.quantized else quantization.plain
            linears.append(replace(linear, count=len(layers), weights=weights))
        for one in block.experts:
            weights = quantization.usual_of(layers, f"{one.module}.0")
            experts.append(replace(one, count=len(layers), weights=weights))
    formats = [linear.weights for linear in linears] + [one.weights for one in experts]
    return linears, experts, list(dict.fromkeys(one.note for one in formats if one is not None and one.note))
