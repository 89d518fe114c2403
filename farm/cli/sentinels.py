"""`farm sentinels`: the drift of devices, and comparisons between hosts."""

from __future__ import annotations

from rich.text import Text

from farm.api import sentinels as operations
from farm.api.sentinels import SentinelNow
from farm.cli.options import asks
from farm.cli.output import console
from farm.cli.tables import Column, Table, unique_beginnings


@asks(operations.list_)
def sentinels(found: list[SentinelNow]) -> None:
    """Show the drift of devices. Each device measures a fixed GEMM, its sentinel, at intervals during a campaign.

    Drift is the difference between the medians of the latest three and the first three. Positive is slower. It is flagged
    above 2% and above three times the spread. Of its type: the latest over the median of all devices of the type, which
    compares hosts.

    Examples:
        farm sentinels
        farm sentinels quickstart --device GPU-4e7a5dfa
    """
    if not found:
        console.print("No sentinel was measured yet. FARM_SENTINEL_JOBS sets how often; a recorded device has none.")
        return
    _SENTINELS.print(
        (
            one.device_uuid, one.device_type, one.host, one.campaign, one.n, one.first_ms, one.latest_ms, _drift(one),
            None if one.drifts_since is None else f"{one.drifts_since:%m-%d %H:%M}",
            None if one.ratio is None else f"{one.ratio:.3f}",
            one.first.sm_clock_mhz, one.latest.sm_clock_mhz, one.first.temperature_c, one.latest.temperature_c,
            f"{one.since:%m-%d %H:%M}",
        )
        for one in found
    )  # fmt: skip


_SENTINELS = Table(
    "sentinels",
    Column("device", short=unique_beginnings),
    Column("type", folds=True, priority=6),
    Column("host", folds=True, priority=4),
    Column("campaign", folds=True, priority=3),
    Column("n", number=True, priority=7),
    Column("first", "ms", number=True, priority=2),
    Column("latest", "ms", number=True),
    Column("drift", "%", number=True),
    Column("drifts since (UTC)", priority=1),
    Column("of its type", number=True, priority=1),
    Column("first SM clock", "MHz", number=True, priority=8),
    Column("latest SM clock", "MHz", number=True, priority=8),
    Column("first temperature", "°C", number=True, priority=9),
    Column("latest temperature", "°C", number=True, priority=9),
    Column("since", "(UTC)", priority=5),
)


def _drift(one: SentinelNow) -> Text | None:
    if one.drift_percent is None:
        return None
    return Text(f"{one.drift_percent:+.1f}", style="" if one.drifts_since is None else "yellow")


def drift_text(one: SentinelNow) -> str:
    """`its sentinel takes 4.1% longer than at first`."""
    assert one.drift_percent is not None
    than = "longer" if one.drift_percent > 0 else "shorter"
    return f"its sentinel takes {abs(one.drift_percent):.1f}% {than} than at first"
