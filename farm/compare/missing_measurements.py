"""Plans campaigns that measure what a group of a comparison lacks and another group has."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Connection, Engine, text

from farm.campaign import Campaign, KnownDevice, Plan, Target, TargetKind, plan
from farm.campaign.campaign import in_order
from farm.campaign.figures import MAX_REASONS
from farm.campaign.planning import why_invalid_on_all
from farm.campaign.summary import Reasons
from farm.compare import row_query
from farm.compare.aggregation import Aggregation
from farm.compare.groups import Group, RowKind
from farm.compare.statistics import Bools
from farm.compare.summaries import FillSummary
from farm.db import campaigns, configurations
from farm.errors import FillTooLarge
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, Source
from farm.operands import OperandRules, operand_rules
from farm.protocols import PROTOCOLS, ProtocolName

MAX_CONFIGURATIONS = 200_000
"""Limit for one fill: its campaign lists them one by one."""

_NOT_MEASURABLE = {
    "campaign": "a fill makes a campaign of its own; submit that campaign again, or leave the condition out",
    "since": "new measurements are not of that time",
    "until": "new measurements are not of that time",
    "day": "new measurements are not of that day",
    "clocks": "no campaign sets clocks; leave it out where the cards are at these clocks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """The campaign that measures what a group lacks; without a plan where there is none to submit."""

    summary: FillSummary
    plan: Plan | None = None


def plan_fills(engine: Engine, data: Aggregation, *, owner: str) -> list[Fill]:
    """A fill for each group that lacks something. `data` must be aggregated for filling. Raises `FillTooLarge`."""
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    found = list[Fill]()
    for name in data.groups:
        missing = data.missing(name)
        if missing.any():
            found.append(_fill(engine, data, name, missing, known, owner))
    return found


def _fill(
    engine: Engine, data: Aggregation, name: str, missing: Bools, known: Sequence[KnownDevice], owner: str
) -> Fill:
    group, count = data.groups[name], int(missing.sum())
    devices = [device for device in known if group.has(device)]
    why = _why_not(group, devices, any_source=data.query.any_source)
    if why is not None:
        return Fill(summary=FillSummary(side=name, missing=count, why_not=why))
    if count > MAX_CONFIGURATIONS:
        raise FillTooLarge(side=name, count=count, most=MAX_CONFIGURATIONS)
    rows = row_query.configuration_table(engine, data.ids[np.flatnonzero(missing)]).to_pylist()
    wanted = [Configuration.from_columns({**row, "parameters": json.loads(row["parameters"])}) for row in rows]
    traits, reasons, runnable = list(dict.fromkeys(device.traits for device in devices)), Reasons(), []
    for configuration in wanted:
        reason = why_invalid_on_all(configuration, traits)
        if reason is None:
            runnable.append(configuration)
        else:
            reasons.add(reason, configuration)
    targets = _targets(group, devices)
    with engine.connect() as connection:
        rules, notes = _rules(connection, data, name, missing)
        pools = _pools(targets, devices)
        others = configurations.campaigns_of(
            connection, [one.id for one in runnable], pools=pools, rules=rules.model_dump_json()
        )
    left = in_order(one for one in runnable if one.id not in others)
    left_out, _ = reasons.most_frequent(MAX_REASONS)
    summary = FillSummary(
        side=name,
        missing=count,
        cannot_run=len(wanted) - len(runnable),
        left_out=left_out,
        underway=Counter(others.values()),
        notes=tuple(notes),
    )
    if not left:
        return Fill(summary=summary)
    campaign = Campaign(
        name=_name(group, targets, left, rules), owner=owner, targets=targets, configurations=left, measure=rules,
        description=f"configurations that {name} lacked in a comparison",
    )  # fmt: skip
    planned = plan(campaign, known, allow_missing=False)
    figures = planned.summary()
    summary = replace(
        summary,
        campaign=campaign.name,
        digest=campaign.digest,
        targets=tuple(target.to_document() for target in targets),
        configurations=campaign.size,
        jobs=figures.jobs,
        estimated_seconds=figures.estimated_seconds,
    )
    return Fill(summary=summary, plan=planned)


# --- where -----------------------------------------------------------------------------------------


def _why_not(group: Group, devices: Sequence[KnownDevice], *, any_source: bool) -> str | None:
    """Why new measurements would not belong to the group; None if they would."""
    conditions = group.conditions()
    source, distribution = conditions.pop("source", None), conditions.pop("distribution", None)
    protocol = conditions.pop("protocol", None)
    for key in conditions:
        return _NOT_MEASURABLE.get(key, f"{key} depends on the host, and no campaign can request it")
    if group.type is None and group.host is None and group.device is None:
        return "it names no type, host or device"
    if distribution is not None and _operands(distribution) is None:
        return f"no campaign can request operands of the distribution {distribution!r}"
    if protocol is not None and protocol not in PROTOCOLS:
        return f"no campaign can request the protocol {protocol!r}"
    if source == Source.IMPORTED:
        return "imported rows come from files"
    if not devices:
        return "no worker has announced such a device: its rows were measured elsewhere"
    made = {Source.MEASURED if device.backend.runs_kernels else Source.RECORDED for device in devices}
    taken = {source} if source is not None else set(Source) if any_source else {Source.MEASURED}
    if not made & taken:
        return f"its devices make {' or '.join(sorted(made))} rows, which --any-source or source=… includes"
    return None


def _targets(group: Group, devices: Sequence[KnownDevice]) -> tuple[Target, ...]:
    """The targets of a group. For devices of one type on one host, each device is a target."""
    if group.device is not None:
        return (Target(TargetKind.DEVICE, group.device),)
    if group.host is not None and group.type is not None:
        return tuple(Target(TargetKind.DEVICE, uuid) for uuid in sorted(device.uuid for device in devices))
    if group.host is not None:
        return (Target(TargetKind.HOST, group.host),)
    return (Target(TargetKind.TYPE, str(group.type)),)


def _pools(targets: Sequence[Target], devices: Sequence[KnownDevice]) -> list[str]:
    """The names of the targets' pools: see `farm.campaign.PoolSpec`."""
    if targets[0].kind is TargetKind.TYPE:
        return [f"type:{targets[0].value}"]
    return [f"device:{device.uuid}" for device in devices]


