"""The page that compares groups of measurements."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest
from sqlalchemy import Engine

from farm.db import campaigns, devices
from support.samples import card, cpu, landed, row
from support.visiting import words


def test_a_comparison_is_a_link_and_says_what_the_command_line_says(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    with engine.begin() as connection:
        other = devices.register(connection, host="there", host_facts={}, device=cpu(2))
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, 9)]
    landed(engine, filled, [(one, row(2.0)) for one in written])
    landed(engine, other, [(one, row(3.0)) for one in written])
    answer = browser_like.get("/compare", params={"side": ["here", "there", ""]})
    shown = words(answer.text)
    assert "1.5000 1.5000–1.5000" in shown
    assert "8 slower" in shown
    (chart,) = re.findall("data-chart='(.*?)'>", answer.text, flags=re.DOTALL)
    assert '"ratio"' not in chart
    assert "1.5" in chart
    told = browser_like.get("/api/v1/compare", params={"side": ["here", "there"], "top": 2}).json()
    assert told["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(1.5)
    assert len(told["sides"][0]["top"]) == 2
    one = browser_like.get("/compare", params={"side": "here"})
    assert one.status_code == 400
    assert "Name two or more groups" in words(one.text)
    assert 'value="here"' in one.text


def two_cards(engine: Engine) -> list[int]:
    """Registers an H200 of each of two hosts."""
    with engine.begin() as connection:
        return [
            devices.register(connection, host=f"host{n}", host_facts={}, device=card(n, kind="nvidia-h200"))
            for n in (1, 2)
        ]


def test_a_comparison_of_two_protocols_names_the_time_that_it_compares(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    others = two_cards(engine)
    written = [f"tiled(tile=16) {n}x{n}x{n} f32:f32:f32 nn alpha=1 beta=0" for n in range(256, 1024, 64)]
    landed(engine, others[0], [(one, row(1.0, runtime_burst_ms=0.85)) for one in written])
    landed(engine, others[1], [(one, row(2.0, runtime_burst_ms=1.9)) for one in written])
    landed(engine, others[1], [(one, row(1.7, protocol="aiconfigurator")) for one in written])
    settled = words(browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=farm"]}).text)
    assert "Time Burst time TFLOP/s" in settled
    assert "2.0000 2.0000–2.0000 2.2353 2.2353–2.2353" in settled
    common = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=aiconfigurator"]}).text
    assert "Protocols differ, and burst times are compared: GPU-1 has farm (12 rows)" in words(common)
    assert "Shapes Burst time TFLOP/s" in words(common)
    assert "burst time / burst time of A (baseline)" in common
    chosen = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=farm"], "time": "burst"})
    assert "<option selected>burst</option>" in chosen.text
    assert "2.2353 2.2353–2.2353" in words(chosen.text)
    refused = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2"], "time": "fastest"})
    assert refused.status_code == 400


def test_what_a_side_lacks_is_submitted_with_a_button_or_predicted_apart(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    others = two_cards(engine)
    written = [f"tiled(tile=16) {n}x{n}x{n} f32:f32:f32 nn alpha=1 beta=0" for n in (256, 320, 512, 640, 768, 1024)]
    landed(engine, others[0], [(one, row(2.0)) for one in written])
    landed(engine, others[1], [(one, row(2.0)) for one in written[:2]])
    sides = {"side": ["GPU-1", "GPU-2"]}
    shown = browser_like.get("/compare", params=sides).text
    assert "Measure missing configurations" in words(shown)
    assert "With predictions" not in words(shown)
    apart = browser_like.get("/compare", params={**sides, "predict": "true"}).text
    assert "With predictions" not in words(apart)
    assert "No predictions for GPU-2: gemm-forest-nvidia-h200 v1 learned from rows of another protocol" in words(apart)
    (address,) = re.findall(r'href="(/compare[^"]+)">Also predict with models of other measuring protocols', apart)
    foretold = words(browser_like.get(unescape(address)).text)
    assert "With predictions" in foretold
    assert "MIXED protocols: gemm-forest-nvidia-h200 v1" in foretold
    assert "Training data of gemm-forest-nvidia-h200 v1, which predicts GPU-2" in foretold
    assert "Protocol farm, unknown: L2, operands, clocks" in foretold
    assert "4 of GPU-2 by gemm-forest-nvidia-h200 v1" in foretold
    done = browser_like.post("/compare", data=sides)
    assert done.status_code == 200
    assert "GPU-2 4 configurations are missing. 4 jobs in fill-" in words(done.text)
    with engine.connect() as connection:
        (fill,) = [c for c in campaigns.overview(connection) if c["name"].startswith("fill-")]
    assert sum(fill["counts"].values()) == 4
