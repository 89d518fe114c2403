"""`farm submit`, `watch`, `pause`, `resume`, `cancel`: campaigns from file to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from sqlalchemy import Connection

from farm.api import Direct, Farm, campaigns, farm_of, submitting
from farm.api.access import Access
from farm.api.campaigns import CampaignChange, HeldBatches, Planned, Running, Submission, planned
from farm.campaign import Campaign, texts_named
from farm.campaign.figures import Drawn, Quantiles
from farm.campaign.reading import text_of
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.progress import REFRESH_SECONDS, LogLines, follow
from farm.cli.tables import Column, Table
from farm.db import campaigns as stored_campaigns
from farm.db.campaign_verdict import without_result
from farm.db.campaigns import open_jobs
from farm.db.states import CampaignState
from farm.errors import FarmError
from farm.formatting import counts_text, seconds_text, types_of_text
from farm.services.session import Session
from farm.settings import settings

FileArgument = Annotated[Path, typer.Argument(help="A campaign file (YAML).", show_default=False)]
AgainOption = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Measure it again, for example after a driver update. If its last repetition is not finished, continue that one.",
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


NO_TRAINER = (
    "No trainer is up, which decides what a learning campaign measures after its first round: start one with "
    "[bold]farm up[/], or with [bold]farm-trainer[/] on another machine."
)


class CampaignIncomplete(FarmError):
    """{dead} of {jobs} jobs of {name} ended dead. `farm status {name}` says why."""

    exit_code = 6


def direct(opened: Session) -> Direct:
    """Operations on a session that is open already, and stays its opener's to close."""
    return Direct(Access(opened.settings, opened=opened))


def repeated(opened: Session, campaign: Campaign) -> Campaign:
    """The campaign as its next repetition, or its last one while that is not over."""
    with opened.engine.connect() as connection:
        return stored_campaigns.again(connection, campaign)


def store(
    opened: Session,
    campaign: Campaign,
    *,
    allow_missing: bool,
    check: Callable[[Connection, int], None] = lambda _connection, _campaign_id: None,
) -> stored_campaigns.Stored:
    """Plans and stores a campaign in one transaction. Where `check` raises, nothing is stored."""
    access = direct(opened).access
    made = planned(access, campaign, allow_missing=allow_missing)
    with access.change(campaigns.submit) as change:
        stored = submitting.store(change, made, opened.settings)
        check(change.connection, stored.campaign_id)
        return stored


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
    """Submit a campaign. Submitting the same file twice measures nothing again, except with --again.

    Examples:
        farm submit sweep.yaml
        farm submit --dry-run sweep.yaml
    """
    text = text_of(file)
    submission = Submission(
        text=text,
        name=str(file),
        allow_missing=allow_missing,
        again=again,
        files=texts_named(text, file),
    )
    with farm_of(settings()) as farm:
        if dry_run:
            _print_plan(farm.ask(campaigns.check, submission), as_json)
            return
        done = farm.ask(campaigns.submit, submission)
    if as_json:
        emit_json(
            {"campaign": done.campaign, "repeat": done.repeat, "digest": done.digest, "new": done.new, "restored": done.restored, "new_jobs": done.new_jobs, **done.counts,
             "kernels_awaited": done.kernels_awaited, "trainer": done.trainer}
        )  # fmt: skip
        return
    waiting = open_jobs(done.counts)
    known = "is submitted" if done.new else "was deleted and is restored" if done.restored else "is known already"
    times = f", repetition {done.repeat}," if done.repeat else ""
    console.print(
        f"{done.campaign}{times} {known}: {sum(done.counts.values()):,} jobs, of which {counts_text(done.counts)}."
    )
    if done.kernels_awaited:
        console.print(f"{done.jobs_awaiting:,} of them wait for {done.kernels_awaited:,} kernels to be built.")
    if done.state is CampaignState.PAUSED:
        remarks.print(f"It is paused: [bold]farm resume {done.campaign}[/] goes on with it.")
    elif waiting and not done.devices_live:
        remarks.print(NO_WORKER)
    elif done.kernels_awaited and not done.builders:
        remarks.print(NO_BUILDER)
    elif done.trainer is False:
        remarks.print(NO_TRAINER)
    elif waiting:
        remarks.print(f"[bold]farm watch {done.campaign}[/] follows it.")


_PLAN = Table(
    "plan",
    Column("family"),
    Column("target", folds=True),
    Column("to measure", number=True),
    Column("invalid", number=True),
)

_INVALID = Table(
    "invalid jobs",
    Column("jobs", number=True),
    Column("reason", folds=True),
    Column("for example", folds=True, priority=1),
)

_ROUNDS = Table(
    "rounds of a search",
    Column("round", number=True),
    Column("jobs, at most", number=True),
    Column("rules", priority=1),
    Column("device time, at most", number=True),
)


