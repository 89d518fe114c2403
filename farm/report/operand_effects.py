"""How time, power and clocks depend on the operands: the same configurations, measured with several (query and ratios).

A campaign has one kind of operands. Its configurations are compared with rows of other campaigns that have other operands, pair by
pair: on one device type, with the same source, protocol, cache and clock policy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

BASELINE = "uniform"
"""The operands that others are compared with, where they were measured."""

QUANTITIES = ("settled", "burst", "power", "clock", "energy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of the configurations that both operands have: the median, the least and the largest ratio."""

    median: float
    low: float
    high: float
    configurations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandEffect:
    """What one kind of operands does on a device type, compared with the baseline."""

    device_type: str
    distribution: str
    baseline: str
    configurations: int  # that both have
    # By the names of `QUANTITIES`, where both measured it.
    ratios: Mapping[str, Ratio]
    # Medians over these configurations. None where no row has one.
    power_w: float | None
    sm_clock_mhz: float | None


_OTHERS = text("""
SELECT o.id FROM campaigns o JOIN campaigns c ON c.id = :campaign_id
WHERE o.rules->'operands' IS DISTINCT FROM c.rules->'operands'
""")
_ROWS = text("""
SELECT v.device_type, v.source, v.protocol, v.l2, coalesce(v.clock_policy, '') AS clock_policy, v.configuration_id, v.distribution,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY coalesce(v.runtime_settled_ms, v.runtime_ms)) AS settled,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY v.runtime_burst_ms) AS burst,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY v.power_w) AS power,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY v.sm_clock_mhz) AS clock,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY v.energy_mj) AS energy
FROM v_measurements v
WHERE v.campaign_id = ANY(:ids) AND (CAST(:device_type AS text) IS NULL OR v.device_type = :device_type)
    AND v.configuration_id IN (SELECT configuration_id FROM measurements WHERE campaign_id = :campaign_id)
GROUP BY 1, 2, 3, 4, 5, 6, 7
""")


def operand_effects(connection: Connection, campaign_id: int, device_type: str | None) -> list[OperandEffect]:
    """Empty where no other campaign measured the campaign's configurations with other operands."""
    others = list(connection.execute(_OTHERS, {"campaign_id": campaign_id}).scalars())
    if not others:
        return []
    only = {"campaign_id": campaign_id, "ids": [campaign_id, *others], "device_type": device_type}
    return effects_of([dict(row) for row in connection.execute(_ROWS, only).mappings()])


def effects_of(rows: Iterable[Mapping[str, Any]]) -> list[OperandEffect]:
    """The effects of medians that are by device type, conditions, configuration and operands; the baseline is first of each type."""
    by_type = defaultdict[str, defaultdict[str, dict[tuple[Any, ...], Mapping[str, Any]]]](lambda: defaultdict(dict))
    for row in rows:
        case = tuple(row[name] for name in ("source", "protocol", "l2", "clock_policy", "configuration_id"))
        by_type[row["device_type"]][row["distribution"]][case] = row
    found = list[OperandEffect]()
    for device_type, measured in sorted(by_type.items()):
        if len(measured) < 2:
            continue
        most = Counter({name: len(cases) for name, cases in sorted(measured.items())}).most_common(1)[0][0]
        baseline = BASELINE if BASELINE in measured else most
        effects = [_effect(device_type, name, baseline, measured) for name in measured]
        shared = [one for one in effects if one.configurations]
        if len(shared) > 1:
            found += sorted(shared, key=lambda one: (one.distribution != baseline, -_power(one), one.distribution))
    return found


def _power(effect: OperandEffect) -> float:
    return effect.ratios["power"].median if "power" in effect.ratios else 0.0


def _effect(
    device_type: str,
    distribution: str,
    baseline: str,
    measured: Mapping[str, Mapping[tuple[Any, ...], Mapping[str, Any]]],
) -> OperandEffect:
    own, base = measured[distribution], measured[baseline]
    pairs = [(own[case], base[case]) for case in own if case in base]
    if distribution == baseline:  # the configurations that are compared with something
        others = set().union(*(cases.keys() for name, cases in measured.items() if name != baseline))
        pairs = [(base[case], base[case]) for case in base if case in others]
    ratios = {name: ratio for name in QUANTITIES if (ratio := _ratio(pairs, name)) is not None}
    return OperandEffect(
        device_type=device_type,
        distribution=distribution,
        baseline=baseline,
        configurations=len(pairs),
        ratios=ratios,
        power_w=_median([one["power"] for one, _ in pairs]),
        sm_clock_mhz=_median([one["clock"] for one, _ in pairs]),
    )


def _ratio(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str) -> Ratio | None:
    found = [float(one[name]) / float(base[name]) for one, base in pairs if one[name] and base[name]]
    if not found:
        return None
    return Ratio(median=float(np.median(found)), low=min(found), high=max(found), configurations=len(found))


def _median(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return float(np.median(known)) if known else None
