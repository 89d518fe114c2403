"""Which traces are recorded: programs of a farm decide alike, each for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from farm.tracing import Span, ids_of_batch, new_ids, of_traceparent, traceparent
from farm.tracing.exporting import Exporting
from support.otlp_collector import Collector, collecting

BATCHES = range(1, 201)
RATIO = 0.25


@contextmanager
def two_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Exporting, Exporting, Collector]]:
    """Programs that record a quarter of all traces."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", str(RATIO))
    with (
        collecting() as collector,
        closing(Exporting(collector.url, "coordinator")) as first,
        closing(Exporting(collector.url, "worker")) as second,
    ):
        yield first, second, collector


def traces(collector: Collector, name: str) -> set[str]:
    return {one.trace for one in collector.named(name)}


def test_a_program_records_its_part_of_a_trace_if_and_only_if_others_record_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_programs(monkeypatch) as (coordinator, worker, collector):
        for number in BATCHES:
            root = ids_of_batch("7/farm", number)
            coordinator.record(Span(name="form batch", ids=root, began_ns=1, ended_ns=2))
            worker.record(Span(name="claim batch", ids=new_ids(root), parent=root, began_ns=3, ended_ns=4))
    # The specification of OpenTelemetry: the lower 64 bits of the id, against a share of their range.
    low = {f"{ids.trace:032x}" for n in BATCHES if (ids := ids_of_batch("7/farm", n)).trace % 2**64 < RATIO * 2**64}
    assert 0 < len(low) < len(BATCHES)
    assert traces(collector, "form batch") == traces(collector, "claim batch") == low


def test_a_request_is_recorded_if_and_only_if_its_caller_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_programs(monkeypatch) as (command, server, collector):
        for _ in BATCHES:
            with command.span("farm submit") as caller:
                assert caller is not None
                header = traceparent(caller.ids)
                with server.span("POST /api/v1/campaigns", parent=of_traceparent(header)):
                    pass
    recorded = traces(collector, "farm submit")
    assert 0 < len(recorded) < len(BATCHES)
    assert traces(collector, "POST /api/v1/campaigns") == recorded


def test_a_caller_that_records_its_trace_has_the_requests_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_programs(monkeypatch) as (server, _, collector):
        for sampled in (True, False):
            for _ in range(20):
                caller = of_traceparent(f"{traceparent(new_ids())[:-2]}{int(sampled):02x}")
                with server.span(f"sampled {sampled}", parent=caller):
                    pass
    assert len(collector.named("sampled True")) == 20
    assert not collector.named("sampled False")
