"""`farm submit`, `status`, `watch`, `cancel`: campaigns from file to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.campaign import Campaign, KnownDevice, Plan, PlanSummary, load, plan
from farm.cli.output import JsonOption, console, emit_json, kernel_text, remarks, seconds_text, table, types_text
from farm.cli.progress import follow
from farm.cli.session import Session, session
from farm.db import campaigns, devices
from farm.db.tables import OPEN_JOB_STATES, JobState
from farm.errors import FarmError
from farm.settings import settings

FileArgument = Annotated[Path, typer.Argument(help="A campaign file (YAML).", show_default=False)]
CampaignArgument = Annotated[
    str, typer.Argument(help="A campaign's name, or the first six or more digits of its digest.", show_default=False)
]


NO_WORKER = "No worker is up: start one with [bold]farm up[/]. Where it is up already, [bold]farm doctor[/] looks for what is wrong."


class CampaignIncomplete(FarmError):
    """{dead} of {jobs} jobs of {name} ended dead. `farm status {name}` says why."""

    exit_code = 6


def planned(opened: Session, campaign: Campaign, *, allow_missing: bool) -> Plan:
    """The campaign against the devices that the farm knows."""
    with opened.engine.connect() as connection:
        known = [KnownDevice(*row) for row in campaigns.known_devices(connection)]
    return plan(campaign, known, allow_missing=allow_missing)


def store(opened: Session, campaign: Campaign, *, allow_missing: bool) -> campaigns.Stored:
    """Plans and stores a campaign in one transaction."""
    jobs = planned(opened, campaign, allow_missing=allow_missing)
    with opened.engine.begin() as connection:
        return campaigns.store(connection, campaign, jobs.jobs())


def submit(
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, check and estimate; submit nothing.", show_default=False)
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing-targets", help="Accept targets that no device has yet.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a campaign. The same file twice is the same campaign: nothing is measured again."""
    campaign = load(file, limit=settings().max_configurations)
    with session() as opened:
        if dry_run:
            _print_plan(campaign, planned(opened, campaign, allow_missing=allow_missing).summary(), as_json)
            return
        stored = store(opened, campaign, allow_missing=allow_missing)
        with opened.engine.connect() as connection:
            counts = campaigns.counts(connection, stored.campaign_id)
            live = devices.live(connection, silent_after=opened.settings.silent_after_seconds)
    if as_json:
        emit_json(
            {"campaign": campaign.name, "digest": campaign.digest, "new": stored.new, "new_jobs": stored.jobs, **counts}
        )
        return
    waiting = campaigns.open_jobs(counts)
    known = "is submitted" if stored.new else "is known already"
    console.print(f"{campaign.name} {known}: {sum(counts.values()):,} jobs, of which {_counts_text(counts)}.")
    if waiting and not live:
        remarks.print(NO_WORKER)
    elif waiting:
        remarks.print(f"[bold]farm watch {campaign.name}[/] follows it.")


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {state}" for state, n in counts.items() if n) or "none"


def _print_plan(campaign: Campaign, summary: PlanSummary, as_json: bool) -> None:
    if as_json:
        emit_json(summary.to_json())
        return
    rows = [(c.family, c.pool, c.jobs - c.invalid, c.invalid) for c in summary.counts]
    console.print(
        table(f"{campaign.name}: nothing was submitted", ["family", "target", "to measure", "invalid"], rows,
              right=["to measure", "invalid"])
    )  # fmt: skip
    if summary.invalid:
        reasons: list[tuple[int, str, str]] = [(r.count, r.reason, r.example) for r in summary.invalid]
        if summary.invalid_for_other_reasons:
            reasons.append((summary.invalid_for_other_reasons, "other reasons", ""))
        console.print(table("invalid, and why", ["jobs", "reason", "for example"], reasons, right=["jobs"]))
    for left in summary.not_applicable:
        where = "that the farm knows" if left.target == "any" else f"of {left.target}"
        console.print(f"{left.configurations:,} {left.family} configurations run on no device {where}.")
    if summary.excluded_by_constraints:
        console.print(f"{summary.excluded_by_constraints:,} configurations are left out by the constraints.")
    for pool, seconds in summary.estimated_seconds.items():
        console.print(f"At most {seconds_text(seconds)} of device time on {pool}.")


