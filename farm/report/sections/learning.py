"""The learning curve of a campaign that has one."""

from __future__ import annotations

from farm.formatting import counted
from farm.report.document import Cell, Section, Table
from farm.report.figures import learning_curves
from farm.report.figures.learning_curves import LearningCurve
from farm.report.report_data import CampaignData


def curve(data: CampaignData) -> Section | None:
    """None where the campaign does not learn or no round is over yet."""
    curves = learning_curves.curves(data.learning)
    if not curves:
        return None
    return Section(
        name="learning",
        title="Learning curve",
        about=(
            "After each round a model is trained on the rows so far, and predicts the times of the independent test set: "
            "problems drawn from the domain that no model learns from. Errors are means over its rows. The interval is a "
            "bootstrap over problems. Device seconds include the test set."
        ),
        sentences=[_sentence(one, several=len(curves) > 1) for one in curves],
        charts=[one.chart for one in curves if one.chart is not None],
        tables=[_table(one) for one in curves],
        data=list(data.learning),
    )


def _sentence(one: LearningCurve, *, several: bool) -> str:
    last = one.points[-1]
    text = one.conclusion or f"Round {last['round']} was followed by {learning_curves.following(last)}."
    return f"{one.pool}: {text}" if several else text


def _table(one: LearningCurve) -> Table:
    columns = [*learning_curves.COLUMNS, *(f"{family} %" for family in one.families), "next"]
    return Table(
        caption=f"Learning curve of {one.pool}: errors on the independent test set after {counted(len(one.points), 'round')}",
        columns=columns,
        rows=[_row(one.cells(point)) for point in one.points],
    )


def _row(cells: list[object]) -> list[object]:
    return [Cell(f"{cell:,.1f}", cell) if isinstance(cell, float) else cell for cell in cells]
