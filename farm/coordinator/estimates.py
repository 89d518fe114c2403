"""Estimates for campaigns: throughput, remaining time, and stuck jobs with the cause as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import Connection

from farm.broker.queues import queue_of_device, queue_of_type
from farm.db import kernels, leadership, liveness, locks, obstacles, open_jobs, throughput
from farm.db.liveness import DeviceNow, Presence
from farm.db.locks import LockHolder
from farm.db.open_jobs import JobGroup, QueueNow, RefusedNow, UnsupportedNow
from farm.db.states import CampaignState, DeviceState
from farm.db.throughput import Throughput
from farm.db.worker_versions import UNANNOUNCED, WorkerVersion
from farm.formatting import seconds_text, some_of
from farm.kernels.toolchains import extras_of
from farm.settings import Settings

UNTAKEN_RESENDS = 2
"""A batch counts as not taken after this many resend intervals while a device is idle."""


UNTRAINED_SECONDS = 30.0
"""Maximum wait for the decision on a learning round before no trainer seems to run. A trainer on demand starts within 10 s."""


class Cause(StrEnum):
    """Cause of stuck jobs."""

    NO_DEVICE = "no_device"
    NO_COORDINATOR = "no_coordinator"
    NO_BUILDER = "no_builder"
    NO_TRAINER = "no_trainer"
    WORKER_VERSION = "worker_version"
    REFUSED = "refused"
    BEHIND = "behind"
    HELD = "held"
    NOT_TAKEN = "not_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Jobs of a campaign's target that cannot be measured in the present state of the farm."""

    campaign_id: int
    target: str
    jobs: int
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimate for a campaign. `seconds_left` is for open jobs that are not stuck; None if nothing ended recently or is open."""

    throughput: Throughput
    stuck: tuple[Stuck, ...] = ()
    seconds_left: float | None = None

    @property
    def stuck_jobs(self) -> int:
        return sum(s.jobs for s in self.stuck)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmState:
    """State of the farm: open jobs, devices, and whether a coordinator leads."""

    groups: Sequence[JobGroup]
    devices: Sequence[DeviceNow]
    queues: Sequence[QueueNow]
    coordinated: bool
    resend_after_s: float
    without_builder: Mapping[int, kernels.WithoutBuilder] = field(default_factory=dict)  # by job group
    refused: Sequence[RefusedNow] = ()
    holders: Sequence[LockHolder] = ()
    unsupported: Sequence[UnsupportedNow] = ()
    obstacle: str | None = None
    """What keeps every coordinator from leading; None if nothing is known."""

    @property
    def how_to_coordinate(self) -> str:
        """What to do if no coordinator leads."""
        return self.obstacle or "farm up starts one"


def read_farm_state(connection: Connection, settings: Settings, *, also: int | None = None) -> FarmState:
    """Reads the state of the farm, with the job groups of the campaign `also` in any state."""
    groups = open_jobs.groups(connection, also=also)
    devices = liveness.devices(connection, silent_after=settings.silent_after_seconds)
    holders = locks.holders(connection)
    return FarmState(
        groups=groups,
        devices=devices,
        queues=open_jobs.queues(connection),
        coordinated=leadership.read(connection).leads,
        resend_after_s=settings.resend_after_seconds,
        without_builder=kernels.without_builder(connection, silent_after=settings.silent_after_seconds),
        holders=holders,
        obstacle=obstacles.of_leading(read_only=obstacles.read_only(connection), holders=holders),
        unsupported=open_jobs.unsupported(connection),
        refused=open_jobs.refused(
            connection,
            [
                group.lane_id
                for group in groups
                if group.waiting and _some_rest([d for d in devices if group.serves(d)])
            ],
        ),
    )


def estimates(connection: Connection, farm: FarmState, campaign_ids: Iterable[int]) -> dict[int, Estimate]:
    """Estimates for campaigns, by id."""
    rates = throughput.of_campaigns(connection, campaign_ids)
    stuck = what_is_stuck(farm, of=rates.keys())
    found: dict[int, Estimate] = {}
    for campaign_id, rate in rates.items():
        mine = tuple(s for s in stuck if s.campaign_id == campaign_id)
        active = [
            group for group in farm.groups if group.campaign_id == campaign_id and group.state is CampaignState.ACTIVE
        ]
        left = sum(group.open + group.later for group in active) - sum(s.jobs for s in mine)
        found[campaign_id] = Estimate(
            throughput=rate, stuck=mine, seconds_left=rate.seconds_for(left) if left > 0 else None
        )
    return found


def _some_rest(devices: Sequence[DeviceNow]) -> bool:
    """Whether some of these take work and others do not. Jobs that the first refused may wait for the others."""
    return len({device.takes_work for device in devices}) == 2


# --- what is stuck -----------------------------------------------------------------------------------


def what_is_stuck(farm: FarmState, *, of: Collection[int] | None = None) -> list[Stuck]:
    """Stuck jobs of active campaigns, campaign by campaign; only `of` these campaigns, if given.

    Jobs of a paused campaign are not stuck. Each job group is compared with all that come before it, so pass `of` for a few campaigns.
    """
    found: list[Stuck] = []
    by_campaign: dict[int, list[JobGroup]] = {}
    for group in farm.groups:
        wanted = group.state is CampaignState.ACTIVE and (of is None or group.campaign_id in of)
        if wanted and group.waiting + group.queued + group.later:
            by_campaign.setdefault(group.campaign_id, []).append(group)
    for groups in by_campaign.values():
        found += [stuck for group in groups if (stuck := _of_group(farm, group)) is not None]
    return found


def _of_group(farm: FarmState, group: JobGroup) -> Stuck | None:
    if not group.waiting + group.queued:
        return None if group.open else _undecided(farm, group)
    able = [device for device in farm.devices if group.serves(device)]
    live = [device for device in able if device.takes_work]
    untaken = _untaken(farm, group, live)
    jobs = group.waiting + group.queued if untaken or not live else group.waiting
    if not live:
        cause, why = Cause.NO_DEVICE, _why_no_device(group, able)
    elif jobs and (holders := _holders(farm, group)):
        cause, why = Cause.HELD, _why_held(holders)
    elif jobs and not farm.coordinated:
        cause, why = Cause.NO_COORDINATOR, f"no coordinator runs that would send them; {farm.how_to_coordinate}"
    elif lacking := farm.without_builder.get(group.lane_id):
        jobs, cause, why = lacking.jobs, Cause.NO_BUILDER, _why_not_built(lacking)
    elif unread := [one for one in farm.unsupported if one.lane_id == group.lane_id and _is_unread(one, live)]:
        jobs, cause = sum(one.jobs for one in unread), Cause.WORKER_VERSION
        why = _why_unread(unread[0], live)
    elif untaken:
        cause, why = Cause.NOT_TAKEN, _why_untaken(untaken, live)
    elif refused := _refused_by_live(farm, group, live):
        jobs, cause, why = sum(one.jobs for one in refused), Cause.REFUSED, _why_refused(refused, able)
    elif not group.queued and not group.running and (ahead := _ahead(farm, group, live)):
        cause, why = Cause.BEHIND, _why_behind(group, ahead)
    else:
        return None
    return Stuck(campaign_id=group.campaign_id, target=group.target, jobs=jobs, cause=cause, why=why)


def _why_not_built(lacking: kernels.WithoutBuilder) -> str:
    return (
        f"their kernels are not built, and no builder has {' or '.join(lacking.toolchains)}; farm-worker --build on a host "
        f"with the extra {' or '.join(extras_of(lacking.toolchains))} is one, and farm kernels list shows them"
    )


def _holders(farm: FarmState, group: JobGroup) -> list[LockHolder]:
    """The sessions that hold the job group, or its campaign."""
    return [holder for holder in farm.holders if group.lane_id in holder.groups]


def _why_held(holders: Sequence[LockHolder]) -> str:
    listed = some_of([holder.text for holder in holders], limit=3, separator="; ")
    return f"another session holds their rows, and they wait until it ends: {listed}"


def _undecided(farm: FarmState, group: JobGroup) -> Stuck | None:
    if holders := _holders(farm, group):
        cause, why = Cause.HELD, _why_held(holders)
    elif not farm.coordinated:
        cause = Cause.NO_COORDINATOR
        why = f"round {group.round} is over, and no coordinator runs that would decide what goes on; {farm.how_to_coordinate}"
    elif group.untrained_s is not None and group.untrained_s > UNTRAINED_SECONDS:
        cause = Cause.NO_TRAINER
        why = (
            f"round {group.round} is over, and for {seconds_text(group.untrained_s)} no trainer has taken the decision on the "
            "next one; farm up starts a trainer on this machine, farm-trainer on another"
        )
    else:
        return None
    return Stuck(campaign_id=group.campaign_id, target=group.target, jobs=group.later, cause=cause, why=why)


def _why_no_device(group: JobGroup, able: Sequence[DeviceNow]) -> str:
    if able:
        listed = some_of([f"{d.uuid} on {d.host}, {condition(d)}" for d in able], limit=3, separator="; ")
        return f"no device takes them: {listed}{_how_to_resume(able)}"
    if group.device_types is None:
        return f"the device {group.device_uuid} was never announced; farm-worker on its host does that"
    kinds = some_of(group.device_types, limit=6)
    return f"no device of {kinds} was ever announced; farm-worker on a host that has one does that"


def _is_unread(unsupported: UnsupportedNow, live: Sequence[DeviceNow]) -> bool:
    """Whether no device that takes work may have these jobs, because of its worker's version at least once."""
    refusers = unsupported.refused_by
    return all(device.is_among(refusers) for device in live)


