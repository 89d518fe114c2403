"""Finding devices that fail where others do not."""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from farm.coordinator.steps import OneByOne
from farm.db import devices
from farm.db.states import DeviceState
from farm.settings import Settings

log = logging.getLogger(__name__)

REFUTED_SHARE = 0.1
"""A device is bad only where at least this share of what it was asked for failed and was then measured elsewhere."""


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
