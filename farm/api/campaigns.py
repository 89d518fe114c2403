"""Campaigns: submitting one, how far they are, and steering them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, computed_field
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.leader import Leader, leader_of
from farm.api.operation import MAX_ID, Cli, Document, InTable, operation
from farm.api.sentinels import SentinelNow, sentinel_now
from farm.api.submitting import record_submission, store
from farm.broker.queues import TRAIN_QUEUE
from farm.campaign.figures import PlanSummary
from farm.coordinator.estimates import Estimate, Stuck, estimates, read_farm_state
from farm.db import (
    campaigns,
    devices,
    duty,
    fair_shares,
    jobs,
    kernels,
    leadership,
    learning,
    open_jobs,
    sentinels,
)
from farm.db.campaign_verdict import CampaignVerdict, state_text, verdict
from farm.db.engine import take_time
from farm.db.kernels import AwaitedKernels
from farm.db.liveness import Presence
from farm.db.states import CampaignState, JobState, Role
from farm.errors import BadInput, CampaignCancelled, NotYourCampaign, OwnerNotYours
from farm.fusion import Fusion
from farm.groups import NONE
from farm.operands import OperandRules, operand_rules
from farm.protocols import ProtocolName
from farm.scale import Scale
from farm.sparsity import Sparsity

# What only submitting and steering need is imported there: farm status takes half the time without.
if TYPE_CHECKING:
    from farm.campaign import Campaign, Plan

Counts = dict[str, int]
"""Jobs by state, every state named."""

Name = Annotated[
    str, Field(description="A campaign's name, or the first six or more digits of its digest."), Cli(argument=True)
]


LONGEST_FILE = 4 * 2**20
"""Characters of a campaign file: reading these takes half a minute of a processor."""


MAX_FILES = 100
"""Files that a campaign file may name."""


EXAMPLE = """\
name: example
targets: any
problems: {m: [256, 512], n: 512, k: 512, types: f32}
kernels: [{family: tiled, tile: [16, 32]}]
"""


class SubmitOptions(Document):
    """How a campaign is submitted."""

    allow_missing: Annotated[bool, Cli(("--allow-missing-targets",))] = Field(
        default=False, strict=True, description="Accept targets that no device has yet."
    )
    distribution: str | None = Field(
        default=None,
        max_length=200,
        description="What the operands are filled with, instead of those of the file: normal, a=normal*0.02 b=zeros, and so on. Other "
        "operands make another campaign of the same name.",
    )
    again: bool = Field(
        default=False,
        strict=True,
        description="Measure it again, for example after a driver update. If its last repetition is not finished, continue that "
        "one.",
    )


class Submission(SubmitOptions):
    """A campaign file."""

    text: str = Field(description="The YAML text.", max_length=LONGEST_FILE, examples=[EXAMPLE])
    name: str = Field(default="campaign.yaml", max_length=4096, description="The name of the file in error messages.")
    owner: str | None = Field(
        default=None,
        max_length=200,
        description="The owner, if the file names none. The default is the submitter; another owner needs the role operate.",
    )
    files: dict[str, Annotated[str, Field(max_length=LONGEST_FILE)]] = Field(
        default={},
        max_length=MAX_FILES,
        description="The texts of the files that it names, by name: CSV files of domains, sources of kernels (cubins in base64); of "
        "tensors, JSON with their path and SHA-256; of traces, whose names end in #gemms, JSON with their GEMMs.",
    )


class CampaignOutcome(Document):
    """A campaign's state and jobs, and the verdict on them."""

    state: CampaignState
    counts: Counts

    @computed_field(description="whether every job has a result")  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> CampaignVerdict:
        return verdict(self.state, self.counts)

    @computed_field(description="the state in words, with the jobs that ended without a result")  # type: ignore[prop-decorator]
    @property
    def state_text(self) -> str:
        return state_text(self.state.value, self.counts)


class Submitted(CampaignOutcome):
    """The result of a submission. `new_jobs` is 0 if the farm has the campaign with all its jobs already."""

    campaign: str
    digest: str
    repeat: int = Field(description="the number of its repetition")
    new: bool
    restored: bool = Field(default=False, description="whether it was deleted before, and was restored with its rows")
    new_jobs: int
    kernels_awaited: int
    jobs_awaiting: int = Field(description="jobs that wait for those kernels")
    devices_live: int
    without_builder: list[str] = Field(default=[], description="toolchains of those kernels that no live builder has")
    trainer: bool | None = Field(
        description="for a learning campaign: whether a trainer is running, which decides its rounds; null: not known, or not needed"
    )


