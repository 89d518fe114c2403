"""Measurements over time: what the operation, the pages and the command show of rows that landed at known times."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from farm.api import series
from farm.api.access import Access
from farm.campaign import Campaign, plan
from farm.db import campaigns, devices
from farm.errors import BadInput, BadMoment, NoSuchCampaign, UnknownDevice
from support.commands import farm_here
from support.samples import card, cpu, document, landed, row

UNTIL = datetime(2026, 11, 20, 12, tzinfo=UTC)
RANGE = {"since": "2026-11-20 11:00", "until": "2026-11-20 12:00", "steps": 6}


@pytest.fixture
def measured(engine: Engine) -> None:
    """Two cards of a campaign that measured in the hour before `UNTIL`, with a gap; rows at both ends of the range."""
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
        campaign = Campaign.from_document(document())
        jobs = plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
        campaign_id = campaigns.store(connection, campaign, jobs).campaign_id
    for number, minutes in ((1, (60, 55, 31, 30, 5)), (2, (20,))):
        with engine.begin() as connection:
            device_id = devices.register(connection, host="here", host_facts={}, device=card(number))
        written = [f"tiled(tile=16) {64 * n}x64x64 f32:f32:f32 nn alpha=1 beta=0" for n in range(1, len(minutes) + 2)]
        rows = [row(window_s=30.0, power_w=100.0 * number, sm_clock_mhz=1500, temperature_c=50 + n) for n in range(9)]
        # The campaign has those of the first card.
        landed(
            engine, device_id, list(zip(written, rows, strict=False)), campaign_id=campaign_id if number == 1 else None
        )
        with engine.begin() as connection:
            connection.execute(
                text("ALTER TABLE measurements DISABLE TRIGGER USER")
            )  # rows cannot be changed otherwise
            ids = connection.execute(
                text("SELECT id FROM measurements WHERE device_id = :device ORDER BY id"), {"device": device_id}
            ).scalars()
            for measurement, ago in zip(ids, (*minutes, 0), strict=True):
                connection.execute(
                    text("UPDATE measurements SET measured_at = :at WHERE id = :id"),
                    {"at": UNTIL - timedelta(minutes=ago), "id": measurement},
                )


def show(access: Access, **query: Any) -> series.Series:
    return series.show(access, **{**RANGE, **query})


@pytest.mark.usefixtures("measured")
def test_rows_count_in_their_step_and_the_end_of_the_range_is_outside(access: Access) -> None:
    found = show(access)
    assert (found.step_s, found.other_devices) == (600, 0)
    first, second = found.devices
    assert [(point.at.minute, point.rows) for point in first.points] == [(0, 2), (20, 1), (30, 1), (50, 1)]
    assert first.rows == 5
    point = first.points[0]
    assert (point.rows_per_minute, point.duty, point.power_w, point.sm_clock_mhz) == (0.2, 0.1, 100, 1500)
    assert point.temperature_c == 51  # the highest
    assert [point.power_w for point in second.points] == [200]


@pytest.mark.usefixtures("measured")
def test_a_device_or_a_campaign_can_be_chosen_and_devices_with_most_rows_come_first(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only,) = show(access, device=card(2).uuid).devices
    assert only.device_uuid == card(2).uuid
    assert len(show(access, device="host:here").devices) == 2
    (only,) = show(access, campaign="small").devices
    assert only.device_uuid == card(1).uuid
    with pytest.raises(UnknownDevice):
        show(access, device="nosuch")
    with pytest.raises(NoSuchCampaign):
        show(access, campaign="nosuch")
    monkeypatch.setattr(series, "MAX_DEVICES", 1)
    found = show(access)
    assert ([one.rows for one in found.devices], found.other_devices) == ([5], 1)


@pytest.mark.usefixtures("measured")
def test_imported_and_recorded_devices_are_told_apart(access: Access, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET backend = 'recorded' WHERE uuid = :uuid"), {"uuid": card(1).uuid})
        connection.execute(text("UPDATE devices SET uuid = 'IMP-' || uuid WHERE uuid = :uuid"), {"uuid": card(2).uuid})
    (found,) = show(access).devices
    assert {point.duty for point in found.points} == {None}
    assert found.points[0].power_w == 100


@pytest.mark.usefixtures("measured")
def test_without_a_range_a_campaign_is_shown_from_its_beginning_to_its_end(access: Access, engine: Engine) -> None:
    assert (ago := series.show(access)).until - ago.since == timedelta(hours=6)
    found = series.show(access, campaign="small", steps=300)
    assert found.until - found.since < timedelta(hours=1), "it was submitted just now"
    with engine.begin() as connection:
        begin, end = UNTIL - timedelta(days=40), UNTIL - timedelta(minutes=1)
        connection.execute(
            text("UPDATE campaigns SET submitted_at = :begin, finished_at = :end"), {"begin": begin, "end": end}
        )
    found = series.show(access, campaign="small")
    assert (found.since, found.until) == (UNTIL - series.MAX_RANGE, UNTIL)
    assert found.devices[0].rows == 5
    assert series.show(access, campaign="small", since="1h").devices == []


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ({"since": "2026-11-20 12:00"}, BadInput, "cannot be shown"),
        ({"since": "2026-11-21"}, BadInput, "it must end after it begins"),
        ({"since": "2026-10-01"}, BadInput, "may have 31 days"),
        ({"since": "0001-01-01"}, BadInput, "may have 31 days"),
        ({"since": "yesterday"}, BadMoment, "yesterday"),
        ({"until": "99999d"}, BadInput, "it must end after it begins"),
        ({"until": "9999999d"}, BadMoment, "9999999d"),
    ],
)
def test_a_range_that_cannot_be_shown_is_refused(access: Access, query: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        show(access, **query)


def test_a_step_is_never_shorter_than_a_minute_and_an_empty_range_has_no_devices(access: Access) -> None:
    assert show(access, steps=300).step_s == 60
    assert show(access, since="2026-11-20 11:59:30", steps=300).step_s == 30
    assert show(access).devices == []


def figures(page: str) -> list[dict[str, Any]]:
    return [json.loads(unescape(one)) for one in re.findall(r"data-chart='(.*?)'", page, flags=re.DOTALL)]


@pytest.mark.usefixtures("measured")
def test_pages_draw_a_line_for_each_device_with_gaps(browser_like: httpx.Client) -> None:
    page = browser_like.get("/devices/series", params=RANGE).text
    assert re.findall(r'<h2 id="series-head\d">(.*?)</h2>', page) == [
        "Throughput", "Duty", "Power", "SM clock", "Temperature",
    ]  # fmt: skip
    throughput, duty, *_ = figures(page)
    first, second = throughput["data"]
    assert first["x"] == [-55, None, -35, -25, None, -5]
    assert first["y"] == [0.2, None, 0.1, 0.1, None, 0.1]
    assert second["x"] == [-15]
    assert duty["data"][0]["y"][0] == 10
    assert "Throughput of 2 devices: from 0.1 to 0.2 rows each minute, in steps of 10 min." in page
    page = browser_like.get("/campaigns/small/series", params=RANGE).text
    assert [len(figure["data"]) for figure in figures(page)] == [1] * 5
    assert 'aria-current="page">Over time</a>' in page
    assert "No rows landed" in browser_like.get("/devices/series?since=1h").text


def test_mistakes_in_the_range_are_shown_on_the_page(browser_like: httpx.Client) -> None:
    answer = browser_like.get("/devices/series?since=yesterday")
    assert answer.status_code == 400
    assert "yesterday" in answer.text
    assert browser_like.get("/devices/series?steps=301").status_code in (400, 422)
    assert browser_like.get("/api/v1/series?steps=301").status_code == 422
    assert browser_like.get("/api/v1/series", params={"device": "x" * 201}).status_code == 422
    assert browser_like.get("/campaigns/nosuch/series").status_code == 404


@pytest.mark.usefixtures("measured")
def test_the_command_prints_a_line_for_each_step(database_url: str, tmp_path: Any) -> None:
    run = farm_here(tmp_path, database_url)
    found = run("series", "--since", RANGE["since"], "--until", RANGE["until"], "--steps", "6")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1 + 1 + 5
    assert "11-20 11:50" in found.stdout
    assert "No rows landed" in run("series", "--since", "1h").stdout
