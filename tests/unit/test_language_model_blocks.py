"""Language models in campaign files and on the command line: their GEMMs with counts, files that travel, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.campaign import Campaign, load, loads, texts_named
from farm.campaign.gemm_blocks import GemmsBlock, text_of_problem
from farm.campaign.workloads import ModelStep
from farm.cli.workload_options import campaign_text
from farm.errors import BadInput, CampaignFileError, FarmError
from farm.language_models.built_in import built_in
from farm.language_models.steps import Parallelism, layer_gemms
from support.commands import NOWHERE, farm_here

TINY = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "vocab_size": 1024,
}  # fmt: skip


def campaign(block: str, *, files: dict[str, str] | None = None) -> Campaign:
    text = f"name: lm\nproblems: {block}\nkernels: {{family: cublaslt}}\n"
    return loads(text, name="lm.yaml", owner="ann", limit=10_000, files=files or {})


def counts(one: Campaign) -> dict[str, float]:
    (block,) = one.problems
    assert isinstance(block, GemmsBlock)
    return {text_of_problem(problem): count for problem, count in block.gemms.weight_of.items()}


def test_a_model_is_a_block_with_its_gemms_and_their_counts() -> None:
    one = campaign("{model: llama-3.1-8b, tp: 4, tokens: [1, 8], training: false}")
    expected = [gemm for tokens in (1, 8) for gemm in layer_gemms(built_in("llama-3.1-8b"), tokens, Parallelism(tp=4))]
    assert counts(one) == {text_of_problem(gemm.problem): gemm.count for gemm in expected}
    assert counts(one)["8x7168x4096 bf16:bf16:f32 nt"] == 32
    again = Campaign.from_document(json.loads(json.dumps(one.document)))
    assert (again.digest, counts(again)) == (one.digest, counts(one))
    assert "model" not in one.document["problems"][0]


def test_layers_choose_and_routing_without_layers_is_a_block_of_experts() -> None:
    rest = "model: qwen3-30b-a3b, tokens: 16"
    experts = counts(campaign(f"{{{rest}, layers: experts, routing: balanced}}"))
    assert experts == {f"128x{n}x{k} bf16:bf16:f32 nt groups=1*128": 48 for n, k in ((1536, 2048), (2048, 768))}
    dense = counts(campaign(f"{{{rest}, layers: dense}}"))
    assert "16x5120x2048 bf16:bf16:f32 nt" in dense
    assert not experts.keys() & dense.keys()
    assert counts(campaign(f"{{{rest}, routing: balanced, layers: all}}")) == experts | dense
    # Nothing is drawn for the layers of experts.
    assert counts(campaign("{model: qwen3-30b-a3b, tokens: 1048576, ep: 128, layers: dense}"))
    block = campaign(f"{{{rest}, routing: balanced, types: bf16, layouts: nt}}").document["problems"][0]
    assert block["experts"] == 128


def test_a_configuration_travels_with_the_campaign(tmp_path: Path) -> None:
    text = "name: lm\nproblems: {model: my/config.json, tokens: 4, types: f16}\nkernels: {family: cublaslt}\n"
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "lm.yaml").write_text(text)
    files = texts_named(text, tmp_path / "lm.yaml")
    assert files == {"my/config.json": json.dumps(TINY)}
    here = load(tmp_path / "lm.yaml", limit=100)
    there = campaign("{model: my/config.json, tokens: 4, types: f16}", files=files)
    assert counts(here) == counts(there)
    assert counts(here)["4x1024x256 f16:f16:f32 nt"] == 2 + 1  # gate and up, and the output head
    with pytest.raises(
        CampaignFileError, match=r"problems\.model: my/config\.json was not sent .* or name a built-in model"
    ):
        campaign("{model: my/config.json, tokens: 4}")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("model: llama-3.1-9b, tokens: 1", r"model: There is no language model 'llama-3.1-9b'; did you mean llama-3.1-8b"),
        ("model: llama-3.1-8b, tokens: 1, tp: 3", r"tp: The 32 attention heads of llama-3.1-8b cannot be divided among 3 GPUs"),
        ("model: qwen3-30b-a3b, tokens: 1, ep: 3", r"ep: The 128 experts of qwen3-30b-a3b cannot be divided among 3 GPUs"),
        ("model: llama-3.1-8b, tokens: 1, ep: 2", r"ep: ep is 2; llama-3.1-8b has no experts to share; leave ep out"),
        ("model: llama-3.1-8b, tokens: 8, sequences: 9", r"sequences: sequences is 9; there are 1 to 8"),
        ("model: gpt-oss-20b, tokens: 8, training: true", r"training: training is True; gpt-oss-20b: weights of the format mxfp4"),
        ("model: llama-3.1-8b, tokens: 8, training: maybe", r"training: 'maybe' is neither true nor false"),
        ("model: llama-3.1-8b, tokens: 8, layers: experts", r"layers: llama-3.1-8b has no layers of experts"),
        ("model: llama-3.1-8b, tokens: 1..5000", r"tokens: the block has 5,000 steps, and the limit is 4,096"),
        ("model: deepseek-v3, tokens: [1048576, 1048575, 1048574]", r"tokens: up to .* choices of experts would be drawn"),
        ("model: llama-3.1-8b, tokens: 8, scale: row", r"scale: scale factors go with types; add types"),
        ("model: llama-3.1-8b, tokens: 8, types: f16, scale: row:row", r"scale: 'row:row' names no scale factors"),
        ("model: llama-3.1-8b, tokens: 8, types: f16, scale: 'none:row'", r"scale: The scale factors none:row do not go with f16"),
        ("model: my/config.json, tokens: 8, routing: uniform, types: bf16", r"model: a block of experts names a built-in model; .* add layers: experts"),
        ("model: llama-3.1-8b, tokens: 8, beta: 1", r"beta: the model decides its problems; remove beta"),
        ("model: llama-3.1-8b", r"tokens: it is missing; write for example tokens: 1..2048 x4"),
    ],
)  # fmt: skip
def test_a_block_that_cannot_be_is_one_clear_error(block: str, message: str) -> None:
    with pytest.raises(CampaignFileError, match=rf"^lm\.yaml:2: problems\.{message}") as raised:
        campaign(f"{{{block}}}")
    assert str(raised.value).count("\n") == 0


def test_a_model_of_the_command_line_is_a_campaign(tmp_path: Path) -> None:
    made = campaign_text(None, step=ModelStep("qwen3-30b-a3b", tp=4, ep=8, tokens="1,8"), families=None).campaign(1000)
    assert (made.name, made.families) == ("qwen3-30b-a3b-tp4-ep8", ("cublaslt",))
    of_file = campaign("{model: qwen3-30b-a3b, tp: 4, ep: 8, tokens: [1, 8]}")
    assert counts(made) == counts(of_file)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    of_folder = campaign_text(None, step=ModelStep(str(tmp_path), tokens="4"), families=["tiled"])
    folder = of_folder.campaign(1000)
    assert counts(folder)["4x384x256 bf16:bf16:f32 nt"] == 2
    assert (folder.name, folder.families) == (tmp_path.name, ("tiled",))
    with pytest.raises(BadInput, match="a language model with --model NAME, and one of them only"):
        campaign_text(Path("x.yaml"), step=ModelStep("llama-3.1-8b"), families=None)
    with pytest.raises(FarmError, match="cannot be divided among 3 GPUs"):
        campaign_text(None, step=ModelStep("llama-3.1-8b", tp=3), families=None).campaign(1000)


def test_shapes_are_listed_without_a_database(tmp_path: Path) -> None:
    farm = farm_here(tmp_path, NOWHERE)
    table = farm("shapes", "llama-3.1-8b", "--tp", "4", "--tokens", "8").stdout
    assert "gate_up_proj" in table
    assert "8x7168x4096" in table
    assert "llama-3.1-8b, 1 token, tp 1" in farm("shapes", "llama-3.1-8b", "--tokens", "1").stdout
    found = json.loads(farm("shapes", "llama-3.1-8b", "--tokens", "1,8", "--training", "--json").stdout)
    assert [step["tokens"] for step in found["steps"]] == [1, 8]
    assert {one["count"] for one in found["steps"][0]["gemms"]} == {1, 32}
    models = json.loads(farm("shapes", "--list", "--json").stdout)
    assert {"llama-3.1-8b", "deepseek-v3"} < {model["name"] for model in models}
    (tmp_path / "gpt.json").write_text('{"model_type": "gpt2", "n_embd": 768}')
    for arguments, message in (
        (["gpt.json"], "gpt.json: the configuration has no hidden_size; the architecture gpt2 is not known"),
        (["none.json"], "none.json: there is no such file"),
        (["llama-3.1-8b", "--tokens", "0"], "--tokens 0: 0 is zero"),
        (["llama-3.1-8b", "--layers", "experts"], "--layers experts: llama-3.1-8b has no such layers"),
        ([""], "There is no language model ''"),
        (["llama-3.1-8b", "--list"], "Name a language model, or a trace"),
        (["--trace", "x.log", "--tp", "4"], "--tp without a language model: name one too"),
    ):
        refused = farm("shapes", *arguments)
        assert refused.returncode == 2, refused
        assert message in " ".join(refused.stderr.split())
    assert "--tp without --model: name the language model too" in " ".join(farm("submit", "--tp", "4").stderr.split())
