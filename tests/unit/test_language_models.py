"""Language models: their configurations, the GEMMs of a step on one GPU, and what cannot be shared among GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.model_shapes import GOLDEN, golden, parallelism_of, rules_needed
from farm.errors import BadLanguageModel, BadStep, DoesNotDivide, FarmError, UnknownLanguageModel
from farm.gemm import ElementTypes
from farm.language_models.built_in import built_in, built_in_names
from farm.language_models.configuration import parse_configuration
from farm.language_models.module_patterns import matches
from farm.language_models.steps import Parallelism, Step, layer_gemms
from farm.routing import Routing
from farm.scale import Scale

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "torch_dtype": "bfloat16",
}  # fmt: skip

MIXTURE = {
    **LLAMA, "model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1024,
}  # fmt: skip


def lines(config: Mapping[str, Any], step: Step | int = 16, tp: int = 1, ep: int = 1) -> dict[str, tuple[str, float]]:
    """The problem, as text, and the count of each GEMM."""
    gemms = layer_gemms(parse_configuration(json.dumps(config), "mine"), step, Parallelism(tp, ep))
    found = {}
    for gemm in gemms:
        p = gemm.problem
        rest = [f"batch {p.batch}"] * (p.batch > 1) + [p.scale.value] * (p.scale is not Scale.NONE)
        found[gemm.name] = (" ".join([str(p.shape), p.types.ab.value, p.layout.value, *rest]), gemm.count)
    assert len(found) == len(gemms)
    return found


def test_every_built_in_model_has_a_source_and_a_list_of_gemms() -> None:
    names = built_in_names()
    assert f"{len(names)} public models" in (GOLDEN.parents[2] / "docs" / "language_models.md").read_text("utf-8")
    for name in names:
        architecture = built_in(name)
        assert architecture.source.endswith(" config.json"), name
        gemms = layer_gemms(architecture, Step(8, sequences=1))
        assert gemms[-1].name == "lm_head", name
        assert all(gemm.count >= 1 for gemm in gemms)
    assert built_in("meta-llama/Meta-Llama-3.1-8B") == built_in("llama-3.1-8b")


@pytest.mark.parametrize("key", ["tp 1, ep 1", "tp 8, ep 8"])
def test_the_gemms_agree_with_those_of_aiconfigurator_or_a_rule_says_why_not(key: str) -> None:
    models = golden()
    assert len(models) == 85, GOLDEN
    needed = {name: rules_needed(name, parallelism_of(key), of[key]) for name, of in models.items() if key in of}
    assert [name for name, rules in needed.items() if rules is None] == []
    assert sum(not rules for rules in needed.values()) >= 45
    assert [rule.name for rule in needed["llama-4-scout-17b-16e-instruct"] or ()] == ["shared expert of Llama 4"]


def test_a_dense_model_is_four_gemms_of_each_layer_and_an_output_head() -> None:
    assert lines(LLAMA) == {
        "qkv_proj": ("16x6144x4096 bf16 nt", 32),
        "o_proj": ("16x4096x4096 bf16 nt", 32),
        "gate_up_proj": ("16x28672x4096 bf16 nt", 32),
        "down_proj": ("16x4096x14336 bf16 nt", 32),
        "lm_head": ("16x128256x4096 bf16 nt", 1),
    }
    split = lines(LLAMA, Step(16, fused=False))
    assert [*split] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    assert split["k_proj"] == ("16x1024x4096 bf16 nt", 32)


def test_gpus_share_outputs_or_inputs_and_copy_heads_of_keys_where_there_are_fewer() -> None:
    four = lines(LLAMA, tp=4)
    assert four["qkv_proj"][0] == "16x1536x4096 bf16 nt"
    assert four["o_proj"][0] == "16x4096x1024 bf16 nt"
    assert four["down_proj"][0] == "16x4096x3584 bf16 nt"
    assert four["lm_head"][0] == "16x32064x4096 bf16 nt"
    # 2 of 32 heads of queries, and a whole head of keys and of values.
    assert lines(LLAMA, tp=16)["qkv_proj"][0] == f"16x{2 * 128 + 2 * 128}x4096 bf16 nt"


def test_experts_are_products_in_groups_with_the_rows_of_the_fullest_gpu() -> None:
    even = Step(64, routing=Routing.parse("balanced"))
    architecture = parse_configuration(json.dumps(MIXTURE), "mine")
    of = {
        over: {gemm.name: gemm.problem for gemm in layer_gemms(architecture, even, over)}
        for over in (Parallelism(8, 1), Parallelism(8, 4), Parallelism(2, 8))
    }
    shapes = {over: (p["experts.gate_up"].shape, p["experts.down"].shape) for over, p in of.items()}
    assert {over: [str(shape) for shape in both] for over, both in shapes.items()} == {
        Parallelism(8, 1): ["256x256x4096", "256x4096x128"],
        Parallelism(8, 4): ["64x1024x4096", "64x4096x512"],  # 16 experts, each on two GPUs
        Parallelism(2, 8): ["128x2048x4096", "128x4096x1024"],  # 8 whole experts, and the tokens of four replicas
    }
    assert str(of[Parallelism(8, 4)]["experts.down"].groups) == "4*16"
    assert of[Parallelism(8, 4)]["router"].shape.n == 64
    skewed = layer_gemms(architecture, Step(64, routing=Routing.parse("zipf 1.2")), Parallelism(8, 8))
    rows = {gemm.problem.shape.m for gemm in skewed if gemm.name.startswith("experts")}
    assert min(rows) > 2 * 64 * 4 / 8


def test_training_has_the_gradients_of_inputs_and_of_weights_in_their_layouts() -> None:
    found = lines(LLAMA, Step(16, sequences=2, training=True))
    assert found["down_proj"] == ("16x4096x14336 bf16 nt", 32)
    assert found["down_proj.input_gradient"] == ("16x14336x4096 bf16 nn", 32)
    assert found["down_proj.weight_gradient"] == ("4096x14336x16 bf16 tn", 32)
    assert found["lm_head"] == ("16x128256x4096 bf16 nt", 1)
    assert len(found) == 3 * 5
    frozen = lines(LLAMA, Step(16, training=True, rank=8))
    assert "down_proj.weight_gradient" not in frozen
    assert frozen["down_proj.lora_a.weight_gradient"] == ("8x14336x16 bf16 tn", 32)
    assert frozen["qkv_proj.lora_a"] == ("16x24x4096 bf16 nt", 32)
    assert frozen["k_proj.lora_b"] == ("16x1024x8 bf16 nt", 32)
    of_half = lines({**LLAMA, "torch_dtype": "float16"}, Step(16, rank=8))
    assert {text.split()[1] for text, _ in of_half.values()} == {"f16"}
    experts = {
        gemm.name: gemm.problem for gemm in layer_gemms(built_in("qwen3-30b-a3b-fp8"), Step(4096, training=True))
    }
    of_weights = experts["experts.down.weight_gradient"]
    assert (str(of_weights.shape), of_weights.batch) == (f"2048x768x{4096 * 8 // 128}", 128)
    uneven = {gemm.name: gemm.problem for gemm in layer_gemms(built_in("qwen3-30b-a3b-fp8"), Step(4100, training=True))}
    assert uneven["experts.down.weight_gradient"].shape.k == 256 + 16


def test_latent_attention_decodes_with_the_halves_of_kv_b_proj_head_by_head() -> None:
    v3 = built_in("deepseek-v3")
    of = lambda step: {g.name: g for g in layer_gemms(v3, step, Parallelism(8, 8))}  # noqa: E731
    decoding, prompt = of(Step(16)), of(Step(16, sequences=1))
    assert "kv_b_proj" not in decoding
    assert prompt.keys() - decoding.keys() == {"kv_b_proj"}
    keys = decoding["kv_b_proj.keys"].problem
    assert (keys.batch, str(keys.shape), keys.types.ab.value) == (16, "16x512x128", "bf16")
    assert prompt["lm_head"].problem.shape.m == 1
    assert (prompt["gate_up_proj"].count, prompt["experts.down"].count) == (3, 58)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "f8e4m3 nt 1x128:128x128"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}}}, "f8e4m3 nt row"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "f8e4m3 nt tensor"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "bf16i4 nt none:1x64"),
        ({"quant_method": "mxfp4"}, "bf16f4 nt none:1x32"),
    ],
)  # fmt: skip
def test_quantised_checkpoints_have_their_types_and_factors(written: dict[str, Any], text: str) -> None:
    excluded = {
        **written,
        "ignore": ["lm_head", "re:.*o_proj.*"] + [f"model.layers.{i}.mlp.down_proj" for i in range(30)],
    }
    found = lines({**LLAMA, "quantization_config": excluded})
    assert found["qkv_proj"][0] == f"16x6144x4096 {text}"
    assert {found[name][0].split()[1] for name in ("o_proj", "down_proj", "lm_head")} == {"bf16"}
    other = lines({**LLAMA, "quantization_config": written}, Step(16, types=ElementTypes.parse("f16")))
    assert {each.split(maxsplit=1)[1] for each, _ in other.values()} == {"f16 nt"}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ((3, 1), r"The 32 attention heads of mine cannot be divided among 3 GPUs; tp may be 1, 2, 4, 8, 16, 32"),
        ((1, 128), r"The 64 experts of mine cannot be divided among 128 GPUs; ep may be 1, 2, 4, 8, 16, 32, 64"),
        ((8, 3), "ep is 3; it is a divisor or a multiple of tp, which is 8"),
        ((0, 1), "tp is 0; write a number of GPUs"),
    ],
)
def test_a_parallelism_that_does_not_divide_names_what_does_not(over: tuple[int, int], message: str) -> None:
    with pytest.raises((DoesNotDivide, BadStep), match=message):
        lines(MIXTURE, 16, *over)
    with pytest.raises(BadStep, match="a GPU would have 96 columns of an expert of qwen3-30b-a3b-fp8"):
        layer_gemms(built_in("qwen3-30b-a3b-fp8"), 1, Parallelism(8))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2", "n_embd": 768, "n_head": 12}, "mine: the configuration has no hidden_size; the architecture gpt2 is not "
         "known, and these of its fields are not understood: n_embd, n_head"),
        ({**LLAMA, "model_type": "new", "num_memory_slots": 4}, r"the architecture new is not known, .* not understood: num_memory_slots\. "
         r"Give its GEMMs instead, from .* \(--trace FILE\) or .* gemms: .*, or add the architecture \(docs/language_models.md\)"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size is 'wide'; it is a whole number from 1"),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, r"quantization_config is not understood \(quant_method bits"),
        ({**LLAMA, "v_head_dim": "wide"}, "a field has a value of another form: v_proj has 8 x 'wide' features"),
        ({**MIXTURE, "num_experts_per_tok": 65}, "a field has a value of another form: a token chooses 65 of 64 experts"),
        ({**MIXTURE, "num_experts": 2**31 - 1}, "num_experts is 2147483647; it is a whole number from 1 to 4,096"),
        ({**MIXTURE, "moe_layer_freq": [1, 0]}, "moe_layer_freq has 2 entries for 32 layers"),
        ({**LLAMA, "hidden_size": 4100}, "without head_dim, 32 heads do not divide hidden_size, which is 4100"),
        ({**LLAMA, "layer_types": ["conv"] * 32}, "layer_types: a layer of 'conv' is not known"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8", "ignore": ["re:(([a-z._0-9]+)+)+X"]}}, "the pattern re:.* is not understood"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8", "ignore": ["re:[z-a]"]}}, "the pattern re:.* is wrong: bad character range"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8", "ignore": ["x"] * 9000}}, "names 9,000 modules, too many for 32 layers"),
        ([], "this is no configuration"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_not_understood_is_one_clear_error(config: object, message: str) -> None:
    with pytest.raises(BadLanguageModel, match=message):
        parse_configuration(json.dumps(config), "mine")
    unknown = {key: value for key, value in LLAMA.items() if key != "rope_theta"} | {"model_type": "like-llama"}
    assert lines(unknown) == lines(LLAMA)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"re:.*\.gate$", ["mlp.gate"]),
        (r"re:model\.layers\.\d+\.mlp\.(gate|up)_proj.*", ["mlp.gate_proj"]),
        (r"re:.*gate", ["mlp.gate", "mlp.gate_proj"]),
        (r"re:.*layers\.[^0].*", []),
        ("re:" + ".*[a-z]+" * 30 + "X", []),
    ],
)
def test_regular_expressions_of_checkpoints_are_matched_in_linear_time(pattern: str, named: list[str]) -> None:
    modules = ("mlp.gate", "mlp.gate_proj", "self_attn.o_proj")
    assert [module for module in modules if matches(pattern, f"layers.0.{module}")] == named


def test_feed_forward_blocks_of_architectures_with_a_plain_gelu_have_no_gates() -> None:
    activation = {"hidden_act": "gelu_pytorch_tanh"}
    assert "up_proj" in lines({**LLAMA, **activation, "model_type": "starcoder2"})
    assert "gate_up_proj" in lines({**LLAMA, **activation, "model_type": "gemma2"})


def test_names_of_repositories_are_not_kept() -> None:
    assert built_in("someone/Llama-3.1-8B") is built_in("llama-3.1-8b")


def test_other_bad_input_is_one_clear_error() -> None:
    for step, message in (
        (lambda: Step(0), "tokens is 0"),
        (lambda: Step(4, sequences=5), "sequences is 5; there are 1 to 4"),
        (lambda: layer_gemms(built_in("gpt-oss-20b"), Step(4, training=True)), "gpt-oss-20b: weights of the format mxfp4 are not trained"),
        (lambda: parse_configuration("{\n x}", "mine"), "mine: this is not JSON: line 2"),
        (lambda: layer_gemms(built_in("deepseek-v3"), 2**20, Parallelism(1, 256)), "2,147,483,648 choices of experts would be drawn"),
        (lambda: parse_configuration("1" * 5000, "mine"), "mine: this is not JSON: a number has too many digits"),
    ):  # fmt: skip
        with pytest.raises(FarmError, match=message):
            step()
    with pytest.raises(UnknownLanguageModel, match=r"'llama-3.1-9b'; did you mean llama-3.1-8b"):
        built_in("llama-3.1-9b")