_DRAWN = Table(
    "problems drawn from a domain",
    Column("types"),
    Column("problems", number=True),
    Column("configurations", number=True),
    Column("m", number=True),
    Column("n", number=True),
    Column("k", number=True),
    Column("flops", number=True, priority=1),
)

_SAMPLE = Table(
    "sample of a domain",
    Column("problem"),
    Column("types"),
    Column("layout"),
    Column("kernel", folds=True),
)


def _quantiles_text(numbers: Quantiles | None, form: str = ",") -> str:
    return "" if numbers is None else " / ".join(format(n, form) for n in (numbers.min, numbers.median, numbers.max))


def _print_drawn(drawn: Drawn) -> None:
    """The ranges of what was drawn from a domain, and some of its problems."""
    rows = [
        (
            types_of_text(of.types),
            of.problems,
            of.configurations,
            *map(_quantiles_text, (of.m, of.n, of.k)),
            _quantiles_text(of.flops, ".2g"),
        )
        for of in drawn.by_types
    ]
    _DRAWN.print(rows, title="problems drawn from the domain: min / median / max")
    sample = [
        (
            one.shape + ("" if (one.alpha, one.beta) == (1, 0) else f" alpha={one.alpha:g} beta={one.beta:g}"),
            types_of_text(one.types),
            one.layout,
            kernel,
        )
        for one in drawn.sample
        for kernel in one.kernels
    ]
    _SAMPLE.print(sample, title=f"the first {len(drawn.sample)} of {drawn.problems:,} problems")
    console.print(f"{drawn.configurations:,} configurations of {drawn.problems:,} problems are measured.")
    if drawn.problems < drawn.requested:
        remarks.print(
            f"[yellow]{drawn.requested:,} problems were requested:[/] the domain has no more that its constraints keep and a "
            "kernel runs."
        )


def _print_plan(made: Planned, as_json: bool) -> None:
    summary = made.plan
    if as_json:
        emit_json(summary)
        return
    rows = [(c.family, c.pool, c.jobs - c.invalid, c.invalid) for c in summary.counts]
    _PLAN.print(rows, title=f"{made.campaign}: nothing was submitted")
    if summary.invalid:
        reasons: list[tuple[int, str, str]] = [(r.count, r.reason, r.example) for r in summary.invalid]
        if summary.invalid_for_other_reasons:
            reasons.append((summary.invalid_for_other_reasons, "other reasons", ""))
        _INVALID.print(reasons, title="invalid, and why")
    for left in summary.not_applicable:
        where = "that the farm knows" if left.target == "any" else f"of {left.target}"
        console.print(f"{left.configurations:,} {left.family} configurations run on no device {where}.")
    if summary.drawn is not None:
        _print_drawn(summary.drawn)
    if summary.excluded_by_constraints:
        console.print(f"{summary.excluded_by_constraints:,} configurations are left out by the constraints.")
    if summary.binaries:
        console.print(f"{summary.binaries:,} kernels are needed, built ahead of time.")
    if summary.rounds:
        lines = [
            (r.round, r.jobs, "short" if r.short else "the campaign's", seconds_text(r.estimated_seconds))
            for r in summary.rounds
        ]
        _ROUNDS.print(lines, title="rounds of the search")
    for pool, seconds in summary.estimated_seconds.items():
        console.print(f"At most {seconds_text(seconds)} of device time on {pool}.")


