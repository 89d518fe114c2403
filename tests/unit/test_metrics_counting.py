"""Addresses, counts that start at zero, and what a dead child is said to have died of."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from farm.errors import BadMetricsAddress
from farm.metrics import Count, Duration, Metrics, PrometheusMetrics, parse_address
from workers.runner import EXIT_HUNG, EXIT_SENTINEL
from workers.tasks import EXIT_POISONED, cause_of_death, how_it_ended

DONE = Count("things_done", "Things done.")
ENDED = Count("things_ended", "Things that ended, by how.", "how", ("well", "badly"))
TAKEN = Duration("thing", "Time of a thing.", (0.1, 1.0))


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        (" 0.0.0.0:65535 ", ("0.0.0.0", 65535)),
        ("node-7.example:9464", ("node-7.example", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_port_of_this_machine(address: str, found: tuple[str, int]) -> None:
    assert parse_address("FARM_WORKER_METRICS", address) == found


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "no port"),
        ("localhost", "no port"),
        ("localhost:", "no port"),
        ("localhost:http", "no port"),
        ("localhost:0", "no port"),
        ("65536", "no port"),
        ("-1", "no port"),
        (":9464", "names no host"),
        ("::1:9464", "in brackets"),
    ],
)
def test_anything_else_is_refused_with_the_name_of_the_setting(address: str, why: str) -> None:
    with pytest.raises(BadMetricsAddress, match=rf"FARM_WORKER_METRICS is .*{why}.*127\.0\.0\.1:9464"):
        parse_address("FARM_WORKER_METRICS", address)


def test_counts_and_times_are_exported_from_zero_on_with_their_labels() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, (DONE, ENDED), (TAKEN,), {"device": "CPU-1"})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gemm_farm_{name}", {"device": "CPU-1", **labels})

    assert value("things_done_total") == value("things_ended_total", how="badly") == value("thing_seconds_count") == 0
    metrics.count(DONE)
    metrics.count(DONE, 2)
    metrics.count(ENDED, value="well")
    metrics.count(ENDED, value="in its sleep")
    with metrics.time(TAKEN):
        pass
    with pytest.raises(ZeroDivisionError), metrics.time(TAKEN):
        raise ZeroDivisionError
    assert value("things_done_total") == 3
    assert [value("things_ended_total", how=how) for how in ("well", "badly", "in its sleep")] == [1, 0, 1]
    assert value("thing_seconds_bucket", le="0.1") == value("thing_seconds_count") == 2


def test_without_labels_too() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, (DONE, ENDED), (TAKEN,))
    metrics.count(DONE, 5)
    assert registry.get_sample_value("gemm_farm_things_done_total") == 5
    assert registry.get_sample_value("gemm_farm_things_ended_total", {"how": "well"}) == 0
    assert registry.get_sample_value("gemm_farm_thing_seconds_count") == 0


def test_metrics_that_are_off_take_everything() -> None:
    metrics = Metrics()
    metrics.count(ENDED, 3, value="well")
    with metrics.time(TAKEN):
        pass


@pytest.mark.parametrize(
    ("message", "how", "cause"),
    [
        ("Worker exited prematurely: signal 9 (SIGKILL) Job: 3.", "was killed by signal SIGKILL", "SIGKILL"),
        ("Worker exited prematurely: signal 11 (SIGSEGV) Job: 0.", "was killed by signal SIGSEGV", "SIGSEGV"),
        ("Worker exited prematurely: signal 200 Job: 0.", "was killed by signal 200", "200"),
        (
            f"Worker exited prematurely: exitcode {EXIT_HUNG} Job: 1.",
            "was ended because the job outlived its time",
            "hung",
        ),
        (f"Worker exited prematurely: exitcode {EXIT_POISONED} Job: 1.", "was given up because", "poisoned"),
        (f"Worker exited prematurely: exitcode {EXIT_SENTINEL} Job: 1.", "was given up because", "sentinel"),
        ("Worker exited prematurely: exitcode 9 Job: 1.", "ended with status 9", "exit"),
        ("Worker exited prematurely: exitcode 0 Job: 1.", "ended with status 0", "exit"),
        ("Worker exited prematurely.", "died", "exit"),
    ],
)
def test_the_end_of_a_child_is_told_from_the_words_of_celery(message: str, how: str, cause: str) -> None:
    assert how_it_ended(message).startswith(how)
    assert cause_of_death(message) == cause
