"""What the power limiter of a card does to the time of a kernel: its burst time, its settled time, and what to wait for.

A power limiter answers late. On H100s and H200s a kernel that draws more than the limit runs at full clocks for its first 30
to 100 ms: 12 to 16% faster than later. Then clocks swing: for 50 ms the kernel may be twice as slow, until 0.5 s 5% faster,
and at about 1 s 15% slower than the mean that it holds from then on. And a kernel that comes after it finds its clocks: 0.1 s of
rest give them back, 0.05 s do not always (benchmarks/two_times.py).

While clocks swing, so does the power, and both belong together: at fixed work log t falls by `POWER_EXPONENT` for each unit of
log P. On an H100 the exponent was 0.43 to 0.51 for eleven kernels in six types, on an H200 0.36 to 0.51. So each reading of the power,
with the time of the same moment, says what the time is at the limit, where the mean power settles. Over 0.1 to 0.45 s the median of
these is within 0.4% of the mean time of 1 to 4 s in the median, and within 1.6% in the worst of sixty cases.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from farm.vendors.nvidia import ClockEvent
from workers.measure.nvml import Telemetry
from workers.measure.replay import Lot

POWER_EXPONENT = 0.47
"""How the time of a kernel depends on the power at which a limiter holds the card: t ~ P^-0.47."""

BURST_FROM_SECONDS, BURST_UNTIL_SECONDS = 0.004, 0.022
"""The part of a load whose samples are a burst: the card has woken up, and the limiter has not answered. The first 4 ms take 1 to 5%
longer for many kernels, and much longer where a graph is replayed for the first time."""

LOOKED_SECONDS = 0.07
"""A kernel far below the limit that is as fast as in its burst until then is not slowed down. The limiter of an H200 also slows down
f16, bf16 and f8 kernels that draw half of the limit, with operands of few different numbers: after 27 to 56 ms in forty loads, by 5 to
14%, and at once to the clocks that it holds."""

UNTOUCHED_SECONDS = 0.1
"""The same for a kernel that draws nearly the limit or more; most of these wait for the memory. In a hundred loads of kernels at
the limit, the first replay that was 3% slower ended after 22 to 91 ms."""

SLOWER_LOTS = 30
"""One in so many samples may be slower than the burst for other reasons than the limiter."""

ANSWER_SECONDS = 0.14
"""After this time the limiter has answered, and the time at the limit can be told from power and time."""

SWINGING_SECONDS = 0.36
"""Without power to be read for longer, the settled time is told from what was seen until then."""

MOVED = 0.01
"""Clocks, and times, further apart than this share are not the same."""

NEAR_LIMIT = 0.9
"""A card that draws this share of its limit may be about to be held."""

SAMPLE_SECONDS = 0.02
"""The time between two power samples of the driver."""

AGREEING, AGREEMENT = 4, 0.012
"""So many times at the limit in a row, no further apart than this share, are the settled time."""

LAW_RSE = 0.004
"""The relative error of a time at the limit that its readings do not show: of the exponent, and of where power settles."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time of a GEMM and the power of the card over the time of one power sample, seconds from the beginning of the load."""

    begin_s: float
    end_s: float
    watts: float
    gemm_ms: float

    def at_limit_ms(self, limit_w: float) -> float:
        """The time of a GEMM where the card draws its limit."""
        return float(self.gemm_ms * (self.watts / limit_w) ** POWER_EXPONENT)


def intervals(lots: Sequence[Lot], samples: Sequence[tuple[float, float]]) -> list[Interval]:
    """Power samples (end in seconds since the lots began, watts) with the mean time of a GEMM meanwhile.

    A sample is the mean since the one before. Those that are further apart than `SAMPLE_SECONDS` and a half are left out, and
    those that no lots cover.
    """
    ends, launches, total = [0.0], [0.0], 0
    for lot in lots:
        total += lot.launches
        ends.append(lot.ended_s)
        launches.append(total)

    def launched(at_s: float) -> float:
        place = bisect_left(ends, at_s)
        share = (at_s - ends[place - 1]) / (ends[place] - ends[place - 1])
        return launches[place - 1] + share * (launches[place] - launches[place - 1])

    found = []
    for (begin_s, _), (end_s, watts) in pairwise(samples):
        if 0 < begin_s < end_s <= min(ends[-1], begin_s + 1.5 * SAMPLE_SECONDS) and watts > 0:
            during = launched(end_s) - launched(begin_s)
            if during > 0:
                found.append(Interval(begin_s, end_s, watts, 1e3 * (end_s - begin_s) / during))
    return found


def is_held(seen: Sequence[Interval], limit_w: float, burst_ms: float) -> bool:
    """Whether the limiter makes a kernel slower: power near the limit, and a time above that of its burst."""
    if not seen:
        return False
    slower = statistics.median(one.gemm_ms for one in seen) > (1 + MOVED) * burst_ms
    return slower and statistics.median(one.watts for one in seen) >= NEAR_LIMIT * limit_w


def is_untouched(times_ms: Sequence[float], burst_ms: float) -> bool:
    """Whether no samples were slower than those of the burst, but for one in `SLOWER_LOTS`."""
    return sum(time_ms > (1 + 2 * MOVED) * burst_ms for time_ms in times_ms) <= len(times_ms) // SLOWER_LOTS


def agreeing(seen: Sequence[Interval], limit_w: float) -> bool:
    """Whether the last times at the limit agree."""
    times = [one.at_limit_ms(limit_w) for one in seen[-AGREEING:]]
    return len(times) == AGREEING and max(times) <= (1 + AGREEMENT) * min(times)


def drawn_w(samples: Sequence[tuple[float, float]], began_s: float) -> list[float]:
    """The driver's power samples (end in seconds, watts) of a kernel alone that began at that time, from its third on.

    Earlier ones are partly of what ran before, and the sensor takes a while to rise.
    """
    return [watts for end_s, watts in samples if end_s >= began_s + 2 * SAMPLE_SECONDS]


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
