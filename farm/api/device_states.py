"""Which devices are meant, by UUID or host, and setting their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Cli, Document
from farm.coordinator.estimates import presence_text
from farm.db import devices, liveness
from farm.db.liveness import DeviceNow, Presence
from farm.db.states import DeviceState
from farm.errors import AmbiguousDevice, UnknownDevice, UnknownHost
from farm.formatting import some_of

HOST = "host:"
"""How all devices of a host are named."""


class Which(Document):
    """Devices: UUIDs, unique beginnings of UUIDs, or host:NAME."""

    which: Annotated[list[str], Cli(argument=True)] = Field(
        min_length=1,
        max_length=1000,
        examples=[["host:here"]],
        description="A device's UUID, a unique beginning of it, or host:NAME.",
    )
    reason: Annotated[str | None, Cli(("--reason", "-r"))] = Field(
        default=None, max_length=500, description="Why; shown with the device."
    )


class DeviceSet(Document):
    """A device after its state was set."""

    uuid: str
    host: str
    before: DeviceState
    state: DeviceState
    reason: str | None
    changed: bool
    batch_id: int | None = Field(description="the batch that it holds")
    presence: Presence
    presence_text: str


def set_state(
    access: Access, operation: Callable[[Access, Which], list[DeviceSet]], asked: Which, state: DeviceState
) -> list[DeviceSet]:
    """Sets the state of all chosen devices or, if one is unknown or ambiguous, of none."""
    with access.change(operation) as change:
        chosen = select(liveness.devices(change.connection, silent_after=access.silent_after), asked.which)
        done = [_set_one(change.connection, device, state, asked.reason, who=access.who) for device in chosen]
        for device, after in zip(chosen, done, strict=True):
            change.record(
                "device", f"{device.uuid} on {device.host}", key=device.uuid,
                before={"state": device.state, "reason": device.reason},
                after={"state": after.state, "reason": after.reason},
            )  # fmt: skip
    return done


def _set_one(connection: Any, device: DeviceNow, state: DeviceState, reason: str | None, *, who: str) -> DeviceSet:
    if device.state is state and reason is None:
        why, changed = device.reason, False
    else:
        signed = f"by {who}" if reason is None else f"{reason} (by {who})"
        why = None if state is DeviceState.ACTIVE else signed
        changed = devices.set_state(connection, device.device_id, state, why)
    return DeviceSet(
        uuid=device.uuid,
        host=device.host,
        before=device.state,
        state=state,
        reason=why,
        changed=changed,
        batch_id=device.batch_id,
        presence=device.presence,
        presence_text=presence_text(device),
    )


def select(known: Sequence[DeviceNow], which: Sequence[str]) -> list[DeviceNow]:
    """The named devices, each once, in the order of their names.

    Raises `UnknownDevice`, `UnknownHost`, `AmbiguousDevice`.
    """
    chosen = {device.uuid: device for name in which for device in _named(known, name)}
    return list(chosen.values())


def _named(known: Sequence[DeviceNow], name: str) -> list[DeviceNow]:
    if name.startswith(HOST):
        found = [device for device in known if device.host == name.removeprefix(HOST)]
        if not found:
            hosts = some_of(sorted({device.host for device in known})) or "none yet"
            raise UnknownHost(host=name.removeprefix(HOST), known=hosts)
        return found
    exact = [device for device in known if device.uuid == name]
    found = exact or [device for device in known if name and device.uuid.lower().startswith(name.lower())]
    if not found:
        raise UnknownDevice(which=name, known=some_of([device.uuid for device in known]) or "none yet")
    if len(found) > 1:
        raise AmbiguousDevice(which=name, candidates=some_of([f"{d.uuid} on {d.host}" for d in found]))
    return found
