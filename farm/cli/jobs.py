"""`farm jobs`, `farm retry`: a campaign's jobs one by one, how each is reproduced, and opening them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from textwrap import fill
from typing import Annotated, Any

import typer
from rich.text import Text
from sqlalchemy import Connection

from farm.cli.campaigns import CampaignArgument
from farm.cli.output import JsonOption, configuration_text, console, emit_json, remarks
from farm.db import batches, campaigns, progress
from farm.db import jobs as queries
from farm.db.progress import DeviceNow, LaneNow, Presence
from farm.db.tables import OPEN_JOB_STATES, CampaignState, FailureKind, JobState
from farm.errors import CampaignCancelled, NoSuchJob
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.repro import repro_command
from farm.services.session import session
from farm.texts import counts_text, some_of

JobsOption = Annotated[
    list[int] | None, typer.Option("--job", "-j", help="Only this job, by its id; may be repeated.", show_default="all")
]
ClassOption = Annotated[
    list[FailureKind] | None,
    typer.Option(
        "--class", help="Only jobs whose last error is of this class; may be repeated.", show_default="any, or none"
    ),
]


class Ended(StrEnum):
    """States from which a job can be opened again."""

    DEAD = "dead"
    INVALID = "invalid"


def jobs(
    campaign: Annotated[
        str, typer.Option("--campaign", "-c", help="A campaign's name, or the first digits of its digest.")
    ],
    states: Annotated[
        list[JobState] | None,
        typer.Option("--state", "-s", help="Only jobs in this state; may be repeated.", show_default="all"),
    ] = None,
    kinds: ClassOption = None,
    job_ids: JobsOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many jobs.")] = 50,
    all_: Annotated[bool, typer.Option("--all", help="Every job, whatever --limit says.", show_default=False)] = False,
    as_json: JsonOption = False,
) -> None:
    """Jobs of a campaign: state, attempts, last error, and a command that measures each alone, where it failed.

    The command works on the device's own host, needs no services and stores nothing.
    """
    with session() as opened, opened.engine.connect() as connection:
        found = campaigns.find(connection, campaign)
        rows = queries.listed(
            connection, found["id"], states=states, kinds=kinds, job_ids=job_ids, limit=None if all_ else limit
        )
        _check_known(connection, found, job_ids, rows)
        known = progress.devices(connection, silent_after=opened.settings.silent_after_seconds)
        lanes = {n.target: n for n in progress.lanes(connection, also=found["id"]) if n.campaign_id == found["id"]}
    shown = [_shown(row, lanes[row["pool"]], known) for row in rows]
    if as_json:
        emit_json(shown)
        return
    if not shown:
        console.print(f"No job of {found['name']} matches.")
    for job in shown:
        _print_job(job)
    if len(shown) == limit and not all_:
        remarks.print("There may be more: --limit N, or --all")


def _check_known(
    connection: Connection, campaign: dict[str, Any], job_ids: Sequence[int] | None, rows: Sequence[dict[str, Any]]
) -> None:
    """Raises `NoSuchJob` for ids that are no jobs of the campaign; one that other options leave out is no mistake."""
    missing = set(job_ids or ()) - {row["job_id"] for row in rows}
    if missing:
        missing -= {row["job_id"] for row in queries.listed(connection, campaign["id"], job_ids=sorted(missing))}
    if missing:
        raise NoSuchJob(name=campaign["name"], jobs=some_of([str(i) for i in sorted(missing)]))


def _shown(row: dict[str, Any], lane: LaneNow, known: Sequence[DeviceNow]) -> dict[str, Any]:
    """The job with its configuration as text and the command that measures it alone."""
    configuration = Configuration.from_columns(row)
    uuid = row["failed_on"] or row["device_uuid"] or device_for(lane, known)
    return {
        **{name: value for name, value in row.items() if name != "rules"},
        "configuration": configuration.canonical,
        "host": next((device.host for device in known if device.uuid == uuid), None),
        "command": repro_command(configuration, uuid, MeasuringRules.model_validate(row["rules"])),
    }


def device_for(lane: LaneNow, known: Sequence[DeviceNow]) -> str | None:
    """The UUID of a device that may take the lane's jobs, a live one where there is one."""
    able = sorted((d for d in known if lane.serves(d)), key=lambda d: d.presence is not Presence.LIVE)
    return able[0].uuid if able else lane.device_uuid


