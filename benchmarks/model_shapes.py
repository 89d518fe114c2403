"""Do the GEMMs of language models agree with those that AIConfigurator lists?

    python -m benchmarks.model_shapes [--golden]

The package `aiconfigurator-core` (Apache-2.0) turns a configuration into a list of operations, among them GEMMs and layers of experts.
This compares n, k, the number of experts and the count of each with the farm's list for the same model, on one GPU, on eight with
tensor parallelism, and on eight that share the experts too. `RULES` are the differences: how the package departs from the model's own
code, each with the place that shows it. A model agrees if its lists are equal after the rules that apply to it; a difference without
a rule is an error of one of the two.

`--golden` writes AIConfigurator's lists to tests/data, with which a test compares without the package. The package is installed, or
its unpacked wheel is on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.common import markdown, write
from farm.errors import DoesNotDivide
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in_names
from farm.language_models.configuration import read_configuration
from farm.language_models.steps import Parallelism, Step, layer_gemms
from farm.routing import Routing

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "aiconfigurator_gemms.json"
LAYOUTS = (Parallelism(1, 1), Parallelism(8, 1), Parallelism(8, 8))
STEP = Step(4096, sequences=1, routing=Routing.parse("balanced"))
"""A step that prefills, and every GPU has rows of all its experts."""

Gemm = tuple[int, int, int]
"""Experts on a GPU (0 for a GEMM without), n and k."""

Counts = dict[Gemm, float]


@dataclass(frozen=True)
class Rule:
    """A difference between AIConfigurator's lists and the models' own code.

    Attributes:
        why: What AIConfigurator does, and what the model does.
        applies: Whether a configuration is concerned.
        configured: Changes a configuration to what AIConfigurator lists.
        listed: Changes the farm's list, of names and GEMMs, to that.
    """

    name: str
    why: str
    applies: Callable[[Mapping[str, Any]], bool]
    configured: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config
    listed: Callable[[str, Gemm, Parallelism], Gemm | None] = lambda _name, gemm, _over: gemm


_DENSE_LAYERS = ("first_k_dense_replace", "mlp_layer_types")
_FEED_FORWARD = ("gate_up_proj", "up_proj", "down_proj", "router", "shared_experts.", "experts.", "lm_head")


def _without_dense_layers(config: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _DENSE_LAYERS}
    return kept | {"moe_layer_freq": 1}


def _one_attention(name: str, gemm: Gemm, _over: Parallelism) -> Gemm | None:
    return gemm if name.startswith(_FEED_FORWARD) else None


def _latent(name: str, gemm: Gemm, over: Parallelism) -> Gemm | None:
    experts, n, k = gemm
    shared = {"experts.latent_in": (experts, n // over.tp, k), "experts.latent_out": (experts, n, k // over.tp)}
    return shared.get(name, gemm)


def _shared_by_experts(name: str, gemm: Gemm, over: Parallelism) -> Gemm | None:
    experts, n, k = gemm
    times = over.tp // over.of_experts
    wider = {
        "shared_experts.gate_up_proj": (experts, n * times, k),
        "shared_experts.down_proj": (experts, n, k * times),
    }
    return wider.get(name, gemm)


RULES = (
    Rule(
        "attention as one operation",
        "AIConfigurator measures the attention of DeepSeek-V3.2, DeepSeek-V4, GLM-5 and MiniMax-M3 with its projections as one "
        "operation (ContextDSAModule, ContextDeepSeekV4AttentionModule, ContextMSAModule); the farm lists the projections",
        lambda config: bool({"index_n_heads", "compress_ratios", "sparse_attention_config"} & config.keys()),
        listed=_one_attention,
    ),
    Rule(
        "first layers are dense",
        "AIConfigurator counts every layer as a layer of experts; the first first_k_dense_replace layers of DeepSeek-V3, Kimi-K2, GLM-5 "
        "and MiniMax-M3 have a dense block (DeepseekV2DecoderLayer in vLLM)",
        lambda config: config.get("model_type") in ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "minimax_m3", "minimax_m3_vl")
        or config.get("dense_intermediate_size") is not None,
        configured=_without_dense_layers,
    ),
    Rule(
        "sliding windows of MiMo-V2",
        "AIConfigurator takes a 1 in hybrid_layer_pattern for full attention; in the model's code it is a sliding window, with five for "
        "each layer of full attention (transformers, modeling_mimo_v2_flash)",
        lambda config: "hybrid_layer_pattern" in config,
        configured=lambda config: config | {"hybrid_layer_pattern": [1 - each for each in config["hybrid_layer_pattern"]]},
    ),
    Rule(
        "shared expert of Llama 4",
        "AIConfigurator leaves out the shared expert that each layer of experts has (Llama4TextMoe in transformers)",
        lambda config: str(config.get("model_type")).startswith("llama4"),
        listed=lambda name, gemm, _over: None if name.startswith("shared_experts.") else gemm,
    ),
    Rule(
        "shared experts over fewer GPUs",
        "AIConfigurator shares the shared experts of DeepSeek-V3.2 and GLM-5 among the GPUs that share a routed expert, so that with expert "
        "parallelism each GPU has all of them; those of DeepSeek-V3 it shares among all, as vLLM does for both (DeepseekV2MoE)",
        lambda config: "index_n_heads" in config and "compress_ratios" not in config,
        listed=_shared_by_experts,
    ),
    Rule(
        "projections of latent experts",
        "AIConfigurator shares the projections before and after Nemotron's latent experts among the GPUs of a tensor-parallel group; "
        "vLLM (ReplicatedLinear) and TensorRT-LLM compute them whole on each",
        lambda config: bool(config.get("moe_latent_size")),
        listed=_latent,
    ),
)  # fmt: skip


def stored(name: str) -> tuple[str, dict[str, Any]]:
    """The repository of a built-in model and its configuration."""
    written = json.loads((files("farm.language_models") / "data" / f"{name}.json").read_text("utf-8"))
    return written["source"].removesuffix(" config.json"), written["config"]


def listed(architecture: Architecture, parallelism: Parallelism, rules: Iterable[Rule] = ()) -> Counts:
    """The farm's list of one step that prefills, after rules."""
    found: Counter[Gemm] = Counter()
    sharing = parallelism if architecture.experts else replace(parallelism, ep=1)
    for layer in layer_gemms(architecture, STEP, sharing):
        groups = layer.problem.groups
        gemm: Gemm | None = (0 if groups is None else len(groups.sizes), layer.problem.shape.n, layer.problem.shape.k)
        for rule in rules:
            gemm = gemm and rule.listed(layer.name, gemm, parallelism)
        if gemm is not None:
            found[gemm] += layer.count  # type: ignore[assignment]  # a Counter adds up floats as well
    return dict(found)


