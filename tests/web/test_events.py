"""The stream of events: what it sends over real HTTP, whom it lets in, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from farm.campaign import Campaign, plan
from farm.db import batches, campaigns, changes, devices, tokens
from farm.db.states import DeviceState, Role
from farm.errors import TooManyRequests
from farm.web import events
from farm.web.events import Events
from support.homes import eventually
from support.samples import cpu, document
from support.serving import served
from support.visiting import chromium


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 0.02)


class Stream:
    """Reads a stream, as a browser does."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def message(self) -> dict[str, str]:
        """The fields of the next message; a comment has the name `comment`."""
        found = dict[str, str]()
        for line in self._lines:
            if not line:
                return found
            name, _, value = line.partition(": ")
            found[name or "comment"] = value
        return found

    def changed(self) -> tuple[set[str], str]:
        """Topics and id of the next event."""
        while "data" not in (found := self.message()):
            assert found, "the stream ended"
        assert found["event"] == "changed"
        return set(json.loads(found["data"])), found["id"]

    def until(self, topic: str) -> str:
        """The id of the first event with that topic."""
        while topic not in (found := self.changed())[0]:
            pass
        return found[1]


@contextmanager
def listening(url: str, **headers: str | bytes) -> Iterator[Stream]:
    with httpx.stream("GET", f"{url}/events", headers=headers, timeout=120) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


def register(engine: Engine, number: int = 1) -> int:
    with engine.begin() as connection:
        return devices.register(connection, host="here", host_facts={}, device=cpu(number))


def submit(engine: Engine) -> campaigns.Stored:
    with engine.begin() as connection:
        campaign = Campaign.from_document(document())
        jobs = plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
        return campaigns.store(connection, campaign, jobs)


def test_a_stream_names_what_changed_and_goes_on_where_it_ended(engine: Engine) -> None:
    device_id = register(engine)
    with served(engine) as url, listening(url) as stream:
        assert stream.message() == {"retry": "5000"}
        topics, first = stream.changed()
        assert topics == {"all"}, "it may have missed anything before"
        stored = submit(engine)
        with engine.connect() as connection:
            topic = changes.campaign_topic(campaigns.find(connection, "small")["digest"])
        stream.until(topic)
        with engine.begin() as connection:
            devices.set_state(connection, device_id, DeviceState.DRAINED, "for a while")
        topics, last = stream.changed()
        assert topics == {"devices"}
        with engine.begin() as connection:
            batches.pause(connection, stored.campaign_id)
        topics, _ = stream.changed()
        assert topics == {topic, "campaigns"}
        with listening(url, **{"Last-Event-ID": last}) as other:
            assert other.changed()[0] == {topic, "campaigns"}
        for unknown in (first.replace("-", "x-"), "nonsense", f"{last}0000", "-1", "a-²"):
            with listening(url, **{"Last-Event-ID": unknown.encode("latin-1")}) as other:
                assert other.changed()[0] == {"all"}


def answers(url: str) -> bool:
    """Whether the server answers other requests, while streams are open."""
    return httpx.get(f"{url}/api/v1/devices", timeout=60).status_code == 200


def test_a_stream_without_events_sends_comments_and_ends_after_its_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.3)
    with served(engine) as url, listening(url) as stream:
        found = list(iter(stream.message, {}))
    assert [one["data"] for one in found if "data" in one] == ['["all"]']
    assert {"comment": "alive"} in found


