"""Every metric that programs of the farm export, from the declarations that they count by (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from farm.coordinator import exported
from farm.metrics import PREFIX, Count, Duration, Gauge
from farm.monitoring import web_metrics, worker_metrics


class Program(StrEnum):
    """A program that serves metrics."""

    COORDINATOR = "coordinator"
    WORKER = "farm-worker"
    WEB = "web server"

    @property
    def setting(self) -> str:
        """The environment variable with the address at which it serves them."""
        return _SETTINGS[self]


_SETTINGS = {
    Program.COORDINATOR: "FARM_COORDINATOR_METRICS",
    Program.WORKER: "FARM_WORKER_METRICS",
    Program.WEB: "FARM_WEB_METRICS",
}


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_UNITS = {
    "seconds": "s",
    "bytes": "B",
    "watts": "W",
    "mhz": "MHz",
    "celsius": "°C",
}
"""Units by the end of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric as Prometheus names it."""

    name: str
    type: MetricType
    labels: tuple[str, ...]
    program: Program
    meaning: str

    @property
    def unit(self) -> str:
        """Empty for a number of things."""
        return _UNITS.get(self.name.removesuffix("_total").rpartition("_")[2], "")

    @property
    def series(self) -> dict[str, frozenset[str]]:
        """The names that expressions use, with their labels. A histogram has three."""
        labels = frozenset(self.labels)
        if self.type is not MetricType.HISTOGRAM:
            return {self.name: labels}
        return {f"{self.name}_bucket": labels | {"le"}, f"{self.name}_sum": labels, f"{self.name}_count": labels}


def _metric(declared: Count | Duration | Gauge, program: Program) -> Metric:
    labels: tuple[str, ...] = worker_metrics.LABELS if program is Program.WORKER else ()
    name = PREFIX + declared.name
    if isinstance(declared, Count):
        kind, name = MetricType.COUNTER, f"{name}_total"
        labels += () if declared.label is None else (declared.label,)
    elif isinstance(declared, Duration):
        kind, name = MetricType.HISTOGRAM, f"{name}_seconds"
    else:
        kind, labels = MetricType.GAUGE, (*labels, *declared.labels)
    return Metric(name=name, type=kind, labels=labels, program=program, meaning=declared.help)


def _metrics() -> Iterator[Metric]:
    declared = {
        Program.COORDINATOR: (*exported.GAUGES, *exported.COUNTS, exported.TURN),
        Program.WORKER: (*worker_metrics.COUNTS, *worker_metrics.DURATIONS),
        Program.WEB: (*web_metrics.COUNTS, *web_metrics.DURATIONS),
    }
    for program, those in declared.items():
        for one in those:
            yield _metric(one, program)


@cache
def metrics() -> tuple[Metric, ...]:
    """Every metric, by program and in the order of their declarations."""
    return tuple(_metrics())
