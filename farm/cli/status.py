"""`farm status`: how far campaigns are, what runs where, and what is stuck and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from farm.cli.output import JsonOption, configuration_text, console, emit_json, table
from farm.cli.sentinels import drift_text, sentinel_json
from farm.coordinator.outlook import Outlook, look, outlooks
from farm.db import campaigns, duty, jobs, kernels, progress, sentinels
from farm.db.duty import Duty
from farm.db.progress import LaneNow
from farm.db.sentinels import Watched
from farm.db.tables import CampaignState, JobState
from farm.services.session import session
from farm.texts import counts_text, percent_text, rate_text, seconds_text, share_text, some_of

MOST_DUTIES = 8
"""Devices whose duty is named on the terminal. JSON has all of them."""

MOST_ROWS = 20
"""Rows of a table on the terminal, of things that a large farm has many of. JSON has all of them."""


def status(
    campaign: Annotated[
        str | None,
        typer.Argument(
            help="One campaign in detail: its name, or the first six or more digits of its digest.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Campaigns and how far they are; with a name, what of it runs where, how fast, and what is stuck and why.

    Rates are jobs per minute that ended, measured or not. The time left is that of the jobs that
    are not stuck, at the pace of the last five minutes; none is shown where nothing ended lately.
    """
    if campaign is None:
        _show_all(as_json)
    else:
        _show(campaign, as_json)


# --- all campaigns -----------------------------------------------------------------------------------


def _show_all(as_json: bool) -> None:
    with session() as opened, opened.engine.connect() as connection:
        rows = campaigns.overview(connection)
        unfinished = [row["id"] for row in rows if row["state"] in (CampaignState.ACTIVE, CampaignState.PAUSED)]
        ahead = outlooks(connection, look(connection, opened.settings), unfinished)
    if as_json:
        emit_json([{**row, **_ahead_json(row["counts"], ahead.get(row["id"]))} for row in rows])
    elif not rows:
        console.print("No campaigns yet. Submit one: farm submit examples/campaigns/quickstart.yaml")
    else:
        columns = [
            "campaign\nowner, submitted", "state", "jobs", "done", "open", "not\nmeasured", "jobs/min,\ntime left",
        ]  # fmt: skip
        lines = [_line(row, ahead.get(row["id"])) for row in rows]
        console.print(table(None, columns, lines, right=columns[2:], whole=columns[1:]))


def _line(row: Mapping[str, Any], ahead: Outlook | None) -> tuple[Any, ...]:
    counts, total = row["counts"], sum(row["counts"].values())
    lost = total - counts[JobState.DONE] - campaigns.open_jobs(counts)
    return (
        f"{row['name']}\n{row['digest'][:8]} of {row['owner']}, {row['submitted_at']:%Y-%m-%d}",
        _state_text(row["state"], ahead),
        f"{total:,}\n{percent_text(_over(counts), total)} over",
        counts[JobState.DONE],
        campaigns.open_jobs(counts),
        lost,
        _pace_cell(ahead),
    )


def _state_text(state: str, ahead: Outlook | None) -> Text:
    if state == CampaignState.ACTIVE and ahead is not None and ahead.stuck:
        return Text(f"active\n{ahead.stuck_jobs:,} stuck", style="yellow")
    return Text(state, style="yellow" if state == CampaignState.PAUSED else "")


def _pace_cell(ahead: Outlook | None) -> str | None:
    if ahead is None or ahead.pace.last_minute is None:
        return None
    left = "" if ahead.seconds_left is None else f"\n{seconds_text(ahead.seconds_left)} left"
    return f"{rate_text(ahead.pace.last_minute)}{left}"


def _over(counts: Mapping[str, int]) -> int:
    """Jobs that came to an end other than by cancelling."""
    return sum(counts[state] for state in (JobState.DONE, JobState.INVALID, JobState.DEAD))


def _ahead_json(counts: Mapping[str, int], ahead: Outlook | None) -> dict[str, Any]:
    return {
        "percent": 100 * _over(counts) / max(sum(counts.values()), 1),
        "jobs_per_minute": None if ahead is None else ahead.pace.last_minute,
        "seconds_left": None if ahead is None else ahead.seconds_left,
        "stuck_jobs": 0 if ahead is None else ahead.stuck_jobs,
    }


# --- one campaign ------------------------------------------------------------------------------------