def _why_unread(unsupported: UnsupportedNow, live: Sequence[DeviceNow]) -> str:
    old = [
        device
        for device in live
        if device.worker_version_id is not None and -device.worker_version_id in unsupported.refused_by
    ]
    return (
        f"no worker that takes work can read them: {unsupported.why}; {versions_text(old)}. Install the newer version there, "
        "one host after the other: they are measured then"
    )


def versions_text(devices: Sequence[DeviceNow]) -> str:
    """Which hosts run which version: `gemm-farm 0.1.0 (revision 0025) runs on gpu01, gpu02`."""
    hosts: dict[str, set[str]] = {}
    for device in devices:
        version = UNANNOUNCED
        if device.worker_version is not None and device.worker_revision is not None:
            version = str(WorkerVersion(device.worker_version, device.worker_revision))
        hosts.setdefault(version, set()).add(device.host)
    return "; ".join(f"{version} runs on {some_of(sorted(names), limit=3)}" for version, names in sorted(hosts.items()))


def skew_text(devices: Sequence[DeviceNow]) -> str | None:
    """Which hosts run which version, where live workers run more than one."""
    live = [device for device in devices if device.presence is Presence.LIVE]
    return versions_text(live) if len({device.worker_version_id for device in live}) > 1 else None


def _refused_by_live(farm: FarmState, group: JobGroup, live: Sequence[DeviceNow]) -> list[RefusedNow]:
    """Jobs that every device that takes work refused."""
    ids = {device.device_id for device in live}
    return [one for one in farm.refused if one.lane_id == group.lane_id and ids <= set(one.refused_by)]


