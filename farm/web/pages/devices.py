"""Devices and hosts: what each does now, and taking it out of work and back."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import Response

from farm.api import devices
from farm.api.devices import Which
from farm.db.progress import Presence
from farm.errors import BadInput
from farm.web.pages.deletions import import_page
from farm.web.pages.rendering import Visiting, linked

router = APIRouter()

_ACTIONS = {
    "drain": (devices.drain, "drained"),
    "quarantine": (devices.quarantine, "quarantined"),
    "resume": (devices.resume, "taken-back"),
}


@router.get("/devices", name="devices")
def list_(visit: Visiting, host: Annotated[str, Query()] = "", type: Annotated[str, Query()] = "") -> Response:  # noqa: A002
    found = visit.ask(devices.list_, host=host or None, type=type or None)
    # What was measured elsewhere has no worker to look after.
    found.sort(key=lambda device: (device.presence is Presence.IMPORTED, device.host))
    by_host = {name: list(those) for name, those in groupby(found, key=lambda device: device.host)}
    return visit.show(
        "devices.html",
        hosts=by_host,
        asked={"host": host, "type": type},
        counted=visit.ask(devices.counts),
        here=linked("/devices", {"host": host, "type": type}),
        import_page=import_page,
    )


@router.post("/devices")
def set_(
    visit: Visiting,
    which: Annotated[str, Form()],
    to: Annotated[str, Form()],
    reason: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    if to not in _ACTIONS:
        raise BadInput(detail=f"Unknown action {to!r}. Actions: drain, quarantine or resume.")
    if to == "quarantine" and not reason.strip():
        raise BadInput(detail="Give a reason for the quarantine.")
    operation, message = _ACTIONS[to]
    done = visit.ask(operation, Which(which=[which], reason=reason.strip() or None))
    changed = sum(one.changed for one in done)
    return visit.go("/devices", message if changed else "unchanged", changed)