def _show(name: str, as_json: bool) -> None:
    with session() as opened, opened.engine.connect() as connection:
        found = campaigns.find(connection, name)
        campaign_id = found["id"]
        counts = campaigns.counts(connection, campaign_id)
        farm = look(connection, opened.settings, also=campaign_id)
        ahead = outlooks(connection, farm, [campaign_id])[campaign_id]
        running = progress.running(connection, campaign_id, silent_after=opened.settings.silent_after_seconds)
        attempts = {"measured": counts[JobState.DONE], **jobs.failures_by_kind(connection, campaign_id)}
        problems = jobs.problems(connection, campaign_id)
        duties = duty.of_campaign(connection, campaign_id)
        awaited = kernels.awaited(connection, campaign_id)
        drifting = [one for one in sentinels.watched(connection, campaign_id=campaign_id) if one.flagged]
    lanes = [lane for lane in farm.lanes if lane.campaign_id == campaign_id]
    overall = ahead.pace.overall(counts[JobState.DONE] + counts[JobState.DEAD])
    if as_json:
        keep = ("name", "digest", "owner", "priority", "state", "submitted_at", "finished_at")
        emit_json(
            {
                **{key: found[key] for key in keep},
                "counts": counts,
                **_ahead_json(counts, ahead),
                "jobs_per_minute_overall": overall,
                "began_s": ahead.pace.began_s,
                "coordinated": farm.coordinated,
                "stuck": [{k: v for k, v in asdict(s).items() if k != "campaign_id"} for s in ahead.stuck],
                "targets": [_lane_json(lane) for lane in lanes],
                "running": running,
                "duty": [{**asdict(one), "share": one.share} for one in duties],
                "kernels_awaited": asdict(awaited),
                "drifting": [sentinel_json(one) for one in drifting],
                "attempts": attempts,
                "problems": problems,
            }
        )
        return
    total = sum(counts.values())
    title = f"[bold]{escape(found['name'])}[/] ({found['digest'][:8]}) of {escape(found['owner'])}"
    console.print(f"{title}: {found['state']}, priority {found['priority']}")
    console.print(f"submitted {found['submitted_at']:%Y-%m-%d %H:%M:%S} UTC")
    console.print(f"{total:,} jobs, {percent_text(_over(counts), total)} over: {counts_text(counts)}")
    console.print(f"attempts: {counts_text(attempts)}")
    if pace := _pace_text(ahead, overall):
        console.print(f"pace: {pace}")
    if awaited.kernels:
        console.print(
            f"kernels: {awaited.jobs:,} jobs wait for {awaited.kernels:,} to be built, {awaited.building:,} of them in work"
        )
    if duties:
        console.print(_duty_text(duties), markup=False)
    for one in drifting:
        console.print(f"[yellow]drift:[/] {escape(_drift_text(found['name'], one))}")
    for stuck in ahead.stuck:
        where = f" for {stuck.target}" if stuck.target else ""
        console.print(f"[yellow]stuck:[/] {stuck.jobs:,} jobs{escape(where)}: {escape(stuck.why)}")
    if len(lanes) > 1:
        _print_lanes(lanes)
    if running:
        _print_running(running)
    if problems:
        _print_problems(found["name"], counts, problems)


def _duty_text(duties: Sequence[Duty]) -> str:
    shares = [f"{share_text(one.share)} {one.device_uuid} on {one.host}" for one in duties]
    return f"duty (share of time inside a measurement): {some_of(shares, most=MOST_DUTIES)}"


def _drift_text(name: str, one: Watched) -> str:
    since = f"{one.drifts_since:%Y-%m-%d %H:%M:%S} UTC"
    return f"{one.device_uuid} on {one.host}: {drift_text(one)} since {since}; farm sentinels {name} shows it"


def _lane_json(lane: LaneNow) -> dict[str, Any]:
    kept = ("target", "round", "jobs", "done", "invalid", "dead", "queued", "running", "waiting", "later")
    return {key: getattr(lane, key) for key in kept}


def _pace_text(ahead: Outlook, overall: float | None) -> str:
    parts = []
    if ahead.pace.last_minute is not None:
        parts.append(f"{rate_text(ahead.pace.last_minute)} jobs/min in the last minute")
    if overall is not None and ahead.pace.began_s is not None:
        parts.append(f"{rate_text(overall)} jobs/min over {seconds_text(ahead.pace.began_s)} in all")
    if ahead.seconds_left is not None:
        parts.append(f"{seconds_text(ahead.seconds_left)} left{' for what is not stuck' if ahead.stuck else ''}")
    return ", ".join(parts)


def _print_lanes(lanes: Sequence[LaneNow]) -> None:
    rows = [(n.target, n.round, n.jobs, n.done, n.waiting, n.queued, n.running, n.invalid, n.dead) for n in lanes]
    columns = ["target", "round", "jobs", "done", "waiting", "queued", "running", "invalid", "dead"]
    console.print(table("by target", columns, rows, right=columns[1:]))


def _print_running(running: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            f"{r['device_uuid']}\n{r['device_type']} on {r['host']}", r["batch_id"], r["jobs"], r["job_id"],
            Text(f"{seconds_text(r['busy_s'])}, silent", style="red") if r["silent"] else seconds_text(r["busy_s"]),
        )
        for r in running[:MOST_ROWS]
    ]  # fmt: skip
    columns = ["device", "batch", "jobs in it", "job in hand", "for"]
    console.print(table("running now", columns, rows, right=columns[1:4], whole=["device"]))
    if len(running) > MOST_ROWS:
        console.print(f"and {len(running) - MOST_ROWS:,} more batches; --json has them all")


def _print_problems(name: str, counts: Mapping[str, int], problems: Sequence[Mapping[str, Any]]) -> None:
    rows = [(p["job_id"], p["state"], p["attempts"], configuration_text(p), p["pool"], p["error"]) for p in problems]
    columns = ["job", "state", "attempts", "configuration", "target", "last error"]
    console.print(table("jobs with errors", columns, rows, right=["job", "attempts"]))
    if counts[JobState.DEAD]:
        console.print(f"farm jobs -c {escape(name)} --state dead lists each with a command that reproduces it.")
        console.print(f"farm retry {escape(name)} opens them again.")