def test_streams_are_bounded_and_a_place_is_free_again_when_its_client_left(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS_PER_USER", 1)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    with served(engine) as url:
        with listening(url) as stream:
            stream.changed()
            with httpx.stream("GET", f"{url}/events", timeout=60) as refused:
                assert refused.status_code == 503  # before its body is read: that of a stream does not end
                assert json.loads(refused.read())["error"]["kind"] == "TooManyRequests"
            assert answers(url)

        def free() -> bool:
            with httpx.stream("GET", f"{url}/events", timeout=60) as response:
                return response.status_code == 200

        eventually(free)


def test_only_callers_with_a_token_or_a_session_hear_anything(engine: Engine) -> None:
    with engine.begin() as connection:
        token = tokens.create(connection, "ann", Role.READ, by="test")
    with served(engine, tokens=True) as url:
        assert httpx.get(f"{url}/events", timeout=60).status_code == 401
        with listening(url, Authorization=f"Bearer {token}") as stream:
            assert stream.changed()[0] == {"all"}


def test_streams_end_with_the_server(engine: Engine) -> None:
    ended = threading.Event()
    with served(engine) as url:

        def listen() -> None:
            with listening(url) as stream:
                started.set()
                list(iter(stream.message, {}))
            ended.set()

        started = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        assert started.wait(120)
    assert ended.wait(120)
    thread.join(120)


# --- without HTTP --------------------------------------------------------------------------------------


def test_one_task_reads_for_all_streams_and_none_without_a_stream() -> None:
    reads = list[int]()

    def read() -> dict[str, str]:
        reads.append(1)
        if len(reads) == 2:
            raise OperationalError("SELECT", {}, Exception("the server closed the connection"))
        return {"devices": str(len(reads) // 4)}

    async def run() -> None:
        shared = Events(read)
        for holder in ("a", "b"):
            shared.take(holder)
        streams = [shared.stream(None) for _ in range(2)]
        for expected in ("retry: 5000", 'data: ["all"]', 'data: ["devices"]'):
            first, second = [await anext(stream) for stream in streams]
            assert first == second
            assert expected in first
        tasks = [task for task in asyncio.all_tasks() if "_poll" in repr(task)]
        assert len(tasks) == 1
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        shared.give_back("a")
        assert not tasks[0].cancelling()
        shared.give_back("b")
        await asyncio.wait(tasks, timeout=60)
        assert tasks[0].cancelled()
        await shared.close()
        with pytest.raises(TooManyRequests):
            shared.take("a")

    asyncio.run(run())


def test_the_number_of_all_streams_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 2)

    async def run() -> None:
        shared = Events(dict)
        shared.take("a")
        shared.take("b")
        with pytest.raises(TooManyRequests):
            shared.take("c")
        shared.give_back("a")
        shared.take("c")
        shared.give_back("b")
        shared.give_back("c")

    asyncio.run(run())


def test_fingerprints_change_with_what_pages_show_and_not_with_time(engine: Engine) -> None:
    def read() -> dict[str, str]:
        with engine.connect() as connection:
            return changes.fingerprints(connection, silent_after=3600)

    device_id = register(engine)
    stored, empty = submit(engine), read()
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET last_seen_at = clock_timestamp()"))
    assert read() == empty
    with engine.begin() as connection:
        devices.leave(connection, device_id)
    left = read()
    assert {topic for topic in left if left[topic] != empty[topic]} == {"devices"}
    with engine.begin() as connection:
        batches.cancel(connection, stored.campaign_id)
        connection.execute(text("UPDATE campaigns SET finished_at = clock_timestamp() - interval '1 h'"))
    assert set(read()) == {"devices", "campaigns"}


# --- in a browser --------------------------------------------------------------------------------------

COUNTED = """
window.asked = {refresh: 0, poll: 0};
document.addEventListener("htmx:beforeSend", (event) =>
  window.asked[event.detail.requestConfig.triggeringEvent?.type === "refresh" ? "refresh" : "poll"]++);
"""
"""Counts the requests by which a page refreshes itself."""


@pytest.mark.long
def test_a_page_refreshes_on_events_and_polls_where_it_gets_no_stream(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    device_id = register(engine)

    def set_state(state: DeviceState, reason: str) -> None:
        with engine.begin() as connection:
            devices.set_state(connection, device_id, state, reason)

    with served(engine) as url, chromium() as browser:

        def opened() -> Any:
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.add_init_script(COUNTED)
            page.goto(f"{url}/devices")
            return page

        page = opened()
        # It may have missed anything before it listened. The page allows no evaluation of strings, as `wait_for_function` has it.
        eventually(lambda: page.evaluate("window.asked.refresh"))
        set_state(DeviceState.DRAINED, "for the stream")
        playwright.expect(page.get_by_text("for the stream")).to_be_visible(timeout=60_000)
        page.evaluate("window.asked = {refresh: 0, poll: 0, since: Date.now()}")
        page.wait_for_timeout(7_000)  # much longer than from one poll to the next, where there is no stream
        asked = page.evaluate("({...window.asked, ms: Date.now() - window.asked.since})")
        assert asked["poll"] <= 1 + asked["ms"] // 20_000
        page.close()

        monkeypatch.setattr(events, "MAX_STREAMS", 0)
        page = opened()
        set_state(DeviceState.DRAINED, "for the polls")
        playwright.expect(page.get_by_text("for the polls")).to_be_visible(timeout=60_000)
        assert page.evaluate("window.asked.refresh") == 0
        page.close()
