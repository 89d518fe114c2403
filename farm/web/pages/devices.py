"""Devices and hosts: what each does now, and taking it out of work and back."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.datastructures import FormData

from farm.api import devices
from farm.db.liveness import Presence
from farm.errors import BadInput
from farm.web.pages.deletions import import_page
from farm.web.pages.forms import Form, Posted
from farm.web.pages.rendering import Visiting, linked

router = APIRouter()

_ACTIONS = {
    "drain": (devices.drain, "drained"),
    "quarantine": (devices.quarantine, "quarantined"),
    "resume": (devices.resume, "taken-back"),
}


PAGE = 500


@router.get("/devices", name="devices")
def list_(visit: Visiting, page: Annotated[int, Query(ge=1, le=devices.MAX_OFFSET // PAGE)] = 1) -> Response:
    form = Form(devices.list_, visit.request.query_params, fields=("host", "type"))
    found = visit.ask_shared(devices.list_, **form.arguments(devices.list_, limit=PAGE + 1, offset=PAGE * (page - 1)))
    shown = found[:PAGE]
    # What was measured elsewhere has no worker to look after.
    shown.sort(key=lambda device: (device.presence is Presence.IMPORTED, device.host))
    by_host = {name: list(those) for name, those in groupby(shown, key=lambda device: device.host)}
    return visit.show(
        "devices.html",
        hosts=by_host,
        asked=form.values,
        change=Form(devices.drain, FormData(), fields=("reason",)),
        counted=visit.ask_shared(devices.counts),
        first=linked("/devices", form.values) if page > 1 else None,
        following=linked("/devices", {**form.values, "page": page + 1}) if len(found) > PAGE else None,
        here=linked("/devices", {**form.values, "page": page if page > 1 else None}),
        import_page=import_page,
    )


@router.post("/devices")
def set_(visit: Visiting, posted: Posted) -> Response:
    form, to = Form(devices.drain, posted), posted.get("to")
    if to not in _ACTIONS:
        raise BadInput(detail=f"Unknown action {to!r}. Actions: drain, quarantine or resume.")
    if to == "quarantine" and "reason" not in form.values:
        raise BadInput(detail="Give a reason for the quarantine.")
    operation, message = _ACTIONS[to]
    done = visit.ask(operation, **form.arguments(operation))
    changed = sum(one.changed for one in done)
    return visit.go("/devices", message if changed else "unchanged", changed)
