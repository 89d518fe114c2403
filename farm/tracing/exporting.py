"""Exports spans by OTLP over HTTP. The only module that imports OpenTelemetry, which the extra `otel` installs.

A thread exports what a bounded queue holds. A collector that is away or slow costs spans, and never time of the program. The variables of
OpenTelemetry apply: OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_MAX_QUEUE_SIZE, OTEL_RESOURCE_ATTRIBUTES and others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

import farm
from farm.control_characters import neutralised
from farm.masking import masked
from farm.tracing.ids import SpanIds, new_ids
from farm.tracing.recorder import Recorder
from farm.tracing.span import Span

log = logging.getLogger("farm.tracing")

PATH = "/v1/traces"

CLOSE_SECONDS = 2.0
"""How long a program that ends waits for the last spans to be exported."""

EXPORT_SECONDS = 5.0
"""Of one export, with its repetitions. OpenTelemetry's own default is 10."""


class _Ids(IdGenerator):
    """Gives the next span of this thread the ids that it has already."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next = threading.local()

    def generate_span_id(self) -> int:
        ids: SpanIds | None = getattr(self.next, "ids", None)
        return self._random.generate_span_id() if ids is None else ids.span

    def generate_trace_id(self) -> int:
        ids: SpanIds | None = getattr(self.next, "ids", None)
        return self._random.generate_trace_id() if ids is None else ids.trace


class _Reporting(SpanExporter):
    """Exports, and logs once when that begins to fail, and once when it works again."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner, self._endpoint, self._failing = inner, endpoint, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._inner.export(spans)
        except Exception:  # whatever a library raises: tracing is no reason to stop
            result = SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            log.warning("spans are lost: the collector at %s does not take them", self._endpoint)
        elif self._failing and not failed:
            log.warning("the collector at %s takes spans again", self._endpoint)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class Exporting(Recorder):
    """Exports spans of a program to the collector at a URL, without its path."""

    on = True

    def __init__(self, endpoint: str, program: str) -> None:
        # It logs each export that fails, and each span that a full queue drops. `_Reporting` says so once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._ids = _Ids()
        resource = Resource.create({"service.name": f"gemm-farm-{program}", "service.version": farm.__version__})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}{PATH}", timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(_Reporting(self._exporter, masked(endpoint))))
        self._tracer = self._provider.get_tracer("gemm-farm", farm.__version__)

    def record(self, span: Span) -> None:
        try:
            self._record(span)
        except Exception:
            log.exception("a span could not be recorded")

    def _record(self, span: Span) -> None:
        parent = INVALID_SPAN if span.parent is None else NonRecordingSpan(self._context_of(span.parent))
        self._ids.next.ids = span.ids
        try:
            made = self._tracer.start_span(
                span.name,
                context=set_span_in_context(parent),
                kind=SpanKind[span.kind],
                attributes={**span.attributes},
                links=[Link(self._context_of(one)) for one in span.links],
                start_time=span.began_ns,
            )
        finally:
            self._ids.next.ids = None
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, neutralised(masked(span.error))))
        made.end(max(span.began_ns, span.ended_ns))

    def _context_of(self, ids: SpanIds) -> SpanContext:
        """The context of a span that this or another program records. Samplers decide by the id of a trace, so all agree."""
        sampled = self._samples(ids.trace) if ids.sampled is None else ids.sampled
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(ids.trace, ids.span, is_remote=True, trace_flags=flags)

    def _samples(self, trace: int) -> bool:
        return self._provider.sampler.should_sample(None, trace, "").decision is not Decision.DROP

    def new_ids(self, parent: SpanIds | None) -> SpanIds:
        made = new_ids(parent)
        return replace(made, sampled=self._samples(made.trace)) if made.sampled is None else made

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)
        if ending.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
