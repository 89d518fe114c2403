"""Distributed tracing: spans of what a program did, for a collector that speaks OpenTelemetry's protocol (OTLP).

Tracing is off unless a setting names a collector. Then nothing is recorded, and OpenTelemetry is not imported.

Spans are made when they have ended, of times that are known anyway. The trace of a campaign, of each of its batches, of a training and of
a kernel has an id that follows from the farm and the id in the database (`farm.tracing.ids`): programs agree on it without sending it to each other.
"""

from farm.tracing.ids import (
    SpanIds,
    ids_of_batch,
    ids_of_campaign,
    ids_of_kernel,
    ids_of_training,
    new_ids,
    of_traceparent,
    traceparent,
)
from farm.tracing.program import running, taking, tracing
from farm.tracing.recorder import Collected, Recorder, current, inside
from farm.tracing.span import ActiveSpan, Kind, Span

__all__ = [
    "ActiveSpan",
    "Collected",
    "Kind",
    "Recorder",
    "Span",
    "SpanIds",
    "current",
    "ids_of_batch",
    "ids_of_campaign",
    "ids_of_kernel",
    "ids_of_training",
    "inside",
    "new_ids",
    "of_traceparent",
    "running",
    "taking",
    "traceparent",
    "tracing",
]
