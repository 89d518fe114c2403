"""Messages that go to Redis in pipelines: the account of what it took is exact, whatever it refuses in between."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from redis.connection import AbstractConnection

from farm.broker.celery_app import make_app
from farm.broker.queues import MEASURE_BATCH
from farm.coordinator import sending
from farm.coordinator.sending import send


@pytest.fixture
def app(broker: redis.Redis, redis_port: int) -> Iterator[Celery]:
    with make_app(f"redis://127.0.0.1:{redis_port}/0") as made:
        yield made


def received(client: redis.Redis, queue: str) -> list[int]:
    """What a worker on that queue gets, in this order."""
    bodies = [json.loads(base64.b64decode(json.loads(one)["body"])) for one in client.lrange(queue, 0, -1)]
    return [arguments[0] for arguments, *_ in reversed(bodies)]


def test_all_messages_arrive_in_order_with_few_round_trips(
    broker: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, request = list[int](), AbstractConnection.send_packed_command

    def counted(*given: Any, **named: Any) -> None:
        requests.append(1)
        request(*given, **named)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    messages = [(n, f"gpu.{n % 2}") for n in range(1200)]
    assert send(app, MEASURE_BATCH, messages) == list(range(1200))
    assert len(requests) < 50
    assert received(broker, "gpu.0") == list(range(0, 1200, 2))
    assert received(broker, "gpu.1") == list(range(1, 1200, 2))


def after_call(app: Celery, number: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Does that once so many messages have been handed over."""
    send_task, calls = app.send_task, list[int]()

    def counted(*given: object, **named: object) -> object:
        try:
            return send_task(*given, **named)
        finally:
            calls.append(1)
            if len(calls) == number:
                action()

    monkeypatch.setattr(app, "send_task", counted)


def test_what_redis_refuses_within_a_pipeline_is_not_sent_and_the_rest_is(
    broker: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [(n, "gpu.refused" if n % 3 == 1 else "gpu.taken") for n in range(10)]
    after_call(app, 10, lambda: broker.set("gpu.refused", "no list"), monkeypatch)
    assert send(app, MEASURE_BATCH, messages) == [0, 2, 3, 5, 6, 8, 9]
    assert received(broker, "gpu.taken") == [0, 2, 3, 5, 6, 8, 9]
    broker.delete("gpu.refused")
    assert send(app, MEASURE_BATCH, [(n, queue) for n, queue in messages if n % 3 == 1]) == [1, 4, 7]
    assert received(broker, "gpu.refused") == [1, 4, 7]


def test_a_message_that_cannot_be_handed_over_leaves_all_others_as_sent(broker: redis.Redis, app: Celery) -> None:
    broker.set("gpu.refused", "no list")
    messages = [(n, "gpu.refused" if n == 6 else "gpu.taken") for n in range(10)]
    assert send(app, MEASURE_BATCH, messages) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert received(broker, "gpu.taken") == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_a_redis_that_is_full_in_the_middle_of_a_pipeline_took_what_it_took(broker: redis.Redis, app: Celery) -> None:
    assert send(app, MEASURE_BATCH, [(0, "gpu.a")]) == [0]
    broker.config_set("maxmemory", broker.info("memory")["used_memory"] + 300_000)
    sent = send(app, MEASURE_BATCH, [(n, "gpu.a") for n in range(1, 3000)])
    assert 0 < len(sent) < 2999
    assert received(broker, "gpu.a") == [0, *sent]
    broker.config_set("maxmemory", 0)
    rest = sorted(set(range(1, 3000)) - set(sent))
    assert send(app, MEASURE_BATCH, [(n, "gpu.a") for n in rest]) == rest


def test_a_redis_that_goes_away_leaves_the_pipelines_before_as_sent(
    broker: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MAX_PIPELINE_MESSAGES", 4)
    after_call(app, 10, lambda: broker.shutdown(nosave=True), monkeypatch)
    assert send(app, MEASURE_BATCH, [(n, "gpu.a") for n in range(20)]) == list(range(8))
