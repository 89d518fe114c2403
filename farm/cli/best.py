"""`farm best`: the best kernel that a campaign found for each problem, and the cost of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from farm.api import results
from farm.api.results import Best, BestOf
from farm.cli.options import asks
from farm.cli.output import console, remarks
from farm.cli.tables import Column, Table
from farm.devices import DeviceKind
from farm.formatting import seconds_text
from farm.kernels import BASELINES

MAX_ROWS = 30
"""Problems on the terminal, without --limit."""


@asks(results.best)
def show(
    known: Best,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems in the table.")
    ] = MAX_ROWS,
) -> None:
    """Show the best kernel that a campaign found for each problem, its time compared with cuBLASLt's, and the cost of the search.

    The share of the best is shown if other campaigns measured all kernels of the problem on that type.

    Examples:
        farm best cutlass-tuned
        farm best cutlass-tuned --type nvidia-h200 --limit 5
        farm best swiglu --fused swiglu --groups none
    """
    if not known.found:
        console.print(f"{known.campaign} has no measurements under its own rules yet.")
    else:
        _print(known.campaign, known.found, known.summary, limit)
        for workload in known.workloads:
            console.print(workload.sentence)
    if known.waiting:
        remarks.print(f"{known.waiting:,} jobs are open, so these results are not final.")


_BEST = Table(
    "best kernels",
    Column("problem", folds=True),
    Column("device type", folds=True, priority=4),
    Column("best kernel", folds=True),
    Column("runtime", "ms", number=True),
    Column("burst", "ms", number=True, priority=3),
    Column("quartiles", "ms", number=True, priority=5),
    Column(BASELINES[DeviceKind.CUDA].family, "ms", number=True, priority=3),
    Column("times faster (95%)", number=True, priority=1),
    Column("tried", number=True, priority=6),
    Column("device time", "s", number=True, priority=7),
    Column("% of grid's best", number=True, priority=2),
)


def _print(name: str, found: Sequence[BestOf], total: Mapping[str, Any], limit: int) -> None:
    lines = [
        (
            one.problem, one.device_type, one.best.kernel, one.best.runtime_ms, one.best.burst_apart,
            f"{one.best.runtime_q1_ms:.4g} – {one.best.runtime_q3_ms:.4g}",
            None if one.baseline is None else one.baseline.runtime_ms, _speed_up_text(one),
            f"{one.tried:,} of {one.grid:,}", one.device_s,
            None if one.share_of_best is None else 100 * one.share_of_best,
        )
        for one in found[:limit]
    ]  # fmt: skip
    without = [] if any(one.best.burst_apart for one in found[:limit]) else ["burst"]
    _BEST.print(lines, title=f"{name}: the best kernel of each problem", without=without)
    if len(found) > limit:
        remarks.print(f"and {len(found) - limit:,} more: --limit N, or --json for all")
    for line in _summary_lines(total):
        console.print(line)


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
            f"Compared with cuBLASLt's own choice ({total['with_baseline']:,} problems): {total['median_speed_up']:.3f} times "
            f"as fast in the median, {total['max_speed_up']:.3f} at most. That choice is the fastest of "
            f"{total['baseline_fastest']:,}."
        )
    if total["median_share_of_best"] is not None:
        lines.append(
            f"Share of the full grid's best ({total['with_share_of_best']:,} problems): "
            f"{100 * total['median_share_of_best']:.2f}% in the median, {100 * total['worst_share_of_best']:.2f}% at worst."
        )
    return lines
