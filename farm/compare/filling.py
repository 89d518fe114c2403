"""What one side of a comparison has and another lacks, as campaigns that measure it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from sqlalchemy import Connection, Engine, text

from farm.campaign import Campaign, InvalidGroup, KnownDevice, Plan, PlanSummary, Target, TargetKind, plan
from farm.campaign.campaign import in_order
from farm.campaign.figures import MOST_REASONS
from farm.campaign.planning import why_invalid_on_all
from farm.campaign.summary import Reasons
from farm.compare import reading
from farm.compare.aggregation import Gathered
from farm.compare.sides import Side
from farm.compare.statistics import Bools
from farm.db import campaigns, in_flight
from farm.errors import FillTooLarge
from farm.kernels import Configuration
from farm.measurement import Distribution, MeasuringRules, OperandRules, Source

MOST_CONFIGURATIONS = 200_000
"""In one fill: its campaign lists them one by one."""

_DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
_NOT_ASKED_FOR = {
    "campaign": "what a fill measures belongs to a campaign of its own; submit that campaign again, or leave it out",
    "since": "what is measured now is not of that time",
    "until": "what is measured now is not of that time",
    "day": "what is measured now is not of that day",
    "clocks": "no campaign sets clocks; leave it out where the cards have them",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What would be measured for a side, or why nothing is."""

    side: str
    # Configurations that another side has, and this one has not.
    missing: int
    # Why none of them can be measured for this side; then all below is empty.
    why_not: str | None = None
    # Of the missing ones those that no device of the side can run, by reasons; and those that are open in other campaigns.
    left_out: tuple[InvalidGroup, ...] = ()
    cannot_run: int = 0
    underway: Mapping[str, int] | None = None
    # None where nothing is left.
    campaign: Campaign | None = None
    plan: Plan | None = None
    summary: PlanSummary | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "missing": self.missing,
            "why_not": self.why_not,
            "cannot_run": self.cannot_run,
            "left_out": [asdict(group) for group in self.left_out],
            "underway": dict(self.underway or {}),
            "campaign": None if self.campaign is None else self.campaign.name,
            "digest": None if self.campaign is None else self.campaign.digest,
            "targets": [] if self.campaign is None else [target.to_document() for target in self.campaign.targets],
            "configurations": 0 if self.campaign is None else self.campaign.size,
            "jobs": 0 if self.summary is None else self.summary.jobs,
            "estimated_seconds": {} if self.summary is None else self.summary.estimated_seconds,
            "notes": list(self.notes),
        }


def fills(engine: Engine, gathered: Gathered, *, owner: str) -> list[Fill]:
    """One for each side that lacks something. What was gathered must be for filling. Raises `FillTooLarge`."""
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    found = list[Fill]()
    for name in gathered.sides:
        missing = gathered.missing(name)
        if missing.any():
            found.append(_fill(engine, gathered, name, missing, known, owner))
    return found


def _fill(
    engine: Engine, gathered: Gathered, name: str, missing: Bools, known: Sequence[KnownDevice], owner: str
) -> Fill:
    side, count = gathered.sides[name], int(missing.sum())
    devices = [device for device in known if _is_of(device, side)]
    why = _why_not(side, devices, any_source=gathered.question.any_source)
    if why is not None:
        return Fill(side=name, missing=count, why_not=why)
    if count > MOST_CONFIGURATIONS:
        raise FillTooLarge(side=name, count=count, most=MOST_CONFIGURATIONS)
    rows = reading.described(engine, gathered.ids[np.flatnonzero(missing)]).to_pylist()
    wanted = [Configuration.from_columns({**row, "parameters": json.loads(row["parameters"])}) for row in rows]
    traits, reasons, runnable = list(dict.fromkeys(device.traits for device in devices)), Reasons(), []
    for configuration in wanted:
        reason = why_invalid_on_all(configuration, traits)
        if reason is None:
            runnable.append(configuration)
        else:
            reasons.add(reason, configuration)
    targets = _targets(side, devices)
    with engine.connect() as connection:
        rules, notes = _rules(connection, gathered, name, missing)
        pools = _pools(targets, devices)
        others = in_flight.campaigns_of(
            connection, [one.id for one in runnable], pools=pools, rules=rules.model_dump_json()
        )
    left = in_order(one for one in runnable if one.id not in others)
    campaign = planned = summary = None
    if left:
        campaign = Campaign(
            name=_name(side, targets, left, rules), owner=owner, targets=targets, listed=left, rules=rules,
            description=f"what {name} lacked in a comparison",
        )  # fmt: skip
        planned = plan(campaign, known, allow_missing=False)
        summary = planned.summary()
    groups, _ = reasons.most_frequent(MOST_REASONS)
    return Fill(
        side=name,
        missing=count,
        left_out=groups,
        cannot_run=len(wanted) - len(runnable),
        underway=Counter(others.values()),
        campaign=campaign,
        plan=planned,
        summary=summary,
        notes=tuple(notes),
    )


# --- where -----------------------------------------------------------------------------------------