_INDENTED: Any = {
    "initial_indent": "    ",
    "subsequent_indent": "    ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
_STYLES = {JobState.DEAD: "red", JobState.INVALID: "yellow", JobState.DONE: "green", JobState.RUNNING: "cyan"}


def _print_job(job: dict[str, Any]) -> None:
    """The job in a line, then its last error, then the command, which is never folded."""
    state = Text(job["state"], style=_STYLES.get(job["state"], ""))
    alone = "  (measured alone)" if job["solo"] and job["state"] in OPEN_JOB_STATES else ""
    console.print(Text.assemble(f"{job['job_id']}  ", state, f"  {configuration_text(job)}  {job['pool']}{alone}"))
    for line in (_where_text(job), _error_text(job)):
        if line:
            console.print(fill(line, console.width, **_INDENTED), markup=False)
    console.print(f"    {job['command']}", soft_wrap=True, markup=False)


def _where_text(job: dict[str, Any]) -> str:
    if job["batch_id"] is None:
        return ""
    if job["device_uuid"] is None:
        return f"in batch {job['batch_id']}, which no worker has claimed"
    return f"{'measured now' if job['measuring'] else 'held'} by {job['device_uuid']}, batch {job['batch_id']}"


def _error_text(job: dict[str, Any]) -> str:
    if job["error"] is None:
        return ""
    attempt = f"attempt {job['attempts']} " if job["attempts"] else ""
    where = "when it was submitted" if job["failed_on"] is None else f"on {job['failed_on']}"
    return f"{attempt}{job['error_class']} {where}, {job['failed_at']:%Y-%m-%d %H:%M:%S} UTC: {job['error']}"


def retry(
    campaign: CampaignArgument,
    states: Annotated[
        list[Ended] | None,
        typer.Option("--state", "-s", help="Only jobs in this state; may be repeated.", show_default="dead"),
    ] = None,
    kinds: ClassOption = None,
    job_ids: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open jobs again that ended without a result, with all their attempts before them: all that are dead, or those chosen.

    --class invalid and --job choose among invalid jobs too, unless --state says otherwise.
    """
    chosen = _states(states, kinds, job_ids)
    with session() as opened, opened.engine.begin() as connection:
        found = campaigns.find(connection, campaign)
        named = queries.listed(connection, found["id"], job_ids=job_ids) if job_ids else []
        _check_known(connection, found, job_ids, named)
        reopened = batches.retry(connection, found["id"], states=chosen, job_ids=job_ids, kinds=kinds)
        state = campaigns.find(connection, found["digest"])["state"]
        if state == CampaignState.CANCELLED:
            raise CampaignCancelled(name=found["name"])
        counts = campaigns.counts(connection, found["id"])
    if as_json:
        emit_json({"campaign": found["name"], "state": state, "reopened": reopened, "counts": counts})
    elif reopened:
        console.print(f"{found['name']}: {reopened:,} {'job is' if reopened == 1 else 'jobs are'} open again.")
        if state == CampaignState.PAUSED:
            console.print(f"It is paused: farm resume {found['name']} goes on with it.")
    else:
        have = counts_text(Counter(job["state"] for job in named) if named else counts)
        what = " or ".join(chosen) + (f", of class {' or '.join(kinds)}" if kinds else "")
        console.print(f"No job matches ({what}). {'Those named are' if named else found['name'] + ' has'}: {have}.")


def _states(
    states: Sequence[Ended] | None, kinds: Sequence[FailureKind] | None, job_ids: Sequence[int] | None
) -> list[JobState]:
    """The states to open jobs from: those asked for, or those that the other options can mean."""
    if states:
        return [JobState(state) for state in states]
    if kinds:
        return sorted({JobState.INVALID if kind is FailureKind.INVALID else JobState.DEAD for kind in kinds})
    return [JobState.DEAD, JobState.INVALID] if job_ids else [JobState.DEAD]