class Planned(Document):
    """The plan of a campaign."""

    campaign: str
    operands: str = Field(
        default="uniform", description="what A, B and C are filled with, as in the column `distribution`"
    )
    plan: PlanSummary


class CampaignEstimate(CampaignOutcome):
    """How far a campaign is, and how long the rest takes at the rate of the last minutes."""

    percent: float = Field(description="jobs that have ended, without cancelled ones")
    jobs_per_minute: float | None
    seconds_left: float | None
    stuck_jobs: int
    stuck: list[Stuck]


class CampaignSummary(CampaignEstimate):
    """A campaign with its owner, its times and its progress."""

    name: str
    digest: str
    owner: str
    submitted_by: str | None = Field(
        default=None, description="the token or account that submitted it; null: not known"
    )
    priority: int
    submitted_at: datetime
    finished_at: datetime | None


class ListedCampaign(CampaignSummary):
    """A campaign in a list."""

    id: int


class TestScore(Document):
    """How far predictions of the runtime are from rows of the test set, in percent."""

    rows: int
    mean_error_pct: float
    low: float = Field(description="lower end of the 95% interval of the mean")
    high: float
    median_error_pct: float
    p90_error_pct: float


class LearningPoint(Document):
    """A round of the strategy learn that was decided: a point of the learning curve."""

    pool: str
    round: int
    error: str | None = Field(description="why the round could not be decided; nothing follows it then")
    device_seconds: float | None = Field(default=None, description="used so far, with the test set")
    rows: int | None = Field(default=None, description="configurations that the model learned from")
    test: dict[str, TestScore] = Field(default={}, description="by kernel family, and `all`")
    stop: str | None = Field(default=None, description="why no further round is measured")
    problems: int = Field(default=0, description="problems of the next round")
    random_problems: int = Field(default=0, description="how many of them were drawn, not chosen")
    next_jobs: int = 0


class Progress(CampaignEstimate):
    """The progress of a campaign, which clients poll while it runs."""

    name: str
    digest: str
    owner: str
    kernels_awaited: AwaitedKernels
    devices_live: int
    learned: LearningPoint | None = Field(default=None, description="the latest point of a learning curve")


class JobGroupCounts(Document):
    """The jobs of a campaign for one target and, in a search, one round."""

    target: Annotated[str, InTable(folds=True)]
    round: Annotated[int, InTable(priority=3)]
    jobs: Annotated[int, InTable()]
    done: Annotated[int, InTable()]
    invalid: Annotated[int, InTable(priority=1)]
    dead: Annotated[int, InTable(priority=1)]
    queued: Annotated[int, InTable(priority=4)]
    running: Annotated[int, InTable(priority=2)]
    waiting: Annotated[int, InTable(priority=1)]
    later: int


class FairShare(Document):
    """How a campaign shares devices with others of its priority."""

    resource: str = Field(description="a queue of a device type or device, or `retry.TYPE` for failed jobs of a type")
    owners: int = Field(description="owners that share it, this one among them")
    owners_before: int = Field(description="owners that used less of their share, and go first")
    campaigns: int = Field(description="campaigns of this owner that share it, this one among them")
    campaigns_before: int = Field(description="campaigns of this owner that used less, and go first")


class Running(Document):
    """A batch that a worker holds."""

    device_uuid: str
    device_type: str
    host: str
    target: str
    batch_id: int
    jobs: int
    job_id: int | None
    busy_s: float
    silent: bool


class DutyCycle(Document):
    """The share of time that a device spent inside measurements."""

    device_uuid: str
    host: str
    window_s: float
    wall_s: float
    share: float


class ConfigurationColumns(Document):
    """The columns of a configuration."""

    m: int
    n: int
    k: int
    ab: str
    cd: str
    acc: str
    layout: str
    alpha: float
    beta: float
    batch: int = 1
    scale: Scale = Scale.NONE
    fused: Fusion = Fusion.NONE
    groups: str = NONE
    sparsity: Sparsity = Sparsity.NONE
    family: str
    parameters: dict[str, Any]


