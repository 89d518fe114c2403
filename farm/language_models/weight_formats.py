"""How weights are stored, and in which types a GEMM multiplies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.errors import BadLanguageModel
from farm.gemm import ElementType, ElementTypes
from farm.language_models.module_patterns import from_layers, matches, within
from farm.scale import Scale


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The types and scale factors of a GEMM with weights of one format.

    Attributes:
        name: As people call it, `fp8 1x128:128x128`.
        note: How the format differs from what the farm measures in its place.
    """

    name: str
    types: ElementTypes
    scale: Scale = Scale.NONE
    note: str = ""


def _format(name: str, types: str, scale: Scale = Scale.NONE, note: str = "") -> WeightFormat:
    return WeightFormat(name, ElementTypes.parse(types), scale, note)


BF16 = _format("bf16", "bf16")
F16 = _format("f16", "f16")
F32 = _format("f32", "f32")
F8_BLOCKS = _format("f8 in blocks", "f8e4m3", Scale.GROUP_BLOCK)
F8_ROWS = _format("f8 by row", "f8e4m3", Scale.ROW)
F8_TENSOR = _format("f8 by tensor", "f8e4m3", Scale.TENSOR)
MXFP8 = _format(
    "mxfp8", "f8e4m3", Scale.GROUP_BLOCK, "MXFP8 has a factor for each 32 elements; blocks of 128 stand for it"
)
MXFP4 = _format(
    "mxfp4", "bf16f4", Scale.GROUP_32_OF_B, "factors of MXFP4 are powers of two in a byte; bf16 factors stand for them"
)
NVFP4 = _format(
    "nvfp4", "bf16f4", Scale.GROUP_32_OF_B, "NVFP4 has groups of 16 weights; groups of 32 with bf16 activations stand for them"
)  # fmt: skip
I8_WEIGHTS = _format("i8 weights", "bf16i8", Scale.ROW_OF_B)
I8 = _format("i8", "i8:bf16:i32", Scale.ROW)
I4_WEIGHTS = {
    group: _format(f"i4 weights in {'rows' if group < 0 else f'groups of {group}'}", "bf16i4", scale)
    for group, scale in {
        -1: Scale.ROW_OF_B,
        32: Scale.GROUP_32_OF_B,
        64: Scale.GROUP_64_OF_B,
        128: Scale.GROUP_128_OF_B,
    }.items()
}
"""By the size of a group along k; -1 is one group for each output."""

DTYPES = {"bfloat16": BF16, "float16": F16, "float32": F32}

_ALGORITHMS = {
    "FP8": F8_TENSOR,
    "FP8_PB_WO": F8_BLOCKS,
    "FP8_PER_CHANNEL_PER_TOKEN": F8_ROWS,
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A16_MXFP4": MXFP4,
    "W4A16_AWQ": I4_WEIGHTS[128],
}
"""The names of NVIDIA Model Optimizer."""

_PATH_ALIASES = {
    "self_attn": ("self_attn", "attn", "mixer", "attention"),
    "linear_attn": ("linear_attn", "self_attn", "mixer"),
    "mlp": ("mlp", "block_sparse_moe", "ffn", "feed_forward", "mixer"),
}
"""What modules of layers are called in checkpoints."""

_MAX_PATTERNS = 2**18
"""Names of modules in a quantisation, times layers."""


class Quantization:
    """Which format the weights of a module have, from the `quantization_config` of a checkpoint.

    Attributes:
        plain: The format of modules that are not quantised.
    """

    def __init__(self, written: Mapping[str, Any], plain: WeightFormat, where: str) -> None:
        self.plain = plain
        self._mixed = _layers_of(written)
        # With a method of its own, what the second one leaves out has the first one.
        self._excluded = [] if self._mixed and _has_method(written) else _patterns(written)
        self._experts = MXFP4 if written.get("expert_dtype") == "fp4" else None
        self._usual = plain
        if written.keys() - {"expert_dtype"}:
            self._usual = plain if self._mixed and not _has_method(written) else _usual_format(written, where)
        self._where = where

    def usual_of(self, layers: Sequence[int], module: str) -> WeightFormat:
        """The format that a module has in most of these layers. Raises `ValueError`."""
        patterns = len(self._excluded) + len(self._mixed)
        if patterns * len(layers) > _MAX_PATTERNS:
            raise ValueError(f"quantization_config names {patterns:,} modules, too many for {len(layers):,} layers")
        if not self._excluded and not self._mixed:
            return self.format_of(layers[0], module)
        return Counter(self.format_of(layer, module) for layer in layers).most_common(1)[0][0]

    def format_of(self, layer: int, module: str) -> WeightFormat:
        """The format of a module of a layer, as of `self_attn.q_proj`."""
        paths = [f"layers.{layer}.{path}" for path in _aliases(module)]
        if self._excluded and any(self._excludes(path) for path in paths):
            return self.plain
        for name, algorithm in self._mixed.items():
            if any(within(name, path) or name.startswith(f"{path}.") for path in paths):
                if algorithm not in _ALGORITHMS:
                    raise BadLanguageModel(
                        where=self._where, why=f"the quantisation {algorithm!r} of {name} is not known"
                    )
                return _ALGORITHMS[algorithm]
        if ".experts" in f".{module}" and self._experts is not None:
            return self._experts
        return self._usual

    def _excludes(self, path: str) -> bool:
        return any(matches(pattern, path) for pattern in self._excluded)


