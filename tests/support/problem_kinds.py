"""Campaigns of several kinds of one problem, with rows of two kernels each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db.campaigns import Stored
from support.samples import document, landed, row

SHAPE = "128x64x32 f32:f32:f32 nn alpha=1 beta=0"


def kinds_measured(
    engine: Engine,
    device: int,
    submit: Callable[[Campaign], Stored],
    *,
    name: str,
    problems: Mapping[str, Any],
    times_ms: Mapping[str, tuple[float, float]],
) -> Stored:
    """Submits a campaign of these problems, and lands a row of `blas` with one thread and with two for each kind.

    Args:
        problems: keys of the block besides the shape and the types of `SHAPE`.
        times_ms: the times with one thread and with two, by what follows `SHAPE` in a configuration.
    """
    block = {"shapes": "128x64x32", "types": "f32", **problems}
    stored = submit(Campaign.from_document(document(name=name, problems=block)))
    rows = [
        (f"blas(threads={threads}) {SHAPE}{rest}", row(times[threads - 1]))
        for rest, times in times_ms.items()
        for threads in (1, 2)
    ]
    landed(engine, device, rows, campaign_id=stored.campaign_id)
    return stored
