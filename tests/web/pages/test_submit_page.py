"""The page that checks and submits campaigns."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import httpx
import pytest

from farm.fusion import Fusion
from farm.kernels import FAMILIES
from farm.scale import SCALES_OF_BOTH
from support.commands import farm_here
from support.page_samples import RIGHT
from support.visiting import words

WRONG = """\
name: x y
targets: any
problms:
  - shapes: 64x64x64
kernels: [{family: blas, threads: 0}]
"""


def test_mistakes_are_those_of_the_command_line_with_the_lines_they_are_about(
    browser_like: httpx.Client, filled: int, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "campaign.yaml").write_text(WRONG)
    told = farm_here(tmp_path, database_url)("submit", "campaign.yaml").stderr.removeprefix("error: ").splitlines()
    answer = browser_like.post("/submit", data={"text": WRONG.replace("\n", "\r\n"), "to": "submit"})
    assert answer.status_code == 400
    shown = words(answer.text)
    assert len(told) == 4
    for line in told:
        assert re.sub(r"\s+", " ", line) in shown
    assert '<span class="n">3</span> problms:</pre>' in answer.text
    assert WRONG in unescape(answer.text)


def test_a_check_counts_and_submits_nothing_and_submitting_leads_to_the_campaign(
    browser_like: httpx.Client, filled: int
) -> None:
    checked = browser_like.post("/submit", data={"text": RIGHT, "to": "check"})
    assert "right: 2 jobs; nothing was submitted" in words(checked.text)
    assert browser_like.get("/campaigns/right").status_code == 404
    done = browser_like.post("/submit", data={"text": RIGHT, "to": "submit"}, follow_redirects=False)
    assert done.status_code == 303
    assert "Submitted: 2 jobs." in words(browser_like.get(done.headers["location"]).text)
    assert "Submitted" not in words(browser_like.get(done.headers["location"]).text)
    again = browser_like.post("/submit", data={"text": RIGHT, "to": "submit"})
    assert "was submitted before" in words(again.text)


def test_a_check_shows_what_is_drawn_from_a_domain_and_takes_no_files(browser_like: httpx.Client, filled: int) -> None:
    block = "problems: {domain: [SOURCE], types: [f32, f64]}\nsearch: {strategy: random, problems: 10}"
    text = RIGHT.replace("problems: {m: 64, n: [64, 128], k: 64, types: f32}", block)
    shown = words(
        browser_like.post(
            "/submit", data={"text": text.replace("SOURCE", "{m: 8..16, n: 64, k: 32}"), "to": "check"}
        ).text
    )
    assert "10 configurations of 10 problems are measured." in shown
    assert "64 / 64 / 64 32 / 32 / 32" in shown
    assert shown.count("x64x32") == 8
    assert "batch" not in shown
    batched = text.replace("SOURCE", "{m: 8..16, n: 64, k: 32}").replace("[f32, f64]", "f32, batch: [2, 4]")
    shown = words(browser_like.post("/submit", data={"text": batched, "to": "check"}).text)
    assert "k: min / median / max batch: min / median / max" in shown
    assert "32 / 32 / 32 2 / " in shown
    assert re.search(r"x64x32 batch=[24]\b", shown)
    assert "scale" not in shown
    wrong = browser_like.post("/submit", data={"text": text.replace("SOURCE", "{file: /etc/hostname}"), "to": "check"})
    assert wrong.status_code == 400
    assert "/etc/hostname was not sent with the campaign, and the server opens no files; list the shapes" in words(
        wrong.text
    )


def test_a_check_shows_scale_factors_and_fused_operations_that_are_drawn(
    browser_like: httpx.Client, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "blas", replace(FAMILIES["blas"], scales=SCALES_OF_BOTH, fusions=tuple(Fusion)))
    block = """problems: {domain: [{m: 8..16, n: 64, k: 32}], types: f32, scale: [row, tensor], fused: [none, bias+gelu]}
search: {strategy: random, problems: 10}"""
    text = RIGHT.replace("problems: {m: 64, n: [64, 128], k: 64, types: f32}", block)
    shown = words(browser_like.post("/submit", data={"text": text, "to": "check"}).text)
    assert "flops: min / median / max scale fused" in shown
    assert "row, tensor bias+gelu, none" in shown
    assert re.search(r"x64x32 scale=(row|tensor) fused=bias\+gelu", shown)
    assert "batch" not in shown


def test_a_file_goes_before_the_text_and_its_name_is_in_its_mistakes(browser_like: httpx.Client, filled: int) -> None:
    def sent(name: str, content: bytes) -> str:
        return words(browser_like.post("/submit", data={"text": WRONG}, files={"file": (name, content)}).text)

    assert "right: 2 jobs" in sent("mine.yaml", RIGHT.encode())
    assert "folder/mine.yaml" not in sent("folder/mine.yaml", b"name: [")
    assert "mine.yaml:1" in sent("folder/mine.yaml", b"name: x y\n")
    assert "bad.yaml:2: byte 8 is not UTF-8" in sent("bad.yaml", b"name: x\n\xff\n")
