"""Quarantines devices that fail jobs that others measure or that corrupt results, and sends trials to devices on probation."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine

from farm.broker.queues import TRY_DEVICE, queue_of_device
from farm.coordinator.sending import send
from farm.coordinator.steps import OneByOne
from farm.db import corrupted_results, devices, probation
from farm.db.corrupted_results import Newest
from farm.db.states import DeviceState
from farm.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

REFUTED_SHARE = 0.1
"""Minimum share of a device's jobs that failed there and were then measured elsewhere."""


def quarantine_refuted(engine: Engine, settings: Settings) -> list[int]:
    """active → quarantined, for devices that failed many different jobs which others then measured. Returns their ids."""
    with engine.connect() as connection:
        found = devices.refuted(connection, jobs=settings.quarantine_after_jobs, share=REFUTED_SHARE)
    _quarantine(
        engine,
        (
            (device_id, f"{jobs} jobs failed here that other devices then measured; the last: {message}")
            for device_id, jobs, message in found
        ),
    )
    return [device_id for device_id, _, _ in found]


MAX_SHARE = 0.02
"""Maximum share of the coordinator's time for comparisons of all digests, which take 0.6 s at a million rows."""


@dataclass
class CorruptionWatch:
    """Quarantines devices that corrupt results."""

    engine: Engine
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    _due: bool = field(default=True, init=False)
    _not_before_s: float = field(default=-math.inf, init=False)
    # At the last look and at the one before it: a row may become visible after one with a larger id.
    _newest: Newest | None = field(default=None, init=False)
    _before: Newest | None = field(default=None, init=False)

    def quarantine(self) -> list[int]:
        """active → quarantined, for devices with corrupted results of several configurations. Returns their ids.

        Corrupted results count for `corrupted_results.WINDOW`, or since the state of the device was last changed.
        """
        with self.engine.connect() as connection:
            self._look(connection)
            if not self._due or self.clock() < self._not_before_s:
                return []
            began = self.clock()
            found = corrupted_results.active_corrupting(connection)
        now = self.clock()
        self._not_before_s = now + (now - began) / MAX_SHARE
        enough = self.settings.quarantine_after_corrupted
        corrupting = {device_id: one for device_id, one in found.items() if len(one.configurations) >= enough}
        _quarantine(self.engine, ((device_id, str(one)) for device_id, one in corrupting.items()))
        self._due = False
        return list(corrupting)

    def _look(self, connection: Connection) -> None:
        """Notes whether new rows are a reason to compare all digests."""
        newest, after = corrupted_results.newest(connection), self._before or self._newest
        self._due |= after is not None and corrupted_results.news(connection, after)
        self._before, self._newest = self._newest, newest


def _quarantine(engine: Engine, reasons: Iterable[tuple[int, str]]) -> None:
    """Quarantines devices by id, each with its reason."""
    some = OneByOne()
    for device_id, reason in reasons:
        with some.each():
            with engine.begin() as connection:
                devices.set_state(connection, device_id, DeviceState.QUARANTINED, reason)
            log.error("a device is quarantined: %s", reason, extra={"device_id": device_id})
    some.end()


def send_trials(engine: Engine, app: Celery, settings: Settings) -> int:
    """Sends due trials to devices on probation. Returns their number."""
    with engine.connect() as connection:
        due = probation.due(connection, silent_after=settings.silent_after_seconds)
    sent = send(app, TRY_DEVICE, [(device_id, queue_of_device(uuid)) for device_id, uuid in due])
    if sent:
        with engine.begin() as connection:
            probation.sent(connection, sent, resend_after=settings.resend_after_seconds)
    return len(sent)
