"""The pages of a campaign: its state, its results, its learning curve and its report."""

from __future__ import annotations

import json
import re
from html import unescape
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from farm import registry
from farm.api import Operation, reports
from farm.api.access import Access
from farm.db import campaigns, devices
from farm.web.app import make_app
from farm.web.pages import rendering, results
from farm.web.routes import perform
from farm.web.security import Policy
from farm.web.shared_answers import SharedAnswers
from support import learning_curves as curves
from support.page_samples import NASTY, submitted
from support.samples import cpu, landed, row
from support.visiting import visitor, words


def test_a_campaign_is_paused_resumed_retried_and_cancelled(browser_like: httpx.Client, filled: int) -> None:
    def done(path: str, **form: str) -> str:
        return words(browser_like.post(f"/campaigns/small/{path}", data=form).text)

    assert "Paused." in done("steer", to="pause")
    assert "Already in that state" in done("steer", to="pause")
    assert "Resumed." in done("steer", to="resume")
    assert "1 job is open again" in done("retry")
    assert "Cancelled." in done("steer", to="cancel")
    assert "small is cancelled, and nothing of it waits" in done("steer", to="resume")
    assert "pause, resume or cancel" in done("steer", to="melt")


def figures_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in re.findall("data-chart='(.*?)'>", page, re.DOTALL)]


