"""Plans of steps: measured rows count where there are any, predictions elsewhere, and each figure says which it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from farm.api.access import Access
from farm.api.plans import GemmOfStep, NoPlan, Planned, PlanQuery, plan
from farm.db import batches
from farm.devices import DeviceIdentity
from farm.errors import BadInput
from farm.kernels import Configuration, problem_line
from farm.language_models.built_in import built_in
from farm.language_models.steps import Parallelism, layer_gemms
from farm.model_plans.step_plans import StepPlan
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from support.batch_steps import claim, form
from support.burst_tables import burst_table
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.compared import A100, H200, Put
from support.model_records import record_models
from support.samples import row
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

CARD = H200.type
QKV, HEAD = "512x6144x4096 bf16 nt", "512x128256x4096 bf16 nt"
GEMMS = [GemmOfStep(name="qkv_proj", problem=QKV, count=32), GemmOfStep(name="lm_head", problem=HEAD)]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    """A model of bf16 in the layout nt, with both times and power."""
    found = new_registry(tmp_path_factory.mktemp("home"))
    table = burst_table(150).assign(ab="bf16", cd="bf16", layout="nt", device_type=CARD)
    with cheap_trainings():
        train_and_register(table, CARD, tracking_uri=found, code_version="1.0", settings=ForestSettings(trees=10))
    return found


@pytest.fixture
def planned(engine: Engine, uri: str) -> Iterator[Callable[..., Planned]]:
    """Plans with 512 tokens, and what is given."""
    record_models(uri, engine)
    current = Settings(MLFLOW_TRACKING_URI=uri)
    urls = ServiceUrls(engine.url.render_as_string(hide_password=False), None, uri)
    with closing(Access(current, who="the tests", opened=Session(current, urls, engine))) as access:
        yield lambda **query: plan(access, PlanQuery(**{"gemms": GEMMS, "tokens": [512], **query}))


def only(found: Planned) -> StepPlan:
    (one,) = found.plans
    return one


def configurations(*lines: str) -> list[Configuration]:
    return [Configuration.parse(line) for line in lines]


def test_the_fastest_measured_kernel_counts_and_predictions_fill_the_rest(
    planned: Callable[..., Planned], put: Put
) -> None:
    times = {0: 2.0, 3: 0.5, 7: 0.3, 9: 0.2}
    lines = [f"cublaslt(algorithm={rank}) {QKV}" for rank in times]

    def taken(one: Configuration) -> Any:
        rank = dict(one.kernel.parameters)["algorithm"]
        changes = {7: {"clock_policy": "locked:1980"}, 9: {"distribution": "zeros"}}.get(rank, {})
        limit = {"power_limit_w": 700.0, "power_limited": True}
        return row(times[rank], runtime_burst_ms=times[rank] / 2, power_w=600.0, **limit, **changes)

    put(H200, taken, configurations=configurations(*lines))
    found = planned()
    one = only(found)
    qkv, head = one.gemms
    assert (qkv.measured, head.measured) == (True, False)
    assert (qkv.configuration.split()[0], qkv.ms.value, qkv.rows) == ("cublaslt(algorithm=3)", 0.5, 1)
    assert qkv.mj is not None
    assert qkv.mj.value == pytest.approx(600 * 0.5)
    assert qkv.energy_measured is True
    assert (qkv.limit_w, qkv.power_limited, head.limit_w) == (700.0, True, None)
    assert head.energy_measured is False
    assert one.gemm_ms.value == pytest.approx(32 * 0.5 + head.ms.value)
    assert one.measured_pct == pytest.approx(100 * 16 / one.gemm_ms.value)
    assert [model.device_type for model in found.answered_by] == [CARD]
    burst = only(planned(load="burst"))
    assert burst.gemms[0].ms.value == 0.25
    assert burst.gemms[1].ms.value <= head.ms.value


def test_a_row_without_power_has_the_predicted_energy_of_its_kernel(planned: Callable[..., Planned], put: Put) -> None:
    put(H200, lambda _: row(0.5), configurations=configurations(f"cublaslt(algorithm=0) {QKV}"))
    one = only(planned())
    assert (one.gemms[0].measured, one.gemms[0].energy_measured) == (True, False)
    assert one.joules is not None


def test_cards_are_compared_by_money_and_one_without_rows_or_a_model_has_no_plan(
    planned: Callable[..., Planned], put: Put
) -> None:
    both = configurations(f"cublaslt(algorithm=0) {QKV}", f"cublaslt(algorithm=0) {HEAD}")
    put(A100, lambda one: row(1e-9 * one.problem.flops / 1e3, power_w=300.0), configurations=both)
    found = planned(on=f"{CARD},{A100.type},nvidia-l4", price=[f"{CARD}=4", f"{A100.type}=1", "nvidia-l4=1"])
    assert [one.device_type for one in found.plans] == [CARD, A100.type]
    assert found.plans[1].measured_pct == 100
    assert found.cheapest is not None
    cheaper = min(found.plans, key=lambda one: one.money_per_mtoken.value if one.money_per_mtoken else 0)
    assert found.cheapest.device_type == cheaper.device_type
    (without,) = found.without_plan
    assert without.device_type == "nvidia-l4"
    assert "farm train nvidia-l4" in without.why
    assert "qkv_proj 512x6144x4096 bf16" in without.why
    fast = planned(on=[A100.type, CARD], max_latency="1us")
    assert fast.cheapest is None
    assert fast.cheapest_text == "No plan is known to take at most 0.001 ms."


def test_plans_that_meet_a_latency_without_a_price_or_an_energy_are_said_to_meet_it(
    planned: Callable[..., Planned], put: Put
) -> None:
    both = configurations(f"cublaslt(algorithm=0) {QKV}", f"cublaslt(algorithm=0) {HEAD}")
    put(A100, lambda one: row(1e-9 * one.problem.flops / 1e3), configurations=both)
    found = planned(on=[A100.type], max_latency="10s")
    assert found.cheapest is None
    assert found.cheapest_text.startswith("Plans take at most 10000 ms, but the cheapest needs prices")


def test_what_cannot_be_planned_is_one_message(planned: Callable[..., Planned]) -> None:
    with pytest.raises(
        NoPlan, match=r"^No plan for the given GEMMs\. nvidia-l4 has neither measured rows nor predictions of 2 GEMMs"
    ):
        planned(on=["nvidia-l4"])
    with pytest.raises(NoPlan, match=f"The device type nvidia-h20O is not known; did you mean {CARD}"):
        planned(on=["nvidia-h20O"])
    experts = {"gemms": [], "model": "qwen3-30b-a3b", "tokens": [8, 16], "tp": 2, "ep": 4, "training": True}
    with pytest.raises(NoPlan) as refusal:
        planned(on=["nvidia-l4"], **experts)
    assert "farm submit --model qwen3-30b-a3b --tokens 8,16 --tp 2 --ep 4 --training" in str(refusal.value)
    assert str(refusal.value).count("nvidia-l4 has no model") == 1
    with pytest.raises(BadInput, match="tp goes with a language model"):
        planned(tp=2)
    with pytest.raises(BadInput, match="cards goes with given GEMMs"):
        planned(gemms=[], model="llama-3.1-8b", cards=2)
    with pytest.raises(BadInput, match="one number"):
        planned(tokens=[1, 2])
    with pytest.raises(BadInput, match="18,874,360 choices of experts would be drawn"):
        planned(model="qwen3-30b-a3b", gemms=[], tokens=[2**20, 2**20 - 1, 2**18])
    with pytest.raises(BadInput, match="nvidia-l4 has none"):
        planned(on=[CARD, "nvidia-l4"], price=[f"{CARD}=1"])
    with pytest.raises(BadInput, match="write a time above 0 with its unit"):
        planned(max_latency="soon")


def test_groups_of_cards_that_share_experts_each_have_so_many_tokens(planned: Callable[..., Planned], put: Put) -> None:
    query = {"gemms": [], "model": "qwen3-30b-a3b", "tokens": [8], "tp": 1, "ep": 2}
    gemms = layer_gemms(built_in("qwen3-30b-a3b"), 8, Parallelism(1, 2))
    lines = [f"cublaslt(algorithm=0) {problem_line(gemm.problem)}" for gemm in gemms]
    put(H200, lambda _: row(0.5, power_w=500.0), configurations=configurations(*lines))
    one = only(planned(**query))
    assert one.cards == 2
    assert one.tokens_per_s.value == pytest.approx(2 * 8e3 / one.ms.value)
    assert one.joules is not None
    assert one.joules_per_token is not None
    assert one.joules_per_token.value == pytest.approx(one.joules.value / 16)


# --- language models, by the command ----------------------------------------------------------------------


@pytest.fixture
def farm(engine: Engine, uri: str) -> Command:
    return farm_here(Path(uri.removeprefix("sqlite:///")).parent, engine.url.render_as_string(hide_password=False))


LLAMA = ("plan", "llama-3.1-8b", "--on", CARD, "--tokens", "8,512")


def test_the_command_plans_each_number_of_tokens_and_names_what_is_not_covered(farm: Command, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("name,ms,joules,tokens\nattention,2.5,1,512\nall-reduce,0.5,,\nattention,9,1,64\n")
    asked = (*LLAMA, "--tp", "2", "--price", f"{CARD}=3.6", "--carbon", "100", "--other", str(other))
    done = farm(*asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    small, large = found["plans"]
    assert found["notes"] == ["No plan has these costs: attention, 64 tokens."]
    assert [one["tokens"] for one in (small, large)] == [8, 512]
    assert large["ms"]["value"] == pytest.approx(large["gemm_ms"]["value"] + 3)
    assert [one["name"] for one in large["not_covered"]] == ["elementwise"]
    assert [one["name"] for one in small["not_covered"]] == ["attention", "elementwise"]
    assert large["joules"] is None  # that of the all-reduce is unknown
    qkv = next(one for one in large["gemms"] if one["name"] == "qkv_proj")
    assert (qkv["problem"].split()[0], qkv["count"]) == ("512x3072x4096", 32)
    assert large["money_per_mtoken"]["value"] == pytest.approx(2 * 1e-3 * large["ms"]["value"] / 512 * 1e3)
    shown = farm(*LLAMA, "--tp", "2", "--gemms", "--chart", "--max-latency", "1s")
    assert shown.returncode == 0, shown.stderr
    assert "llama-3.1-8b: one step on 2 cards under settled load" in shown.stdout
    assert "Not covered: attention (32), all-reduce (64, 4 MiB each), elementwise (32)" in shown.stdout
    assert "Cheapest within 1000 ms: nvidia-h200 with 512 tokens" in shown.stdout
    assert "A  nvidia-h200" in shown.stdout


def test_the_least_certain_gemms_are_measured_and_the_plan_has_their_rows(
    engine: Engine, farm: Command, announce: Callable[[DeviceIdentity], int]
) -> None:
    device = announce(H200)
    ask = (*LLAMA[:-1], "512", "--confirm", "2", "--timeout", "1", "--json")
    done = farm(*ask)
    assert done.returncode == 0, done.stderr
    before = json.loads(done.stdout)["plans"][0]
    assert before["measured_pct"] == 0
    batch = form(engine, 100, kind=CARD)
    assert batch is not None
    lease = claim(engine, batch, device)
    assert lease is not None
    assert len(lease.jobs) == 2
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, row(0.25, power_w=500.0)) for job in lease.jobs], {})
        batches.fold(connection)
    after = json.loads(farm(*LLAMA[:-1], "512", "--json").stdout)["plans"][0]
    measured = [one for one in after["gemms"] if one["measured"]]
    assert {one["configuration"] for one in measured} == {job.configuration.canonical for job in lease.jobs}
    widest = sorted(before["gemms"], key=lambda one: -one["count"] * (one["ms"]["high"] - one["ms"]["low"]))[:2]
    assert {one["name"] for one in measured} == {one["name"] for one in widest}


def test_a_configuration_file_and_bad_input_are_told_apart(farm: Command, tmp_path: Path) -> None:
    refused(farm("plan", "lama-3.1-8b", "--on", CARD), 2, "did you mean llama-3.1-8b")
    refused(farm("plan"), 2, "or a trace with --trace FILE")
    refused(farm(*LLAMA[:-1], "8,x"), 2, "write whole numbers from 1 to 1,048,576 with commas, as in 1,8,128, not 'x'")
    refused(farm(*LLAMA, "--tp", "3"), 2, "cannot be divided among 3 GPUs")
    (tmp_path / "config.json").write_text("[]")
    refused(farm("plan", str(tmp_path / "config.json"), "--on", CARD), 2, "config.json")
    (tmp_path / "other.csv").write_text("name,ms\nattention,fast\n")
    refused(farm(*LLAMA, "--other", str(tmp_path / "other.csv")), 2, "row 1: ms:")
    refused(farm(*LLAMA, "--confirm", "1", "--campaign", "x"), 2, "--confirm measures in a campaign of its own")
    refused(farm(*LLAMA, "--confirm", "1"), 3, "cannot be measured now")


def test_a_lookup_table_has_the_kernels_of_a_plan(farm: Command, put: Put, tmp_path: Path) -> None:
    (qkv,) = [one for one in layer_gemms(built_in("llama-3.1-8b"), 8) if one.name == "qkv_proj"]
    key = problem_line(qkv.problem, scalars=False)
    put(H200, lambda _: row(0.5, power_w=600.0), configurations=configurations(f"cublaslt(algorithm=2) {key}"))
    folder = tmp_path / "kernels"
    asked = ("export", "table", "llama-3.1-8b", "--type", CARD, "--tokens", "8", "--output", str(folder))
    done = farm(*asked)
    assert done.returncode == 0, done.stderr
    assert "4 of 5 times are predicted." in done.stderr
    entries = {one["problem"]: one for one in json.loads((folder / "gemm_kernels.json").read_text())["kernels"]}
    measured = entries[key]
    assert (measured["kernel"], measured["ms"], measured["mj"]) == ("cublaslt(algorithm=2)", 0.5, 300.0)
    assert [one["time"] for one in entries.values()].count("predicted") == 4
    (folder / "main.c").write_text(
        '#include <stdio.h>\n#include "gemm_kernels.h"\n'
        "int main(int count, char **given) {\n"
        "  for (int i = 1; i < count; i++) {\n"
        "    const gemm_kernel *found = find_gemm_kernel(given[i]);\n"
        '    if (found) printf("%s %.17g %d\\n", found->kernel, found->ms, found->measured); else puts("none");\n'
        "  }\n}\n"
    )
    for language in ("c", "c++"):
        flags = ("-x", language, "-Wall", "-Wextra", "-Werror")
        subprocess.run(["g++", *flags, str(folder / "main.c"), "-o", str(folder / "main")], check=True)
        given = [*entries, "1x1x1 bf16:bf16:f32 nt"]
        printed = subprocess.run([folder / "main", *given], capture_output=True, text=True, check=True).stdout
        lines = [f"{one['kernel']} {one['ms']:.17g} {int(one['time'] == 'measured')}" for one in entries.values()]
        assert printed.splitlines() == [*lines, "none"]
    refused(farm(*asked), 2, "gemm_kernels.json")
