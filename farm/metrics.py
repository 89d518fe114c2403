"""Prometheus metrics: counts and durations of a program, and their HTTP server.

If metrics are off, `Metrics` does nothing, and prometheus_client is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.errors import BadMetricsAddress, MetricsAddressUnusable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

log = logging.getLogger(__name__)

PREFIX = "gemm_farm_"

VERSION = 1
"""Of the names and labels of all metrics. A metric that is renamed or removed, or loses a label, needs the next one."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Count:
    """A counter, exported as `gemm_farm_<name>_total`."""

    name: str
    help: str
    # Its label, and the values that are exported as 0 from the start.
    label: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that is read when Prometheus asks for it, exported as `gemm_farm_<name>`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration, exported as the histogram `gemm_farm_<name>_seconds`."""

    name: str
    help: str
    # Upper bounds in seconds, without the infinite one.
    buckets: tuple[float, ...]


class Metrics:
    """Counts and durations of a program. This class discards them, for metrics that are off."""

    def count(self, what: Count, amount: float = 1, *, value: str | None = None) -> None:
        """Adds to a count. `value`: value of its label, if it has one."""

    def time(self, what: Duration) -> AbstractContextManager[object]:
        """Times the block, also if it raises."""
        return nullcontext()


class PrometheusMetrics(Metrics):
    """Metrics that Prometheus can scrape. `labels` are those of every one of them."""

    def __init__(
        self,
        registry: CollectorRegistry | None,
        counts: Iterable[Count],
        durations: Iterable[Duration],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        from prometheus_client import Counter, Histogram

        self._labels = dict(labels or {})
        names = list(self._labels)
        self._counters = {
            what: Counter(
                PREFIX + what.name, what.help, [*names, *((what.label,) if what.label else ())], registry=registry
            )
            for what in counts
        }
        self._histograms = {
            what: Histogram(PREFIX + what.name + "_seconds", what.help, names, registry=registry, buckets=what.buckets)
            for what in durations
        }
        for what in self._counters:
            for value in what.values or ((None,) if what.label is None else ()):
                self.count(what, 0, value=value)
        for duration in self._histograms:
            self._histogram(duration)

    def count(self, what: Count, amount: float = 1, *, value: str | None = None) -> None:
        labels = self._labels if what.label is None else {**self._labels, what.label: value or ""}
        counter = self._counters[what]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def time(self, what: Duration) -> AbstractContextManager[object]:
        return self._histogram(what).time()

    def _histogram(self, what: Duration) -> Histogram:
        histogram = self._histograms[what]
        return histogram.labels(**self._labels) if self._labels else histogram


@contextmanager
def serving(variable: str, address: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serves the registry over HTTP inside the block. `variable` is the setting that holds the address.

    Raises `BadMetricsAddress` and `MetricsAddressUnusable`.
    """
    from prometheus_client import start_http_server

    host, port = parse_address(variable, address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise MetricsAddressUnusable(variable=variable, value=address, why=error.strerror or error) from None
    log.info("metrics are served at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def parse_address(variable: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[IPv6 address]:port`, or a port alone, which means loopback.

    >>> parse_address("FARM_WORKER_METRICS", "9464")
    ('127.0.0.1', 9464)
    >>> parse_address("FARM_WORKER_METRICS", "[::1]:9464")
    ('::1', 9464)
    """
    host, colon, port = address.strip().rpartition(":")
    why = None
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        why = "it names no port from 1 to 65535"
    elif colon and not host:
        why = "it names no host; 0.0.0.0 means every address of this machine"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        why = "an IPv6 address goes in brackets"
    if why is not None:
        raise BadMetricsAddress(variable=variable, value=address, why=why)
    return host.strip("[]") or LOOPBACK, int(port)
