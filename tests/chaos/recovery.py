"""How long after a fault do healthy devices measure again? From what the database itself noted of batches.

A device is healthy where the fault does not hold it: see `chaos.plan.Holds`. A fault that holds everybody is over when it is
made good, and the time is counted from then; else from the strike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import Connection, text

from chaos.farm import Farm
from chaos.plan import TRAITS, Holds, Kind, Victim

BOUND_S = 30.0
"""The longest that it may take until healthy devices measure again."""

BOUND_AMONG_OTHERS_S = 180.0
"""The same where a fault strikes every second, some jobs hold the process that measures them, and a process that stands still
is ended after 30 s: a device is hit again before it lands anything. In an hour one was struck five times within 149 s."""

ENOUGH_STRIKES = 10
"""From so many strikes of a kind on, their median is held to `BOUND_S`: bad luck alone does not move it."""

TAKEOVER_BOUND_S = 15.0
"""The longest that it may take until another coordinator leads."""

OUTAGE_S = 4.0
"""A device whose batches take a second, and which lands none for so long, does not measure."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was done, and when it was made good, in seconds since the epoch.

    Infinity where it was not yet, None where it needs nobody to make it good.
    """

    kind: Kind
    target: int
    at: float
    mended_at: float | None

    @property
    def since(self) -> float:
        """From when on healthy devices should measure again."""
        return self.mended_at or self.at if TRAITS[self.kind].holds is Holds.EVERYBODY else self.at


@dataclass(frozen=True, slots=True)
class Landings:
    """When each device claimed and landed its batches, by its number, in seconds since the epoch."""

    claimed: Sequence[Sequence[float]]
    landed: Sequence[Sequence[float]]

    def first_after(self, device: int, at: float) -> float | None:
        """The first landing of a batch that the device claimed after that time."""
        place = bisect_left(self.claimed[device], at)
        return self.landed[device][place] if place < len(self.landed[device]) else None


def read_landings(
    connection: Connection, device_ids: Sequence[int], *, since: float = 0.0, with_rows: bool = True
) -> Landings:
    """Batches that were claimed since then and brought a row; without `with_rows`, those that ended in any way.

    A device that measures one poisonous job after the other measures, and brings no row.
    """
    found = connection.execute(
        text("""
            SELECT device_id, extract(epoch FROM claimed_at)::float8, extract(epoch FROM finished_at)::float8
            FROM batches WHERE claimed_at >= to_timestamp(:since) AND finished_at IS NOT NULL
                AND (NOT :with_rows OR state = 'done' AND done > 0)
            ORDER BY claimed_at
        """),
        {"since": since, "with_rows": with_rows},
    )
    of_device = defaultdict[int, list[tuple[float, float]]](list)
    for device_id, claimed, landed in found:
        of_device[device_id].append((claimed, landed))
    rows = [of_device[device_id] for device_id in device_ids]
    return Landings([[c for c, _ in row] for row in rows], [[at for _, at in row] for row in rows])


def held_by(kind: Kind, target: int, farm: Farm) -> set[int]:
    """The devices that cannot measure while the fault lasts, by number."""
    trait, hosts = TRAITS[kind], range(len(farm.devices_of))
    match trait.holds:
        case Holds.NOBODY:
            return set()
        case Holds.EVERYBODY:
            return set(range(sum(farm.devices_of)))
        case Holds.HALF:
            return {device for host in half_of(hosts) for device in farm.devices_at(host)}
        case Holds.VICTIM:
            return set(farm.devices_at(target)) if trait.victim is Victim.HOST else {target}


def half_of(hosts: Sequence[int]) -> Sequence[int]:
    """The hosts of devices that `Kind.CUT_HALF` cuts off."""
    return hosts[len(hosts) // 2 :]


def healthy_beside(kind: Kind, target: int, farm: Farm) -> set[int]:
    """The devices that must measure again within `BOUND_S` of `Struck.since`."""
    everyone = set(range(sum(farm.devices_of)))
    return everyone if TRAITS[kind].holds is Holds.EVERYBODY else everyone - held_by(kind, target, farm)


# --- one fault alone -----------------------------------------------------------------------------


def recovered_after(landings: Landings, devices: Iterable[int], since: float, now: float) -> float | None:
    """Seconds until all of the devices measured, and went on to do so until now. None where they do not yet.

    Each has landed a batch that it claimed after `since`, and came back from every outage that began later.
    """
    worst = since
    for device in devices:
        first = landings.first_after(device, since)
        times = [at for at in landings.landed[device] if since <= at <= now]
        if first is None or not times or now - times[-1] > OUTAGE_S:
            return None
        outages = [after for before, after in zip([since, *times], times, strict=False) if after - before > OUTAGE_S]
        worst = max([worst, first, *outages])
    return worst - since


# --- many at a time ------------------------------------------------------------------------------


def recovered_among_others(
    landings: Landings, struck: Sequence[Struck], farm: Farm, until: float
) -> dict[Kind, list[float]]:
    """Seconds of each fault, by kind, until all healthy devices landed a batch that they claimed after it.

    Less what other faults held the device meanwhile. `until` is when the work or chaos came to its end: what did not
    recover by then is only counted where that took too long already.
    """
    holds = defaultdict[int, list[tuple[float, float, Struck]]](list)
    for one in struck:
        for device in held_by(one.kind, one.target, farm):
            over = one.mended_at or landings.first_after(device, one.at) or until
            holds[device].append((one.at, over, one))
    found = defaultdict[Kind, list[float]](list)
    for one in struck:
        worst, counts = 0.0, True
        for device in healthy_beside(one.kind, one.target, farm):
            landed = landings.first_after(device, one.since)
            end = until if landed is None else min(landed, until)
            others = [(a, b) for a, b, other in holds[device] if other is not one]
            took = max(0.0, end - one.since - overlap(others, one.since, end))
            if end == until and took <= BOUND_AMONG_OTHERS_S:
                counts &= any(over >= until for _, over in others)  # it is not healthy, or might have recovered yet
                continue
            worst = max(worst, took)
        if counts:
            found[one.kind].append(worst)
    return found


def overlap(intervals: Iterable[tuple[float, float]], since: float, until: float) -> float:
    """Seconds between the two times that at least one of the intervals covers."""
    covered, reached = 0.0, since
    for begin, end in sorted(intervals):
        covered += max(0.0, min(end, until) - max(begin, reached))
        reached = max(reached, end)
    return covered


def too_slow(recovered: dict[Kind, list[float]]) -> list[str]:
    """Findings: kinds after which healthy devices stood still for longer than `BOUND_AMONG_OTHERS_S`, or mostly than `BOUND_S`."""
    found = []
    for kind, times in recovered.items():
        again = f"after {kind.value!r} healthy devices measured again after"
        if max(times) > BOUND_AMONG_OTHERS_S:
            found.append(f"{again} {max(times):.1f} s, not {BOUND_AMONG_OTHERS_S:g} s")
        if len(times) >= ENOUGH_STRIKES and median(times) > BOUND_S:
            found.append(f"{again} {median(times):.1f} s in the median, not {BOUND_S:g} s")
    return found


BUCKETS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)


def histogram(recovered: dict[Kind, list[float]]) -> str:
    """A line for each kind: how many of its faults took at most so many seconds."""
    head = ["faults", "median", "worst", *(f"≤{bucket:g} s" for bucket in BUCKETS_S), "more"]
    lines = ["".join(f"{word:>8}" for word in head) + "  until healthy devices measured again"]
    for kind, times in sorted(recovered.items(), key=lambda item: -max(item[1])):
        places = [bisect_left(BUCKETS_S, seconds) for seconds in times]
        counts = [places.count(place) for place in range(len(BUCKETS_S) + 1)]
        words = [str(len(times)), f"{median(times):.1f}", f"{max(times):.1f}", *(str(count or "") for count in counts)]
        lines.append("".join(f"{word:>8}" for word in words) + f"  {kind}")
    return "\n".join(lines)
