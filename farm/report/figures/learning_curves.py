"""The learning curve of a campaign: error on the independent test set against device seconds (pure).

Points are those of `farm.db.learning.curve`: see `Point` in `trainer.rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from farm.charts.chart import Axis, Chart, Dashes, Scale, Series, number, slug
from farm.formatting import counted
from farm.measurement import ALL_FAMILIES

Point = Mapping[str, Any]

COLUMNS = ("round", "device s", "rows", "test rows", "mean error %", "95% interval", "median %", "p90 %")
"""Columns of the table of a curve, before the mean errors of its families and what followed."""


def curves(points: Sequence[Point]) -> list[LearningCurve]:
    """A curve for each pool of a campaign: models of different device types have nothing in common."""
    return [LearningCurve(pool, list(of)) for pool, of in groupby(points, key=lambda point: str(point["pool"]))]


def following(point: Point) -> str:
    """What came after a round: the next one, or why there is none."""
    return ending(point) or f"{counted(point['next_jobs'], 'job')} of {counted(point['problems'], 'problem')}"


def ending(point: Point) -> str | None:
    """Why no round followed; None where one did."""
    why: str | None = point.get("error") or point.get("stop")
    return why or (None if point["next_jobs"] else "the campaign was cancelled")


@dataclass(frozen=True)
class LearningCurve:
    """The points of one pool."""

    pool: str
    points: Sequence[Point]

    @property
    def conclusion(self) -> str | None:
        """A sentence on why the curve ends; None where it goes on."""
        last = self.points[-1]
        if last.get("error"):
            return f"No further round is measured: round {last['round']} could not be decided ({last['error']})."
        why = ending(last)
        return None if why is None else f"No further round is measured: {why}."

    @property
    def steps(self) -> list[tuple[Point, str]]:
        """Each point with what followed it; the conclusion says why nothing followed the last one."""
        return [(point, "ended" if ending(point) else following(point)) for point in self.points]

    @property
    def families(self) -> list[str]:
        """Families with an error of their own; none where there is only one, which is the same as all."""
        found = sorted({family for point in self.points for family in point.get("test") or ()} - {ALL_FAMILIES})
        return found if len(found) > 1 else []

    @cached_property
    def chart(self) -> Chart | None:
        """None where no round has an error on the test set."""
        scored = [point for point in self.points if ALL_FAMILIES in (point.get("test") or {})]
        if not scored:
            return None
        return Chart(
            name=slug(f"learning {self.pool}"),
            title=f"Learning curve of {self.pool}: error on the independent test set",
            message=_message(scored),
            x=Axis(label="device time", unit="s"),
            y=Axis(label="mean error", unit="%", scale=Scale.LOG),
            series=(
                _of_all(scored),
                *(_of_family(scored, family, look) for look, family in enumerate(self.families, start=1)),
            ),
        )

    def cells(self, point: Point) -> list[Any]:
        """A point as a line of the table: numbers, texts, and None for what is not known."""
        test = point.get("test") or {}
        score = test.get(ALL_FAMILIES)
        head = [point["round"], point.get("device_seconds"), point.get("rows")]
        if score is None:
            return [*head, *[None] * (5 + len(self.families)), following(point)]
        return [
            *head,
            score["rows"],
            score["mean_error_pct"],
            f"{score['low']:.1f} to {score['high']:.1f}",
            score["median_error_pct"],
            score["p90_error_pct"],
            *(test[family]["mean_error_pct"] if family in test else None for family in self.families),
            following(point),
        ]


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
