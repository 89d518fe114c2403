"""A campaign's progress on stderr: a bar for a terminal, a line now and then for a file."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farm.api import Farm, campaigns
from farm.api.campaigns import Progress as Now
from farm.cli.output import remarks
from farm.db.campaigns import open_jobs
from farm.texts import rate_text, seconds_text

REFRESH_SECONDS = 0.5
LINE_SECONDS = 10.0


def follow(farm: Farm, campaign: str, *, check: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Shows progress until no job of the campaign is open; returns the counts by state.

    `check` is called at each look and may raise, where what measures has died.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=remarks, transient=True, disable=not remarks.is_terminal) as bar:
        task = bar.add_task(campaign, total=None, pace="")
        said = time.monotonic()
        while True:
            check()
            now = farm.ask(campaigns.progress, campaign)
            total, waiting = sum(now.counts.values()), open_jobs(now.counts)
            bar.update(task, description=now.name, total=total, completed=total - waiting, pace=pace_text(now))
            if not waiting:
                return now.counts
            if not remarks.is_terminal and time.monotonic() - said >= LINE_SECONDS:
                said = time.monotonic()
                remarks.print(f"{now.name}: {total - waiting:,} of {total:,} jobs, {pace_text(now)}", markup=False)
            time.sleep(REFRESH_SECONDS)


def pace_text(now: Now) -> str:
    """`740 jobs/min, 3 min 20 s left`, with what is stuck and why; where nothing ended lately, what it waits for."""
    parts, awaited = [], now.kernels_awaited
    if awaited.kernels:
        parts.append(f"{awaited.kernels:,} kernels to be built ({awaited.building:,} in work)")
    if now.jobs_per_minute is not None:
        parts.append(f"{rate_text(now.jobs_per_minute)} jobs/min")
    if now.seconds_left is not None:
        parts.append(f"{seconds_text(now.seconds_left)} left")
    if now.stuck:
        parts.append(f"{now.stuck_jobs:,} jobs are stuck: {now.stuck[0].why}")
    return ", ".join(parts) or "waiting for the first results"
