"""`farm sentinels`: whether devices drift, and how those of one type compare between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from farm.api import farm_of
from farm.api import sentinels as operations
from farm.api.sentinels import SentinelNow
from farm.cli.output import JsonOption, console, emit_json, table
from farm.settings import settings


def sentinels(
    campaign: Annotated[
        str | None,
        typer.Argument(help="One campaign; without it, each device's newest that has sentinels.", show_default=False),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="One device: its UUID, or how it begins.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Do devices drift? Each measures a fixed GEMM, its sentinel, now and then while it works for a campaign.

    Drift is that of the median of the latest three from the median of the first three; positive is slower. It is flagged
    where it is beyond 2% and beyond three times the spread. Of its type: the latest over the median of all devices of the
    type, which compares hosts.
    """
    with farm_of(settings()) as farm:
        seen = farm.ask(operations.list_, campaign=campaign, device=device)
    if as_json:
        emit_json(seen)
    elif seen:
        _print(seen)
    else:
        console.print("No sentinel was measured yet. FARM_SENTINEL_JOBS says how often; a recorded device has none.")


def _print(seen: Sequence[SentinelNow]) -> None:
    lines = [
        (
            f"{one.device_uuid}\n{one.device_type} on {one.host}", one.campaign, one.n,
            f"{one.first_ms:.4g}\n{one.latest_ms:.4g}", _drift(one), None if one.ratio is None else f"{one.ratio:.3f}",
            _ends(one, "sm_clock_mhz"), _ends(one, "temperature_c"), f"{one.since:%m-%d %H:%M}",
        )
        for one in seen
    ]  # fmt: skip
    columns = [
        "device", "campaign", "n", "ms\nfirst, latest", "drift", "of its\ntype", "SM MHz\nfirst, latest",
        "°C\nfirst, latest", "since\n(UTC)",
    ]  # fmt: skip
    console.print(table(None, columns, lines, right=[columns[2], *columns[5:]], whole=["device", *columns[3:]]))


def _drift(one: SentinelNow) -> Text | None:
    if one.drift_percent is None:
        return None
    percent = f"{one.drift_percent:+.1f}%"
    if one.drifts_since is None:
        return Text(percent)
    return Text(f"{percent}\ndrifts since {one.drifts_since:%H:%M}", style="yellow")


def _ends(one: SentinelNow, name: str) -> str | None:
    values = [getattr(row, name) for row in (one.first, one.latest)]
    return None if values == [None, None] else "\n".join("–" if value is None else f"{value:,}" for value in values)


def drift_text(one: SentinelNow) -> str:
    """`its sentinel takes 4.1% longer than at first`."""
    assert one.drift_percent is not None
    than = "longer" if one.drift_percent > 0 else "shorter"
    return f"its sentinel takes {abs(one.drift_percent):.1f}% {than} than at first"
