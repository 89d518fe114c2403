"""`farm status`: the progress of campaigns, what runs where, and what is stuck and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from farm.api import campaigns, devices, farm_of, leader
from farm.api.campaigns import (
    CampaignNow,
    CampaignOutcome,
    DutyCycle,
    FailedJob,
    FairShare,
    JobGroupCounts,
    LearningPoint,
    ListedCampaign,
    Running,
    over,
)
from farm.api.devices import ContendedDevice, ExcludedDevice, Versions
from farm.api.leader import Leader
from farm.api.sentinels import SentinelNow
from farm.both_times import protocol_text
from farm.cli.output import JsonOption, configuration_text, console, emit_json, remarks
from farm.cli.result_table import ResultTable
from farm.cli.sentinels import drift_text
from farm.cli.tables import Column, Table, unique_beginnings
from farm.db.campaign_verdict import CampaignVerdict
from farm.db.campaigns import open_jobs
from farm.db.states import CampaignState, DeviceState, JobState
from farm.formatting import counts_text, percent_text, rate_text, seconds_text, share_text, some_of
from farm.measurement import ALL_FAMILIES
from farm.operands import OperandRules
from farm.protocols import ProtocolName
from farm.settings import settings

# Maximum numbers on the terminal. JSON has all of them.
MAX_DUTIES = 8
MAX_EXCLUDED = 3
MAX_CAUSES = 3
MAX_NAMES = 3
"""Campaigns that are named for one cause of stuck jobs."""

MAX_BATCHES = 20


def status(
    campaign: Annotated[
        str | None,
        typer.Argument(
            help="One campaign in detail: its name, or the first six or more digits of its digest.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the progress of campaigns. With a name, show what runs where, how fast, and what is stuck and why.

    Above the campaigns it shows the leading coordinator and its obstacles, devices on probation or in quarantine, and why
    jobs are stuck.

    Rates are jobs per minute that ended, measured or not. The time left is for jobs that are not stuck, at the rate of the
    last five minutes. It is not shown if no job ended in that time.

    Examples:
        farm status
        farm status quickstart
        farm status quickstart --json
    """
    if campaign is None:
        _show_all(as_json)
    else:
        _show(campaign, as_json)


# --- all campaigns -----------------------------------------------------------------------------------


def _show_all(as_json: bool) -> None:
    with farm_of(settings()) as farm:
        rows, leads, running = farm.ask(campaigns.list_), farm.ask(leader.show), farm.ask(devices.versions)
        contended, excluded = farm.ask(devices.contended), farm.ask(devices.excluded)
    if as_json:
        emit_json(
            {"coordinator": leads, "workers": running, "contended": contended, "excluded": excluded, "campaigns": rows}
        )
        return
    remarks.print(_leader_line(leads))
    for trouble in _troubles(leads):
        remarks.print(trouble)
    print_worker_problems(running, contended)
    if excluded:
        remarks.print(f"[yellow]devices:[/] {escape(_excluded_text(excluded))}")
    for why in _stuck_texts(rows):
        remarks.print(f"[yellow]stuck:[/] {escape(why)}")
    if not rows:
        console.print("No campaigns yet. Submit one: farm submit examples/campaigns/quickstart.yaml")
    else:
        _CAMPAIGNS.print(map(_line, rows))


def print_worker_problems(running: Versions, contended: Sequence[ContendedDevice]) -> None:
    """Prints which hosts run other versions, and which devices two farm-workers want to serve."""
    if running.skew is not None:
        remarks.print(f"[yellow]workers:[/] {escape(running.skew)}")
    for one in contended:
        remarks.print(f"[yellow]contended:[/] {escape(one.text)}")


def _leader_line(one: Leader) -> Text:
    return Text.assemble("coordinator: ", (one.text, "" if one.leads else "yellow"))


def _troubles(one: Leader) -> list[Text]:
    """Failing steps of the leader, a read-only database, and sessions that hold locks for long."""
    troubles = [Text.assemble(("coordinator: ", "yellow"), step.text) for step in one.failing]
    if one.read_only is not None and one.leads:  # otherwise the line about the coordinator has it
        troubles.append(Text.assemble(("database: ", "yellow"), one.read_only))
    return [*troubles, *(Text.assemble(("locks: ", "yellow"), holder.text) for holder in one.lock_holders)]


def _excluded_text(excluded: Sequence[ExcludedDevice]) -> str:
    """`1 on probation, 2 in quarantine: CPU-1 on here, quarantined 3 s ago: hot; ...`."""
    numbers = Counter(one.state for one in excluded)
    named = ((DeviceState.PROBATION, "on probation"), (DeviceState.QUARANTINED, "in quarantine"))
    counted = ", ".join(f"{numbers[state]:,} {words}" for state, words in named if numbers[state])
    listed = [f"{one.uuid} on {one.host}, {one.text}" for one in excluded]
    return f"{counted}: {some_of(listed, limit=MAX_EXCLUDED, separator='; ')}"