def status(
    campaign: Annotated[str | None, typer.Argument(help="One campaign in detail.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Campaigns and how far they are; with a name, one of them with what went wrong."""
    with session() as opened, opened.engine.connect() as connection:
        if campaign is None:
            _print_overview(campaigns.overview(connection), as_json)
            return
        found = campaigns.find(connection, campaign)
        counts = campaigns.counts(connection, found["id"])
        problems = campaigns.problems(connection, found["id"])
    if as_json:
        keep = ("name", "digest", "owner", "priority", "state", "submitted_at", "finished_at")
        emit_json({**{key: found[key] for key in keep}, "counts": counts, "problems": problems})
        return
    console.print(f"[bold]{found['name']}[/] ({found['digest'][:8]}) of {found['owner']}: {found['state']}")
    console.print(f"submitted {found['submitted_at']:%Y-%m-%d %H:%M:%S} UTC, priority {found['priority']}")
    console.print(f"{sum(counts.values()):,} jobs: {_counts_text(counts)}")
    if problems:
        rows = [(p["state"], p["attempts"], _configuration_text(p), p["pool"], p["error"]) for p in problems]
        console.print(table("jobs with errors", ["state", "attempts", "configuration", "target", "error"], rows))


def _configuration_text(row: dict[str, Any]) -> str:
    return f"{kernel_text(row)} {row['m']}x{row['n']}x{row['k']} {types_text(row)} {row['layout']}"


def _print_overview(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        emit_json(rows)
        return
    if not rows:
        console.print("No campaigns yet. Submit one: farm submit examples/campaigns/quickstart.yaml")
        return
    final = [s for s in JobState if s not in OPEN_JOB_STATES and s is not JobState.DONE]
    lines = [
        (
            r["name"], r["digest"][:8], r["owner"], r["state"], sum(r["counts"].values()), r["counts"]["done"],
            campaigns.open_jobs(r["counts"]), sum(r["counts"][s] for s in final),
            f"{r['submitted_at']:%Y-%m-%d %H:%M}",
        )
        for r in rows
    ]  # fmt: skip
    columns = ["campaign", "digest", "owner", "state", "jobs", "done", "open", "not measured", "submitted (UTC)"]
    console.print(table(None, columns, lines, right=["jobs", "done", "open", "not measured"]))


def watch(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Follow a campaign to its end. Ctrl-C stops the watching, not the campaign."""
    with session() as opened:
        with opened.engine.connect() as connection:
            found = campaigns.find(connection, campaign)
            waiting = campaigns.open_jobs(campaigns.counts(connection, found["id"]))
            live = devices.live(connection, silent_after=opened.settings.silent_after_seconds)
        if waiting and not live:
            remarks.print(NO_WORKER)
        counts = follow(opened, found["id"], found["name"])
    if as_json:
        emit_json({"campaign": found["name"], "counts": counts})
    else:
        console.print(f"{found['name']}: {_counts_text(counts)}.")
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=found["name"])


def cancel(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Cancel a campaign: nothing more of it is measured. Its results stay; submitting it again goes on with it."""
    with session() as opened, opened.engine.begin() as connection:
        found = campaigns.find(connection, campaign)
        stopped = campaigns.cancel(connection, found["id"])
    if as_json:
        emit_json({"campaign": found["name"], "cancelled_jobs": stopped})
    elif found["state"] == "active":
        console.print(f"{found['name']} is cancelled; {stopped:,} jobs will not be measured.")
    else:
        console.print(f"{found['name']} was {found['state']} already; nothing changed.")
