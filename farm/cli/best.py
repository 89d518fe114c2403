"""`farm best`: the best kernel of each problem that a campaign found, and what finding it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from farm.campaign import Campaign
from farm.cli.campaigns import CampaignArgument
from farm.cli.output import JsonOption, console, emit_json, remarks, table
from farm.db import campaigns
from farm.report.best import Found, best, summary
from farm.services.session import session
from farm.texts import seconds_text

MOST_ROWS = 30
"""Problems on the terminal, unless --limit says otherwise."""


def show(
    campaign: CampaignArgument,
    device_type: Annotated[str | None, typer.Option("--type", "-t", help="Only on this device type.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many problems in the table.")
    ] = MOST_ROWS,
    as_json: JsonOption = False,
) -> None:
    """The best kernel of each problem that a campaign found: its time, cuBLASLt's beside it, and what finding it cost.

    The share of the best is told where other campaigns measured all kernels of the problem on that type.
    """
    with session() as opened, opened.engine.connect() as connection:
        stored = campaigns.find(connection, campaign)
        asked = Campaign.from_document(stored["document"])
        waiting = campaigns.open_jobs(campaigns.counts(connection, stored["id"]))
        found = [f for f in best(connection, stored["id"], asked) if device_type in (None, f.device_type)]
    search = None if asked.search is None else asked.search.to_document()
    if as_json:
        head = {"campaign": stored["name"], "digest": stored["digest"], "state": stored["state"], "search": search}
        emit_json({**head, "summary": summary(found), "found": [one.to_json() for one in found]})
        return
    if not found:
        console.print(f"Nothing of {stored['name']} was measured under its own rules yet.")
    else:
        _print(stored["name"], found, limit)
    if waiting:
        remarks.print(f"{waiting:,} jobs are open: this is what was found so far.")


def _print(name: str, found: Sequence[Found], limit: int) -> None:
    columns = [
        "problem", "device type", "best kernel", "runtime ms", "quartiles ms", "cublaslt ms", "times faster (95%)", "tried",
        "device s", "% of grid's best",
    ]  # fmt: skip
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
    console.print(table(f"{name}: the best kernel of each problem", columns, lines, right=columns[3:]))
    if len(found) > limit:
        remarks.print(f"and {len(found) - limit:,} more: --limit N, or --json for all")
    for line in _summary_lines(summary(found)):
        console.print(line)


def _problem_text(one: Found) -> str:
    p = one.problem
    scalars = "" if (p.alpha, p.beta) == (1, 0) else f" alpha={p.alpha:g} beta={p.beta:g}"
    kinds = {str(kind) for kind in (p.types.ab, p.types.cd, p.types.acc)}
    return f"{p.shape} {kinds.pop() if len(kinds) == 1 else p.types} {p.layout}{scalars}"


def _speed_up_text(one: Found) -> str | None:
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
