"""A real browser for tests, and what it looks at."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

import farm
from farm.campaign import loads
from farm.devices import DeviceKind, DeviceTraits
from farm.provenance import Provenance
from workers.devices.recording import write_recording

CAMPAIGN = """\
name: seen-in-a-browser
owner: ann
targets:
  - {type: recorded-card-a}
  - {type: recorded-card-b}
problems: {m: [64, 128, 192, 256, 320, 384, 448, 512], n: 64, k: [64, 128], types: f32}
kernels: [{family: blas, threads: [1, 2]}]
"""


DATASET = Path(farm.__file__).parents[1] / "examples" / "datasets" / "nvidia-h200-paper-all-tiles.parquet"
IMPORTED = (DATASET, hashlib.sha256(DATASET.read_bytes()).hexdigest()[:16])
"""What the served farm has imported: the file, and the name of the import in addresses."""


class _InThisProcess(httpx.BaseTransport):
    def __init__(self, portal: BlockingPortal, app: FastAPI) -> None:
        self._portal = portal
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answered() -> httpx.Response:
            found = await self._transport.handle_async_request(request)
            content = b"".join([part async for part in found.aiter_raw()])
            return httpx.Response(found.status_code, headers=found.headers, content=content)

        answer: httpx.Response = self._portal.call(answered)
        return answer


@contextmanager
def visitor(app: FastAPI, base_url: str = "http://localhost", **headers: str) -> Iterator[httpx.Client]:
    """Somebody who asks the application for pages as a browser does, in this process, and follows where they lead."""
    accept = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Site": "same-origin", **headers}
    with (
        start_blocking_portal() as portal,
        httpx.Client(
            transport=_InThisProcess(portal, app), base_url=base_url, headers=accept, follow_redirects=True
        ) as client,
    ):
        yield client


@dataclass(frozen=True)
class BrowsedFarm:
    """A farm that is served."""

    url: str


def record(file: Path, device_type: str, *, runtime_ms: float) -> None:
    """A device that answers all that the campaign asks, and takes a while for each, so that it can be watched."""
    asked = loads(CAMPAIGN, name="campaign.yaml", limit=1000, owner=None).configurations()
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=2)
    origin = Provenance(device_type=device_type, device_name=device_type, traits=traits, provenance="made up")
    write_recording(
        file,
        [{"configuration": c, "runtime_ms": runtime_ms, "runtime_rse": 0.001, "cost_s": 0.15} for c in asked],
        origin,
    )


def chromium_path() -> str:
    """Chromium of this machine. Skips the test where there is none; fails it in CI, where there must be."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium, and pages are tested with it")
        pytest.skip("no Chromium here: pages cannot be looked at")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
