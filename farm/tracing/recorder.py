"""What takes spans: nothing while tracing is off, a list for another program, or an exporter (`farm.tracing.exporting`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from farm.tracing.ids import SpanIds, new_ids
from farm.tracing.span import ActiveSpan, Kind, Span, Value

_current: ContextVar[SpanIds | None] = ContextVar("current_span", default=None)


def current() -> SpanIds | None:
    """The span around this code; None outside of spans, and while tracing is off."""
    return _current.get()


@contextmanager
def inside(ids: SpanIds) -> Iterator[None]:
    """Runs the block inside a span of another program."""
    token = _current.set(ids)
    try:
        yield
    finally:
        _current.reset(token)


class Recorder:
    """Takes spans. This class discards them, for tracing that is off."""

    on = False

    def record(self, span: Span) -> None:
        """Takes a span that has ended. Does not wait, and does not raise."""

    @contextmanager
    def span(
        self, name: str, *, parent: SpanIds | None = None, kind: Kind = Kind.INTERNAL, **attributes: Value
    ) -> Iterator[ActiveSpan | None]:
        """Records the block as a span of the trace of `parent`, or else of the span around it. None: tracing is off."""
        if not self.on:
            yield None
            return
        parent = parent or current()
        with self._block(
            Span(
                name=name,
                ids=self.new_ids(parent),
                parent=parent,
                kind=kind,
                began_ns=time.time_ns(),
                ended_ns=0,
                attributes=attributes,
            )
        ) as active:
            yield active

    @contextmanager
    def first_span(
        self, name: str, ids: SpanIds, *, began_ns: int, kind: Kind = Kind.INTERNAL, **attributes: Value
    ) -> Iterator[ActiveSpan | None]:
        """Records what began before the block, and ends with it, as a span without a parent."""
        if not self.on:
            yield None
            return
        with self._block(
            Span(name=name, ids=ids, kind=kind, began_ns=began_ns, ended_ns=0, attributes=attributes)
        ) as active:
            yield active

    @contextmanager
    def _block(self, begun: Span) -> Iterator[ActiveSpan]:
        active = ActiveSpan(begun.name, begun.ids, dict(begun.attributes))
        token = _current.set(active.ids)
        try:
            yield active
        except BaseException as error:
            active.error = active.error or type(error).__name__
            raise
        finally:
            _current.reset(token)
            self.record(
                replace(
                    begun, name=active.name, ended_ns=time.time_ns(), attributes=active.attributes,
                    links=tuple(active.links), error=active.error,
                )
            )  # fmt: skip

    def new_ids(self, parent: SpanIds | None) -> SpanIds:
        """Ids as `farm.tracing.new_ids`. An exporter decides whether a new trace is sampled."""
        return new_ids(parent)

    def close(self) -> None:
        """Exports what was taken, within a short time."""


class Collected(Recorder):
    """Keeps spans for the program that this one works for."""

    on = True

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spans: list[Span] = []

    def record(self, span: Span) -> None:
        if len(self._spans) < self._limit:
            self._spans.append(span)

    def take(self) -> list[Span]:
        """The spans since the last call."""
        taken, self._spans = self._spans, []
        return taken
