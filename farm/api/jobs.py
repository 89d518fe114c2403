"""A campaign's jobs one by one, how each is reproduced, and opening them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, Strict
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.campaigns import ConfigurationColumns, Counts, Name, steerable
from farm.api.operation import MAX_ID, Cli, Document, operation
from farm.api.submitting import check_quota
from farm.db import batches, campaigns, jobs, liveness, open_jobs
from farm.db.engine import take_time
from farm.db.liveness import DeviceNow, Presence
from farm.db.open_jobs import JobGroup
from farm.db.states import CampaignState, FailureKind, JobState, Role
from farm.errors import CampaignCancelled, NoSuchJob
from farm.formatting import some_of
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.repro import repro_command

Id = Annotated[int, Field(ge=0, le=MAX_ID)]

MAX_JOBS = 100_000
"""Jobs of one answer."""


class Ended(StrEnum):
    """States from which a job can be opened again."""

    DEAD = "dead"
    INVALID = "invalid"


class Job(ConfigurationColumns):
    """A job with its configuration as text and the command that measures it alone."""

    job_id: int
    state: JobState
    attempts: int
    solo: bool
    pool: str
    round: int
    configuration: str
    configuration_id: Any
    batch_id: int | None
    measuring: bool | None
    device_uuid: str | None
    host: str | None
    error_class: FailureKind | None
    error: str | None
    failed_at: datetime | None
    failed_on: str | None
    command: str


class Choice(Document):
    """The jobs to retry: all dead jobs, or the selected ones."""

    states: Annotated[list[Ended], Cli(("--state", "-s"), default="dead")] = Field(
        default=[], description="Only jobs in this state; may be repeated."
    )
    kinds: Annotated[list[FailureKind], Cli(("--class",), default="any, or none")] = Field(
        default=[], description="Only jobs whose last error is of this class; may be repeated."
    )
    job_ids: Annotated[list[Annotated[Id, Strict()]], Cli(("--job", "-j"), default="all")] = Field(
        default=[], max_length=100_000, description="Only this job, by its id; may be repeated."
    )


class Retried(Document):
    """The result of a retry."""

    campaign: str
    state: CampaignState
    reopened: int
    counts: Counts
    states: list[JobState] = Field(description="the states that were selected")
    kinds: list[FailureKind] = Field(default=[], description="the classes that were selected")
    named: Counts = Field(description="the named jobs, by their state before")


@operation("GET", "/campaigns/{campaign}/jobs")
def list_(
    access: Access,
    campaign: Name,
    *,
    state: Annotated[
        list[JobState] | None,
        Field(description="Only jobs in this state; may be repeated."),
        Cli(("--state", "-s")),
    ] = None,
    kind: Annotated[
        list[FailureKind] | None,
        Field(description="Only jobs whose last error is of this class; may be repeated."),
        Cli(("--class",)),
    ] = None,
    job: Annotated[
        list[Id] | None,
        Field(description="Only this job, by its id; may be repeated."),
        Cli(("--job", "-j")),
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_JOBS, description="At most so many jobs."), Cli(("--limit", "-n"))] = 50,
) -> list[Job]:
    """Jobs of a campaign: state, attempts, last error, and a command that measures each alone, where it failed."""
    with access.connect() as connection:
        found = campaigns.find(connection, campaign)
        rows = jobs.listed(connection, found["id"], states=state, kinds=kind, job_ids=job, limit=limit)
        _check_known(connection, found, job, rows)
        known = liveness.devices(connection, silent_after=access.silent_after)
        groups = {n.target: n for n in open_jobs.groups(connection, also=found["id"]) if n.campaign_id == found["id"]}
    return [_shown(row, groups[row["pool"]], known) for row in rows]


def _check_known(
    connection: Connection, campaign: dict[str, Any], job_ids: Sequence[int] | None, rows: Sequence[dict[str, Any]]
) -> None:
    """Raises `NoSuchJob` for ids that are no jobs of the campaign; one that other options leave out is no mistake."""
    missing = set(job_ids or ()) - {row["job_id"] for row in rows}
    if missing:
        missing -= {row["job_id"] for row in jobs.listed(connection, campaign["id"], job_ids=sorted(missing))}
    if missing:
        raise NoSuchJob(name=campaign["name"], jobs=some_of([str(i) for i in sorted(missing)]))


def _shown(row: dict[str, Any], group: JobGroup, known: Sequence[DeviceNow]) -> Job:
    configuration = Configuration.from_columns(row)
    uuid = row["failed_on"] or row["device_uuid"] or device_for(group, known)
    return Job(
        **{name: value for name, value in row.items() if name != "rules"},
        configuration=configuration.canonical,
        host=next((device.host for device in known if device.uuid == uuid), None),
        command=repro_command(configuration, uuid, MeasuringRules.model_validate(row["rules"])),
    )


def device_for(group: JobGroup, known: Sequence[DeviceNow]) -> str | None:
    """The UUID of a device that may take the job group's jobs, a live one where there is one."""
    able = sorted((d for d in known if group.serves(d)), key=lambda d: d.presence is not Presence.LIVE)
    return able[0].uuid if able else group.device_uuid


@operation("POST", "/campaigns/{campaign}/retry", role=Role.SUBMIT)
def retry(access: Access, campaign: Name, choice: Choice) -> Retried:
    """Open jobs again that ended without a result, with all their attempts before them.

    Only the campaign's owner can, or the role operate.
    """
    states = _states(choice)
    with access.change(retry) as change:
        connection = change.connection
        take_time(connection)
        found = steerable(access, connection, campaign, what="retry")
        named = jobs.listed(connection, found["id"], job_ids=choice.job_ids) if choice.job_ids else []
        _check_known(connection, found, choice.job_ids, named)
        reopened = batches.retry(
            connection, found["id"], states=states, job_ids=choice.job_ids or None, kinds=choice.kinds or None
        )
        state = campaigns.find(connection, found["digest"])["state"]
        if state == CampaignState.CANCELLED:
            raise CampaignCancelled(name=found["name"])
        counts = campaigns.counts(connection, found["id"])
        change.record(
            "campaign", found["name"], key=found["digest"],
            before={"state": found["state"]}, after={"state": state, "reopened": reopened},
        )  # fmt: skip
        check_quota(change, found["owner"], access.settings)
    return Retried(
        campaign=found["name"],
        state=state,
        reopened=reopened,
        counts=counts,
        states=states,
        kinds=choice.kinds,
        named=dict(Counter(row["state"] for row in named)),
    )


def _states(choice: Choice) -> list[JobState]:
    """The states to open jobs from: those asked for, or those that the rest of the choice can mean."""
    if choice.states:
        return [JobState(state) for state in choice.states]
    if choice.kinds:
        return sorted({JobState.INVALID if kind is FailureKind.INVALID else JobState.DEAD for kind in choice.kinds})
    return [JobState.DEAD, JobState.INVALID] if choice.job_ids else [JobState.DEAD]
