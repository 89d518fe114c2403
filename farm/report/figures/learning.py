"""The learning curve of a campaign: error on the independent test set against device seconds (pure).

Points are those of `farm.db.learning.curve`: see `Point` in `trainer.rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from farm.charts.description import Axis, Chart, Dashes, Scale, Series, number, slug
from farm.measurement import ALL_FAMILIES
from farm.report.figures.labelled import counted

Point = Mapping[str, Any]


def by_pool(points: Sequence[Point]) -> dict[str, list[Point]]:
    """A campaign has a curve for each of its pools: models of different device types have nothing in common."""
    return {pool: list(of) for pool, of in groupby(points, key=lambda point: str(point["pool"]))}


def following(point: Point) -> str:
    """What came after a round: the next one, or why there is none."""
    if ended := ending(point):
        return ended
    return f"{counted(point['next_jobs'], 'job')} of {counted(point['problems'], 'problem')}"


def ending(point: Point) -> str | None:
    """Why no round followed; None where one did."""
    why: str | None = point.get("error") or point.get("stop")
    return why or (None if point["next_jobs"] else "the campaign was cancelled")


def conclusion(points: Sequence[Point]) -> str | None:
    """A sentence on why the curve ends; None where it goes on."""
    last = points[-1]
    if last.get("error"):
        return f"No further round is measured: round {last['round']} could not be decided ({last['error']})."
    why = ending(last)
    return None if why is None else f"No further round is measured: {why}."


def families(points: Sequence[Point]) -> list[str]:
    """Families with an error of their own; none where there is only one, which is the same as all."""
    found = sorted({family for point in points for family in point.get("test") or ()} - {ALL_FAMILIES})
    return found if len(found) > 1 else []


def curve(pool: str, points: Sequence[Point]) -> Chart | None:
    """The chart of one pool's points; None where no round has an error on the test set."""
    scored = [point for point in points if ALL_FAMILIES in (point.get("test") or {})]
    if not scored:
        return None
    return Chart(
        name=slug(f"learning {pool}"),
        title=f"Learning curve of {pool}: error on the independent test set",
        message=_message(scored),
        x=Axis(label="device time", unit="s"),
        y=Axis(label="mean error", unit="%", scale=Scale.LOG),
        series=(
            _of_all(scored),
            *(_of_family(scored, family, look) for look, family in enumerate(families(scored), start=1)),
        ),
    )


def _of_all(scored: Sequence[Point]) -> Series:
    scores = [point["test"][ALL_FAMILIES] for point in scored]
    mean, low, high = (np.array([score[key] for score in scores]) for key in ("mean_error_pct", "low", "high"))
    return Series(
        name="all, with 95% interval",
        x=np.array([point["device_seconds"] for point in scored]),
        y=mean,
        low=low,
        high=high,
        # A band has no width at a single point.
        band=len(scored) > 1,
        line=Dashes.SOLID,
    )


def _of_family(scored: Sequence[Point], family: str, look: int) -> Series:
    known = [point for point in scored if family in point["test"]]
    return Series(
        name=family,
        x=np.array([point["device_seconds"] for point in known]),
        y=np.array([point["test"][family]["mean_error_pct"] for point in known]),
        look=look,
        faint=True,
        line=Dashes.SOLID,
    )


def _message(scored: Sequence[Point]) -> str:
    first, last = scored[0], scored[-1]
    score = last["test"][ALL_FAMILIES]
    begun = f"{_error(first)} after {number(first['device_seconds'])} device seconds"
    reached = (
        f"{_error(last)} (95% interval {score['low']:.1f} to {score['high']:.1f}%) after "
        f"{number(last['device_seconds'])} device seconds"
    )
    return (
        f"Mean error of the predicted time on {counted(score['rows'], 'row')} of the independent test set: "
        + (f"{begun}, " if len(scored) > 1 else "")
        + f"{reached}, when the model had learned from {counted(last['rows'], 'configuration')}."
    )


def _error(point: Point) -> str:
    return f"{point['test'][ALL_FAMILIES]['mean_error_pct']:.1f}%"


COLUMNS = ("round", "device s", "rows", "test rows", "mean error %", "95% interval", "median %", "p90 %")
"""Of the table of a curve; then come the mean errors of its families, and what followed."""


def cells(point: Point, of: Sequence[str]) -> list[Any]:
    """A point as a line of the table: numbers, texts, and None for what is not known."""
    test = point.get("test") or {}
    score = test.get(ALL_FAMILIES)
    head = [point["round"], point.get("device_seconds"), point.get("rows")]
    if score is None:
        return [*head, *[None] * (5 + len(of)), following(point)]
    interval = f"{score['low']:.1f} to {score['high']:.1f}"
    return [
        *head,
        score["rows"],
        score["mean_error_pct"],
        interval,
        score["median_error_pct"],
        score["p90_error_pct"],
        *(test[family]["mean_error_pct"] if family in test else None for family in of),
        following(point),
    ]
