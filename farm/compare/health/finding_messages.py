"""Texts of findings: evidence with its figures, and advice (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from farm.compare.health.assessment import Estimate, Finding, HealthVerdict, Member, Since

DRAIN = "farm devices drain {uuid} takes it out of service."
_MEASURE = (
    "Measure the same configurations on every card of the type: a campaign with the target `each: {type}`, as in "
    "examples/campaigns/compare-cards.yaml. Use farm submit FILE --again if it was measured before."
)


def possible(member: Member, finding: Finding) -> Finding:
    """The finding, without advice for an imported or recorded device, which is a file and not a card."""
    return replace(finding, advice="") if member.foreign else finding


def _measuring(member: Member) -> str:
    """How to measure more on a device."""
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


def on_shapes(one: Estimate) -> str:
    return f"on {one.shapes} shapes, {percent(one.confidence)} confidence"


def percent(share: float) -> str:
    """`95%`, `99.69%`: with enough digits to differ from 100%."""
    for digits in range(8):
        text = f"{100 * share:.{digits}f}"
        if float(text) < 100 and abs(float(text) / 100 - share) <= max(0.1 * (1 - share), 1e-9):
            return f"{text}%"
    return f"{100 * share:g}%"


def median_of(found: Estimate) -> str:
    if found.against == "1 peer":
        return "the nearest of its peers"
    return f"the median of {found.against}" if "peers" in found.against else found.against


_FIRST = ("driver", "cuda_runtime", "nvrtc", "cupy")


def what_differs(environments: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """`driver 570.86 → 580.159`: the most important keys first, values in the order of the environments."""
    keys = sorted({key for environment in environments for key in environment})
    apart = [key for key in keys if len({str(environment.get(key)) for environment in environments}) > 1]
    apart.sort(key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    changes = [
        f"{key} " + " → ".join(dict.fromkeys(str(environment.get(key, "none")) for environment in environments))
        for key in apart[:most]
    ]
    more = f" and {len(apart) - most} more" if len(apart) > most else ""
    return (", ".join(changes) or "its environment") + more


def healthy(compared: Sequence[Estimate]) -> Finding:
    texts = [f"{factor(one)} times as long as {median_of(one)} {on_shapes(one)}" for one in compared]
    return Finding(verdict=HealthVerdict.HEALTHY, evidence="takes " + "; ".join(texts), advice="", estimate=compared[0])


def unsure(member: Member, found: Estimate, tolerance: float) -> Finding:
    faster = found.value < 1
    return Finding(
        verdict=HealthVerdict.UNKNOWN if not faster else HealthVerdict.HEALTHY,
        evidence=f"takes {factor(found)} times as long as {found.against} {on_shapes(found)}: "
        + ("faster" if faster else f"perhaps more than {100 * tolerance:g}%, but not significant"),
        advice="" if faster else _measuring(member),
        estimate=found,
    )


def too_little(member: Member, rows: int, found: Estimate | None, since: datetime) -> Finding:
    if not rows:
        why = f"nothing was measured on it since {since:%Y-%m-%d %H:%M}"
    elif found is None:
        why = f"none of its {rows:,} rows has a configuration that a peer, or the device before, has measured"
    else:
        why = (
            f"{found.shapes} shapes shared with {found.against} are too few for {percent(found.confidence)} confidence"
        )
    return Finding(verdict=HealthVerdict.UNKNOWN, evidence=why, advice=_measuring(member), estimate=found)


def left_out(configurations: int) -> str:
    return (
        f"{configurations:,} configurations are left out: its peers have them only at other clocks, with other operands, "
        "another L2 state or from another source"
    )


def since_text(since: Since) -> str:
    """`since 2026-11-20 02:14 UTC, and not yet at 2026-11-19 23:50 (confidence of a change: 99.8%)`."""
    text = f"since {since.at:%Y-%m-%d %H:%M} UTC"
    if since.after is None and since.confidence is None:
        return text + " or earlier"
    if since.after is not None:
        text += f", and not yet at {since.after:%Y-%m-%d %H:%M}"
    if since.confidence is not None:
        text += f" (confidence of a change: {percent(since.confidence)})"
    return text
