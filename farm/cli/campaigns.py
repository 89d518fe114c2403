"""`farm submit`, `watch`, `pause`, `resume`, `cancel`: campaigns from file to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from farm.builds import versions_of
from farm.campaign import Campaign, KnownDevice, Plan, PlanSummary, load, plan
from farm.cli.output import JsonOption, console, counts_text, emit_json, remarks, seconds_text, table
from farm.cli.progress import follow
from farm.cli.session import Session, session
from farm.db import batches, campaigns, devices, kernels
from farm.db.tables import CampaignState
from farm.errors import CampaignCancelled, FarmError
from farm.settings import settings

FileArgument = Annotated[Path, typer.Argument(help="A campaign file (YAML).", show_default=False)]
AgainOption = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Measure it once more, as after a driver changed; while its last repetition is not over, go on with that.",
        show_default=False,
    ),
]
CampaignArgument = Annotated[
    str, typer.Argument(help="A campaign's name, or the first six or more digits of its digest.", show_default=False)
]


NO_WORKER = "No worker is up: start one with [bold]farm up[/]. Where it is up already, [bold]farm doctor[/] looks for what is wrong."


NO_BUILDER = (
    "No builder is up: start one with [bold]farm-worker --build[/] on a host with the extra build, or add kernels that "
    "were built elsewhere with [bold]farm kernels add[/]."
)


class CampaignIncomplete(FarmError):
    """{dead} of {jobs} jobs of {name} ended dead. `farm status {name}` says why."""

    exit_code = 6


def planned(opened: Session, campaign: Campaign, *, allow_missing: bool) -> Plan:
    """The campaign against the devices that the farm knows."""
    with opened.engine.connect() as connection:
        known = [KnownDevice(*row) for row in campaigns.known_devices(connection)]
    return plan(campaign, known, allow_missing=allow_missing)


def repeated(opened: Session, campaign: Campaign) -> Campaign:
    """The campaign as its next repetition, or its last one while that is not over."""
    with opened.engine.connect() as connection:
        return campaigns.again(connection, campaign)


def store(opened: Session, campaign: Campaign, *, allow_missing: bool) -> campaigns.Stored:
    """Plans and stores a campaign in one transaction."""
    made = planned(opened, campaign, allow_missing=allow_missing)
    with opened.engine.begin() as connection:
        return campaigns.store(connection, campaign, made.jobs(), versions=versions_of(opened.settings))


def submit(
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, check and estimate; submit nothing.", show_default=False)
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing-targets", help="Accept targets that no device has yet.")
    ] = False,
    again: AgainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a campaign. The same file twice is the same campaign: nothing is measured again, but with --again."""
    campaign = load(file, limit=settings().max_configurations)
    with session() as opened:
        if again:
            campaign = repeated(opened, campaign)
        if dry_run:
            _print_plan(campaign, planned(opened, campaign, allow_missing=allow_missing).summary(), as_json)
            return
        stored = store(opened, campaign, allow_missing=allow_missing)
        with opened.engine.connect() as connection:
            counts = campaigns.counts(connection, stored.campaign_id)
            state = campaigns.find(connection, campaign.digest)["state"]
            live = devices.live(connection, silent_after=opened.settings.silent_after_seconds)
            awaited = kernels.awaited(connection, stored.campaign_id)
            builders = kernels.builders(connection, silent_after=opened.settings.silent_after_seconds)
    if as_json:
        emit_json(
            {"campaign": campaign.name, "repeat": campaign.repeat, "digest": campaign.digest, "new": stored.new, "new_jobs": stored.jobs, **counts,
             "kernels_awaited": awaited.kernels}
        )  # fmt: skip
        return
    waiting = campaigns.open_jobs(counts)
    known = "is submitted" if stored.new else "is known already"
    times = f", repetition {campaign.repeat}," if campaign.repeat else ""
    console.print(f"{campaign.name}{times} {known}: {sum(counts.values()):,} jobs, of which {counts_text(counts)}.")
    if awaited.kernels:
        console.print(f"{awaited.jobs:,} of them wait for {awaited.kernels:,} kernels to be built.")
    if state == CampaignState.PAUSED:
        remarks.print(f"It is paused: [bold]farm resume {campaign.name}[/] goes on with it.")
    elif waiting and not live:
        remarks.print(NO_WORKER)
    elif awaited.kernels and not builders:
        remarks.print(NO_BUILDER)
    elif waiting:
        remarks.print(f"[bold]farm watch {campaign.name}[/] follows it.")


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
    if summary.binaries:
        console.print(f"{summary.binaries:,} kernels are needed, built ahead of time.")
    if summary.rounds:
        lines = [
            (r.round, r.jobs, "short" if r.short else "the campaign's", seconds_text(r.estimated_seconds))
            for r in summary.rounds
        ]
        columns = ["round", "jobs, at most", "rules", "device time, at most"]
        console.print(table("rounds of the search", columns, lines, right=[columns[0], columns[1], columns[3]]))
    for pool, seconds in summary.estimated_seconds.items():
        console.print(f"At most {seconds_text(seconds)} of device time on {pool}.")


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
        console.print(f"{found['name']}: {counts_text(counts)}.")
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=found["name"])


def cancel(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Cancel a campaign: nothing more of it is measured. Its results stay; submitting it again goes on with it."""
    found, changed, counts = _steer(campaign, batches.cancel)
    if as_json:
        emit_json({**_steered(found, changed, counts), "cancelled_jobs": counts["cancelled"]})
    elif changed:
        console.print(f"{found['name']} is cancelled; {counts['cancelled']:,} jobs will not be measured.")
        _print_in_hand(counts, rest="the rest of them will not be measured either")
    else:
        _print_unchanged(found)


def pause(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Pause a campaign: no further job of it starts until farm resume. What is in hand still lands."""
    found, changed, counts = _steer(campaign, batches.pause)
    if as_json:
        emit_json(_steered(found, changed, counts))
    elif changed:
        console.print(f"{found['name']} is paused; {counts['pending']:,} jobs wait until farm resume {found['name']}.")
        _print_in_hand(counts, rest="the rest of them waits too")
    else:
        _print_unchanged(found)


def resume(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Go on with a campaign that was paused."""
    found, changed, counts = _steer(campaign, batches.resume)
    if found["state"] == CampaignState.CANCELLED:
        raise CampaignCancelled(name=found["name"])
    if as_json:
        emit_json(_steered(found, changed, counts))
    elif changed:
        console.print(f"{found['name']} goes on; {counts['pending']:,} jobs wait for their turn.")
    else:
        _print_unchanged(found)


def _steer(campaign: str, transition: Callable[[Connection, int], bool]) -> tuple[dict[str, Any], bool, dict[str, int]]:
    """The campaign as it is after the transition, whether that changed it, and its jobs by state."""
    with session() as opened, opened.engine.begin() as connection:
        before = campaigns.find(connection, campaign)
        changed = transition(connection, before["id"])
        after = campaigns.find(connection, before["digest"])
        return after, changed, campaigns.counts(connection, after["id"])


def _steered(found: dict[str, Any], changed: bool, counts: dict[str, int]) -> dict[str, Any]:
    return {"campaign": found["name"], "state": found["state"], "changed": changed, "counts": counts}


def _print_unchanged(found: dict[str, Any]) -> None:
    console.print(f"{found['name']} was {found['state']} already; nothing changed.")


def _print_in_hand(counts: dict[str, int], *, rest: str) -> None:
    if counts["running"]:
        console.print(
            f"Workers hold {counts['running']:,} more: each finishes the job that it measures and lands what it has; "
            f"{rest}."
        )