def test_a_learning_campaign_shows_its_curve_as_a_chart_a_table_and_the_reason_for_its_end(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    curves.decided(engine, submitted(engine, **curves.LEARNS).campaign_id)
    page = browser_like.get("/campaigns/learning").text
    (chart,) = figures_of(page)
    band, every, *families = chart["data"]
    assert [trace["name"] for trace in (every, *families)] == ["all, with 95% interval", "blas", "tiled"]
    assert (every["x"], every["y"]) == ([100, 200, 300], [20, 10, 8])
    assert (band["fill"], band["y"]) == ("toself", [25, 12.5, 10, 6.4, 8, 16]), "upper bounds, and lower ones back"
    assert every["line"]["width"] > max(trace["line"]["width"] for trace in families)
    assert (chart["layout"]["yaxis"]["type"], chart["layout"]["xaxis"]["title"]["text"]) == ("log", "device time (s)")
    shown = words(page)
    assert f"No further round is measured: {curves.BUDGET_USED}." in shown
    assert "20.0% after 100 device seconds, 8.0% (95% interval 6.4 to 10.0%) after 300 device seconds" in shown
    assert "3 300 3,600 40 8.0% 6.4–10.0 4.0% 16.0% 10.0% 6.0% ended" in shown
    assert "2 200 2,400 40 10.0% 8.0–12.5 5.0% 20.0% 12.0% 8.0% 20 jobs of 10 problems" in shown
    for script in ("plotly.min.js", "charts.js"):
        assert script in page.partition("</head>")[0]
    assert "plotly" not in browser_like.get("/campaigns/small").text, "a campaign that does not learn loads no Plotly"


def test_a_curve_appears_and_grows_with_the_live_part_of_its_page(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    stored = submitted(engine, **curves.LEARNS)
    update = {"HX-Request": "true"}
    whole = browser_like.get("/campaigns/learning").text
    assert "plotly.min.js" in whole, "the chart may appear while somebody looks"
    assert "Learning curve" not in words(whole)
    counts = []
    for number, point in enumerate(curves.CURVE[:2], start=1):
        curves.decided(engine, stored.campaign_id, [point], first=number)
        part = browser_like.get("/campaigns/learning", headers=update).text
        assert 'id="learning1-plot" data-keep' in part, "what Plotly drew is not taken away"
        assert "No further round" not in part
        counts.append(len(figures_of(part)[0]["data"][-1]["x"]))
    assert counts == [1, 2]


def test_a_round_that_could_not_be_decided_is_told_with_its_error(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    stored = submitted(engine, **curves.LEARNS)
    curves.decided(engine, stored.campaign_id, curves.CURVE[:1], error=f"no memory {NASTY}")
    page = browser_like.get("/campaigns/learning").text
    assert f"No further round is measured: round 2 could not be decided (no memory {NASTY})." in words(page)
    assert NASTY not in page
    (chart,) = figures_of(page)
    assert "error_y" in chart["data"][0], "the interval of a single point is a bar"


def test_results_come_page_by_page_and_as_a_whole_file(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, 8)]
    landed(engine, filled, [(one, row(m)) for m, one in enumerate(written, start=1)], campaign_id=1)
    monkeypatch.setattr(results, "PAGE", 4)
    monkeypatch.setattr(results, "AT_ONCE", 2)
    first = browser_like.get("/campaigns/small/results").text
    (following,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = browser_like.get(unescape(following)).text
    (last,) = re.findall(r'href="([^"]+)" rel="next"', second)
    third = browser_like.get(unescape(last)).text
    assert [page.count("<tr>") - 1 for page in (first, second, third)] == [4, 4, 1]
    assert "Next page" not in third
    file = browser_like.get("/campaigns/small/results.csv")
    assert len(file.text.splitlines()) == 10
    assert "attachment" in file.headers["content-disposition"]
    chosen = browser_like.get("/campaigns/small/results.csv", params={"where": "m <= 3"})
    assert len(chosen.text.splitlines()) == 4
    wrong = browser_like.get("/campaigns/small/results", params={"where": "nosuch > 1"})
    assert wrong.status_code == 400
    assert "nosuch" in words(wrong.text)
    assert 'value="nosuch &gt; 1"' in wrong.text


def test_burst_times_and_protocols_are_shown_where_they_differ(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in (1, 2, 3)]
    times = [{"runtime_burst_ms": 0.8125}, {"runtime_burst_ms": 0.9925}, {"protocol": "server"}]
    landed(engine, filled, list(zip(written, (row(1.0, **more) for more in times), strict=True)), campaign_id=1)
    shown = words(browser_like.get("/campaigns/small/results").text)
    assert "1 burst 0.8125" in shown
    assert "0.9925" not in shown
    assert "measured, protocol server" in shown
    assert "protocol farm" not in shown
    assert "1 burst 0.8125" in words(browser_like.get("/campaigns/small/best").text)
    assert "700 power-limited" not in words(browser_like.get("/devices").text)
    landed(engine, filled, [(written[0], row(1.0, power_limit_w=700.0, power_limited=True))])
    assert "700 power-limited" in words(browser_like.get("/devices").text)
    assert "· protocol" not in words(browser_like.get("/campaigns/small").text)
    submitted(engine, name="loaded", measure={"protocol": "server"})
    assert "· protocol server ·" in words(browser_like.get("/campaigns/loaded").text)


def test_a_report_opens_in_the_browser_with_its_scripts_and_without_the_farms_origin(
    browser_like: httpx.Client, filled: int
) -> None:
    page = browser_like.get("/campaigns/small").text
    (path,) = re.findall(r'href="([^"]+/report)"', page)
    report = browser_like.get(path)
    assert report.status_code == 200
    assert report.headers["content-type"].startswith("text/html")
    assert not report.headers.get("content-disposition", "").startswith("attachment")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in report.headers["content-security-policy"]
    assert NASTY not in report.text
    back = re.findall(r'<li><a href="(/[^"]*)"', report.text)
    assert back[:2] == ["/", path.removesuffix("/report")]
    assert browser_like.get(back[1]).status_code == 200
    saved = browser_like.get(unescape(back[2]))
    assert saved.headers["content-disposition"].startswith("attachment")
    for alone in (saved, browser_like.get(f"/api/v1{path}")):
        markup = re.sub(r"<script.*?</script>", "", alone.text, flags=re.DOTALL)
        assert 'href="#' in markup
        assert not re.search(r'href="[^#]', markup), "a file has no link that may lead nowhere"
    missing = browser_like.get("/campaigns/nosuch/report")
    assert (missing.status_code, "There is no campaign" in words(missing.text)) == (404, True)


def test_a_report_is_drawn_again_only_where_what_it_is_made_of_changed(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    real = reports.rendered

    def counted(access: Access, campaign: str, **options: Any) -> Any:
        drawn.append(campaign)
        return real(access, campaign, **options)

    monkeypatch.setattr(reports, "rendered", counted)
    (path,) = re.findall(r'href="([^"]+/report)"', browser_like.get("/campaigns/small").text)
    first = browser_like.get(path)
    assert browser_like.get(path).text == first.text
    assert len(drawn) == 1
    saved = browser_like.get(path, params={"save": "true"})
    assert "<li><a" not in saved.text.split("<h1")[0]  # the file has no links, and is another page
    assert len(drawn) == 2
    with engine.begin() as connection:
        campaign_id = campaigns.find(connection, "small")["id"]
        device = connection.execute(text("SELECT min(id) FROM devices")).scalar_one()
    landed(
        engine,
        device,
        [("blas(threads=1) 640x640x640 f32:f32:f32 nn alpha=1 beta=0", row(3.0))],
        campaign_id=campaign_id,
    )
    assert browser_like.get(path).text != first.text
    assert len(drawn) == 3
    champion = SimpleNamespace(name="gemm-forest-x", version="2", aliases=(registry.CHAMPION,))
    monkeypatch.setattr(registry, "list_models", lambda _: [champion])
    browser_like.get(path)
    assert len(drawn) == 4, "another champion predicts other values"


def test_a_campaign_with_invalid_jobs_is_not_shown_as_a_success(browser_like: httpx.Client, engine: Engine) -> None:
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
    submitted(engine, name="refused", kernels=[{"family": "blas", "threads": [64, 128]}])
    with engine.begin() as connection:
        campaigns.finish(connection)
    for path in ("/", "/campaigns/refused"):
        (badge,) = re.findall(r'<span class="badge ([^"]*)">done, ([^<]*)</span>', browser_like.get(path).text)
        assert badge[0] == "done no-results"
        assert badge[1].endswith(" invalid")
    told = browser_like.get("/api/v1/campaigns/refused").json()
    assert (told["verdict"], told["state_text"]) == ("no results", f"done, {badge[1]}")


# --- answers that pages share ------------------------------------------------------------------------


def test_pages_that_refresh_at_the_same_moment_share_an_answer_until_an_event_or_an_action(
    access: Access, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(access, policy=Policy(tokens=False))
    events = SimpleNamespace(latest=1)
    app.state.shared = SharedAnswers(lambda: events.latest, lambda: 0.0)
    readings = list[str]()

    def counted(known: Operation, *given: Any, **more: Any) -> Any:
        readings.append(known.name)
        return perform(known, *given, **more)

    monkeypatch.setattr(rendering, "perform", counted)
    update = {"HX-Request": "true"}

    def read(path: str, **headers: str) -> list[str]:
        readings.clear()
        assert client.get(path, headers=headers).status_code == 200
        return list(readings)

    with visitor(app) as client:
        for path in ("/campaigns/small", "/", "/devices"):
            events.latest += 1
            first = read(path, **update)
            assert first
            assert read(path, **update) == []
            assert read(path) == first, "a person who opens the page gets what is true now"
            events.latest += 1
            assert read(path, **update) == first
            assert read(path, **update) == []
        assert read("/", **update) != []
        assert read("/?state=done", **update) == ["campaigns_list"], "another part of the list"
        assert read("/campaigns/small", **update) != []
        assert read("/campaigns/small", **update) == []
        assert "Paused." in words(client.post("/campaigns/small/steer", data={"to": "pause"}).text)
        assert "paused" in words(client.get("/campaigns/small", headers=update).text)
        assert client.get("/campaigns/nothing", headers=update).status_code == 404