def _why_refused(refused: Sequence[RefusedNow], able: Sequence[DeviceNow]) -> str:
    known = set[int]().union(*(one.refused_by for one in refused))
    rest = [device for device in able if not device.takes_work]
    others = [device for device in rest if device.device_id not in known] or rest
    listed = some_of([f"{d.uuid} on {d.host}, {condition(d)}" for d in others], limit=3, separator="; ")
    return f"the devices that take work refused them or failed them permanently, and the others do not take any: {listed}{_how_to_resume(others)}"


def _how_to_resume(devices: Sequence[DeviceNow]) -> str:
    """The command for a device that people or the farm took out of service, and that would work otherwise."""
    out = [d for d in devices if d.state is not DeviceState.ACTIVE and d.presence is Presence.LIVE]
    return (
        f"; farm devices resume {out[0].uuid} puts {'it' if len(out) == 1 else 'the first'} to work again"
        if out
        else ""
    )


def _ahead(farm: FarmState, group: JobGroup, live: Sequence[DeviceNow]) -> list[JobGroup]:
    """Job groups of a higher priority whose waiting jobs go before this job group's on a device that it could have."""

    return [
        other
        for other in farm.groups
        if other.state is CampaignState.ACTIVE
        and other.waiting
        and other.priority > group.priority
        and any(other.serves(device) for device in live)
    ]


