"""The pages of what a GEMM costs and of plans for language models."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest
from sqlalchemy import Engine

from farm import registry
from farm.api.access import Access
from farm.errors import NotPredictable
from farm.gemm import Problem
from support.samples import landed, row
from support.training_tables import without_champion
from support.visiting import words


def test_the_plan_page_shows_what_was_measured_and_what_is_not_covered(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    layers = ("8x6144x4096", "8x4096x4096", "8x28672x4096", "8x4096x14336", "8x128256x4096")
    rows = [(f"cublaslt(algorithm=0) {one} bf16 nt", row(0.01, power_w=500.0)) for one in layers]
    landed(engine, filled, rows)
    query = {"model": "llama-3.1-8b", "tokens": "8", "on": "cpu-test", "price": "cpu-test=3.6", "max_latency": "2ms"}
    page = browser_like.get("/plan", params=query)
    assert page.status_code == 200
    shown = words(page.text)
    # 129 GEMMs of 0.01 ms; 3.6 an hour is 1 for a million ms.
    assert "cpu-test 8 1.29 1.22" in shown
    assert "Cheapest within 2 ms: cpu-test with 8 tokens in a step of 1.29 ms, 0.1613 for a million tokens." in shown
    assert "Not covered: attention (32), elementwise (32)" in shown
    assert "measured measured cublaslt(algorithm=0)" in shown
    wrong = browser_like.get("/plan", params={"model": "nosuch"})
    assert wrong.status_code == 400
    assert "There is no language model 'nosuch'" in words(wrong.text)


def test_the_cost_page_has_a_batch(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=8")
    assert page.status_code == 200
    assert 'name="batch" value="8"' in page.text
    assert (
        "nvidia-h200 : The model cannot predict this: batch is 8, and this version has learned from no batches"
        in words(page.text)
    )
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "batch=8" in again[1]
    blank = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=")
    assert words(blank.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    wrong = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=0")
    assert wrong.status_code == 400
    assert "batch: Input should be greater than or equal to 1" in words(wrong.text)


def test_the_cost_page_has_scale_factors_and_fused_operations(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=1x128:128x128&fused=bias%2Bgelu")
    assert page.status_code == 200
    for chosen in ("1x128:128x128", "bias+gelu"):
        assert f'<option value="{chosen}" selected>' in page.text
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "scale=1x128%3A128x128" in again[1]
    assert "fused=bias%2Bgelu" in again[1]
    assert browser_like.get(unescape(again[1])).status_code == 200
    plain = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=none&fused=none")
    assert words(plain.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    wrong = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=2x128")
    assert wrong.status_code == 400
    assert "scale: Input should be 'none', 'tensor', 'row'" in words(unescape(wrong.text))
    other = browser_like.get("/cost?m=512&n=512&k=511&types=f16i4&layout=nt&scale=none:1x128")
    assert other.status_code == 400
    assert "k is 511: two elements of i4 lie in a byte" in words(unescape(other.text))
    offered = re.findall(r'<option value="(\w+)"', other.text)
    assert "bf16f4" in offered
    assert not {"i4", "f4", "i32"} & set(offered)


def test_the_cost_page_has_groups(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&groups=100*5,0,12")
    assert page.status_code == 200
    assert 'name="groups" value="100*5,0,12"' in page.text
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "groups=100%2A5%2C0%2C12" in again[1]
    assert browser_like.get(unescape(again[1])).status_code == 200
    blank = browser_like.get("/cost?m=512&n=512&k=512&types=f32&groups=")
    assert words(blank.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    for groups, why in (
        ("100,12", "they have 112 rows together, and m is 512"),
        ("all", "'all' is not a number of rows"),
    ):
        wrong = browser_like.get(f"/cost?m=512&n=512&k=512&types=f32&groups={groups}")
        assert wrong.status_code == 400
        assert why in words(unescape(wrong.text))


def test_costs_and_recommendations_are_of_the_problem_with_its_scale_factors_fused_operations_and_groups(
    browser_like: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_model: object, problem: Problem, **_options: object) -> None:
        raise NotPredictable(
            why=f"{problem.shape} batch={problem.batch} scale={problem.scale} fused={problem.fused} groups={problem.groups}"
        )

    monkeypatch.setattr(registry, "recommend", refuse)
    query = {"shape": "8x16x32", "batch": 2, "scale": "row", "fused": "bias+relu"}
    (cost,) = browser_like.get("/api/v1/costs", params=query).json()
    refused = browser_like.get("/api/v1/recommend", params=query).text
    for why in (cost["why_not"], refused):
        assert "8x16x32 batch=2 scale=row fused=bias+relu groups=None" in why
    query = {"shape": "8x16x32", "groups": "3,0,5"}
    (cost,) = browser_like.get("/api/v1/costs", params=query).json()
    refused = browser_like.get("/api/v1/recommend", params=query).text
    for why in (cost["why_not"], refused):
        assert "8x16x32 batch=1 scale=none fused=none groups=3,0,5" in why


def test_what_a_gemm_costs_is_the_champions_prediction(browser_like: httpx.Client, access: Access) -> None:
    told = browser_like.get("/api/v1/costs", params={"shape": "512x512x512", "types": "f32", "top": 5}).json()
    best = told[0]["found"]["ranking"][0]
    shown = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    assert f"nvidia-h200 {best['runtime_ms']:.4g} " in shown
    assert best["configuration"].partition(" ")[0] in shown
    assert "Both times are shown where they differ by more than 2%:" in shown
    assert "Protocol farm, unknown: L2, operands, clocks" in shown
    assert "not the champion" not in shown
    with without_champion(access.settings.tracking_uri, "nvidia-h200"):
        labelled = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    assert "gemm-forest-nvidia-h200 v1 challenger, not the champion" in labelled
    burst = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32&time=burst").text)
    assert (
        "nvidia-h200 : The model cannot predict this: the model does not know burst times: 0 of the configurations"
        in burst
    )
    wrong = browser_like.get("/cost?m=512&n=-1&k=512&types=f32")
    assert wrong.status_code == 400
    assert "'512x-1x512' is not a shape" in words(wrong.text)
    unknown = words(browser_like.get("/cost?m=512&n=512&k=512&types=i8").text)
    assert (
        "nvidia-h200 : The model cannot predict this: i8:i32:i32 nn was not measured: the model knows tiled" in unknown
    )