def rules_needed(name: str, parallelism: Parallelism, other: Counts) -> list[Rule] | None:
    """The rules after which a model's list equals another; None if it never does."""

    def agrees(rules: Sequence[Rule]) -> bool:
        config = stored(name)[1]
        for rule in rules:
            config = rule.configured(config)
        return listed(read_configuration(config, name), parallelism, rules) == other

    kept = [rule for rule in RULES if rule.applies(stored(name)[1])]
    if not agrees(kept):
        return None
    for rule in list(kept):
        without = [each for each in kept if each is not rule]
        if agrees(without):
            kept = without
    return kept


def golden_text(lists: Mapping[str, Mapping[str, Counts]], installed: str) -> str:
    """AIConfigurator's lists as a file: a line for each model."""
    lines = [
        f"{json.dumps(name)}: {json.dumps({key: [[*gemm, count] for gemm, count in counts.items()] for key, counts in of.items()})}"
        for name, of in lists.items()
    ]
    return f'{{"version": "{installed}", "models": {{\n' + ",\n".join(lines) + "\n}}\n"


def golden() -> dict[str, dict[str, Counts]]:
    """The lists of `golden_text`, by model and parallelism."""
    written = json.loads(GOLDEN.read_text("utf-8"))["models"]
    return {
        name: {key: {(e, n, k): count for e, n, k, count in gemms} for key, gemms in of.items()}
        for name, of in written.items()
    }


def key_of(parallelism: Parallelism) -> str:
    return f"tp {parallelism.tp}, ep {parallelism.ep}"


