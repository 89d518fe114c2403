"""`farm sentinels`: whether devices drift, and how those of one type compare between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from farm.cli.output import JsonOption, console, emit_json, table
from farm.db import campaigns
from farm.db import sentinels as queries
from farm.db.sentinels import Watched
from farm.errors import UnknownDevice
from farm.services.session import session
from farm.texts import some_of


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
    with session() as opened, opened.engine.connect() as connection:
        campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
        seen = queries.watched(connection, campaign_id=campaign_id)
    if device is not None:
        seen = _named(seen, device)
    if as_json:
        emit_json([sentinel_json(one) for one in seen])
    elif seen:
        _print(seen)
    else:
        console.print("No sentinel was measured yet. FARM_SENTINEL_JOBS says how often; a recorded device has none.")


def _named(seen: Sequence[Watched], device: str) -> list[Watched]:
    """Raises `UnknownDevice`."""
    found = [one for one in seen if one.device_uuid.lower().startswith(device.lower())]
    if not found:
        raise UnknownDevice(which=device, known=some_of([one.device_uuid for one in seen]) or "none with a sentinel")
    return found


def _print(seen: Sequence[Watched]) -> None:
    lines = [
        (
            f"{one.device_uuid}\n{one.device_type} on {one.host}", one.campaign, one.n, _times(one), _drift(one),
            None if one.ratio is None else f"{one.ratio:.3f}",
            _ends(one, "sm_clock_mhz"), _ends(one, "temperature_c"), f"{one.rows[0].measured_at:%m-%d %H:%M}",
        )
        for one in seen
    ]  # fmt: skip
    columns = [
        "device", "campaign", "n", "ms\nfirst, latest", "drift", "of its\ntype", "SM MHz\nfirst, latest",
        "°C\nfirst, latest", "since\n(UTC)",
    ]  # fmt: skip
    console.print(table(None, columns, lines, right=[columns[2], *columns[5:]], whole=["device", *columns[3:]]))


def _times(one: Watched) -> str:
    first = one.rows[0].runtime_ms if one.drift is None else one.drift.base_ms
    return f"{first:.4g}\n{one.latest_ms:.4g}"


def _drift(one: Watched) -> Text | None:
    if one.drift is None:
        return None
    percent = f"{100 * one.drift.deviation:+.1f}%"
    if one.drifts_since is None:
        return Text(percent)
    return Text(f"{percent}\ndrifts since {one.drifts_since:%H:%M}", style="yellow")


def _ends(one: Watched, name: str) -> str | None:
    values = [getattr(row, name) for row in (one.rows[0], one.rows[-1])]
    return None if values == [None, None] else "\n".join("–" if value is None else f"{value:,}" for value in values)


def drift_text(one: Watched) -> str:
    """`its sentinel takes 4.1% longer than at first`."""
    assert one.drift is not None
    than = "longer" if one.drift.deviation > 0 else "shorter"
    return f"its sentinel takes {abs(100 * one.drift.deviation):.1f}% {than} than at first"


def sentinel_json(one: Watched) -> dict[str, Any]:
    """What the sentinels of one device say; times in ms, drift in percent. `since` is when the first one landed."""
    first, latest = one.rows[0], one.rows[-1]
    kept = ("device_uuid", "device_type", "host", "campaign", "n", "ratio", "flagged", "drifts_since", "latest_ms")
    return {
        **{name: getattr(one, name) for name in kept},
        "first_ms": first.runtime_ms if one.drift is None else one.drift.base_ms,
        "drift_percent": None if one.drift is None else 100 * one.drift.deviation,
        "spread_percent": None if one.drift is None else 100 * one.drift.spread,
        "since": first.measured_at,
        "first": asdict(first),
        "latest": asdict(latest),
    }
