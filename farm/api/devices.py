"""Devices and hosts: list, drain, quarantine, resume."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from farm.api.access import Access
from farm.api.device_states import DeviceSet, Which, set_state
from farm.api.operation import Cli, Document, operation
from farm.coordinator.estimates import condition, skew_text
from farm.db import device_sessions, devices, duty, liveness
from farm.db.liveness import DeviceTally, Presence
from farm.db.states import DeviceState, FailureKind, Role

MAX_ROWS = 100_000
MAX_OFFSET = 10**9


class DeviceLine(Document):
    """A device: identity, last heartbeat and current work. Ages are in seconds."""

    device_id: int
    uuid: str
    type: str
    name: str
    backend: str
    host: str
    state: DeviceState
    state_reason: str | None
    state_changed_at: datetime
    state_s: float
    presence: Presence
    condition: str = Field(description="why it takes no work, as text; or live")
    last_seen_at: datetime | None
    silent_s: float | None
    vanished_at: datetime | None
    vanished_s: float | None
    live: bool | None
    traits: dict[str, Any]
    facts: dict[str, Any]
    worker_version: str | None = Field(description="of gemm-farm, as its worker announced it")
    worker_revision: str | None = Field(description="the newest database revision that its worker knows")
    measurements: int
    batch_id: int | None
    batch_jobs: int | None
    job_id: int | None
    campaign: str | None
    busy_s: float | None
    duty_lately: float | None = Field(description="share of the last ten minutes inside measurements, without breaks")
    errors_last_hour: dict[FailureKind, int]
    sm_clock_mhz: int | None = Field(default=None, description="in its newest row")
    temperature_c: float | None = Field(default=None, description="at the end of its newest row")
    power_limit_w: float | None = Field(default=None, description="in its newest row")
    power_limited: bool | None = Field(
        default=None, description="whether the power limiter made the GEMM of its newest row slower"
    )
    measured_at: datetime | None = Field(default=None, description="when its newest row landed")


class Counted(Document):
    """Numbers of devices. Devices that take work are busy or idle."""

    announced: int = Field(description="devices that a worker ever announced")
    live: int
    busy: int
    idle: int
    silent: int
    probation: int
    drained: int
    quarantined: int


class Versions(Document):
    """Versions of the farm that workers run."""

    skew: str | None = Field(description="which hosts run which version, where live workers run more than one")


class ContendedDevice(Document):
    """A device that two farm-workers tried to serve lately, or on which two measured at the same time."""

    device_id: int
    uuid: str
    host: str
    session_host: str | None = Field(description="of the farm-worker that serves it")
    session_pid: int | None
    session_began_at: datetime | None
    contended_at: datetime | None = Field(
        description="when another farm-worker was refused last, in the last 10 minutes"
    )
    contended_by: str | None = Field(description="the refused farm-worker")
    overlapped_rows: int = Field(description="rows that two measured at the same time; they do not count as results")
    text: str = Field(description="the problem, as text")


class ExcludedDevice(Document):
    """A device on probation or in quarantine: it gets no jobs."""

    device_id: int
    uuid: str
    type: str
    host: str
    state: DeviceState
    reason: str | None
    state_s: float = Field(description="seconds in this state")
    presence: Presence
    text: str = Field(description="why it takes no work, as text")


class Names(Document):
    """Names of all devices that were ever announced or imported."""

    types: list[str]
    hosts: list[str]
    uuids: list[str]


@operation("GET", "/devices")
def list_(
    access: Access,
    *,
    host: Annotated[str | None, Field(description="Only devices of this host.")] = None,
    type: Annotated[str | None, Field(description="Only devices of this type."), Cli(("--type", "-t"))] = None,  # noqa: A002
    limit: Annotated[int | None, Field(ge=1, le=MAX_ROWS, description="At most so many devices; all without.")] = None,
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET, description="Leave out so many devices at the beginning.")] = 0,
) -> list[DeviceLine]:
    """Devices and hosts: state, what each does now, errors of the last hour by class, and its last heartbeat.

    Silent devices come first, and imported ones last.
    """
    with access.connect() as connection:
        known = liveness.page(
            connection, silent_after=access.silent_after, host=host, type_=type, limit=limit, offset=offset
        )
        ids = [d.device_id for d in known]
        rows = {
            row["device_id"]: row for row in devices.overview(connection, silent_after=access.silent_after, ids=ids)
        }
        errors = liveness.device_errors(connection, ids)
        duties = duty.recent(connection)
        newest = devices.newest_rows(connection, ids)
    return [
        DeviceLine(
            **rows[d.device_id],
            presence=d.presence,
            condition=condition(d),
            state_s=d.state_s,
            vanished_s=d.vanished_s,
            duty_lately=duties[d.device_id].share if d.device_id in duties else None,
            errors_last_hour={kind: errors.get(d.device_id, {}).get(kind, 0) for kind in FailureKind},
            **newest.get(d.device_id, {}),
        )
        for d in known
        if d.device_id in rows
    ]


@operation("GET", "/devices/counts")
def counts(access: Access) -> Counted:
    """Count devices by state: busy, idle, silent, on probation, drained, quarantined."""
    with access.connect() as connection:
        tallies = liveness.device_tallies(connection, silent_after=access.silent_after)

    def number(counts: Callable[[DeviceTally], bool]) -> int:
        # Imported devices have no worker.
        return sum(one.devices for one in tallies if one.presence is not Presence.IMPORTED and counts(one))

    return Counted(
        announced=number(lambda _: True),
        live=number(lambda one: one.presence is Presence.LIVE),
        busy=number(lambda one: one.takes_work and one.busy),
        idle=number(lambda one: one.takes_work and not one.busy),
        silent=number(lambda one: one.presence is Presence.SILENT),
        probation=number(lambda one: one.state is DeviceState.PROBATION),
        drained=number(lambda one: one.state is DeviceState.DRAINED),
        quarantined=number(lambda one: one.state is DeviceState.QUARANTINED),
    )


@operation("GET", "/devices/versions")
def versions(access: Access) -> Versions:
    """Whether live workers run different versions of the farm, and which hosts run which."""
    with access.connect() as connection:
        return Versions(skew=skew_text(liveness.devices(connection, silent_after=access.silent_after)))


@operation("GET", "/devices/contended")
def contended(access: Access) -> list[ContendedDevice]:
    """Devices that two farm-workers tried to serve lately, or on which two measured at the same time."""
    with access.connect() as connection:
        found = device_sessions.contended(connection)
    return [ContendedDevice.model_validate(one) for one in found]


@operation("GET", "/devices/excluded")
def excluded(access: Access) -> list[ExcludedDevice]:
    """Devices on probation or in quarantine, and why; those whose state changed last come first."""
    with access.connect() as connection:
        known = liveness.devices(connection, silent_after=access.silent_after)
    out = [
        device
        for device in known
        if device.state in (DeviceState.PROBATION, DeviceState.QUARANTINED) and device.presence is not Presence.GONE
    ]
    of_device = ExcludedDevice.model_fields.keys() - {"text"}
    return [
        ExcludedDevice(text=condition(device), **{name: getattr(device, name) for name in of_device})
        for device in sorted(out, key=lambda device: device.state_s)
    ]


@operation("GET", "/devices/names")
def names(access: Access) -> Names:
    """Types, hosts and UUIDs of devices."""
    with access.connect() as connection:
        known = liveness.devices(connection, silent_after=access.silent_after)
    return Names(
        types=sorted({device.type for device in known}),
        hosts=sorted({device.host for device in known}),
        uuids=[device.uuid for device in known],
    )


@operation("POST", "/devices/drain", role=Role.OPERATE)
def drain(access: Access, chosen: Which) -> list[DeviceSet]:
    """Give devices no new work until they are resumed. They finish their batches."""
    return set_state(access, drain, chosen, DeviceState.DRAINED)


@operation("POST", "/devices/quarantine", role=Role.OPERATE)
def quarantine(access: Access, chosen: Which) -> list[DeviceSet]:
    """Stop using devices until they are resumed. They finish their current job; other devices get the rest."""
    return set_state(access, quarantine, chosen, DeviceState.QUARANTINED)


@operation("POST", "/devices/resume", role=Role.OPERATE)
def resume(access: Access, chosen: Which) -> list[DeviceSet]:
    """Let devices take work again."""
    return set_state(access, resume, chosen, DeviceState.ACTIVE)
