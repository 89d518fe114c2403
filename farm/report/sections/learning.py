"""The learning curve of a campaign that has one."""

from __future__ import annotations

from farm.report.document import Cell, Section, Table
from farm.report.figures import learning
from farm.report.figures.labelled import counted
from farm.report.loading import CampaignData


def curve(data: CampaignData) -> list[Section]:
    """One section, or none where the campaign does not learn or no round is over yet."""
    pools = learning.by_pool(data.learning)
    if not pools:
        return []
    charts = {pool: learning.curve(pool, points) for pool, points in pools.items()}
    return [
        Section(
            name="learning",
            title="Learning curve",
            about=(
                "After each round a model is trained on the rows so far, and predicts the times of the independent test set: "
                "problems drawn from the domain that no model learns from. Errors are means over its rows. The interval is a "
                "bootstrap over problems. Device seconds include the test set."
            ),
            says=[_says(pool, points, several=len(pools) > 1) for pool, points in pools.items()],
            charts=[chart for chart in charts.values() if chart is not None],
            tables=[_table(pool, points) for pool, points in pools.items()],
            figures=list(data.learning),
        )
    ]


def _says(pool: str, points: list[learning.Point], *, several: bool) -> str:
    conclusion = learning.conclusion(points)
    text = conclusion or f"Round {points[-1]['round']} was followed by {learning.following(points[-1])}."
    return f"{pool}: {text}" if several else text


def _table(pool: str, points: list[learning.Point]) -> Table:
    families = learning.families(points)
    columns = [*learning.COLUMNS, *(f"{family} %" for family in families), "next"]
    return Table(
        caption=f"Learning curve of {pool}: errors on the independent test set after {counted(len(points), 'round')}",
        columns=columns,
        rows=[_row(learning.cells(point, families)) for point in points],
        numbers=frozenset(columns[:-1]),
    )


def _row(cells: list[object]) -> list[object]:
    return [Cell(f"{cell:,.1f}", cell) if isinstance(cell, float) else cell for cell in cells]
