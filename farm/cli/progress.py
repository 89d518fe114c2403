"""A campaign's progress on stderr: a bar for a terminal, a line now and then for a file."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farm.cli.output import remarks, seconds_text
from farm.cli.session import Session
from farm.db import campaigns

REFRESH_SECONDS = 0.5
LINE_SECONDS = 10.0


def follow(opened: Session, campaign_id: int, name: str, *, check: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Shows progress until no job of the campaign is open; returns the counts by state.

    `check` is called at each look and may raise, where what measures has died.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=remarks, transient=True, disable=not remarks.is_terminal) as bar:
        task = bar.add_task(name, total=None, rate="")
        first: tuple[float, int] | None = None
        said = time.monotonic()
        while True:
            check()
            with opened.engine.connect() as connection:
                counts = campaigns.counts(connection, campaign_id)
            total, waiting = sum(counts.values()), campaigns.open_jobs(counts)
            now, ended = time.monotonic(), total - waiting
            first = first or (now, ended)
            rate = (ended - first[1]) / (now - first[0]) if now > first[0] else 0.0
            text = f"{rate:.1f} jobs/s, {seconds_text(waiting / rate)} left" if rate else "waiting for a worker"
            bar.update(task, total=total, completed=ended, rate=text)
            if not waiting:
                return counts
            if not remarks.is_terminal and now - said >= LINE_SECONDS:
                said = now
                remarks.print(f"{name}: {ended:,} of {total:,} jobs, {text}")
            time.sleep(REFRESH_SECONDS)
