"""Progress on stderr: a bar on a terminal; otherwise a line every ten seconds with the share done and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farm.api import Farm, campaigns
from farm.api.campaigns import Progress as Now
from farm.cli.output import remarks
from farm.db.campaigns import open_jobs
from farm.db.states import CampaignState
from farm.formatting import percent_text, rate_text, seconds_text

REFRESH_SECONDS = 0.5
LINE_SECONDS = 10.0
"""Time between two lines without a terminal."""


class LogLines:
    """Prints a line about progress every `LINE_SECONDS`, if stderr is not a terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def print(self, text: Callable[[], str]) -> None:
        """Prints what `text` returns, if it is time for a line."""
        now = self._clock()
        if not remarks.is_terminal and now - self._last >= LINE_SECONDS:
            self._last = now
            remarks.print(text(), markup=False)


class Counted(Protocol):
    def __call__(self, count: int, now: str | None = None) -> None: ...


@contextmanager
def counting(what: str, total: int | None, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Counted]:
    """Shows how many of `total` are done. Yields a function that takes the number done and, optionally, another label.

    Without a total it shows how many are done.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    lines, began = LogLines(clock), clock()
    with Progress(*columns, console=remarks, transient=True, disable=not remarks.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def done(count: int, now: str | None = None) -> None:
            bar.update(task, completed=count, description=now)
            lines.print(lambda: f"{now or what}: {_how_far(count, total, clock() - began)}")

        yield done


def _how_far(count: int, total: int | None, seconds: float) -> str:
    """`1,200 of 5,000, 24%, 1 min 10 s left`, at the speed so far; `1,200` without a total."""
    if total is None:
        return f"{count:,}"
    left = f", {seconds_text(seconds * (total - count) / count)} left" if 0 < count < total else ""
    return f"{count:,} of {total:,}, {percent_text(count, total)}{left}"


def follow(farm: Farm, campaign: str, *, check: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Shows progress until no job of the campaign is open; returns the counts by state.

    `check` is called at each look and may raise, where what measures has died.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[eta]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=remarks, transient=True, disable=not remarks.is_terminal) as bar:
        task = bar.add_task(campaign, total=None, eta="")
        lines = LogLines()
        while True:
            check()
            now = farm.ask(campaigns.progress, campaign)
            total, waiting = sum(now.counts.values()), open_jobs(now.counts)
            bar.update(task, description=now.name, total=total, completed=total - waiting, eta=eta_text(now))
            if not waiting:
                return now.counts
            lines.print(lambda: line_text(now))  # noqa: B023 - called at once
            time.sleep(REFRESH_SECONDS)


def line_text(now: Now) -> str:
    """`sweep: 1,200 of 5,000 jobs, 24%, 740 jobs/min, 5 min 08 s left`."""
    total = sum(now.counts.values())
    done = total - open_jobs(now.counts)
    return f"{now.name}: {done:,} of {total:,} jobs, {percent_text(done, total)}, {eta_text(now)}"


def eta_text(now: Now) -> str:
    """`740 jobs/min, 3 min 20 s left`, whether it is paused, what is stuck and why, or what it waits for."""
    parts, awaited = [], now.kernels_awaited
    if awaited.kernels:
        parts.append(f"{awaited.kernels:,} kernels to be built ({awaited.building:,} in progress)")
    if now.jobs_per_minute is not None:
        parts.append(f"{rate_text(now.jobs_per_minute)} jobs/min")
    if now.seconds_left is not None:
        parts.append(f"{seconds_text(now.seconds_left)} left")
    if now.state is CampaignState.PAUSED:
        parts.append(f"paused; to continue: farm resume {now.name}")
    if (learned := now.learned) is not None and (score := learned.test.get("all")) is not None:
        parts.append(
            f"{score.mean_error_pct:.1f}% mean error on the test set after {learned.device_seconds:,.0f} device s"
        )
    if now.stuck:
        parts.append(f"{now.stuck_jobs:,} jobs are stuck: {now.stuck[0].why}")
    return ", ".join(parts) or "waiting for the first results"