class FailedJob(ConfigurationColumns):
    """A job without a result that failed lately or cannot run."""

    job_id: int
    state: str
    attempts: int
    pool: str
    error_class: str
    error: str
    failed_at: datetime
    failed_on: str | None


class CampaignNow(CampaignSummary):
    """One campaign in detail."""

    document: dict[str, Any] = Field(description="the campaign file in normal form")
    protocol: str = Field(description="the rules by which times are taken, see docs/measuring.md")
    operands: str = Field(description="what A, B and C are filled with, as in the column `distribution`")
    jobs_per_minute_overall: float | None
    began_s: float | None
    coordinated: bool
    coordinator: Leader
    targets: list[JobGroupCounts]
    running: list[Running]
    duty: list[DutyCycle]
    kernels_awaited: AwaitedKernels
    drifting: list[SentinelNow]
    attempts: dict[str, int]
    problems: list[FailedJob]
    learning: list[LearningPoint] = Field(description="the learning curve of a campaign with the strategy learn")
    turns: list[FairShare] = Field(description="how it shares the devices that its jobs wait for")


class CampaignChange(CampaignOutcome):
    """A campaign after it was paused, resumed or cancelled."""

    campaign: str
    changed: bool
    in_hand: int = Field(
        default=0, description="jobs that devices were measuring or landing then, at most one of each device"
    )


class HeldBatches(CampaignOutcome):
    """The batches of a campaign that workers hold. Without one, nothing of it is measured or stored until it is resumed."""

    campaign: str
    in_hand: int = Field(description="jobs that are being measured or landed, at most one of each device")
    running: list[Running]
    coordinated: bool = Field(description="whether a coordinator leads, which takes back what silent workers hold")


@operation("POST", "/campaigns", role=Role.SUBMIT, seconds=280)
def submit(access: Access, submission: Submission) -> Submitted:
    """Submit a campaign. The same file twice is the same campaign: nothing is measured again."""
    from farm.services.consumers import is_consumed

    campaign = _read(access, submission)
    if campaign.owner != access.who and not access.actor.role.may(Role.OPERATE):
        raise OwnerNotYours(where=campaign.where, owner=campaign.owner, who=access.who)
    made = planned(access, campaign, allow_missing=submission.allow_missing)
    began_ns = time.time_ns()
    with access.change(submit) as change:
        take_time(change.connection)
        stored = store(change, made, access.settings)
    record_submission(access.session.engine, campaign, stored, began_ns)
    with access.connect() as connection:
        awaited = kernels.awaited(connection, stored.campaign_id, silent_after=access.silent_after)
        waits_for_trainer = learning.learns(connection, stored.campaign_id)
        return Submitted(
            campaign=campaign.name,
            digest=campaign.digest,
            repeat=campaign.repeat,
            new=stored.new,
            restored=stored.restored,
            new_jobs=stored.jobs,
            counts=campaigns.counts(connection, stored.campaign_id),
            state=campaigns.find(connection, campaign.digest)["state"],
            kernels_awaited=awaited.kernels,
            jobs_awaiting=awaited.jobs,
            devices_live=len(devices.live(connection, silent_after=access.silent_after)),
            without_builder=awaited.without_builder,
            trainer=is_consumed(access.settings, TRAIN_QUEUE) if waits_for_trainer else None,
        )


@operation("POST", "/campaigns/check", seconds=30)
def check(access: Access, submission: Submission) -> Planned:
    """Count, check and estimate a campaign; submit nothing."""
    campaign = _read(access, submission)
    return Planned(
        campaign=campaign.name,
        operands=campaign.measure.operands.text,
        plan=planned(access, campaign, allow_missing=submission.allow_missing).summary(),
    )


def _read(access: Access, submission: Submission) -> Campaign:
    from farm.campaign import loads

    campaign = loads(
        submission.text,
        name=submission.name,
        limit=access.settings.max_configurations,
        owner=submission.owner or access.who,
        files=submission.files,
    )
    if submission.distribution is not None:
        campaign = with_operands(campaign, submission.distribution)
    if not submission.again:
        return campaign
    with access.connect() as connection:
        return campaigns.again(connection, campaign)


