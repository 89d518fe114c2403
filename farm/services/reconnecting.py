"""Waits for Postgres and Redis at the start of long-running programs."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from farm.db import migrate
from farm.db.engine import make_engine
from farm.errors import BrokerUnreachable, DatabaseIsOlder, DatabaseUnreachable, first_line
from farm.services.backoff import BackOff
from farm.services.embedded import ServiceUrls, services
from farm.services.urls import safe_url
from farm.settings import settings

log = logging.getLogger(__name__)


def set_on_signals(stop: threading.Event, *numbers: signal.Signals) -> None:
    """Sets the event on these signals. Replaces other handlers.

    A handler interrupts the main thread. If that waits for the same event, the handler must not set it itself, because its own
    thread holds the lock of the event.
    """
    for number in numbers:
        signal.signal(number, lambda *_: _thread.start_new_thread(stop.set, ()))


@contextmanager
def connected_services(
    stop: threading.Event, *, require: Callable[[Engine], None] = migrate.require_for_service, **of_engine: Any
) -> Iterator[tuple[ServiceUrls, Engine] | None]:
    """The services, and an engine on the database with those options; None where `stop` was set before they answered.

    A database that is not upgraded yet is waited for too. `require` says whether this program can work with its revision.
    Raises what `services` raises for servers that do not belong to others, and `DatabaseIsNewer`.
    """
    back_off = BackOff()
    with ExitStack() as held:
        reached = None
        while reached is None and not stop.is_set():
            back_off.started(time.monotonic())
            try:
                reached = _reach(held, require, of_engine)
            except DatabaseIsOlder as error:
                back_off.ended(time.monotonic())
                log.warning("waiting for the upgrade: %s Next attempt in %g s", error, back_off.pause_s)
                stop.wait(back_off.pause_s)
            except (DatabaseUnreachable, BrokerUnreachable, OperationalError) as error:
                back_off.ended(time.monotonic())
                log.warning("waiting for %s; next attempt in %g s", _what_is_away(error), back_off.pause_s)
                stop.wait(back_off.pause_s)
        yield reached


def _reach(
    held: ExitStack, require: Callable[[Engine], None], of_engine: Mapping[str, Any]
) -> tuple[ServiceUrls, Engine]:
    with ExitStack() as trying:
        urls = trying.enter_context(services(settings(), broker=True))
        engine = make_engine(urls.database_url, **of_engine)
        trying.callback(engine.dispose)
        require(engine)
        held.enter_context(trying.pop_all())
    return urls, engine


def _what_is_away(error: DatabaseUnreachable | BrokerUnreachable | OperationalError) -> str:
    """As in `the broker at redis://:***@host:6379/0: Connection refused`."""
    if isinstance(error, OperationalError):
        return f"the database: {first_line(error.orig)}"
    what = "database" if isinstance(error, DatabaseUnreachable) else "broker"
    return f"the {what} at {safe_url(error.fields['url'])}: {error.fields['why']}"
