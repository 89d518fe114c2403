"""The learning curve of a campaign in a real browser: drawn, drawn again while it grows, narrow, and without scripts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import uvicorn
from sqlalchemy import Engine

from farm.api.access import Access
from farm.campaign import Campaign, plan
from farm.db import campaigns, devices
from farm.web.app import make_app
from farm.web.security import Policy
from support import learning_curves as curves
from support.samples import cpu, document
from support.visiting import chromium, chromium_path

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.long

WITHIN_MS = 60_000
playwright.expect.set_options(timeout=WITHIN_MS)
NARROW, WIDE = 400, 1400
PAGE = "/campaigns/learning"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium_path()
    with chromium() as opened:
        yield opened


@pytest.fixture
def campaign_id(engine: Engine) -> int:
    """A campaign that learns, after its first two rounds."""
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
        campaign = Campaign.from_document(document(**curves.LEARNS))
        jobs = plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
        stored = campaigns.store(connection, campaign, jobs)
    curves.decided(engine, stored.campaign_id, curves.CURVE[:2])
    return stored.campaign_id


@pytest.fixture
def served(access: Access, campaign_id: int) -> Iterator[str]:
    """The address of the pages, served by a thread of this process."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        app = make_app(access, policy=Policy(tokens=False))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(60)


def opened(browser: Any, served: str, width: int = WIDE, **options: Any) -> Any:
    page = browser.new_context(base_url=served, viewport={"width": width, "height": 900}, **options).new_page()
    page.set_default_timeout(WITHIN_MS)
    page.goto(PAGE)
    return page


def lines_of(page: Any) -> list[list[float]]:
    """The y of each line as Plotly has it, bands apart."""
    found: list[list[float]] = page.evaluate(
        "document.querySelector('.plot').data.filter((trace) => !trace.fill).map((trace) => trace.y)"
    )
    return found


def test_a_curve_grows_while_somebody_looks_and_its_plot_is_never_taken_away(
    browser: Any, served: str, engine: Engine, campaign_id: int
) -> None:
    page = opened(browser, served)
    page.locator(".plot .scatterlayer .point").first.wait_for()
    assert lines_of(page) == [[20, 10], [24, 12], [16, 8]]
    page.evaluate("document.querySelector('.plot .main-svg').dataset.first = 'yes'")
    curves.decided(engine, campaign_id, curves.CURVE[2:], first=3)
    # A third round more of each of three lines. The page allows no evaluation of strings, as `wait_for_function` has it.
    playwright.expect(page.locator(".plot .scatterlayer .point")).to_have_count(9)
    assert lines_of(page) == [[20, 10, 8], [24, 12, 10], [16, 8, 6]]
    assert page.locator(".plot .main-svg[data-first=yes]").count() == 1, "the same drawing, with a point more"
    label = page.locator(".plot").get_attribute("aria-label")
    assert "8.0% (95% interval 6.4 to 10.0%) after 300 device seconds" in label
    playwright.expect(page.get_by_text(f"No further round is measured: {curves.BUDGET_USED}.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_curve_is_drawn_in_the_colours_of_its_page_and_fits_narrow_windows(
    browser: Any, served: str, engine: Engine, campaign_id: int, scheme: str
) -> None:
    page = opened(browser, served, color_scheme=scheme)
    page.locator(".plot .scatterlayer .point").first.wait_for()
    colours = page.evaluate("""
        [1, 2, 3].map((number) => {
          const probe = document.createElement("i");
          probe.style.color = `var(--series-${number})`;
          document.body.append(probe);
          return getComputedStyle(probe).color;
        })
    """)
    drawn = page.evaluate("[...document.querySelectorAll('.plot .js-line')].map((e) => getComputedStyle(e).stroke)")
    assert set(colours) <= set(drawn)
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{wider} px wider than a window of {width}"
    found = axe.Axe().run(page, options={"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]}})
    assert found.violations_count == 0, found.generate_report()


def test_without_scripts_the_caption_and_the_table_have_the_figures(browser: Any, served: str) -> None:
    page = opened(browser, served, java_script_enabled=False)
    playwright.expect(page.locator(".plot")).to_be_hidden()
    playwright.expect(page.locator("figure.chart figcaption")).to_contain_text("10.0% (95% interval 8.0 to 12.5%)")
    playwright.expect(page.get_by_role("region", name="Learning curve").get_by_role("row")).to_have_count(3)
