"""What every page holds to, without a browser: on a real database, through the whole application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event

import farm
from farm.api.access import Access
from farm.db import devices
from farm.db.engine import make_engine
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.web.app import make_app
from farm.web.security import Policy
from support.commands import NOWHERE
from support.page_samples import NASTY, submitted
from support.samples import cpu
from support.visiting import visitor, words

PAGES = (
    "/", "/campaigns/small", "/campaigns/small/jobs", "/campaigns/small/results", "/campaigns/small/best", "/devices", "/health",
    "/health?any_source=true&type=cpu-test", "/compare", "/cost", "/cost?m=512&n=512&k=512&types=f32", "/plan", "/models", "/models/nvidia-h200", "/submit", "/api",
    "/devices/series", "/campaigns/small/series",
    "/campaigns/nosuch", "/campaigns/small/delete", "/models/nvidia-h200/delete", "/models/nvidia-h200/delete?version=1", "/deleted",
)  # fmt: skip


def test_pages_say_what_they_are_and_run_no_script_that_stands_in_them(browser_like: httpx.Client, filled: int) -> None:
    for path in PAGES:
        answer = browser_like.get(path)
        assert answer.status_code == (404 if "nosuch" in path else 200), f"{path}: {answer.text}"
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        page = answer.text
        assert re.search(r"<title>[^<]+ · GEMM Farm</title>", page), path
        assert len(re.findall(r"<h1[ >]", page)) == 1, path
        assert f"GEMM Farm {farm.__version__} ·" in words(page), f"the foot of {path} names the version"
        assert NASTY not in page, path
        for tag in re.findall(r"<script[^>]*>", page):
            assert 'src="/static/' in tag, path
        assert not re.search(r"<[^>]+\son\w+=", page), path
        assert "script-src 'self';" in answer.headers["content-security-policy"], path


def test_what_people_wrote_is_text_on_every_page(browser_like: httpx.Client, filled: int) -> None:
    assert NASTY in words(browser_like.get("/campaigns/small").text)
    assert NASTY in words(browser_like.get("/campaigns/small/jobs").text)
    assert NASTY in words(browser_like.get("/").text)
    searched = browser_like.get("/", params={"search": f'"{NASTY}'}).text
    assert NASTY not in searched
    assert 'value="&#34;&lt;script&gt;' in searched


def test_a_part_that_changes_comes_alone_and_for_the_last_time_where_the_campaign_is_over(
    browser_like: httpx.Client, filled: int
) -> None:
    update = {"HX-Request": "true"}
    for path in ("/", "/devices", "/campaigns/small"):
        whole, part = browser_like.get(path).text, browser_like.get(path, headers=update)
        assert part.status_code == 200
        assert part.text.strip().startswith('<div id="live" data-live')
        assert "<html" in whole
        assert "<html" not in part.text
    browser_like.post("/campaigns/small/steer", data={"to": "cancel"})
    over = browser_like.get("/campaigns/small", headers=update)
    assert over.status_code == 286
    assert "hx-get" not in over.text


@pytest.mark.parametrize("more", [1, 20])
def test_lists_ask_the_database_as_often_whatever_they_list(
    engine: Engine, browser_like: httpx.Client, filled: int, more: int
) -> None:
    for number in range(more):
        submitted(engine, name=f"more-{number}", problems={"m": 64 + number, "n": 64, "k": 64, "types": ["f32"]})
        with engine.begin() as connection:
            devices.register(connection, host=f"h{number}", host_facts={}, device=cpu(number + 2))
    for path, most in (("/", 14), ("/devices", 8)):
        with counted(engine) as statements:
            assert browser_like.get(path).status_code == 200
        assert len(statements) <= most, statements


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    found = list[str]()

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_errors_are_pages_for_people_and_json_for_programs(browser_like: httpx.Client) -> None:
    page = browser_like.get("/campaigns/nosuch")
    assert "There is no campaign 'nosuch'" in words(page.text)
    assert browser_like.get("/nowhere").headers["content-type"].startswith("text/html")
    told = browser_like.get("/campaigns/nosuch", headers={"Accept": "application/json"}).json()
    assert told["error"]["kind"] == "NoSuchCampaign"
    assert browser_like.get("/api/v1/campaigns/nosuch").json()["error"]["exit_code"] == 4


def test_a_database_that_does_not_answer_is_a_page_that_says_so(access: Access) -> None:
    engine = make_engine(NOWHERE, application="test")
    session = Session(access.settings, ServiceUrls(NOWHERE, None, ""), engine)
    app = make_app(Access(access.settings, who="test", opened=session), policy=Policy(tokens=False))
    with visitor(app) as client:
        answer = client.get("/")
    engine.dispose()
    assert answer.status_code == 503
    assert "does not answer" in words(answer.text)


def test_scripts_and_styles_are_kept_for_ever_at_addresses_of_their_content(browser_like: httpx.Client) -> None:
    page = browser_like.get("/submit").text
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {address.partition("?")[0].rpartition("/")[2] for address in addresses} >= {"pages.css", "htmx.min.js"}
    for address in addresses:
        answer = browser_like.get(address)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
        old = browser_like.get(f"{address}0")
        assert old.headers["cache-control"] == "no-cache"
        same = browser_like.get(f"{address}0", headers={"If-None-Match": old.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
    assert browser_like.get("/static/..%2Fapp.py").status_code == 404


def test_a_page_of_another_site_changes_nothing(browser_like: httpx.Client, filled: int) -> None:
    answer = browser_like.post(
        "/campaigns/small/steer", data={"to": "cancel"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 403
    assert browser_like.get("/api/v1/campaigns/small").json()["state"] == "active"


def test_only_words_of_the_list_are_said(browser_like: httpx.Client) -> None:
    for cookie in (f"{NASTY}.1", "submitted.x", "submitted", "submitted.99999999999999"):
        browser_like.cookies.set("farm_said", cookie)
        assert 'class="said"' not in browser_like.get("/").text


def test_every_operation_is_described_with_an_example(browser_like: httpx.Client) -> None:
    page = browser_like.get("/api").text
    for path in browser_like.get("/api/v1/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page
    assert "curl http" in page
    assert "/campaigns" not in browser_like.get("/api/v1/openapi.json").json()["paths"]


def test_what_pages_need_is_in_the_package() -> None:
    root = Path(farm.__file__).parent / "web"
    assert (root / "static" / "htmx.min.js").is_file()
    named = set(re.findall(r"`([\w.-]+\.js)`", (root / "static" / "README.md").read_text()))
    assert named == {path.name for path in (root / "static").glob("*.min.js")}
