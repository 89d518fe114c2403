"""Spans of `farm measure`: the command, and in it the times in which the device is opened and measures.

They are recorded when the measuring process has ended, so that nothing is exported while the device measures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from farm.kernels import Configuration
from farm.kernels.span_attributes import attributes_of
from farm.settings import settings
from farm.tracing import ActiveSpan, Kind, Span, new_ids, running, tracing
from farm.tracing.span import MAX_ERROR_CHARACTERS, PREFIX


class MeasurementSpans:
    """Times of one measuring process, from now on."""

    def __init__(self, span: ActiveSpan | None) -> None:
        self._span = span
        self._steps = [("open device", time.time_ns())]

    def opened(self, device: Mapping[str, str]) -> None:
        """The device is open, and measures from now on."""
        self._steps.append(("measure configuration", time.time_ns()))
        if self._span is not None:
            self._span.attributes |= {f"{PREFIX}device.{name}": device[name] for name in ("uuid", "type", "name")}

    def ended(self, answer: Mapping[str, Any]) -> None:
        """Records the steps. `answer` is the last message of the process, see `workers.single`."""
        if self._span is None:
            return
        ends = [began for _, began in self._steps[1:]] + [time.time_ns()]
        if "failure" in answer:
            failure = answer["failure"]
            self._span.error = f"{failure['kind']}: {failure['message']}"[:MAX_ERROR_CHARACTERS]
        elif "refused" in answer:
            self._span.error = "refused"
        last = len(self._steps) - 1
        for step, ((name, began_ns), ended_ns) in enumerate(zip(self._steps, ends, strict=True)):
            error = self._span.error if step == last else None
            tracing().record(
                Span(
                    name=name, ids=new_ids(self._span.ids), parent=self._span.ids, began_ns=began_ns, ended_ns=ended_ns,
                    attributes=dict(self._span.attributes), error=error,
                )
            )  # fmt: skip


@contextmanager
def traced(configuration: Configuration) -> Iterator[MeasurementSpans]:
    """Records the block as the measurement of a configuration, where the settings name a collector. Raises `TracingMissing`."""
    with running(settings(), "cli"), tracing().span("farm measure", kind=Kind.CLIENT) as span:
        if span is not None:
            span.attributes |= attributes_of(configuration)
        yield MeasurementSpans(span)
