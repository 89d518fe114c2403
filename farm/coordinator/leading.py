"""Leading: a term that is renewed, transactions that are fenced by it, and stepping down in time.

The term is a row in the database (`farm.db.leadership`). While a coordinator leads, two threads look after it. One renews
the term. The other knows, by this process's own clock, until when the term lasts at least; where it was not renewed in time,
it shuts the sockets of the database connections. So no turn waits for an answer that never comes, as from a database whose
link was cut without a word.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from farm.coordinator.metrics import Watch
from farm.db import leadership as rows
from farm.db.engine import LEADING, PROMPT, make_engine
from farm.errors import NotLeading, first_line

log = logging.getLogger(__name__)

TERM_SECONDS = 10.0
"""How long a term lasts that is not renewed."""

RENEW_SECONDS = 3.0
"""Between two renewals of a term. After one that failed it is tried again sooner."""

CHECK_SECONDS = 0.5
"""Between two looks of a coordinator that waits to lead."""


class Lead:
    """A term of this coordinator.

    Transactions of its `engine` that wrote something are committed only while the term goes on; else they raise
    `NotLeading` and write nothing.
    """

    def __init__(self, engine: Engine, own: Engine, term: rows.Term, until_s: float, watch: Watch) -> None:
        """`own` is the engine for the term's row alone; `until_s` is when the term ends, by the monotonic clock."""
        self.term = term
        self.engine = engine.execution_options()  # shares the pool, and has events of its own
        self._own, self._until_s, self._watch = own, until_s, watch
        self._over = threading.Event()
        self._sockets = _Sockets((engine, own))
        event.listen(self.engine, "begin", self._on_begin)
        event.listen(self.engine, "commit", self._on_commit)
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("renew the term", self._renew), ("watch the term", self._watch_over))
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raises `NotLeading` where the term is over, as far as this process can know without asking."""
        if self._over.is_set() or time.monotonic() >= self._until_s:
            raise self._step_down()

    def end(self) -> None:
        """Ends the term, so that another coordinator leads at once. Nothing where it is over."""
        lost = self._over.is_set()
        self._over.set()
        self._watch.lead(None)
        for thread in self._threads:
            thread.join(RENEW_SECONDS)
        if not lost:
            with suppress(DBAPIError), answered_within(RENEW_SECONDS, self._own), self._own.begin() as connection:
                rows.end(connection, self.term)  # else it expires
        self._sockets.shut()
        for thread in self._threads:
            thread.join()
        self._sockets.close()
        self.engine.dispose()

    def _on_begin(self, _: Connection) -> None:
        self.check()

    def _on_commit(self, connection: Connection) -> None:
        if not rows.may_commit(connection, self.term):
            raise self._step_down()

    def _renew(self) -> None:
        pause_s = RENEW_SECONDS
        while not self._over.wait(pause_s):
            asked_s = time.monotonic()
            try:
                with self._own.begin() as connection:
                    goes_on = rows.renew(connection, self.term, seconds=TERM_SECONDS, failing=self._failing())
            except DBAPIError as error:
                log.warning("the term could not be renewed: %s", first_line(error.orig))
                pause_s = RENEW_SECONDS / 3
                continue
            if not goes_on:
                self._lose()
                return
            self._until_s, pause_s = asked_s + TERM_SECONDS, RENEW_SECONDS

    def _failing(self) -> list[rows.FailingStep]:
        failing = self._watch.failing().items()
        return [rows.FailingStep(step=step, error=error, for_s=for_s) for step, (error, for_s) in failing]

    def _watch_over(self) -> None:
        while not self._over.wait(max(0.0, self._until_s - time.monotonic())):
            if time.monotonic() >= self._until_s:
                self._lose()

    def _step_down(self) -> NotLeading:
        over = NotLeading(term=self.term.number)
        if not self._over.is_set():
            self._over.set()
            self._watch.lead(None)
            log.warning("%s", over)
        return over

    def _lose(self) -> None:
        self._step_down()
        self._sockets.shut()


class _Sockets:
    """The sockets of the connections that are in use, to be shut by another thread than the one that waits for them."""

    def __init__(self, engines: tuple[Engine, ...]) -> None:
        self._engines = engines
        self._lock = threading.RLock()  # a connection that is collected as garbage is checked in by whichever thread
        self._open: dict[int, socket.socket] = {}
        self._shut = False
        for engine in engines:
            event.listen(engine, "checkout", self._on_checkout)
            event.listen(engine, "checkin", self._on_checkin)

    def shut(self) -> None:
        """Ends every wait for an answer with an error, now and for each connection that is used later."""
        with self._lock:
            self._shut = True
            for one in self._open.values():
                _shut(one)

    def close(self) -> None:
        """Looks after no connection any more."""
        for engine in self._engines:
            event.remove(engine, "checkout", self._on_checkout)
            event.remove(engine, "checkin", self._on_checkin)
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _on_checkout(self, connection: Any, record: Any, _: Any) -> None:
        try:
            # A descriptor of our own: theirs may be closed and be another file's by the time that it is shut.
            mine = socket.socket(fileno=os.dup(connection.fileno()))
        except psycopg.Error:
            return  # it is broken already
        with self._lock:
            self._open[id(record)] = mine
            if self._shut:
                _shut(mine)

    def _on_checkin(self, _: Any, record: Any) -> None:
        with self._lock:
            mine = self._open.pop(id(record), None)
        if mine is not None:
            mine.close()


def _shut(one: socket.socket) -> None:
    with suppress(OSError):  # it is no longer connected
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def answered_within(seconds: float, engine: Engine) -> Iterator[None]:
    """Inside the block, what waits longer than that for the database gets an error."""
    sockets = _Sockets((engine,))
    timer = threading.Timer(seconds, sockets.shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sockets.close()


@contextmanager
def leadership(engine: Engine, stop: threading.Event, watch: Watch | None = None) -> Iterator[Lead | None]:
    """Waits until this process leads, for as long as the block runs. Yields None where `stop` came first.

    `watch` is told when it leads and when no longer. Raises `DBAPIError` where the database does not answer.
    """
    url = engine.url.render_as_string(hide_password=False)
    own = make_engine(
        url, application="farm coordinator term", pool_size=1, session=LEADING, client=PROMPT, pre_ping=False
    )
    try:
        lead = _wait_to_lead(engine, own, stop, watch or Watch())
        try:
            yield lead
        finally:
            if lead is not None:
                lead.end()
    finally:
        own.dispose()


def _wait_to_lead(engine: Engine, own: Engine, stop: threading.Event, watch: Watch) -> Lead | None:
    waited = False
    while not stop.is_set():
        asked_s = time.monotonic()
        with answered_within(TERM_SECONDS, own), own.begin() as connection:
            term = rows.take(connection, host=socket.gethostname(), pid=os.getpid(), seconds=TERM_SECONDS)
            other = rows.read(connection) if term is None and not waited else None
        if term is not None:
            log.info("this coordinator leads now, in term %d", term.number)
            watch.lead(term.number)
            return Lead(engine, own, term, asked_s + TERM_SECONDS, watch)
        if other is not None:
            log.info("another coordinator leads (%s, process %s); waiting to take over", other.host, other.pid)
        waited = True
        stop.wait(CHECK_SECONDS)
    return None