def with_operands(campaign: Campaign, distribution: str) -> Campaign:
    """The campaign with the operands of a short text (see `farm.operands`). Raises `BadInput`."""
    try:
        operands = operand_rules(distribution, campaign.measure.operands.seed)
    except ValueError as error:
        why = "files are named in the campaign file" if "file:" in distribution else str(error)
        raise BadInput(detail=f"distribution {distribution}: {why}") from None
    return campaign.changed(measure=campaign.measure.model_copy(update={"operands": operands}))


def planned(access: Access, campaign: Campaign, *, allow_missing: bool) -> Plan:
    """The campaign against the devices that the farm knows."""
    from farm.campaign import plan

    with access.connect() as connection:
        known = campaigns.known_devices(connection)
    return plan(campaign, known, allow_missing=allow_missing)


@operation("GET", "/campaigns")
def list_(
    access: Access,
    *,
    state: Annotated[list[CampaignState] | None, Field(description="Only in one of these states.")] = None,
    owner: Annotated[str | None, Field(description="Only of this owner.")] = None,
    search: Annotated[str | None, Field(description="Only with this text in the name.")] = None,
    before: Annotated[int | None, Field(description="Only with a lower id: the next page.", ge=0, le=MAX_ID)] = None,
    limit: Annotated[int, Field(ge=1, le=500, description="Maximum number of campaigns.")] = 50,
) -> list[ListedCampaign]:
    """Campaigns, the newest first, and how far they are."""
    with access.connect() as connection:
        rows = campaigns.overview(connection, states=state, owner=owner, search=search, before=before, limit=limit)
        unfinished = [row["id"] for row in rows if row["state"] in (CampaignState.ACTIVE, CampaignState.PAUSED)]
        ahead = estimates(connection, read_farm_state(connection, access.settings), unfinished) if unfinished else {}
    return [ListedCampaign(**row, **_ahead(row["counts"], ahead.get(row["id"]))) for row in rows]


def _ahead(counts: Mapping[str, int], ahead: Estimate | None) -> dict[str, Any]:
    return {
        "percent": 100 * over(counts) / max(sum(counts.values()), 1),
        "jobs_per_minute": None if ahead is None else ahead.throughput.last_minute,
        "seconds_left": None if ahead is None else ahead.seconds_left,
        "stuck_jobs": 0 if ahead is None else ahead.stuck_jobs,
        "stuck": [] if ahead is None else list(ahead.stuck),
    }


def over(counts: Mapping[str, int]) -> int:
    """Jobs that have ended, without cancelled ones."""
    return sum(counts[state] for state in (JobState.DONE, JobState.INVALID, JobState.DEAD))


@operation("GET", "/campaigns/{campaign}")
def show(access: Access, campaign: Name) -> CampaignNow:
    """One campaign in detail: where it runs, how fast, and which jobs are stuck and why."""
    with access.connect() as connection:
        found = campaigns.find(connection, campaign)
        campaign_id = found["id"]
        counts = campaigns.counts(connection, campaign_id)
        farm = read_farm_state(connection, access.settings, also=campaign_id)
        ahead = estimates(connection, farm, [campaign_id])[campaign_id]
        ended = counts[JobState.DONE] + counts[JobState.DEAD]
        # Each document takes the fields that it has.
        return CampaignNow.model_validate({
            **found,
            **_ahead(counts, ahead),
            "protocol": found["rules"].get("protocol", ProtocolName.FARM),
            "operands": OperandRules.model_validate(found["rules"]["operands"]).text,
            "counts": counts,
            "jobs_per_minute_overall": ahead.throughput.overall(ended),
            "began_s": ahead.throughput.began_s,
            "coordinated": farm.coordinated,
            "coordinator": leader_of(connection),
            "targets": [group for group in farm.groups if group.campaign_id == campaign_id],
            "running": open_jobs.running(connection, campaign_id, silent_after=access.silent_after),
            "duty": duty.of_campaign(connection, campaign_id),
            "kernels_awaited": kernels.awaited(connection, campaign_id, silent_after=access.silent_after),
            "drifting": [
                sentinel_now(one)
                for one in sentinels.series_of_devices(connection, campaign_id=campaign_id)
                if one.flagged
            ],
            "attempts": {"measured": counts[JobState.DONE], **jobs.failures_by_kind(connection, campaign_id)},
            "problems": jobs.problems(connection, campaign_id),
            "learning": learning.curve(connection, campaign_id),
            "turns": fair_shares.turns(connection, campaign_id),
        })  # fmt: skip


