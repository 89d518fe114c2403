"""Metrics of `farm serve`: how many requests ended, with which status, and how long each took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.metrics import Metrics, PrometheusMetrics, serving
from farm.monitoring.web_metrics import COUNTS, DURATIONS, REQUEST, REQUESTS
from farm.settings import Settings
from farm.web.events import PATH


@contextmanager
def served(settings: Settings) -> Iterator[Metrics]:
    """Serves the metrics of this server inside the block; without an address, they count nothing.

    Raises `BadMetricsAddress` and `MetricsAddressUnusable`.
    """
    if settings.web_metrics is None:
        yield Metrics()
        return
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = PrometheusMetrics(registry, COUNTS, DURATIONS)
    with serving("FARM_WEB_METRICS", settings.web_metrics, registry):
        yield metrics


class Measured:
    """Wraps the whole application. Counts and times each request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == PATH:  # a stream lasts as long as its client listens
            await self._app(scope, receive, send)
            return
        status, ended = 0, False

        async def sender(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            with self._metrics.time(REQUEST):
                await self._app(scope, receive, sender)
        finally:
            self._metrics.count(REQUESTS, value=f"{status // 100}xx" if ended else "aborted")