def _has_method(written: Mapping[str, Any]) -> bool:
    return written.get("quant_method") not in (None, "modelopt")


def _aliases(module: str) -> list[str]:
    block, _, rest = module.partition(".")
    names = (rest, rest.replace("shared_experts", "shared_expert")) if "shared_experts" in rest else (rest,)
    return [f"{alias}.{name}" for alias in _PATH_ALIASES.get(block, (block,)) for name in names]


def _patterns(written: Mapping[str, Any]) -> list[str]:
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    return [str(pattern) for key in keys for pattern in written.get(key) or ()]


def _layers_of(written: Mapping[str, Any]) -> dict[str, str]:
    """The algorithm of each module that has one of its own."""
    layers = written.get("quantized_layers") or {}
    return {from_layers(name): str(one.get("quant_algo")) for name, one in layers.items() if isinstance(one, dict)}


def _usual_format(written: Mapping[str, Any], where: str) -> WeightFormat:
    """The format of all modules that have none of their own."""
    method, algorithm = str(written.get("quant_method") or "modelopt"), str(written.get("quant_algo") or "")
    found: WeightFormat | None = None
    match method:
        case "fp8":
            found = _f8_format(written.get("weight_block_size"))
        case "fbgemm_fp8":
            found = F8_ROWS
        case "mxfp4":
            found = MXFP4
        case "gptq" | "awq" | "gptq_marlin" | "awq_marlin" if written.get("bits", 4) == 4:
            found = I4_WEIGHTS.get(int(written.get("group_size", 128)))
        case "gptq" if written.get("bits") == 8:
            found = I8_WEIGHTS
        case "compressed-tensors":
            found = _compressed_format(_first_group(written))
        case _ if algorithm in _ALGORITHMS:
            found = _ALGORITHMS[algorithm]
    if found is None:
        known = ("quant_method", "quant_algo", "bits", "group_size", "weight_block_size", "format")
        shown = ", ".join(f"{key} {written[key]}" for key in known if written.get(key) is not None)
        why = f"quantization_config is not understood ({shown}); give the types of its GEMMs instead, as in bf16"
        raise BadLanguageModel(where=where, why=why)
    return found


def _f8_format(block: object) -> WeightFormat | None:
    if block is None:
        return F8_TENSOR
    return F8_BLOCKS if block == [128, 128] else None


def _first_group(written: Mapping[str, Any]) -> Mapping[str, Any]:
    groups: Iterable[Any] = (written.get("config_groups") or {}).values()
    return next((group for group in groups if isinstance(group, dict)), {})


def _compressed_format(group: Mapping[str, Any]) -> WeightFormat | None:
    """A format of the library compressed-tensors, from the first of its groups."""
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    size = int(weights.get("group_size") or -1)
    match str(weights.get("type")), weights.get("num_bits"), str(weights.get("strategy")):
        case "float", 8, "block":
            return _f8_format(weights.get("block_structure") or [128, 128])
        case "float", 8, "channel":
            return F8_ROWS
        case "float", 8, _:
            return F8_TENSOR
        case "float", 4, _:
            return NVFP4 if size == 16 else MXFP4
        case "int", 8, _:
            return I8_WEIGHTS if activations is None else I8
        case "int", 4, _ if activations is None:
            return I4_WEIGHTS.get(size)
    return None


def training_types(types: ElementTypes) -> ElementTypes | None:
    """The types of input gradients where they differ: FP8 gradients with one factor have more exponent bits."""
    return ElementTypes(ElementType.F8E5M2E4M3, types.cd, types.acc) if types.ab is ElementType.F8E4M3 else None
