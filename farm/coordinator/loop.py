"""The coordinator's turns: form, send, repair, finish; one leader at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from farm.coordinator.dispatch import form_batches, send_batches
from farm.db import batches, campaigns
from farm.settings import Settings

log = logging.getLogger(__name__)

LEADER_LOCK = 0x6765_6D6D_6661_726D  # "gemmfarm": the key of the advisory lock that the leading coordinator holds
IDLE_SECONDS = 0.5
BUSY_SECONDS = 0.05


def turn(engine: Engine, app: Celery, settings: Settings) -> int:
    """One turn. Each step is a transaction of its own, so a crash between two leaves what the next turn repairs.

    Returns the number of batches that were formed.
    """
    with engine.begin() as connection:
        reaped = batches.reap(connection)
    if reaped:
        log.warning("leases passed without being renewed: batches %s were taken back", reaped)
    with engine.begin() as connection:
        formed = form_batches(connection, settings)
    send_batches(engine, app, settings)
    with engine.begin() as connection:
        for campaign_id in campaigns.finish(connection):
            log.info("campaign finished", extra={"campaign_id": campaign_id})
    return formed


@contextmanager
def leadership(engine: Engine, stop: threading.Event) -> Iterator[bool]:
    """Waits until this process leads, for as long as the block runs. Yields False where `stop` came first.

    The lock belongs to a database session: when this process or its connection dies, another takes over.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        waited = False
        while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LEADER_LOCK}).scalar_one():
            if not waited:
                log.info("another coordinator leads; waiting to take over")
            waited = True
            if stop.wait(1.0):
                yield False
                return
        try:
            yield True
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LEADER_LOCK})


def run(engine: Engine, app: Celery, settings: Settings, stop: threading.Event) -> None:
    """Leads until `stop`. A database that goes away is waited for."""
    while not stop.is_set():
        try:
            with leadership(engine, stop) as leads:
                while leads and not stop.is_set():
                    formed = turn(engine, app, settings)
                    stop.wait(BUSY_SECONDS if formed else IDLE_SECONDS / 2)
        except DBAPIError as error:
            log.warning("the database does not answer (%s); trying again", str(error.orig).strip().splitlines()[0])
            stop.wait(1.0)
