"""The pages of devices and of the health of the fleet."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest
from sqlalchemy import Engine

from farm.db import devices
from farm.web.pages import devices as device_pages
from support.page_samples import imported
from support.samples import card, landed, row
from support.visiting import words


def test_devices_come_page_by_page_with_imported_ones_last(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=3)
    with engine.begin() as connection:
        devices.register(connection, host="there", host_facts={}, device=card(1))
    at_once = re.findall(r'<tr id="(d\d+)"', browser_like.get("/devices").text)
    assert len(at_once) == 3
    monkeypatch.setattr(device_pages, "PAGE", 1)
    pages = [browser_like.get("/devices").text]
    while following := re.search(r'href="([^"]+)" rel="next"', pages[-1]):
        pages.append(browser_like.get(unescape(following[1])).text)
    assert [re.findall(r'<tr id="(d\d+)"', page) for page in pages] == [[one] for one in at_once]
    assert "GPU-elsewhere" in pages[-1]
    assert 'hx-get="/devices?page=2"' in pages[1], "a refresh keeps the page"
    assert 'href="/devices"' in pages[1], "the first page"
    beyond = browser_like.get("/devices?page=99").text
    assert "No devices match" in beyond
    assert browser_like.get("/devices?page=0").status_code == 422


def test_devices_are_taken_out_of_work_with_a_reason_and_back(browser_like: httpx.Client, filled: int) -> None:
    def done(to: str, reason: str = "") -> str:
        return words(browser_like.post("/devices", data={"which": "CPU-1", "to": to, "reason": reason}).text)

    assert "Give a reason" in done("quarantine", "  ")
    assert "too hot (by the web page)" in done("quarantine", "too hot")
    assert "1 device resumed" in done("resume")
    assert "drained by the web page" in done("drain")
    assert "Already in that state" in done("drain")


def test_health_names_the_slow_device_with_its_evidence(browser_like: httpx.Client, engine: Engine) -> None:
    written = [f"tiled(tile=16) {n}x64x64 f32:f32:f32 nn alpha=1 beta=0" for n in range(64, 94)]
    for number in range(1, 5):
        with engine.begin() as connection:
            device = devices.register(connection, host="there", host_facts={}, device=card(number))
        slow = 1.2 if number == 3 else 1.0
        landed(engine, device, [(one, row(slow * (1 + n / 10))) for n, one in enumerate(written)])
    shown = words(browser_like.get("/health").text)
    assert "1 of 4 devices needs attention" in shown.replace("device needs", "devices needs")
    assert "slow takes 1.2000" in shown
    assert "drain GPU-3" in shown
    unknown = browser_like.get("/health", params={"type": "nosuch"})
    assert unknown.status_code in (200, 404)
    wrong = browser_like.get("/health", params={"since": "soon"})
    assert wrong.status_code == 400
    assert "'soon' is not a time" in words(wrong.text)
