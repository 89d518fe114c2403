"""What a finding says: the evidence in a sentence with its figures, and what to do (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from farm.compare.health.document import Estimate, Finding, Member, Since, Verdict
from farm.compare.health.rows import REASONS, UNWELL_REASONS
from farm.compare.statistics import Ints

_DRAIN = "farm devices drain {uuid} takes it out of service."
_MEASURE = (
    "Measure the same configurations on every card of the type: a campaign with the target `each: {type}`, as "
    "examples/campaigns/compare-cards.yaml; farm submit FILE --again once it was measured before."
)


def possible(member: Member, finding: Finding) -> Finding:
    """The finding without advice that nobody can follow: an imported or recorded device is a file and not a card."""
    return replace(finding, advice="") if member.foreign else finding


def _measuring(member: Member) -> str:
    """How more is measured on a device, if it is there."""
    if member.vanished_at is not None:
        return f"Nothing can be measured on it until {member.host} shows it again."
    first = f"Start farm-worker on {member.host}. " if member.silent or member.stopped else ""
    return first + _MEASURE.format(type=member.type)


def factor(one: Estimate) -> str:
    """`1.0512 (1.0470–1.0541)`."""
    if one.low is None or one.high is None:
        return f"{one.value:.4f}"
    return f"{one.value:.4f} ({one.low:.4f}–{one.high:.4f})"


def degrees(one: Estimate) -> str:
    """`+12.0 °C (11.0–14.0)`."""
    bounds = "" if one.low is None or one.high is None else f" ({one.low:+.1f} to {one.high:+.1f})"
    return f"{one.value:+.1f} °C{bounds}"


def _on(one: Estimate) -> str:
    return f"on {one.shapes} shapes, {percent(one.confidence)} confidence"


def percent(share: float) -> str:
    """`95%`, `99.69%`: as many digits as it takes to be told from 100%."""
    for digits in range(8):
        said = f"{100 * share:.{digits}f}"
        if float(said) < 100 and abs(float(said) / 100 - share) <= max(0.1 * (1 - share), 1e-9):
            return f"{said}%"
    return f"{100 * share:g}%"


def slow(member: Member, found: Estimate, since: Since | None) -> Finding:
    return Finding(
        verdict=Verdict.SLOW,
        evidence=f"takes {factor(found)} times as long as {_median_of(found)} {_on(found)}",
        advice=f"farm compare --by device --type {member.type} --top 10 shows on what. "
        + _DRAIN.format(uuid=member.uuid),
        since=since,
        estimate=found,
    )


def _median_of(found: Estimate) -> str:
    if found.against == "1 peer":
        return "the nearest of its peers"
    return f"the median of {found.against}" if "peers" in found.against else found.against


def differs(member: Member, other: Member, found: Estimate) -> Finding:
    return Finding(
        verdict=Verdict.DIFFERS,
        evidence=f"takes {factor(found)} times as long as {other.uuid}, and no third tells which of them is wrong; {_on(found)}",
        advice=f"Measure a third {member.type}, or look at clocks, heat and power limit of both: "
        f"farm compare {other.uuid} {member.uuid} --top 10",
        estimate=found,
    )


def drifting(member: Member, found: Estimate, since: Since | None) -> Finding:
    what = "its sentinel takes" if found.against == "hours before" else "takes"
    unit = "hours" if found.against == "hours before" else "shapes"
    return Finding(
        verdict=Verdict.DRIFTING,
        evidence=f"{what} {factor(found)} times as long as before, in the same environment; {found.shapes} {unit}, "
        f"{percent(found.confidence)} confidence",
        advice="Look at its clocks and its heat; measure again what landed since. " + _DRAIN.format(uuid=member.uuid),
        since=since,
        estimate=found,
    )


def regressed(member: Member, found: Estimate, since: Since, old: Mapping[str, Any], new: Mapping[str, Any]) -> Finding:
    change = what_differs([old, new])
    return Finding(
        verdict=Verdict.REGRESSED,
        evidence=f"takes {factor(found)} times as long since {change}, {_on(found)}",
        advice="The card itself may be healthy: compare before and after on all cards, "
        f"farm compare until={since.at:%Y-%m-%dT%H:%M} since={since.at:%Y-%m-%dT%H:%M} --type {member.type} --top 10",
        since=since,
        estimate=found,
    )


_FIRST = ("driver", "cuda_runtime", "nvrtc", "cupy")


def what_differs(environments: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """`driver 570.86 → 580.159`; keys that matter most first, in the order of the environments."""
    keys = sorted({key for environment in environments for key in environment})
    apart = [key for key in keys if len({str(environment.get(key)) for environment in environments}) > 1]
    apart.sort(key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    said = [
        f"{key} " + " → ".join(dict.fromkeys(str(environment.get(key, "none")) for environment in environments))
        for key in apart[:most]
    ]
    more = f" and {len(apart) - most} more" if len(apart) > most else ""
    return (", ".join(said) or "its environment") + more


def draws_more(member: Member, found: Estimate, since: Since | None) -> Finding:
    return Finding(
        verdict=Verdict.DIFFERS,
        evidence=f"takes {factor(found)} times the energy of {_median_of(found)} {_on(found)}",
        advice="A card that is hotter or leaks more draws more; its results of power and energy are its own. "
        f"farm compare --by device --type {member.type}",
        since=since,
        estimate=found,
    )


def hotter(member: Member, found: Estimate, since: Since | None) -> Finding:
    return Finding(
        verdict=Verdict.HOT,
        evidence=f"{degrees(found)} beside {_median_of(found)} under the same work, {_on(found)}",
        advice="Look at its fans, its filters and its place in the chassis.",
        since=since,
        estimate=found,
    )


def near_slowdown(member: Member, warmest_c: float, slowdown_c: float, since: Since | None) -> Finding:
    return Finding(
        verdict=Verdict.HOT,
        evidence=f"reached {warmest_c:.0f} °C, and slows down at {slowdown_c:.0f} °C",
        advice="Look at its fans, its filters and its place in the chassis. " + _DRAIN.format(uuid=member.uuid),
        since=since,
    )


def throttled(member: Member, held: int, shapes: int, reasons: Ints, since: Since | None) -> Finding:
    seen = Counter(
        name for bits in reasons.tolist() for n, name in enumerate(REASONS) if bits & UNWELL_REASONS & (1 << n)
    )
    return Finding(
        verdict=Verdict.THROTTLED,
        evidence=f"its clocks were held on {held} of {shapes} shapes by "
        + ", ".join(f"{name} ({count} rows)" for name, count in seen.most_common()),
        advice="Thermal reasons are heat; hw_power_brake and hw_slowdown come from the board or the power supply. "
        + _DRAIN.format(uuid=member.uuid),
        since=since,
    )


def held_by_power(member: Member, up: int, down: int, shapes: int, against: str, since: Since | None) -> Finding:
    other_way = f", the other way round on {down}" if down else ""
    return Finding(
        verdict=Verdict.THROTTLED,
        evidence=f"held by its power limit on {up} of {shapes} shapes on which {against} are not{other_way}",
        advice="It draws more for the same work, or has less to draw: look at its power limit and its heat.",
        since=since,
    )


def power_capped(member: Member, limit_w: float, usual_w: float, peers: int, since: Since | None) -> Finding:
    beside = (
        f"its {peers} peer{'s have' if peers > 1 else ' has'} {usual_w:.0f} W"
        if peers
        else f"it comes with {usual_w:.0f} W"
    )
    return Finding(
        verdict=Verdict.POWER_CAPPED,
        evidence=f"its power limit is {limit_w:.0f} W, {beside}",
        advice=f"nvidia-smi -i {member.uuid} -pl {usual_w:.0f} on {member.host} sets it back, if nobody wanted it so.",
        since=since,
    )


def other_clocks(member: Member, clocks: str, usual: str, peers: int, since: Since | None) -> Finding:
    return Finding(
        verdict=Verdict.DIFFERS,
        evidence=f"its clocks are {clocks}, those of {peers} of its peers {usual}",
        advice=f"nvidia-smi -i {member.uuid} -rgc and -rac on {member.host} set them back, if nobody wanted them so. "
        "Rows at other clocks are not compared.",
        since=since,
    )


def failing(member: Member) -> Finding:
    return Finding(
        verdict=Verdict.FAILING,
        evidence=f"{member.refuted} jobs failed on it that other devices then measured, and {member.done} were measured; "
        f"the last: {member.last_failure or 'no message'}",
        advice=f"farm doctor on {member.host}; " + _DRAIN.format(uuid=member.uuid),
    )


def of_state(member: Member, *, since: datetime) -> Iterator[Finding]:
    """What the farm knows without a measurement. A device that went before the window is not missed any more."""
    if member.state == "quarantined":
        at = None if member.state_changed_at is None else Since(at=member.state_changed_at)
        yield Finding(
            verdict=Verdict.QUARANTINED,
            evidence=f"quarantined: {member.state_reason or 'no reason given'}",
            advice=f"farm devices resume {member.uuid} once it is mended.",
            since=at,
        )
    if member.vanished_at is not None and member.vanished_at >= since:
        yield Finding(
            verdict=Verdict.GONE,
            evidence=f"{member.host} no longer shows it",
            advice=f"nvidia-smi on {member.host}: a card that fell off the bus takes a reset or a restart.",
            since=Since(at=member.vanished_at),
        )
    elif member.silent and member.last_seen_at is not None and member.last_seen_at >= since:
        yield Finding(
            verdict=Verdict.SILENT,
            evidence="its worker disconnected without deregistering",
            advice=f"See whether {member.host} is up and farm-worker runs there.",
            since=Since(at=member.last_seen_at),
        )


def healthy(told: Sequence[Estimate]) -> Finding:
    said = [f"{factor(one)} times as long as {_median_of(one)} {_on(one)}" for one in told]
    return Finding(verdict=Verdict.HEALTHY, evidence="takes " + "; ".join(said), advice="", estimate=told[0])


def unsure(member: Member, found: Estimate, tolerance: float) -> Finding:
    faster = found.value < 1
    return Finding(
        verdict=Verdict.UNKNOWN if not faster else Verdict.HEALTHY,
        evidence=f"takes {factor(found)} times as long as {found.against} {_on(found)}: "
        + ("faster than they are" if faster else f"perhaps more than {100 * tolerance:g}%, and not shown"),
        advice="" if faster else _measuring(member),
        estimate=found,
    )


def too_little(member: Member, rows: int, found: Estimate | None, since: datetime) -> Finding:
    if not rows:
        why = f"nothing was measured on it since {since:%Y-%m-%d %H:%M}"
    elif found is None:
        why = f"none of its {rows:,} rows is of a configuration that a peer has, or that it had before"
    else:
        why = (
            f"{found.shapes} shapes shared with {found.against} are too few for {percent(found.confidence)} confidence"
        )
    return Finding(verdict=Verdict.UNKNOWN, evidence=why, advice=_measuring(member), estimate=found)


def left_out(configurations: int) -> str:
    return (
        f"{configurations:,} configurations that its peers have at other clocks, of other operands, with another L2 or "
        "from another source alone are left out"
    )


def since_text(since: Since) -> str:
    """`since 2026-11-20 02:14 UTC, and not yet on 2026-11-19 23:50 (99.8% that it changed then)`."""
    text = f"since {since.at:%Y-%m-%d %H:%M} UTC"
    if since.after is None and since.confidence is None:
        return text + " at the latest"
    if since.after is not None:
        text += f", and not yet at {since.after:%Y-%m-%d %H:%M}"
    if since.confidence is not None:
        text += f" (that it changed: {percent(since.confidence)})"
    return text
