"""Pages in a real browser, of a real farm: submitted, watched, compared and asked, by hand and by keyboard alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browsing import CAMPAIGN, IMPORTED, BrowsedFarm
from support.visiting import chromium, chromium_path

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.long

WITHIN_MS = 60_000
playwright.expect.set_options(timeout=WITHIN_MS)
NARROW, WIDE = 400, 1400
RULES = {
    "light": {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}},
    # Of what differs in the dark.
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}},
}

SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""
"""Adds up the layout shifts of a page, without those that follow from what a person does."""

MAX_SHIFT = 0.02

TALL_ROWS = """
() => [...document.querySelectorAll("main tbody tr")].filter((row) => {
  const box = row.getBoundingClientRect(), contents = document.createRange();
  const seen = [...row.cells].flatMap((cell) => {
    contents.selectNodeContents(cell);
    return [...contents.getClientRects()].filter((one) => one.left < innerWidth && one.width > 0);
  });
  return box.height > 2 * (Math.max(...seen.map((one) => one.bottom)) - Math.min(...seen.map((one) => one.top))) + 24;
}).map((row) => `${row.textContent.trim().slice(0, 40)}: ${row.getBoundingClientRect().height} px`)
"""
"""Rows that are high for what of them is in the window: what makes them high is beyond its edge."""

FOLDED_NUMBERS = """
() => {
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), found = [];
  const range = document.createRange();
  while (walk.nextNode()) if (!walk.currentNode.parentElement.closest("thead, .sr")) for (const number of walk.currentNode.data.matchAll(/(?<![\\w-])\\d[\\d,.]*\\d(?![\\w-])/g)) {
    range.setStart(walk.currentNode, number.index);
    range.setEnd(walk.currentNode, number.index + number[0].length);
    const lines = new Set([...range.getClientRects()].filter((one) => one.width > 0).map((one) => Math.round(one.top)));
    if (lines.size > 1) found.push(number[0]);
  }
  return found;
}
"""
"""Numbers that continue on a second line."""

CUT = """
() => [...document.querySelectorAll("main :is(button, .button, .badge, summary, h1, h2, h3, dd, .notice, .note)")]
  .filter((one) => one.checkVisibility() && !one.closest(".scroll, .scrolled, figure") && one.getBoundingClientRect().right > innerWidth)
  .map((one) => one.textContent.trim())
