"""`farm submit`, `watch`, `pause`, `resume`, `cancel`: submit campaigns and control them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from sqlalchemy import Connection

from farm.api import Direct, Farm, campaigns, farm_of, submitting
from farm.api.access import Access
from farm.api.campaigns import CampaignChange, HeldBatches, Planned, Running, Submission, SubmitOptions, planned
from farm.campaign import Campaign
from farm.campaign.figures import Drawn, Quantiles
from farm.campaign.workloads import CampaignText
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.problem_columns import ADDED
from farm.cli.progress import REFRESH_SECONDS, LogLines, follow
from farm.cli.tables import Column, Table
from farm.cli.workload_options import takes_workload
from farm.db import campaigns as stored_campaigns
from farm.db.campaign_verdict import without_result
from farm.db.campaigns import open_jobs
from farm.db.states import CampaignState
from farm.errors import FarmError
from farm.formatting import counts_text, seconds_text, types_of_text
from farm.gemm import ADDED_COLUMNS
from farm.groups import NONE
from farm.kernels.toolchains import extras_of
from farm.operands import OperandRules
from farm.services.session import Session
from farm.settings import settings
from farm.tracing import Kind, running, tracing

WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Return when no device holds a job of it any more, and all rows are stored.", show_default=False
    ),
]

NO_WORKER = (
    "No worker is running. Start one: [bold]farm up[/]. If it is running, find the problem: [bold]farm doctor[/]"
)


def _no_builder(toolchains: Sequence[str]) -> str:
    return (
        f"No builder with {' or '.join(toolchains)} is running. Start one with [bold]farm-worker --build[/] on a host with the "
        f"extra {' or '.join(extras_of(toolchains))}, or add kernels that were built elsewhere with [bold]farm kernels add[/]."
    )


NO_TRAINER = (
    "No trainer is running. It selects what a learning campaign measures after its first round. Start one with "
    "[bold]farm up[/], or with [bold]farm-trainer[/] on another machine."
)


class CampaignIncomplete(FarmError):
    """{dead} of {jobs} jobs of {name} ended dead. For the reasons: `farm status {name}`"""

    exit_code = 6


def direct(opened: Session) -> Direct:
    """Operations on an open session. The caller closes it."""
    return Direct(Access(opened.settings, opened=opened))


def repeated(opened: Session, campaign: Campaign) -> Campaign:
    """The campaign as its next repetition, or its last one if that is not finished."""
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
    began_ns = time.time_ns()
    with access.change(campaigns.submit) as change:
        stored = submitting.store(change, made, opened.settings)
        check(change.connection, stored.campaign_id)
    submitting.record_submission(opened.engine, campaign, stored, began_ns)
    return stored


@takes(SubmitOptions)
@takes_workload
def submit(
    options: SubmitOptions,
    *,
    workload: CampaignText,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, check and estimate; submit nothing.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a campaign. Submitting the same file twice measures nothing again, except with --again.

    Examples:
        farm submit sweep.yaml
        farm submit --dry-run sweep.yaml
        farm submit --trace tunableop_untuned0.csv --family cublaslt --family triton
        farm submit --model qwen3-30b-a3b --tp 4 --ep 8 --tokens 1,8,128,2048
    """
    submission = Submission(text=workload.text, name=workload.name, files=workload.files, **options.model_dump())
    with (
        running(settings(), "cli"),
        tracing().span("farm submit", kind=Kind.CLIENT),
        farm_of(settings()) as farm,
    ):
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
    console.print(f"{done.campaign}{times} {known}: {sum(done.counts.values()):,} jobs ({counts_text(done.counts)}).")
    if done.kernels_awaited:
        console.print(f"{done.jobs_awaiting:,} of them wait for {done.kernels_awaited:,} kernels to be built.")
    if done.state is CampaignState.PAUSED:
        remarks.print(f"The campaign is paused. To continue it: [bold]farm resume {done.campaign}[/]")
    elif waiting and not done.devices_live:
        remarks.print(NO_WORKER)
    elif done.without_builder:
        remarks.print(_no_builder(done.without_builder))
    elif done.trainer is False:
        remarks.print(NO_TRAINER)
    elif waiting:
        remarks.print(f"To follow it: [bold]farm watch {done.campaign}[/]")


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
    *ADDED,
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
            *map(_quantiles_text, (of.m, of.n, of.k, of.batch)),
            ", ".join(of.scale),
            ", ".join(of.fused),
            NONE,
            ", ".join(of.sparsity),
            _quantiles_text(of.flops, ".2g"),
        )
        for of in drawn.by_types
    ]
    without = [name for name in ADDED_COLUMNS if name not in drawn.added]
    _DRAWN.print(rows, title="problems drawn from the domain: min / median / max", without=without)
    sample = [
        (
            one.problem,
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
            f"[yellow]{drawn.requested:,} problems were requested:[/] the domain has no more that meet its constraints and that a "
            "kernel can run."
        )


def _print_plan(made: Planned, as_json: bool) -> None:
    summary = made.plan
    if as_json:
        emit_json(summary)
        return
    rows = [(c.family, c.pool, c.jobs - c.invalid, c.invalid) for c in summary.counts]
    _PLAN.print(rows, title=f"{made.campaign}: nothing was submitted")
    if made.operands != OperandRules().text:
        console.print(f"The operands are {made.operands}.", markup=False)
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
        console.print(f"{summary.excluded_by_constraints:,} configurations are excluded by the constraints.")
    if summary.binaries:
        console.print(f"{summary.binaries:,} kernels are needed, built ahead of time.")
    if summary.rounds:
        lines = [
            (r.round, r.jobs, "short" if r.short else "the campaign's", seconds_text(r.estimated_seconds))
            for r in summary.rounds
        ]
        _ROUNDS.print(lines, title="rounds of the search")
    if summary.protocol_text is not None:
        console.print(f"Protocol {summary.protocol_text}.", markup=False)
    for pool, seconds in summary.estimated_seconds.items():
        console.print(f"At most {seconds_text(seconds)} of device time on {pool}.")


@takes(campaigns.progress)
def watch(query: dict[str, Any], *, as_json: JsonOption = False) -> None:
    """Follow a campaign until it ends. Ctrl-C stops watching, not the campaign.

    Examples:
        farm watch quickstart
    """
    with farm_of(settings()) as farm:
        now = farm.ask(campaigns.progress, **query)
        if open_jobs(now.counts) and not now.devices_live:
            remarks.print(NO_WORKER)
        counts = follow(farm, now.digest)
        judged = farm.ask(campaigns.progress, now.digest).verdict
    if as_json:
        emit_json({"campaign": now.name, "counts": counts, "verdict": judged})
    else:
        console.print(f"{now.name}: {counts_text(counts)}.")
        _warn_of_jobs_without_result(now.name, counts)
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=now.name)


