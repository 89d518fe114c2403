"""docs/states.md once more, as plain Python: what the tables must say after each transition, job by job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from farm.db.states import BatchState, CampaignState, DeviceState, FailureKind, JobRecord, JobState, KernelState
from farm.db.task_rows import MAX_ATTEMPTS

OPEN_BATCHES = (BatchState.QUEUED, BatchState.LEASED)
NOT_OVER = (JobRecord.OPEN, JobRecord.WAITING)


@dataclass
class Campaign:
    id: int
    priority: int
    max_attempts: int
    state: str = CampaignState.ACTIVE


@dataclass
class Job:
    id: int
    campaign_id: int
    lane_id: int
    pool: str
    configuration_id: str
    any_device: bool
    state: str = JobRecord.OPEN
    attempts: int = 0
    solo: bool = False
    # Of its failures, the oldest first.
    kinds: list[str] = field(default_factory=list)
    # The devices that refused it.
    refused_by: set[int] = field(default_factory=set)
    # The devices on which it failed, and the versions of workers that cannot read it.
    failed_on: set[int] = field(default_factory=set)
    unsupported_by: set[int] = field(default_factory=set)
    # It used up its attempts on one device, and waits for another.
    exhausted: bool = False
    # The device that it is to avoid while it waits.
    avoid: int | None = None
    # The devices that measured it.
    measured_on: list[int] = field(default_factory=list)
    # The kernels that it waits for, while it does.
    needs: frozenset[int] = frozenset()


@dataclass
class Kernel:
    id: int
    state: str = KernelState.WANTED
    starts: int = 0
    final: bool = False
    sent: bool = False

    @property
    def over(self) -> bool:
        return self.state in (KernelState.BUILT, KernelState.FAILED)


@dataclass
class Batch:
    id: int
    queue: str
    job_ids: list[int]
    state: str = BatchState.QUEUED
    device_id: int | None = None
    current: int | None = None
    lapsed: bool = False
    sends: int = 0
    # Its campaign was stopped while it was leased.
    stopped: bool = False
    # How many of its jobs became final in it; None once that is in the counters of its lane.
    finals: int | None = 0


@dataclass
class Device:
    id: int
    uuid: str
    type: str
    # Its backend and traits: devices that are equal in them and in type refuse the same configurations.
    traits: object = None
    state: str = DeviceState.ACTIVE
    silent: bool = False
    # What its worker runs.
    version: int = 0

    def serves(self, pool: str) -> bool:
        kind, _, names = pool.partition(":")
        return self.uuid == names if kind == "device" else self.type in names.split(",")

    def is_like(self, other: Device) -> bool:
        return (self.type, self.traits) == (other.type, other.traits)

    @property
    def queues(self) -> tuple[str, str]:
        return f"gpu.{self.type}", f"device.{self.uuid}"


class FarmModel:
    """The campaigns, jobs, batches, devices and kernels of a farm, by their ids."""

    def __init__(self) -> None:
        self.campaigns: dict[int, Campaign] = {}
        self.jobs: dict[int, Job] = {}
        self.batches: dict[int, Batch] = {}
        self.devices: dict[int, Device] = {}
        self.kernels: dict[int, Kernel] = {}

    # --- what is asked of it ---

    def batches_in(self, *states: BatchState) -> list[Batch]:
        return [batch for batch in self.batches.values() if batch.state in states]

    def batch_of(self, job: Job) -> Batch | None:
        """The open batch that the job is in."""
        return next((b for b in self.batches_in(*OPEN_BATCHES) if job.id in b.job_ids), None)

    def jobs_of(self, campaign_id: int) -> list[Job]:
        return [job for job in self.jobs.values() if job.campaign_id == campaign_id]

    def campaign_of(self, batch: Batch) -> Campaign:
        return self.campaigns[self.jobs[batch.job_ids[0]].campaign_id]

    def not_counted_as_final(self, campaign_id: int) -> int:
        """Jobs that the counters of its lanes do not count as final: not over, or final in a batch that is not folded."""
        unfolded = sum(b.finals or 0 for b in self.batches.values() if self.campaign_of(b).id == campaign_id)
        return unfolded + sum(job.state in NOT_OVER for job in self.jobs_of(campaign_id))

    def holds(self, device: Device) -> bool:
        """Whether the device has a lease, which is the only one that it may have."""
        return any(batch.device_id == device.id for batch in self.batches_in(BatchState.LEASED))

    def can_claim(self, batch: Batch, device: Device) -> bool:
        return self.would_take(batch, device) and not self.holds(device)

    def would_take(self, batch: Batch, device: Device) -> bool:
        """Whether the device may have the batch, but for what it holds already."""
        return (
            batch.state == BatchState.QUEUED
            and batch.queue in device.queues
            and device.state == DeviceState.ACTIVE
            and self.campaign_of(batch).state == CampaignState.ACTIVE
        )

    def may_start(self, batch: Batch) -> bool:
        """Whether the holder of a batch may start another job."""
        assert batch.device_id is not None
        device = self.devices[batch.device_id]
        active = self.campaign_of(batch).state == CampaignState.ACTIVE and not batch.stopped
        return active and device.state != DeviceState.QUARANTINED

    def seen_state(self, job: Job) -> str:
        """The state that people see."""
        if job.state not in NOT_OVER:
            return job.state
        batch = self.batch_of(job)
        if batch is not None:
            return JobState.RUNNING if batch.state == BatchState.LEASED else JobState.QUEUED
        stopped = self.campaigns[job.campaign_id].state == CampaignState.CANCELLED
        return JobState.CANCELLED if stopped else JobState.PENDING

    def counts(self, campaign_id: int) -> dict[str, int]:
        return dict(Counter(self.seen_state(job) for job in self.jobs_of(campaign_id)))

    # --- transitions ---

    def fail(self, job: Job, kind: FailureKind, device_id: int | None) -> bool:
        """Counts a failed attempt. Returns whether that was the end of the job."""
        job.kinds.append(kind)
        if kind is FailureKind.UNSUPPORTED:
            assert device_id is not None
            job.unsupported_by.add(self.devices[device_id].version)
            job.avoid = device_id
            return False
        if kind is FailureKind.INVALID and device_id is not None:
            job.refused_by.add(device_id)
            if self._may_be_measured_elsewhere(job):
                job.avoid = device_id
                return False
        job.attempts += 1
        job.solo = job.solo or kind is FailureKind.KILLED
        if kind is FailureKind.INVALID:
            job.state = JobRecord.INVALID
            return True
        if device_id is not None:
            job.failed_on.add(device_id)
        job.avoid = device_id
        if job.attempts >= self.campaigns[job.campaign_id].max_attempts:
            job.exhausted = len(job.failed_on) == 1 and self._another_may_try(job)
            if not job.exhausted:
                job.state = JobRecord.DEAD
        return job.state != JobRecord.OPEN

    def _another_may_try(self, job: Job) -> bool:
        """Whether an active device of its pool neither failed nor must refuse it. All were heard of lately enough."""
        refusers = [self.devices[i] for i in job.refused_by]
        return any(
            device.serves(job.pool)
            and device.state == DeviceState.ACTIVE
            and device.id not in job.failed_on
            and device.version not in job.unsupported_by
            and not any(device.is_like(refuser) for refuser in refusers)
            for device in self.devices.values()
        )

    def end_exhausted(self) -> int:
        """Jobs that no other device may try are dead. Returns how many."""
        waiting = [j for j in self.jobs.values() if j.state == JobRecord.OPEN and j.exhausted]
        ended = [job for job in waiting if not self._another_may_try(job)]
        for job in ended:
            job.state = JobRecord.DEAD
        return len(ended)

    def _may_be_measured_elsewhere(self, job: Job) -> bool:
        """Whether its pool has a device that is here and is not like one that refused it."""
        refusers = [self.devices[i] for i in job.refused_by]
        return any(
            device.serves(job.pool)
            and device.state != DeviceState.QUARANTINED
            and not device.silent
            and not any(device.is_like(refuser) for refuser in refusers)
            for device in self.devices.values()
        )

    def release(self, batch: Batch, *, suspect: bool) -> None:
        if suspect and batch.current is not None:
            batch.finals = int(self.fail(self.jobs[batch.current], FailureKind.KILLED, batch.device_id))
        batch.state, batch.current = BatchState.RELEASED, None

    def land(
        self, batch: Batch, done: Iterable[int], failures: Mapping[int, FailureKind], missing: Mapping[int, int]
    ) -> None:
        """`missing` has kernels by the jobs that found no store to have them."""
        assert batch.device_id is not None
        finals = 0
        for job in map(self.jobs.__getitem__, done):
            job.state = JobRecord.DONE
            job.measured_on.append(batch.device_id)
            finals += 1
        for job_id, kind in failures.items():
            finals += self.fail(self.jobs[job_id], kind, batch.device_id)
        for job_id, kernel_id in missing.items():
            self.jobs[job_id].state, self.jobs[job_id].needs = JobRecord.WAITING, frozenset({kernel_id})
        self.want_again(missing.values(), lost=True)
        batch.state, batch.current, batch.finals = BatchState.DONE, None, finals

    def steer(self, campaign: Campaign, to: CampaignState) -> None:
        campaign.state = to
        if to is not CampaignState.ACTIVE:
            for batch in self.batches_in(BatchState.LEASED):
                batch.stopped = batch.stopped or self.campaign_of(batch) is campaign
            for batch in self.batches_in(BatchState.QUEUED):
                if self.campaign_of(batch) is campaign:
                    self.release(batch, suspect=False)

    def fold(self) -> int:
        """Returns how many batches were added to the counters."""
        over = [b for b in self.batches_in(BatchState.DONE, BatchState.RELEASED) if b.finals is not None]
        for batch in over:
            batch.finals = None
        return len(over)

    def finish(self) -> list[int]:
        """The campaigns that are done now."""
        running = (CampaignState.ACTIVE, CampaignState.PAUSED)
        over = [c for c in self.campaigns.values() if c.state in running and not self.not_counted_as_final(c.id)]
        for campaign in over:
            campaign.state = CampaignState.DONE
        return [campaign.id for campaign in over]

    # --- kernels ---

    def waiting_for(self, kernel: Kernel) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == JobRecord.WAITING and kernel.id in job.needs]

    def unsent(self) -> list[int]:
        """Kernels whose message is to be sent: what active campaigns wait for, the most urgent first."""
        urgent = []
        for kernel in self.kernels.values():
            told = [self.campaigns[job.campaign_id] for job in self.waiting_for(kernel)]
            asking = [campaign.priority for campaign in told if campaign.state == CampaignState.ACTIVE]
            if kernel.state == KernelState.WANTED and not kernel.sent and asking:
                urgent.append((-max(asking), kernel.id))
        return [kernel_id for _, kernel_id in sorted(urgent)]

    def want_again(self, ids: Iterable[int], *, lost: bool) -> None:
        for kernel in map(self.kernels.__getitem__, ids):
            if (kernel.state == KernelState.FAILED and not kernel.final) or (
                lost and kernel.state == KernelState.BUILT
            ):
                kernel.state, kernel.starts, kernel.sent = KernelState.WANTED, 0, False

    def build_ended(self, kernel: Kernel, *, built: bool, final: bool = False) -> None:
        if built:
            kernel.state = KernelState.BUILT
            return
        over = final or kernel.starts >= MAX_ATTEMPTS
        kernel.state, kernel.final, kernel.sent = KernelState.FAILED if over else KernelState.WANTED, final, False

    def let_go(self) -> int:
        """Jobs whose kernels are all over wait no more. Returns how many."""
        gone = 0
        for job in self.jobs.values():
            kernels = [self.kernels[i] for i in job.needs]
            if job.state != JobRecord.WAITING or not all(kernel.over for kernel in kernels):
                continue
            gone += 1
            job.needs = frozenset()
            if any(kernel.state == KernelState.BUILT for kernel in kernels):
                job.state = JobRecord.OPEN
            elif all(kernel.final for kernel in kernels):
                job.state = JobRecord.INVALID
                job.kinds.append(FailureKind.INVALID)
            else:
                job.state = JobRecord.DEAD
                job.kinds.append(FailureKind.FAILED)
        return gone

    # --- against the tables ---

    def differences(self, connection: Connection) -> list[str]:
        """Everything in the tables that is not what the model says, as `expected != found`."""
        told = dict(self._told())
        found = {(row.what, row.id): row.said for row in connection.execute(_SAID)}
        keys = sorted(told.keys() | found.keys())
        return [f"{what} {i}: {told.get((what, i))} != {found.get((what, i))}"
                for what, i in keys if told.get((what, i)) != found.get((what, i))]  # fmt: skip

    def _told(self) -> Iterable[tuple[tuple[str, int], list[str]]]:
        for c in self.campaigns.values():
            yield ("campaign", c.id), [c.state, str(c.priority)]
        for d in self.devices.values():
            yield ("device", d.id), [d.state, "silent" if d.silent else "heard of"]
        for b in self.batches.values():
            ids = b.job_ids if b.finals is not None else []
            held = ["-"] if b.state != BatchState.LEASED else ["lapsed" if b.lapsed else "held"]
            kept = [str(b.device_id), str(b.current), str(b.sends), "folded" if b.finals is None else "-"]
            yield ("batch", b.id), [b.state, b.queue, *kept, *held, *map(str, ids)]
        for j in self.jobs.values():
            avoid = j.avoid if j.state == JobRecord.OPEN and self.batch_of(j) is None else None
            words = [j.state, str(j.attempts), "solo" if j.solo else "-", f"avoids {avoid}"]
            words.append("exhausted" if avoid is not None and j.exhausted else "-")
            needs = [f"needs {kernel_id}" for kernel_id in sorted(j.needs)]
            yield ("job", j.id), [*words, *j.kinds, *(f"measured on {d}" for d in j.measured_on), *needs]
        for k in self.kernels.values():
            kept = "sent" if k.sent and k.state == KernelState.WANTED else "-"
            yield ("kernel", k.id), [k.state, str(k.starts), "final" if k.final else "-", kept]


_SAID = text("""
SELECT 'campaign' AS what, id, ARRAY[state, priority::text] AS said FROM campaigns
UNION ALL
SELECT 'device', id, ARRAY[state, CASE WHEN last_seen_at = '-infinity' THEN 'silent' ELSE 'heard of' END] FROM devices
UNION ALL
SELECT 'batch', id, ARRAY[
    state, queue, coalesce(device_id::text, 'None'), coalesce(current_job_id::text, 'None'), sends::text,
    CASE WHEN folded THEN 'folded' ELSE '-' END,
    CASE WHEN lease_expires_at IS NULL THEN '-' WHEN lease_expires_at < clock_timestamp() THEN 'lapsed' ELSE 'held' END
] || job_ids::text[] FROM batches
UNION ALL
SELECT 'job', j.id, ARRAY[
    j.state, j.attempts::text, CASE WHEN j.solo THEN 'solo' ELSE '-' END,
    'avoids ' || coalesce(r.avoid_device_id::text, 'None'), CASE WHEN r.exhausted THEN 'exhausted' ELSE '-' END
] || ARRAY(SELECT kind FROM failures f WHERE f.job_id = j.id ORDER BY f.id)
  || ARRAY(SELECT 'measured on ' || device_id FROM measurements m WHERE m.job_id = j.id ORDER BY m.id)
  || ARRAY(SELECT 'needs ' || kernel_id FROM waiting_jobs w WHERE w.job_id = j.id ORDER BY kernel_id)
FROM jobs j LEFT JOIN returned_jobs r ON r.job_id = j.id
UNION ALL
SELECT 'kernel', id, ARRAY[
    state, starts::text, CASE WHEN final THEN 'final' ELSE '-' END,
    CASE WHEN state = 'wanted' AND sent_at IS NOT NULL THEN 'sent' ELSE '-' END
] FROM kernels
""")
"""What the tables say, in the same words."""
