"""Saying, while something takes its time, that whoever does it lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from farm.errors import FarmError, first_line

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Between two heartbeats of a trainer or a builder."""


@contextmanager
def heard_of(beat: Callable[[], None], *, every_s: float | None = None, **ids: int) -> Iterator[None]:
    """Inside the block, a thread calls `beat` every few seconds, until it raises an error of the farm's: all is lost then."""
    over, pause_s = threading.Event(), BEAT_SECONDS if every_s is None else every_s

    def beat_on() -> None:
        while not over.wait(pause_s):
            try:
                beat()
            except FarmError as error:
                log.warning("%s", error, extra=ids)
                return
            except DBAPIError as error:
                log.warning("the database did not take a heartbeat: %s", first_line(error))

    threading.Thread(target=beat_on, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        over.set()
