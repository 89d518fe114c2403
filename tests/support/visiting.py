"""Browsers for tests: one in this process, and a real one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI


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


def words(page: str) -> str:
    """What a page says, without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)))


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