def watch(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Follow a campaign until it ends. Ctrl-C stops watching, not the campaign.

    Examples:
        farm watch quickstart
    """
    with farm_of(settings()) as farm:
        now = farm.ask(campaigns.progress, campaign)
        if open_jobs(now.counts) and not now.devices_live:
            remarks.print(NO_WORKER)
        counts = follow(farm, now.digest)
        judged = farm.ask(campaigns.progress, now.digest).verdict
    if as_json:
        emit_json({"campaign": now.name, "counts": counts, "verdict": judged})
    else:
        console.print(f"{now.name}: {counts_text(counts)}.")
        warn_of_lost(now.name, counts)
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=now.name)


def warn_of_lost(name: str, counts: Mapping[str, int]) -> None:
    """Says how many jobs of a finished campaign have no result, and where the reasons are."""
    if lost := without_result(counts):
        remarks.print(
            f"[yellow]{lost:,} of {sum(counts.values()):,} jobs ended without a result:[/] "
            f"[bold]farm status {escape(name)}[/] says why."
        )


WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Return when no device holds a job of it any more, and all rows are stored.", show_default=False
    ),
]


def cancel(campaign: CampaignArgument, wait: WaitOption = False, as_json: JsonOption = False) -> None:
    """Cancel a campaign. Its results are kept. Submit it again to continue.

    After the command returns, no further job of the campaign starts. A device finishes the job in hand, and its row is
    stored. --wait returns after that.

    Examples:
        farm cancel quickstart
        farm cancel quickstart --wait
    """
    with farm_of(settings()) as farm:
        done = farm.ask(campaigns.cancel, campaign)
        if wait:
            done = _when_nothing_is_in_hand(farm, done, campaign)
    if as_json:
        emit_json({**done.model_dump(), "cancelled_jobs": done.counts["cancelled"]})
    elif done.changed:
        console.print(f"{done.campaign} is cancelled; {done.counts['cancelled']:,} jobs will not be measured.")
        _print_in_hand(done, campaign, rest="the rest of them will not be measured")
    else:
        _print_unchanged(done)


def pause(campaign: CampaignArgument, wait: WaitOption = False, as_json: JsonOption = False) -> None:
    """Pause a campaign. No further job starts until farm resume.

    After the command returns, no further job of the campaign starts. A device finishes the job in hand, and its row is
    stored. --wait returns after that.

    Examples:
        farm pause quickstart
    """
    with farm_of(settings()) as farm:
        done = farm.ask(campaigns.pause, campaign)
        if wait:
            done = _when_nothing_is_in_hand(farm, done, campaign)
    if as_json:
        emit_json(done)
    elif done.changed:
        console.print(
            f"{done.campaign} is paused; {done.counts['pending']:,} jobs wait until farm resume {done.campaign}."
        )
        _print_in_hand(done, campaign, rest="the rest of them waits too")
    else:
        _print_unchanged(done)


def resume(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Resume a paused campaign.

    Examples:
        farm resume quickstart
    """
    with farm_of(settings()) as farm:
        done = farm.ask(campaigns.resume, campaign)
    if as_json:
        emit_json(done)
    elif done.changed:
        console.print(f"{done.campaign} goes on; {done.counts['pending']:,} jobs wait for their turn.")
    else:
        _print_unchanged(done)


def _print_unchanged(done: CampaignChange) -> None:
    console.print(f"{done.campaign} was {done.state} already; nothing changed.")


def _print_in_hand(done: CampaignChange, campaign: str, *, rest: str) -> None:
    if done.counts["running"]:
        verb = "pause" if done.state is CampaignState.PAUSED else "cancel"
        console.print(
            f"Workers hold {done.counts['running']:,} more, {done.in_hand:,} of them in hand, at most one on each device. What is "
            f"in hand is finished and what was measured is stored: farm {verb} {escape(campaign)} --wait waits for that; {rest}."
        )


def _when_nothing_is_in_hand(farm: Farm, done: CampaignChange, campaign: str) -> CampaignChange:
    """Waits until no worker holds a batch of a stopped campaign. Says once of each silent worker what becomes of its batch."""
    try:
        now = _follow_to_the_last_row(farm, done, campaign)
    except KeyboardInterrupt:
        remarks.print(
            f"Interrupted. {escape(done.campaign)} stays {done.state}; what devices have in hand is stored when it is finished."
        )
        raise typer.Exit(130) from None
    return done.model_copy(update={"counts": now.counts, "state": now.state, "in_hand": now.in_hand})


def _follow_to_the_last_row(farm: Farm, done: CampaignChange, campaign: str) -> HeldBatches:
    named, lines = set[str](), LogLines()
    with remarks.status("waiting for what devices have in hand") as status:
        while (now := farm.ask(campaigns.in_hand, campaign)).running:
            if now.state is not done.state:
                remarks.print(f"{escape(now.campaign)} is {now.state} again; what is in hand is not waited for.")
                break
            text = in_hand_text(now)
            status.update(escape(text))
            lines.print(lambda: text)  # noqa: B023 - called at once
            for one in now.running:
                if one.silent and one.device_uuid not in named:
                    named.add(one.device_uuid)
                    remarks.print(f"[yellow]silent:[/] {escape(silent_text(one, coordinated=now.coordinated))}")
            time.sleep(REFRESH_SECONDS)
    return now


def in_hand_text(now: HeldBatches) -> str:
    """`sweep: 3 jobs in hand on 4 devices, waiting until their rows are stored`."""
    jobs = "1 job" if now.in_hand == 1 else f"{now.in_hand:,} jobs"
    devices = "1 device" if len(now.running) == 1 else f"{len(now.running):,} devices"
    return f"{now.campaign}: {jobs} in hand on {devices}, waiting until their rows are stored"


def silent_text(one: Running, *, coordinated: bool) -> str:
    """What becomes of a batch whose worker is not heard of."""
    ends = (
        f"what it holds is given up when its lease passes, {settings().lease_seconds:g} s after its last heartbeat"
        if coordinated
        else "no coordinator leads, which would take back what it holds; farm up starts one"
    )
    return f"{one.device_uuid} on {one.host} is not heard of, its host may be away: {ends}"
