"""Tracing of this program: on inside a block, where the settings name a collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from farm.errors import TracingMissing
from farm.settings import Settings
from farm.tracing.recorder import Recorder

_OFF = Recorder()
_now: Recorder = _OFF


def tracing() -> Recorder:
    """What takes the spans of this program."""
    return _now


@contextmanager
def running(settings: Settings, program: str) -> Iterator[Recorder]:
    """Exports spans of this program inside the block, and what is left within a short time at its end.

    Without a collector in the settings, it does nothing. Raises `TracingMissing` where the extra is not installed.
    """
    if settings.trace_endpoint is None:
        yield _now
        return
    try:
        from farm.tracing.exporting import Exporting
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise TracingMissing from None
    with taking(Exporting(settings.trace_endpoint, program)) as recorder:
        yield recorder


R = TypeVar("R", bound=Recorder)


@contextmanager
def taking(recorder: R) -> Iterator[R]:
    """Hands the spans of this program to `recorder` inside the block, and closes it."""
    global _now  # noqa: PLW0603 - one for the program, as its logging
    before, _now = _now, recorder
    try:
        yield recorder
    finally:
        _now = before
        recorder.close()