def _stuck_texts(rows: Sequence[ListedCampaign]) -> Iterator[str]:
    """Why jobs are stuck: a line for each cause with its campaigns, the most frequent cause first."""
    jobs, names = Counter[str](), dict[str, list[str]]()
    for row in rows:
        for one in row.stuck:
            jobs[one.why] += one.jobs
            names.setdefault(one.why, [])
            if row.name not in names[one.why]:
                names[one.why].append(row.name)
    for why, n in jobs.most_common(MAX_CAUSES):
        yield f"{n:,} jobs of {some_of(names[why], limit=MAX_NAMES)}: {why}"
    if (more := len(jobs) - MAX_CAUSES) > 0:
        yield f"{more:,} more causes. For those of one campaign: farm status NAME"


_CAMPAIGNS = Table(
    "campaigns",
    Column("campaign", folds=True),
    Column("state", folds=True),
    Column("jobs", number=True),
    Column("over", number=True),
    Column("done", number=True, priority=3),
    Column("open", number=True, priority=2),
    Column("stuck", number=True, priority=1),
    Column("not measured", number=True, priority=5),
    Column("jobs/min", number=True, priority=4),
    Column("time left", number=True, priority=1),
    Column("digest", priority=8),
    Column("owner", folds=True, priority=6),
    Column("submitted", "(UTC)", priority=7),
)


def _line(row: ListedCampaign) -> tuple[Any, ...]:
    counts, total = row.counts, sum(row.counts.values())
    lost = total - counts[JobState.DONE] - open_jobs(counts)
    stuck = row.stuck_jobs
    return (
        row.name,
        Text(row.state_text, style=_style_of(row) or ("yellow" if stuck else "")),
        total,
        percent_text(over(counts), total),
        counts[JobState.DONE],
        open_jobs(counts),
        Text(f"{stuck:,}", style="yellow" if stuck else ""),
        lost,
        None if row.jobs_per_minute is None else rate_text(row.jobs_per_minute),
        None if row.jobs_per_minute is None or row.seconds_left is None else seconds_text(row.seconds_left),
        row.digest[:8],
        row.owner,
        f"{row.submitted_at:%Y-%m-%d}",
    )


def _style_of(campaign: CampaignOutcome) -> str:
    """The colour of a state: a campaign whose jobs ended without a result did not succeed."""
    if campaign.verdict is CampaignVerdict.NO_RESULTS:
        return "red"
    warns = campaign.verdict is CampaignVerdict.INCOMPLETE or campaign.state is CampaignState.PAUSED
    return "yellow" if warns else ""


# --- one campaign ------------------------------------------------------------------------------------


def _show(name: str, as_json: bool) -> None:
    with farm_of(settings()) as farm:
        now = farm.ask(campaigns.show, name)
    if as_json:
        emit_json(now)
        return
    total = sum(now.counts.values())
    title = f"[bold]{escape(now.name)}[/] ({now.digest[:8]}) of {escape(now.owner)}"
    state = Text(now.state_text, style=_style_of(now))
    console.print(Text.assemble(Text.from_markup(f"{title}: "), state, f"; priority {now.priority}"))
    protocol = "" if now.protocol == ProtocolName.FARM else f"; protocol {protocol_text(now.protocol)}"
    operands = "" if now.operands == OperandRules().text else f"; operands {now.operands}"
    console.print(f"submitted {now.submitted_at:%Y-%m-%d %H:%M:%S} UTC{protocol}{operands}", markup=False)
    console.print(f"{total:,} jobs, {percent_text(over(now.counts), total)} over: {counts_text(now.counts)}")
    console.print(f"attempts: {counts_text(now.attempts)}")
    console.print(_leader_line(now.coordinator))
    for trouble in _troubles(now.coordinator):
        console.print(trouble)
    if rate := _rate_text(now):
        console.print(f"rate: {rate}")
    awaited = now.kernels_awaited
    if awaited.kernels:
        console.print(
            f"kernels: {awaited.jobs:,} jobs wait for {awaited.kernels:,} to be built ({awaited.building:,} in progress)"
        )
    if now.duty:
        console.print(_duty_text(now.duty), markup=False)
    for one in now.drifting:
        console.print(f"[yellow]drift:[/] {escape(_drift_text(now.name, one))}")
    if now.state is CampaignState.PAUSED:
        waiting = sum(now.counts[state] for state in (JobState.PENDING, JobState.QUEUED, JobState.LATER))
        console.print(
            f"[yellow]paused:[/] {waiting:,} jobs wait. To continue the campaign: farm resume {escape(now.name)}"
        )
    for stuck in now.stuck:
        console.print(f"[yellow]stuck:[/] {stuck.jobs:,} jobs for {escape(stuck.target)}: {escape(stuck.why)}")
    _print_turns(now)
    if now.learning:
        _print_curve(now.learning)
    if len(now.targets) > 1:
        _GROUPS.show(now.targets, title="by target")
    if now.running:
        _print_running(now.running)
    if now.problems:
        _print_problems(now)


