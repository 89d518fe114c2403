"""Spans: their ids, what a program records while tracing is on or off, and how the measuring process hands them on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

import farm
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.states import FailureKind
from farm.errors import BadSettings, TracingMissing
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.settings import Settings, environment, settings
from farm.tracing import (
    Collected,
    Recorder,
    Span,
    SpanIds,
    current,
    ids_of_batch,
    ids_of_campaign,
    new_ids,
    of_traceparent,
    running,
    traceparent,
    tracing,
)
from farm.tracing.span import MAX_ERROR_CHARACTERS
from support.samples import cpu
from workers import spans


def test_ids_follow_from_the_farm_the_kind_and_the_number() -> None:
    assert ids_of_batch("7/farm", 12) == ids_of_batch("7/farm", 12)
    found = [
        ids_of_batch("7/farm", 12),
        ids_of_batch("8/farm", 12),
        ids_of_batch("7/farm", 13),
        ids_of_campaign("7/farm", 12),
    ]
    assert len({one.trace for one in found}) == len({one.span for one in found}) == len(found)
    assert all(0 < one.trace < 2**128 and 0 < one.span < 2**64 for one in found)


@pytest.mark.parametrize(
    "header",
    [None, "", "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", f"01-{'1' * 32}-{'1' * 16}-01",
     f"00-{'G' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'1' * 16}-01-more", "x" * 100_000],
)  # fmt: skip
def test_a_header_that_names_no_span_is_ignored(header: str | None) -> None:
    assert of_traceparent(header) is None


@pytest.mark.parametrize("sampled", [True, False])
def test_a_header_names_a_span(sampled: bool) -> None:
    ids = SpanIds(2**128 - 1, 2**64 - 1, sampled)
    assert of_traceparent(traceparent(ids)) == ids


def test_nothing_is_recorded_while_tracing_is_off() -> None:
    with running(Settings(), "cli") as recorder, recorder.span("a") as span:
        assert type(recorder) is Recorder
        assert span is None
        assert current() is None


def test_spans_nest_and_keep_their_errors() -> None:
    recorder = Collected(3)
    with suppress(ValueError), recorder.span("outer", size=1) as outer, recorder.span("inner") as inner:
        assert outer is not None
        assert inner is not None
        assert current() == inner.ids
        raise ValueError("bad")
    found = recorder.take()
    assert [(one.name, one.error) for one in found] == [("inner", "ValueError"), ("outer", "ValueError")]
    assert found[0].parent == found[1].ids
    assert found[1].attributes == {"size": 1}
    assert current() is None
    for _ in range(5):
        recorder.record(found[0])
    assert len(recorder.take()) == 3


def test_a_span_is_the_same_after_it_was_sent_as_json() -> None:
    span = Span(
        name="a", ids=new_ids(), parent=ids_of_batch("f", 1), links=(ids_of_campaign("f", 1),), began_ns=1, ended_ns=2,
        attributes={"x": 1}, error="no",
    )  # fmt: skip
    assert Span.from_json(json.loads(json.dumps(span.to_json()))) == span


@pytest.mark.parametrize(
    "url", ["collector:4318", "http://", "ftp://host", "http://host:99999", "http://user:secret@host"]
)
def test_a_collector_that_cannot_be_one_is_refused_without_its_password(url: str) -> None:
    for variable in ("FARM_OTEL_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        with pytest.raises(BadSettings) as refused, environment(**{variable: url}):
            pass
        settings.cache_clear()
        assert variable in str(refused.value)
        assert "secret" not in str(refused.value)


def test_the_farms_own_variable_goes_before_that_of_opentelemetry() -> None:
    with environment(OTEL_EXPORTER_OTLP_ENDPOINT="http://b:4318") as found:
        assert found.trace_endpoint == "http://b:4318"
    with environment(FARM_OTEL_ENDPOINT="http://a:4318", OTEL_EXPORTER_OTLP_ENDPOINT="http://b:4318") as found:
        assert found.trace_endpoint == "http://a:4318"


def test_a_missing_extra_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "farm.tracing.exporting", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with (
        environment(FARM_OTEL_ENDPOINT="http://127.0.0.1:9") as found,
        pytest.raises(TracingMissing, match="otel"),
        running(found, "cli"),
    ):
        pass
    assert type(tracing()) is Recorder


OFF = """
import sys
import farm.coordinator.__main__, farm.cli.campaigns, workers.main, workers.hosting, workers.tasks
from farm.settings import settings
from farm.tracing import running, tracing
with running(settings(), "cli"), tracing().span("a"):
    pass
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_a_farm_without_a_collector_imports_nothing_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FARM_OTEL_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n"