@operation("GET", "/campaigns/{campaign}/progress")
def progress(access: Access, campaign: Name) -> Progress:
    """How far a campaign is. Clients poll this while it runs."""
    with access.connect() as connection:
        found = campaigns.find(connection, campaign)
        campaign_id = found["id"]
        counts = campaigns.counts(connection, campaign_id)
        farm = read_farm_state(connection, access.settings)
        ahead = estimates(connection, farm, [campaign_id])[campaign_id]
        return Progress.model_validate({
            **found,
            **_ahead(counts, ahead),
            "counts": counts,
            "kernels_awaited": kernels.awaited(connection, campaign_id, silent_after=access.silent_after),
            "devices_live": sum(device.presence is Presence.LIVE for device in farm.devices),
            "learned": next(reversed(learning.curve(connection, campaign_id)), None),
        })  # fmt: skip


@operation("GET", "/campaigns/{campaign}/in-hand")
def in_hand(access: Access, campaign: Name) -> HeldBatches:
    """The batches of a campaign that workers hold, for example after it was cancelled or paused."""
    with access.connect() as connection:
        found = campaigns.find(connection, campaign)
        running = open_jobs.running(connection, found["id"], silent_after=access.silent_after)
        return HeldBatches(
            campaign=found["name"],
            state=found["state"],
            counts=campaigns.counts(connection, found["id"]),
            in_hand=sum(one["job_id"] is not None for one in running),
            running=[Running(**one) for one in running],
            coordinated=leadership.read(connection).leads,
        )


@operation("POST", "/campaigns/{campaign}/cancel", role=Role.SUBMIT)
def cancel(access: Access, campaign: Name) -> CampaignChange:
    """Cancel a campaign: no further job of it is started. What devices have in hand is measured, and its rows are stored.

    Its results stay; submitting it again goes on with it. Only its owner can, or the role operate.
    """
    from farm.db import batches

    return _steer(access, campaign, cancel, batches.cancel)


@operation("POST", "/campaigns/{campaign}/pause", role=Role.SUBMIT)
def pause(access: Access, campaign: Name) -> CampaignChange:
    """Pause a campaign: no further job of it starts until it is resumed. What devices have in hand still lands.

    Only its owner can, or the role operate.
    """
    from farm.db import batches

    return _steer(access, campaign, pause, batches.pause)


@operation("POST", "/campaigns/{campaign}/resume", role=Role.SUBMIT)
def resume(access: Access, campaign: Name) -> CampaignChange:
    """Go on with a campaign that was paused. Only its owner can, or the role operate."""
    from farm.db import batches

    steered = _steer(access, campaign, resume, batches.resume)
    if steered.state is CampaignState.CANCELLED:
        raise CampaignCancelled(name=steered.campaign)
    return steered


def _steer(
    access: Access,
    campaign: str,
    operation: Callable[[Access, str], CampaignChange],
    transition: Callable[[Connection, int], bool],
) -> CampaignChange:
    from farm.db import batches

    with access.change(operation) as change:
        connection = change.connection
        before = steerable(access, connection, campaign, what=transition.__name__)
        changed = transition(connection, before["id"])
        after = campaigns.find(connection, before["digest"])
        change.record(
            "campaign", before["name"], key=before["digest"],
            before={"state": before["state"]}, after={"state": after["state"]},
        )  # fmt: skip
        counts = campaigns.counts(connection, after["id"])
        held = batches.in_hand(connection, after["id"])
    return CampaignChange(campaign=after["name"], state=after["state"], changed=changed, counts=counts, in_hand=held)


def steerable(access: Access, connection: Connection, campaign: str, *, what: str) -> dict[str, Any]:
    """The campaign, if the caller is its owner or has the role operate. Raises `NoSuchCampaign`, `NotYourCampaign`."""
    found = campaigns.find(connection, campaign)
    if found["owner"] != access.who and not access.actor.role.may(Role.OPERATE):
        raise NotYourCampaign(
            name=found["name"], digest=found["digest"][:12], owner=found["owner"], who=access.who, what=what
        )
    return found