def _print_turns(now: CampaignNow) -> None:
    """Prints who shares the devices that jobs wait for."""
    if now.counts[JobState.PENDING] and now.state is CampaignState.ACTIVE:
        for turn in now.turns:
            if turn.owners > 1 or turn.campaigns > 1:
                console.print(_turn_text(turn), markup=False)


def _turn_text(turn: FairShare) -> str:
    """`turn: gpu.nvidia-h200 is shared by 40 owners; 12 used less and go first, ...`."""
    parts = []
    if turn.owners > 1:
        parts.append(f"shared by {turn.owners:,} owners; {turn.owners_before:,} used less and go first")
    if turn.campaigns > 1:
        parts.append(
            f"shared by {turn.campaigns:,} campaigns of this owner; {turn.campaigns_before:,} used less and go first"
        )
    return f"turn: {turn.resource} is {', and '.join(parts)}"


def _duty_text(duties: Sequence[DutyCycle]) -> str:
    shares = [f"{share_text(one.share)} {one.device_uuid} on {one.host}" for one in duties]
    return f"duty (share of time inside a measurement): {some_of(shares, limit=MAX_DUTIES)}"


def _drift_text(name: str, one: SentinelNow) -> str:
    since = f"{one.drifts_since:%Y-%m-%d %H:%M:%S} UTC"
    return f"{one.device_uuid} on {one.host}: {drift_text(one)} since {since}. For details: farm sentinels {name}"


def _rate_text(now: CampaignNow) -> str:
    parts = []
    if now.jobs_per_minute is not None:
        parts.append(f"{rate_text(now.jobs_per_minute)} jobs/min in the last minute")
    if now.jobs_per_minute_overall is not None and now.began_s is not None:
        parts.append(
            f"{rate_text(now.jobs_per_minute_overall)} jobs/min since it began {seconds_text(now.began_s)} ago"
        )
    if now.seconds_left is not None:
        parts.append(f"{seconds_text(now.seconds_left)} left{' for jobs that are not stuck' if now.stuck else ''}")
    return ", ".join(parts)


_GROUPS = ResultTable("jobs by target", JobGroupCounts)

_CURVE = Table(
    "learning curve",
    Column("round", number=True),
    Column("device s", number=True),
    Column("rows", number=True, priority=1),
    Column("test rows", number=True, priority=3),
    Column("mean error %", number=True),
    Column("95% interval", number=True, priority=1),
    Column("median %", number=True, priority=2),
    Column("p90 %", number=True, priority=2),
    Column("next", folds=True, priority=1),
)


def _print_curve(points: Sequence[LearningPoint]) -> None:
    """Prints a table for each pool, with a line for each decided round. Errors are those on the test set."""
    for pool, of_pool in groupby(points, key=lambda point: point.pool):
        _CURVE.print(map(_curve_line, of_pool), title=f"learning curve of {pool}, on the test set")


def _curve_line(point: LearningPoint) -> tuple[Any, ...]:
    following = point.error or point.stop or f"{point.next_jobs:,} jobs of {point.problems:,} problems"
    every = point.test.get(ALL_FAMILIES)
    if every is None:
        return (point.round, *[None] * 7, following)
    return (
        point.round,
        f"{point.device_seconds:,.0f}",
        point.rows,
        every.rows,
        f"{every.mean_error_pct:.1f}",
        f"{every.low:.1f} to {every.high:.1f}",
        f"{every.median_error_pct:.1f}",
        f"{every.p90_error_pct:.1f}",
        following,
    )


_RUNNING = Table(
    "batches",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=3),
    Column("host", folds=True, priority=2),
    Column("batch", number=True, priority=1),
    Column("jobs in it", number=True, priority=4),
    Column("job now", number=True),
    Column("for", number=True),
)


def _print_running(running: Sequence[Running]) -> None:
    rows = [
        (
            r.device_uuid, r.device_type, r.host, str(r.batch_id), r.jobs, None if r.job_id is None else str(r.job_id),
            Text(f"{seconds_text(r.busy_s)}, silent", style="red") if r.silent else seconds_text(r.busy_s),
        )
        for r in running[:MAX_BATCHES]
    ]  # fmt: skip
    _RUNNING.print(rows, title="running now")
    if len(running) > MAX_BATCHES:
        console.print(f"and {len(running) - MAX_BATCHES:,} more batches. --json lists all.")


_PROBLEMS = Table(
    "jobs with errors",
    Column("job", number=True),
    Column("state"),
    Column("attempts", number=True, priority=2),
    Column("configuration", folds=True, priority=1),
    Column("target", folds=True, priority=3),
    Column("last error", folds=True),
)


def _print_problems(now: CampaignNow) -> None:
    _PROBLEMS.print(map(_problem, now.problems), title="jobs with errors")
    if now.counts[JobState.DEAD]:
        console.print(f"To list each with a command that reproduces it: farm jobs -c {escape(now.name)} --state dead")
        console.print(f"To retry them: farm retry {escape(now.name)}")


def _problem(one: FailedJob) -> tuple[Any, ...]:
    return str(one.job_id), one.state, one.attempts, configuration_text(one.model_dump()), one.pool, one.error
