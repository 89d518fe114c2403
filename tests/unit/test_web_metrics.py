"""`farm serve` counts each request once, by how it ended, and times it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from farm.errors import BadMetricsAddress
from farm.metrics import Metrics, PrometheusMetrics
from farm.monitoring.web_metrics import COUNTS, DURATIONS
from farm.settings import Settings
from farm.web import measured
from farm.web.measured import Measured


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    status = int(scope["path"].removeprefix("/"))
    if status == 0:
        raise RuntimeError("the application failed")
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    if status != 499:
        await send({"type": "http.response.body", "body": b"b"})


def test_requests_are_counted_by_how_they_ended_and_timed() -> None:
    registry = CollectorRegistry()
    wrapped = Measured(_application, PrometheusMetrics(registry, COUNTS, DURATIONS))
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def request(path: str, kind: str = "http") -> None:
        await wrapped({"type": kind, "path": path}, receive, send)

    for path in ("/200", "/204", "/303", "/404", "/503", "/499"):
        asyncio.run(request(path))
    with pytest.raises(RuntimeError):
        asyncio.run(request("/0"))
    asyncio.run(request("/200", "websocket"))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gemm_farm_web_{name}", labels)

    counts = {status: value("requests_total", status=status) for status in ("2xx", "3xx", "4xx", "5xx", "aborted")}
    assert counts == {"2xx": 2, "3xx": 1, "4xx": 1, "5xx": 1, "aborted": 2}
    assert value("request_seconds_count") == 7
    assert len(sent) == 20


def test_without_an_address_nothing_is_counted_and_a_wrong_one_names_the_setting() -> None:
    with measured.served(Settings()) as metrics:
        assert type(metrics) is Metrics
    with (
        pytest.raises(BadMetricsAddress, match="FARM_WEB_METRICS is 'here'"),
        measured.served(Settings(web_metrics="here")),
    ):
        pass
