"""A campaign's progress on stderr: a bar for a terminal, a line now and then for a file."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farm.cli.output import remarks
from farm.coordinator.outlook import Outlook, outlook
from farm.db import campaigns, kernels
from farm.db.kernels import Awaited
from farm.services.session import Session
from farm.texts import rate_text, seconds_text

REFRESH_SECONDS = 0.5
OUTLOOK_SECONDS = 2.0
LINE_SECONDS = 10.0


def follow(opened: Session, campaign_id: int, name: str, *, check: Callable[[], None] = lambda: None) -> dict[str, int]:
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
        task = bar.add_task(name, total=None, pace="")
        text = ""
        said, looked = time.monotonic(), float("-inf")
        while True:
            check()
            now = time.monotonic()
            with opened.engine.connect() as connection:
                counts = campaigns.counts(connection, campaign_id)
                if now - looked >= OUTLOOK_SECONDS:
                    looked = now
                    ahead = outlook(connection, opened.settings, campaign_id)
                    text = pace_text(ahead, kernels.awaited(connection, campaign_id))
            total, waiting = sum(counts.values()), campaigns.open_jobs(counts)
            bar.update(task, total=total, completed=total - waiting, pace=text)
            if not waiting:
                return counts
            if not remarks.is_terminal and now - said >= LINE_SECONDS:
                said = now
                remarks.print(f"{name}: {total - waiting:,} of {total:,} jobs, {text}", markup=False)
            time.sleep(REFRESH_SECONDS)


def pace_text(ahead: Outlook, awaited: Awaited) -> str:
    """`740 jobs/min, 3 min 20 s left`, with what is stuck and why; where nothing ended lately, what it waits for."""
    parts = []
    if awaited.kernels:
        parts.append(f"{awaited.kernels:,} kernels to be built ({awaited.building:,} in work)")
    if ahead.pace.last_minute is not None:
        parts.append(f"{rate_text(ahead.pace.last_minute)} jobs/min")
    if ahead.seconds_left is not None:
        parts.append(f"{seconds_text(ahead.seconds_left)} left")
    if ahead.stuck:
        first = ahead.stuck[0]
        parts.append(f"{ahead.stuck_jobs:,} jobs are stuck: {first.why}")
    return ", ".join(parts) or "waiting for the first results"
