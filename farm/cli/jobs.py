"""`farm jobs`, `farm retry`: list the jobs of a campaign, and retry them."""

from __future__ import annotations

from textwrap import fill
from typing import Annotated, Any

import typer
from rich.text import Text

from farm.api import farm_of
from farm.api import jobs as operations
from farm.api.jobs import MAX_JOBS, Job, Retried
from farm.cli.hints import pasteable
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, configuration_text, console, emit_json, remarks
from farm.db.states import OPEN_JOB_STATES, CampaignState, JobState
from farm.formatting import counts_text
from farm.settings import settings


@takes(operations.list_, without=("campaign",))
def jobs(
    query: dict[str, Any],
    *,
    campaign: Annotated[
        str, typer.Option("--campaign", "-c", help="A campaign's name, or the first digits of its digest.")
    ],
    all_: Annotated[bool, typer.Option("--all", help="Every job. Overrides --limit.", show_default=False)] = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs of a campaign: state, attempts, last error, and a command that repeats each job on the device where it failed.

    The command works on the device's own host, needs no services and stores nothing.

    Examples:
        farm jobs --campaign quickstart --state dead
        farm jobs --campaign quickstart --job 17
    """
    with farm_of(settings()) as farm:
        shown = farm.ask(operations.list_, campaign, **{**query, **({"limit": MAX_JOBS} if all_ else {})})
    if as_json:
        emit_json(shown)
        return
    if not shown:
        console.print(f"No job of {campaign} matches.", markup=False)
    for job in shown:
        _print_job(job)
    if len(shown) == query["limit"] and not all_:
        remarks.print("There may be more: --limit N, or --all")


_INDENTED: Any = {
    "initial_indent": "    ",
    "subsequent_indent": "    ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
_STYLES = {JobState.DEAD: "red", JobState.INVALID: "yellow", JobState.DONE: "green", JobState.RUNNING: "cyan"}


def _print_job(job: Job) -> None:
    """Prints the job in a line, then its last error, then the command, which is never folded."""
    state = Text(job.state, style=_STYLES.get(job.state, ""))
    alone = "  (measured alone)" if job.solo and job.state in OPEN_JOB_STATES else ""
    configuration = configuration_text(job.model_dump())
    console.print(Text.assemble(f"{job.job_id}  ", state, f"  {configuration}  {job.pool}{alone}"))
    for line in (_where_text(job), _error_text(job)):
        if line:
            console.print_laid_out(fill(pasteable(line), console.width, **_INDENTED), markup=False)
    console.print(f"    {job.command}", soft_wrap=True, markup=False)


def _where_text(job: Job) -> str:
    if job.batch_id is None:
        return ""
    if job.device_uuid is None:
        return f"in batch {job.batch_id}, which no worker has claimed"
    return f"{'measured now' if job.measuring else 'held'} by {job.device_uuid}, batch {job.batch_id}"


def _error_text(job: Job) -> str:
    if job.error is None:
        return ""
    attempt = f"attempt {job.attempts} " if job.attempts else ""
    where = "when it was submitted" if job.failed_on is None else f"on {job.failed_on}"
    return f"{attempt}{job.error_class} {where}, {job.failed_at:%Y-%m-%d %H:%M:%S} UTC: {job.error}"


@asks(operations.retry, json_of=lambda done: done.model_dump(include={"campaign", "state", "reopened", "counts"}))
def retry(done: Retried) -> None:
    """Retry jobs that ended without a result: all dead jobs, or the selected ones. Each gets all its attempts again.

    --class invalid and --job also select invalid jobs, unless you give --state.

    Examples:
        farm retry quickstart
        farm retry quickstart --class killed
    """
    if done.reopened:
        console.print(
            f"{done.campaign}: {done.reopened:,} {'job is' if done.reopened == 1 else 'jobs are'} open again."
        )
        if done.state is CampaignState.PAUSED:
            console.print(f"The campaign is paused. To continue it: farm resume {done.campaign}")
        return
    what = " or ".join(done.states) + (f", of class {' or '.join(done.kinds)}" if done.kinds else "")
    whose = "The named jobs are" if done.named else f"{done.campaign} has"
    console.print(f"No job matches ({what}). {whose}: {counts_text(done.named or done.counts)}.")
