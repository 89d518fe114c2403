"""Quarantines devices that fail jobs that others measure, and sends trials to devices on probation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from farm.broker.queues import TRY_DEVICE, queue_of_device
from farm.coordinator.sending import send
from farm.coordinator.steps import OneByOne
from farm.db import devices, probation
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
    some = OneByOne()
    for device_id, jobs, message in found:
        reason = f"{jobs} jobs failed here that other devices then measured; the last: {message}"
        with some.each():
            with engine.begin() as connection:
                devices.set_state(connection, device_id, DeviceState.QUARANTINED, reason)
            log.error("a device is quarantined: %s", reason, extra={"device_id": device_id})
    some.end()
    return [device_id for device_id, _, _ in found]


def send_trials(engine: Engine, app: Celery, settings: Settings) -> int:
    """Sends due trials to devices on probation. Returns their number."""
    with engine.connect() as connection:
        due = probation.due(connection, silent_after=settings.silent_after_seconds)
    sent = send(app, TRY_DEVICE, [(device_id, queue_of_device(uuid)) for device_id, uuid in due])
    if sent:
        with engine.begin() as connection:
            probation.sent(connection, sent, resend_after=settings.resend_after_seconds)
    return len(sent)
