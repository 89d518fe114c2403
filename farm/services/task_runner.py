"""What a program does with an errand, a training or a kernel: takes it, says that it lives, and writes down what came of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from farm.errors import ErrandLost, FarmError, first_line

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Between two heartbeats of a trainer or a builder."""

S = TypeVar("S")
R = TypeVar("R")


def carry_out(
    errand_id: object,
    what: str,
    *,
    start: Callable[[int], S | None],
    beat: Callable[[S], bool],
    attempt: Callable[[S], R],
    write_down: Callable[[S, R], bool],
) -> None:
    """Carries out the errand of that id, unless another program has it. `what` is a word for it, as in `training`.

    `beat` and `write_down` return whether the errand is still this program's. Where it is not, or the database goes away,
    or the process does, nothing is written, and the errand is taken back and started again.
    """
    if type(errand_id) is not int:
        log.error("a message without a %s id was ignored", what)
        return
    ids = {f"{what}_id": errand_id}

    def held(whether: bool) -> None:
        if not whether:
            raise ErrandLost(what=what, number=errand_id)

    try:
        started = start(errand_id)
        if started is None:
            return
        with heard_of(lambda: held(beat(started)), **ids):
            result = attempt(started)
        held(write_down(started, result))
    except ErrandLost as error:
        log.warning("%s", error, extra=ids)
    except OperationalError as error:
        log.warning("the database does not answer (%s); the %s is given up", first_line(error), what, extra=ids)


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