def _name(group: Group, targets: Sequence[Target], listed: Sequence[Configuration], rules: MeasuringRules) -> str:
    base = re.sub(r"[^a-z0-9._-]+", "-", (group.device or group.host or str(group.type)).lower())[:80]
    asked = [*map(str, targets), *(one.canonical for one in listed), rules.model_dump_json()]
    return f"fill-{base}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:8]}"


# --- how -------------------------------------------------------------------------------------------

_RULES = text("SELECT id, name, rules FROM campaigns WHERE id = ANY(:ids)")


def _rules(connection: Connection, data: Aggregation, name: str, missing: Bools) -> tuple[MeasuringRules, list[str]]:
    """The rules under which most of the missing configurations were measured elsewhere, and notes on differing rules."""
    rows, kinds = data.rows, data.kinds
    wanted = missing[rows.configuration]
    counts = np.bincount(rows.kind[wanted], minlength=len(kinds))
    powered = np.bincount(rows.kind[wanted & np.isfinite(rows.power_w)], minlength=len(kinds))
    ids = sorted({kind.campaign_id for kind in kinds if kind.campaign_id is not None})
    stored = {
        row.id: (row.name, MeasuringRules.model_validate(row.rules)) for row in connection.execute(_RULES, {"ids": ids})
    }
    rows_by, names = Counter[MeasuringRules](), dict[MeasuringRules, set[str]]()
    for kind, count, with_power in zip(kinds, counts.tolist(), powered.tolist(), strict=True):
        if not count:
            continue
        if kind.campaign_id is None:
            campaign, rules = "rows of no campaign", _default_rules(kind, power=2 * with_power > count)
        else:
            campaign, rules = stored[kind.campaign_id]
        rows_by[rules] += count
        names.setdefault(rules, set()).add(campaign)
    chosen = max(rows_by, key=lambda rules: (rows_by[rules], rules.model_dump_json()))
    notes = list[str]()
    if len(rows_by) > 1:
        rest = ", ".join(sorted(set().union(*(names[rules] for rules in rows_by if rules != chosen))))
        notes.append(
            f"{name} is filled under the rules of {', '.join(sorted(names[chosen]))}, which apply to {rows_by[chosen]:,} of "
            f"{rows_by.total():,} rows; the others were measured under the rules of {rest}."
        )
    elif "rows of no campaign" in names[chosen]:
        notes.append(
            f"The rows that {name} lacks belong to no campaign of this farm: it is filled under the default rules."
        )
    wanted_distribution = data.groups[name].distribution
    if wanted_distribution is not None:
        operands = _operands(wanted_distribution, chosen.operands.seed)
        chosen = chosen.model_copy(update={"operands": operands})
    wanted_protocol = data.groups[name].protocol
    if wanted_protocol is not None:
        chosen = _under(chosen, ProtocolName(wanted_protocol))
    return chosen, notes


def _default_rules(kind: RowKind, *, power: bool) -> MeasuringRules:
    """The default rules, with the operands and protocol of rows without a campaign, and with power where most have it."""
    operands = _operands(kind.distribution) or OperandRules()
    protocol = ProtocolName(kind.protocol) if kind.protocol in PROTOCOLS else ProtocolName.FARM
    return _under(MeasuringRules(operands=operands, power="all" if power else "none"), protocol)


def _under(rules: MeasuringRules, protocol: ProtocolName) -> MeasuringRules:
    """The rules under another protocol: without power where its launches have gaps, so that no power can be read."""
    power = "none" if PROTOCOLS[protocol].time is None else rules.power
    return rules.model_copy(update={"protocol": protocol, "power": power})


def _operands(distribution: str, seed: int = 0) -> OperandRules | None:
    """The operands that rows name. None where no campaign can have them, as those of a file that only its campaign names."""
    try:
        return operand_rules(distribution, seed)
    except ValueError:
        return None