# --- the measuring process ----------------------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with spans._opened(folder) as address:
        made.bind(address)
    made.settimeout(60)
    return made


def a_batch(jobs: int) -> Lease:
    configuration = Configuration.parse("tiled(tile=16) 128x256x64 f32")
    claimed = tuple(ClaimedJob(n, configuration) for n in range(1, jobs + 1))
    return Lease(5, uuid.uuid4(), 3, 1, MeasuringRules(), claimed)


def test_a_batch_is_handed_on_after_it_landed(listener: socket.socket, tmp_path: Path) -> None:
    lease = a_batch(70)
    with listener, closing(spans.SentSpans("7/farm", tmp_path / ("long" * 40), cpu())) as sending:
        sending.begin()
        with sending.step(spans.CLAIM):
            pass
        for job in lease.jobs:
            with sending.step(spans.JOB, job):
                pass
        with sending.step(spans.LAND):
            pass
        sending.send(lease, 69, {2: Failure(FailureKind.FAILED, "x" * 1000)}, None)
        found = [Span.from_json(one) for _ in range(2) for one in json.loads(listener.recv(1 << 20))]
    assert [one.name for one in found] == [spans.CLAIM, *[spans.JOB] * 70, spans.LAND]
    assert {(one.parent, one.ids.trace) for one in found} == {
        (ids_of_batch("7/farm", 5), ids_of_batch("7/farm", 5).trace)
    }
    assert [one.name for one in found if one.links == (ids_of_campaign("7/farm", 3),)] == [spans.CLAIM]
    assert [one.attributes["gemm_farm.job.id"] for one in found if one.error is not None] == [2]
    assert max(len(one.error or "") for one in found) <= MAX_ERROR_CHARACTERS
    shape = {key: found[1].attributes[f"gemm_farm.gemm.{key}"] for key in "mnk"}
    assert shape == {"m": 128, "n": 256, "k": 64}


def test_a_farm_worker_that_is_gone_or_slow_costs_no_batch(listener: socket.socket, tmp_path: Path) -> None:
    sending, lease = spans.SentSpans("7/farm", tmp_path / ("long" * 40), cpu()), a_batch(2)

    def one() -> None:
        sending.begin()
        for job in lease.jobs:
            with sending.step(spans.JOB, job):
                pass
        sending.send(lease, 2, {}, ValueError("lost"))

    with listener:
        for _ in range(600):  # nobody reads
            one()
    one()
    sending.begin()
    with sending.step(spans.JOB, lease.jobs[0]):
        pass
    sending.send(lease, 0, {1: "no failure"}, None)  # type: ignore[dict-item]
    sending.close()


def test_the_documented_cost_is_the_measured_one() -> None:
    root = Path(farm.__file__).parent.parent
    found = json.loads((root / "benchmarks" / "results" / "tracing_cost.json").read_text())
    text = (root / "docs" / "watching.md").read_text()
    assert f"with tracing off (`benchmarks/tracing_cost.py`) | {found['off_us']:.1f} µs |" in text
    assert f"| the same with tracing on, spent after a batch has landed | {found['on_us']:.0f} µs |" in text