def _is_of(device: KnownDevice, side: Side) -> bool:
    wanted = {"type": side.type, "host": side.host, "uuid": side.device}
    return all(value is None or getattr(device, key) == value for key, value in wanted.items())


def _why_not(side: Side, devices: Sequence[KnownDevice], *, any_source: bool) -> str | None:
    """Why what is measured now would not be of the side."""
    conditions = side.conditions()
    source, distribution = conditions.pop("source", None), conditions.pop("distribution", None)
    for key in conditions:
        return _NOT_ASKED_FOR.get(key, f"{key} is what a host has, and no campaign asks for it")
    if side.type is None and side.host is None and side.device is None:
        return "it names no type, host or device"
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        return f"no campaign can ask for operands of the distribution {distribution!r}"
    if source == Source.IMPORTED:
        return "imported rows come from files"
    if not devices:
        return "no worker has announced such a device: what there is was measured elsewhere"
    made = {Source.MEASURED if device.backend.runs_kernels else Source.RECORDED for device in devices}
    taken = {source} if source is not None else set(Source) if any_source else {Source.MEASURED}
    if not made & taken:
        return f"what its devices answer is {' or '.join(sorted(made))}, and takes part with --any-source or source=…"
    return None


def _targets(side: Side, devices: Sequence[KnownDevice]) -> tuple[Target, ...]:
    """The devices of a host that are of a type have no target but each of them."""
    if side.device is not None:
        return (Target(TargetKind.DEVICE, side.device),)
    if side.host is not None and side.type is not None:
        return tuple(Target(TargetKind.DEVICE, uuid) for uuid in sorted(device.uuid for device in devices))
    if side.host is not None:
        return (Target(TargetKind.HOST, side.host),)
    return (Target(TargetKind.TYPE, str(side.type)),)


def _pools(targets: Sequence[Target], devices: Sequence[KnownDevice]) -> list[str]:
    """The names of the pools that targets mean: see `farm.campaign.PoolSpec`."""
    if targets[0].kind is TargetKind.TYPE:
        return [f"type:{targets[0].value}"]
    return [f"device:{device.uuid}" for device in devices]


def _name(side: Side, targets: Sequence[Target], listed: Sequence[Configuration], rules: MeasuringRules) -> str:
    base = re.sub(r"[^a-z0-9._-]+", "-", (side.device or side.host or str(side.type)).lower())[:80]
    asked = [*map(str, targets), *(one.canonical for one in listed), rules.model_dump_json()]
    return f"fill-{base}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:8]}"


# --- how -------------------------------------------------------------------------------------------

_RULES = text("SELECT id, name, rules FROM campaigns WHERE id = ANY(:ids)")


def _rules(connection: Connection, gathered: Gathered, name: str, missing: Bools) -> tuple[MeasuringRules, list[str]]:
    """The rules under which most rows of what is missing were measured; and notes where they are not all alike."""
    rows, kinds = gathered.rows, gathered.kinds
    wanted = missing[rows.configuration]
    counts = np.bincount(rows.kind[wanted], minlength=len(kinds))
    powered = np.bincount(rows.kind[wanted & np.isfinite(rows.power_w)], minlength=len(kinds))
    ids = sorted({kind.campaign_id for kind in kinds if kind.campaign_id is not None})
    stored = {
        row.id: (row.name, MeasuringRules.model_validate(row.rules)) for row in connection.execute(_RULES, {"ids": ids})
    }
    of, by = Counter[MeasuringRules](), dict[MeasuringRules, set[str]]()
    for kind, count, with_power in zip(kinds, counts.tolist(), powered.tolist(), strict=True):
        if not count:
            continue
        if kind.campaign_id is None:
            said, rules = "rows of no campaign", _usual(kind.distribution, power=2 * with_power > count)
        else:
            said, rules = stored[kind.campaign_id]
        of[rules] += count
        by.setdefault(rules, set()).add(said)
    chosen = max(of, key=lambda rules: (of[rules], rules.model_dump_json()))
    notes = list[str]()
    if len(of) > 1:
        rest = ", ".join(sorted(set().union(*(by[rules] for rules in of if rules != chosen))))
        notes.append(
            f"{name} is filled under the rules of {', '.join(sorted(by[chosen]))}, which {of[chosen]:,} of {of.total():,} rows "
            f"were measured under; others were under those of {rest}."
        )
    elif "rows of no campaign" in by[chosen]:
        notes.append(f"What {name} lacks is of no campaign of this farm: it is filled under the default rules.")
    wanted_distribution = gathered.sides[name].distribution
    if wanted_distribution is not None:
        operands = chosen.operands.model_copy(update={"distribution": wanted_distribution})
        chosen = chosen.model_copy(update={"operands": operands})
    return chosen, notes


def _usual(distribution: str, *, power: bool) -> MeasuringRules:
    """The default rules, with the operands that rows of no campaign say they had, and power where most of them have it."""
    operands = (
        OperandRules.model_validate({"distribution": distribution})
        if distribution in _DISTRIBUTIONS
        else OperandRules()
    )
    return MeasuringRules(operands=operands, power="all" if power else "none")