def parallelism_of(key: str) -> Parallelism:
    tp, ep = key.split(", ")
    return Parallelism(int(tp.removeprefix("tp ")), int(ep.removeprefix("ep ")))


def _operations(operations: Iterable[Any]) -> Iterator[Any]:
    for operation in operations:
        for inner in ("_fallback", "_group_a", "_group_b"):
            yield from _operations(getattr(operation, inner, None) or ())
        yield operation


def _theirs(repository: str, parallelism: Parallelism) -> Counts:
    """AIConfigurator's list. Without an output head among the operations of a prompt, that of a step that decodes."""
    config, models = (importlib.import_module(f"aiconfigurator_core.sdk.{name}") for name in ("config", "models"))
    settings = config.ModelConfig(
        tp_size=parallelism.tp, moe_tp_size=parallelism.of_experts, moe_ep_size=parallelism.ep
    )
    model = models.get_model(repository, settings, "vllm")
    found: Counter[Gemm] = Counter()
    for one in _operations(model.context_ops):
        kind = type(one).__name__
        if kind == "GEMM":
            found[0, one._n, one._k] += one._scale_factor
        if kind == "MoE":
            count = one._scale_factor
            experts, width = one._num_experts // one._moe_ep_size, one._inter_size // one._moe_tp_size
            found[experts, (2 if one._is_gated else 1) * width, one._hidden_size] += count
            found[experts, one._hidden_size, width] += count
    if all(one._name != "context_logits_gemm" for one in _operations(model.context_ops)):
        heads = [one for one in _operations(model.generation_ops) if one._name == "generation_logits_gemm"]
        found[0, heads[0]._n, heads[0]._k] += 1
    return dict(found)


def _reason(error: Exception) -> str:
    if "Download" in type(error).__name__:
        return "its configuration is not among those that the package reads"
    return str(error).splitlines()[0]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--golden", action="store_true", help="write its lists to tests/data")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    installed = version("aiconfigurator-core")
    lists: dict[str, dict[str, Counts]] = {}
    refused: dict[str, str] = {}
    for name in built_in_names():
        for parallelism in LAYOUTS:
            try:
                counts = _theirs(stored(name)[0], parallelism)
            except Exception as error:
                refused[f"{name}, {key_of(parallelism)}"] = _reason(error)
                continue
            lists.setdefault(name, {})[key_of(parallelism)] = counts
    if chosen.golden:
        GOLDEN.write_text(golden_text(lists, installed), encoding="utf-8")
    result = _result(lists, refused, installed)
    write("model_shapes", result, _table(result), repetitions=1)


def _result(lists: Mapping[str, Mapping[str, Counts]], refused: Mapping[str, str], installed: str) -> dict[str, Any]:
    models: dict[str, dict[str, Any]] = {}
    for name, of in lists.items():
        rules: dict[str, list[str]] = {}
        for key, counts in of.items():
            try:
                needed = rules_needed(name, parallelism_of(key), counts)
            except DoesNotDivide as error:
                rules[key] = [f"refused: {error}"]
                continue
            rules[key] = ["unexplained"] if needed is None else [rule.name for rule in needed]
        models[name] = rules
    unexplained = [name for name, rules in models.items() if any("unexplained" in each for each in rules.values())]
    equal = [name for name, rules in models.items() if not any(rules.values())]
    return {
        "aiconfigurator_core": installed,
        "models": len(models),
        "equal": len(equal),
        "equal_after_rules": len(models) - len(equal) - len(unexplained),
        "unexplained": unexplained,
        "rules": {
            rule.name: {"why": rule.why, "models": sum(any(rule.name in each for each in of.values()) for of in models.values())}
            for rule in RULES
        },
        "of_model": {name: rules for name, rules in models.items() if any(rules.values())},
        "not_listed_by_aiconfigurator": dict(refused),
    }  # fmt: skip


def _table(result: Mapping[str, Any]) -> str:
    rows = [[name, rule["models"], rule["why"]] for name, rule in result["rules"].items()]
    head = f"{result['equal']} of {result['models']} models are equal, {result['equal_after_rules']} after rules; "
    return head + f"{len(result['unexplained'])} are not explained\n\n" + markdown(["rule", "models", "why"], rows)


if __name__ == "__main__":
    main()