def _warn_of_jobs_without_result(name: str, counts: Mapping[str, int]) -> None:
    if number := without_result(counts):
        remarks.print(
            f"[yellow]{number:,} of {sum(counts.values()):,} jobs ended without a result.[/] "
            f"For the reasons: [bold]farm status {escape(name)}[/]"
        )


@takes(campaigns.cancel)
def cancel(query: dict[str, Any], *, wait: WaitOption = False, as_json: JsonOption = False) -> None:
    """Cancel a campaign. Its results are kept. Submit it again to continue.

    After the command returns, no further job of the campaign starts. A device finishes the job in hand, and its row is
    stored. --wait returns after that.

    Examples:
        farm cancel quickstart
        farm cancel quickstart --wait
    """
    done = _stop(campaigns.cancel, query["campaign"], wait=wait)
    if as_json:
        emit_json({**done.model_dump(), "cancelled_jobs": done.counts["cancelled"]})
    elif done.changed:
        console.print(f"{done.campaign} is cancelled; {done.counts['cancelled']:,} jobs will not be measured.")
        _print_in_hand(done, query["campaign"], rest="the rest will not be measured")
    else:
        _print_unchanged(done)


@takes(campaigns.pause)
def pause(query: dict[str, Any], *, wait: WaitOption = False, as_json: JsonOption = False) -> None:
    """Pause a campaign. No further job starts until farm resume.

    After the command returns, no further job of the campaign starts. A device finishes the job in hand, and its row is
    stored. --wait returns after that.

    Examples:
        farm pause quickstart
    """
    done = _stop(campaigns.pause, query["campaign"], wait=wait)
    if as_json:
        emit_json(done)
    elif done.changed:
        console.print(
            f"{done.campaign} is paused; {done.counts['pending']:,} jobs wait until farm resume {done.campaign}."
        )
        _print_in_hand(done, query["campaign"], rest="the rest wait too")
    else:
        _print_unchanged(done)


@asks(campaigns.resume)
def resume(done: CampaignChange) -> None:
    """Resume a paused campaign.

    Examples:
        farm resume quickstart
    """
    if done.changed:
        console.print(f"{done.campaign} is active again; {done.counts['pending']:,} jobs wait for a device.")
    else:
        _print_unchanged(done)


def _stop(operation: Callable[[Access, str], CampaignChange], campaign: str, *, wait: bool) -> CampaignChange:
    with farm_of(settings()) as farm:
        done = farm.ask(operation, campaign)
        return _when_nothing_is_in_hand(farm, done, campaign) if wait else done


def _print_unchanged(done: CampaignChange) -> None:
    console.print(f"{done.campaign} was {done.state} already; nothing changed.")


def _print_in_hand(done: CampaignChange, campaign: str, *, rest: str) -> None:
    if done.counts["running"]:
        verb = "pause" if done.state is CampaignState.PAUSED else "cancel"
        console.print(
            f"Workers hold {done.counts['running']:,} more jobs. They finish the {done.in_hand:,} in hand, at most one on each device, "
            f"and store the rows; {rest}. To wait for that: farm {verb} {escape(campaign)} --wait"
        )


def _when_nothing_is_in_hand(farm: Farm, done: CampaignChange, campaign: str) -> CampaignChange:
    """Waits until no worker holds a batch of a stopped campaign. Prints once for each silent worker what happens to its batch."""
    try:
        now = _follow_to_the_last_row(farm, done, campaign)
    except KeyboardInterrupt:
        remarks.print(
            f"Interrupted. {escape(done.campaign)} stays {done.state}; devices finish the jobs in hand and store their rows."
        )
        raise typer.Exit(130) from None
    return done.model_copy(update={"counts": now.counts, "state": now.state, "in_hand": now.in_hand})


def _follow_to_the_last_row(farm: Farm, done: CampaignChange, campaign: str) -> HeldBatches:
    named, lines = set[str](), LogLines()
    with remarks.status("waiting for jobs in hand") as status:
        while (now := farm.ask(campaigns.in_hand, campaign)).running:
            if now.state is not done.state:
                remarks.print(
                    f"{escape(now.campaign)} is {now.state} again. The command does not wait for jobs in hand."
                )
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
    """What happens to the batch of a worker that sends no heartbeats."""
    ends = (
        f"its batch is released when the lease expires, {settings().lease_seconds:g} s after its last heartbeat"
        if coordinated
        else "no coordinator leads, so nothing releases its batch; farm up starts one"
    )
    return f"{one.device_uuid} on {one.host} sends no heartbeats, its host may be down: {ends}"