def _why_behind(group: JobGroup, ahead: Sequence[JobGroup]) -> str:
    above = {o.campaign: o.priority for o in ahead}
    listed = some_of([f"{name} (priority {priority})" for name, priority in above.items()], limit=3)
    return f"they wait behind {listed}; this campaign has priority {group.priority}"


def _untaken(farm: FarmState, group: JobGroup, live: Sequence[DeviceNow]) -> QueueNow | None:
    """Where batches wait for long though a device that serves their queue does nothing."""
    idle = [device for device in live if device.batch_id is None]
    served = {queue_of_type(d.type) for d in idle} | {queue_of_device(d.uuid) for d in idle}
    max_wait_s = UNTAKEN_RESENDS * farm.resend_after_s
    for queue in farm.queues:
        if queue.lane_id == group.lane_id and queue.queue in served and queue.oldest_s > max_wait_s:
            return queue
    return None


def _why_untaken(queue: QueueNow, live: Sequence[DeviceNow]) -> str:
    waited = f"their batches have waited for {seconds_text(queue.oldest_s)} while a device does nothing"
    if not queue.sends:
        return f"{waited}: the broker does not take their messages; farm doctor looks for what is wrong"
    times = "once" if queue.sends == 1 else f"{queue.sends} times"
    for device in live:
        serves = queue.queue in (queue_of_type(device.type), queue_of_device(device.uuid))
        if serves and device.claim_error_s is not None and device.claim_error_s < queue.oldest_s:
            ago = seconds_text(device.claim_error_s)
            return (
                f"{waited}: sent {times}; the worker of {device.uuid} on {device.host} got one {ago} ago and could not claim "
                f"it: {device.claim_error}"
            )
    return f"{waited}: sent {times}, and no worker claimed it or reported why not; do the workers use the same FARM_BROKER_URL?"


# --- devices -----------------------------------------------------------------------------------------


def presence_text(device: DeviceNow) -> str:
    """`live`, `silent for 3 min 20 s`, `stopped`, `gone from its host for 2 h 05 min`."""
    if device.presence is Presence.SILENT and device.silent_s is not None:
        return f"silent for {seconds_text(device.silent_s)}"
    if device.presence is Presence.GONE and device.vanished_s is not None:
        return f"gone from its host for {seconds_text(device.vanished_s)}"
    return device.presence.value


def condition(device: DeviceNow) -> str:
    """All that keeps a device from work: `silent for 3 min 20 s, drained 2 h 05 min ago: hot (by ann)`; or `live`."""
    parts = [] if device.presence is Presence.LIVE else [presence_text(device)]
    if device.state is not DeviceState.ACTIVE:
        reason = device.reason or "no reason given"
        since = seconds_text(device.state_s)
        if device.state is DeviceState.PROBATION:
            due = seconds_text(max(0.0, device.next_trial_s or 0.0))
            parts.append(f"on probation for {since} (next trial in {due}): {reason}")
        else:
            parts.append(f"{device.state} {since} ago: {reason}")
    return ", ".join(parts) or "live"
