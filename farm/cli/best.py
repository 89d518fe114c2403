"""`farm best`: the best kernel of each problem that a campaign found, and what finding it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from farm.api import farm_of, results
from farm.api.results import BestOf
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.formatting import seconds_text, types_of_text
from farm.settings import settings

MOST_ROWS = 30
"""Problems on the terminal, unless --limit says otherwise."""


@takes(results.best)
def show(
    query: dict[str, Any],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many problems in the table.")
    ] = MOST_ROWS,
    as_json: JsonOption = False,
) -> None:
    """Show the best kernel that a campaign found for each problem, its time compared with cuBLASLt's, and the cost of the search.

    The share of the best is shown if other campaigns measured all kernels of the problem on that type.

    Examples:
        farm best cutlass-tuned
        farm best cutlass-tuned --type nvidia-h200 --limit 5
    """
    with farm_of(settings()) as farm:
        known = farm.ask(results.best, **query)
    if as_json:
        emit_json(known)
        return
    if not known.found:
        console.print(f"Nothing of {known.campaign} was measured under its own rules yet.")
    else:
        _print(known.campaign, known.found, known.summary, limit)
    if known.waiting:
        remarks.print(f"{known.waiting:,} jobs are open: this is what was found so far.")


_BEST = Table(
    "best kernels",
    Column("problem", folds=True),
    Column("device type", folds=True, priority=4),
    Column("best kernel", folds=True),
    Column("runtime", "ms", number=True),
    Column("quartiles", "ms", number=True, priority=5),
    Column("cublaslt", "ms", number=True, priority=3),
    Column("times faster (95%)", number=True, priority=1),
    Column("tried", number=True, priority=6),
    Column("device time", "s", number=True, priority=7),
    Column("% of grid's best", number=True, priority=2),
)


def _print(name: str, found: Sequence[BestOf], total: Mapping[str, Any], limit: int) -> None:
    lines = [
        (
            _problem_text(one), one.device_type, one.best.kernel, one.best.runtime_ms,
            f"{one.best.runtime_q1_ms:.4g} – {one.best.runtime_q3_ms:.4g}",
            None if one.baseline is None else one.baseline.runtime_ms, _speed_up_text(one),
            f"{one.tried:,} of {one.grid:,}", one.device_s,
            None if one.share_of_best is None else 100 * one.share_of_best,
        )
        for one in found[:limit]
    ]  # fmt: skip
    _BEST.print(lines, title=f"{name}: the best kernel of each problem")
    if len(found) > limit:
        remarks.print(f"and {len(found) - limit:,} more: --limit N, or --json for all")
    for line in _summary_lines(total):
        console.print(line)


def _problem_text(one: BestOf) -> str:
    scalars = "" if (one.alpha, one.beta) == (1, 0) else f" alpha={one.alpha:g} beta={one.beta:g}"
    return f"{one.m}x{one.n}x{one.k} {types_of_text(one.types)} {one.layout}{scalars}"


def _speed_up_text(one: BestOf) -> str | None:
    if one.speed_up is None or one.speed_up_95 is None:
        return None
    return f"{one.speed_up:.3f} ({one.speed_up_95[0]:.3f} – {one.speed_up_95[1]:.3f})"


def _summary_lines(total: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{total['problems']:,} problems: {total['kernels_tried']:,} of {total['kernels_of_the_grid']:,} kernels tried in "
        f"{seconds_text(total['device_s'])} of device time"
        + (f", and {seconds_text(total['baseline_device_s'])} for cuBLASLt." if total["baseline_device_s"] else ".")
    ]
    if total["median_speed_up"] is not None:
        lines.append(
            f"Beside cuBLASLt's own choice ({total['with_baseline']:,} problems): {total['median_speed_up']:.3f} times as "
            "fast in the median."
        )
    if total["median_share_of_best"] is not None:
        lines.append(
            f"Of the full grid's best ({total['with_share_of_best']:,} problems): "
            f"{100 * total['median_share_of_best']:.2f}% in the median, {100 * total['worst_share_of_best']:.2f}% at worst."
        )
    return lines