"""
"""Texts that go beyond the right edge of the window."""

WIDE_TABLES = """
() => [...document.querySelectorAll("main .scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.ariaLabel)
"""
"""Tables that must be scrolled to be read."""

COMPARISON = "/compare?side=recorded-card-a&side=recorded-card-b&any_source=true&carbon=300"
PAGES = (
    "/", "/campaigns/seen-in-a-browser", "/campaigns/seen-in-a-browser/jobs", "/campaigns/seen-in-a-browser/results",
    "/campaigns/seen-in-a-browser/best", "/devices", "/health?any_source=true", "/compare", COMPARISON, "/cost?m=512&n=512&k=512&types=f32",
    "/models", "/models/nvidia-h200", "/models/nvidia-h200/delete", "/submit", "/api", "/campaigns/nosuch", "/deleted", "/cost", "/plan", "/devices/series", "/campaigns/seen-in-a-browser/series",
    "/campaigns/seen-in-a-browser/delete", f"/imports/{IMPORTED[1]}/delete", "/health", "/compare?side=nosuch&side=other",
    "/cost?m=512&n=512&k=512&types=f16", "/campaigns/seen-in-a-browser/report",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium_path()
    with chromium() as opened:
        yield opened


@pytest.fixture
def tab(browser: Any, browsed_farm: BrowsedFarm) -> Iterator[Callable[..., Any]]:
    """Opens a tab in a window of its own. What the browser complains of fails the test."""
    complaints, contexts = list[str](), list[Any]()

    def opened(width: int = WIDE, **options: Any) -> Any:
        context = browser.new_context(base_url=browsed_farm.url, viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(WITHIN_MS)
        context.add_init_script(SHIFTS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield opened
    for context in contexts:
        context.close()
    refusals = ("the server responded with a status of", "Response Status Error Code")
    assert [one for one in complaints if not any(words in one for words in refusals)] == []


def test_a_campaign_is_submitted_after_its_mistakes_and_watched_to_its_end(tab: Callable[..., Any]) -> None:
    own = CAMPAIGN.replace("seen-in-a-browser", "watched-to-its-end")  # whatever ran before, it is not there yet
    page = tab()
    page.goto("/submit")
    page.get_by_label("Campaign file (YAML)").fill(own.replace("problems:", "problms:"))
    page.get_by_role("button", name="Submit", exact=True).click()
    alert = page.get_by_role("alert")
    playwright.expect(alert).to_contain_text("there is no such field here; did you mean problems?")
    playwright.expect(alert.locator("pre").last).to_contain_text("problms: {m:")
    assert "problms: {m:" in page.get_by_label("Campaign file (YAML)").input_value()
    page.get_by_label("Campaign file (YAML)").fill(own)
    page.get_by_role("button", name="Check").click()
    playwright.expect(page.get_by_role("status")).to_contain_text("64 jobs; nothing was submitted")
    page.get_by_role("button", name="Submit", exact=True).click()
    playwright.expect(page.get_by_text("Submitted: 64 jobs.")).to_be_visible()

    page.get_by_role("heading", name="Campaign file").click()
    page.evaluate("window.notReloaded = true")
    bar = page.get_by_role("progressbar")
    seen = set[int]()
    while (now := int(bar.get_attribute("aria-valuenow"))) < 100:
        seen.add(now)
        page.wait_for_timeout(50)
    assert seen, "it was looked at before its end"
    playwright.expect(page.locator(".head .badge")).to_have_text("done")
    assert page.evaluate("window.notReloaded"), "it was never loaded as a whole"
    playwright.expect(page.get_by_text("name: watched-to-its-end")).to_be_visible()
    playwright.expect(page.locator("[data-live]")).to_have_count(0)

    page.get_by_role("link", name="Best kernels").click()
    playwright.expect(page.get_by_role("table")).to_contain_text("blas(threads=")
    page.get_by_role("link", name="Results").click()
    playwright.expect(page.get_by_role("row")).to_have_count(65)
    page.get_by_label("Where").fill("m >= 512")
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("row")).to_have_count(9)


def test_two_cards_are_compared_and_drawn(tab: Callable[..., Any]) -> None:
    _measured(tab)
    page = tab()
    page.goto("/compare")
    page.get_by_label("A, the baseline").fill("recorded-card-a")
    page.get_by_label("B", exact=True).fill("recorded-card-b")
    page.get_by_role("button", name="Compare").click()
    playwright.expect(page.get_by_role("alert")).to_contain_text("recorded")
    page.get_by_role("link", name="Include recorded and imported rows").click()
    playwright.expect(page.get_by_role("table", name="Overall")).to_contain_text("1.5000")
    playwright.expect(page.locator(".plot .scatterlayer .point").first).to_be_visible()
    before = page.locator(".plot .xtick text").first.evaluate("e => getComputedStyle(e).fill")
    page.get_by_role("button", name="Switch to dark colours").click()
    playwright.expect(page.get_by_role("button", name="Switch to light colours")).to_be_visible()
    assert page.locator(".plot .xtick text").first.evaluate("e => getComputedStyle(e).fill") != before
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_report_draws_its_charts_in_its_sandbox(tab: Callable[..., Any]) -> None:
    _measured(tab)
    page = tab()
    page.goto("/campaigns/seen-in-a-browser")
    page.get_by_role("link", name="Report").click()
    playwright.expect(page.get_by_role("heading", level=1)).to_contain_text("seen-in-a-browser")
    figure = page.locator("figure").first
    figure.scroll_into_view_if_needed()
    playwright.expect(figure.locator("svg.main-svg").first).to_be_visible()
    assert page.evaluate("window.origin") == "null"
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    playwright.expect(figure.locator("svg.main-svg")).to_have_count(0)
    for scheme, seen in (("light", "in-light"), ("dark", "in-dark")):
        page.emulate_media(color_scheme=scheme)
        shown = figure.locator(".drawing").evaluate_all(
            "all => all.filter(one => one.checkVisibility()).map(one => one.className)"
        )
        assert shown == [f"drawing {seen}"]
    assert page.evaluate("window.shifted") < MAX_SHIFT
    wider = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
    assert page.locator(".scrolled").evaluate_all(wider) == [], "tables that are cut"
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save as a file").click()
    assert "seen-in-a-browser" in saved.value.suggested_filename
    assert 'class="back"' not in Path(saved.value.path()).read_text(encoding="utf-8")
    page.get_by_role("link", name="seen-in-a-browser").click()
    playwright.expect(page.get_by_role("progressbar")).to_be_visible()


def test_what_a_gemm_costs_is_asked_by_keyboard_alone(tab: Callable[..., Any]) -> None:
    page = tab()
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    _tab_to(page, "document.activeElement.textContent.trim() === 'Cost of a GEMM'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/cost")
    _tab_to(page, "document.activeElement.name === 'm'")
    for size in ("512", "512", "256"):
        page.keyboard.type(size)
        page.keyboard.press("Tab")
    page.keyboard.type("f32")
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("table", name="Predicted cost on each card")).to_contain_text("nvidia-h200")
    playwright.expect(page.get_by_role("table", name="Kernels for it on nvidia-h200")).to_contain_text("tiled(tile=")
    playwright.expect(page.locator(".plot .barlayer .point").first).to_be_visible()


def test_a_device_is_quarantined_by_keyboard_while_the_page_keeps_itself_fresh(tab: Callable[..., Any]) -> None:
    _measured(tab)
    page = tab()
    page.goto("/devices")
    _tab_to(page, "document.activeElement.matches('summary[aria-label^=\"Change REC\"]')")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("too ")
    with page.expect_response("**/devices") as fresh:
        pass
    assert fresh.value.status == 200
    page.wait_for_timeout(200)
    page.keyboard.type("hot")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_text("too hot (by the web page)")).to_be_visible()
    page.get_by_role("button", name="Resume").press("Enter")
    playwright.expect(page.get_by_text("1 device resumed")).to_be_visible()


def test_all_of_it_works_without_scripts(tab: Callable[..., Any]) -> None:
    _measured(tab)
    page = tab(java_script_enabled=False)
    page.goto("/campaigns/seen-in-a-browser")
    playwright.expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100")
    page.goto("/submit")
    page.get_by_label("Campaign file (YAML)").fill("name: [")
    page.get_by_role("button", name="Check").click()
    playwright.expect(page.get_by_role("alert")).to_contain_text("campaign.yaml:1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_in_both_schemes_and_fit_narrow_and_wide_windows(
    tab: Callable[..., Any], scheme: str
) -> None:
    _measured(tab)
    page = tab(color_scheme=scheme)
    checker = axe.Axe()
    for path in PAGES:
        page.goto(path)
        if page.locator("figure.chart").count():
            page.locator(".plot svg").first.wait_for()
        assert page.evaluate("window.shifted") < MAX_SHIFT, path
        page.evaluate("document.querySelectorAll('main details').forEach((one, n) => (one.open = one.open || n < 3))")
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{path} is {wider} px wider than a window of {width}"
            assert page.evaluate(FOLDED_NUMBERS) == [], f"{path} at {width}"
            assert page.evaluate(CUT) == [], f"{path} at {width}"
            if width == WIDE:
                assert page.evaluate(WIDE_TABLES) == [], path
        assert page.evaluate(TALL_ROWS) == [], path
        found = checker.run(page, options=RULES[scheme])
        assert found.violations_count == 0, f"{path}\n{found.generate_report()}"


def test_a_farm_that_stops_answering_is_told_on_the_page(tab: Callable[..., Any]) -> None:
    page = tab()
    page.goto("/devices")
    page.route("**/devices", lambda route: route.fulfill(status=503, body="no"))
    playwright.expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/devices")
    playwright.expect(page.locator("#lost")).to_be_hidden()


def _measured(tab: Callable[..., Any]) -> None:
    """The campaign, to its end; the same file again is the same campaign."""
    page = tab()
    page.goto("/submit")
    page.get_by_label("Campaign file (YAML)").fill(CAMPAIGN)
    page.get_by_role("button", name="Submit", exact=True).click()
    playwright.expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100", timeout=WITHIN_MS)


def _tab_to(page: Any, condition: str) -> None:
    for _ in range(80):
        if page.evaluate(condition):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the Tab key never led to where {condition}")
