"""Whether the clocks of a card have settled for the kernel that it runs.

A power limiter answers late. On an H200 a kernel that draws too much runs at full clocks for its first 50 to 100 ms, up to
15% faster than after that; and a kernel that comes after it runs for its first 60 ms at the clocks that were left to the
other one, up to 58% slower (benchmarks/power_truth.py). Both are longer than it takes to time a kernel. So where there is a
sign of either, the kernel is timed again once the limiter has had its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.vendors.nvidia import ClockEvent
from workers.measure.nvml import Telemetry

ANSWER_SECONDS = 0.12
"""A kernel that has run for so long runs at the clocks that the limiter leaves to it."""

MOVED = 0.01
"""Clocks, and times, further apart than this share are not the same."""

NEAR_LIMIT = 0.9
"""A card that draws this share of its limit may be about to be held."""

FAR_FROM_LIMIT = 0.8
"""A kernel that cannot draw more than this share of the limit is not about to be held."""

SAMPLE_SECONDS = 0.02
"""The time between two power samples of the driver: one that is so much younger than a kernel is the kernel's alone."""


def drawn_w(samples: Sequence[tuple[float, float]], began_s: float, limit_w: float) -> list[float]:
    """What the driver's power samples (end in seconds, watts) tell of the draw of a kernel that began at that time.

    The samples of the kernel alone, where there are any. Before that, a bound from the latest sample is enough where it is far
    below the limit: a sample is the mean since the one before, and what ran before the kernel drew at least nothing. In
    75 recorded changes of kernels (benchmarks/results/power_windows.json.gz) the bound was too low by 11% at worst.

    Returns nothing where the samples do not tell yet.
    """
    alone = [watts for end_s, watts in samples if end_s >= began_s + SAMPLE_SECONDS]
    if alone or len(samples) < 2:
        return alone
    (start_s, _), (end_s, watts) = samples[-2:]
    own_s = end_s - max(start_s, began_s)
    # Multiplied, as the kernel's own time may be next to nothing.
    far = own_s > 0 and watts * (end_s - start_s) < FAR_FROM_LIMIT * limit_w * own_s
    return [watts * (end_s - start_s) / own_s] if far else []


def why_unsettled(
    looks: Sequence[Telemetry], drawn_w: Sequence[float], limit_w: float | None, fastest_mhz: int | None
) -> str | None:
    """A sign that the clocks of a kernel that has just begun to run are not yet those that it keeps; None without any.

    `looks` and `drawn_w`, the driver's power samples, were taken while it ran; `fastest_mhz` is the highest SM clock that
    the card was seen at, None where it was not seen before. A limiter that is still active alone is not a sign if it was:
    its last percent comes slowly.
    """
    clocks = [look.sm_clock_mhz for look in looks if look.sm_clock_mhz]
    if clocks and max(clocks) > (1 + MOVED) * min(clocks):
        return f"its clock moves between {min(clocks)} and {max(clocks)} MHz"
    held = any((look.clock_events or 0) & ClockEvent.SW_POWER_CAP for look in looks)
    if held and (not clocks or fastest_mhz is None or min(clocks) < (1 - MOVED) * fastest_mhz):
        return "the power limiter is at work"
    most_w = max(drawn_w, default=0.0)
    if limit_w is not None and most_w >= NEAR_LIMIT * limit_w:
        return f"it draws {most_w:.0f} W of {limit_w:.0f} W"
    return None
