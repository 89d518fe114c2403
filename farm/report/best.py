"""The best kernel of each problem on each device type that a campaign found, with the baseline and the full grid."""

from __future__ import annotations

import json
import math
import statistics
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Connection, text

from farm import both_times
from farm.campaign import Campaign, plan
from farm.db import campaigns
from farm.db.problem_sql import PROBLEM
from farm.devices import DeviceKind
from farm.gemm import Problem, added_columns
from farm.kernels import BASELINES, Configuration, Kernel, problem_of

NORMAL_95 = 1.96
"""Standard errors on either side of a normal distribution's mean that hold 95% of it."""

ProblemOnType = tuple[Problem, str]
"""A problem on a device type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """A kernel's time under the campaign's own rules, in ms: the medians over devices of the type."""

    kernel: str
    runtime_ms: float
    runtime_q1_ms: float
    runtime_q3_ms: float
    # Relative standard error of the mean, the largest of its rows.
    runtime_rse: float
    rows: int
    # None where no row has it.
    runtime_burst_ms: float | None = None
    # Whether any of its rows is held by the power limiter.
    power_limited: bool | None = None

    @property
    def burst_apart(self) -> float | None:
        """The burst time where it differs so much that both are shown."""
        return both_times.burst_apart(self.runtime_burst_ms, self.runtime_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    """The best kernel of one problem on one device type."""

    problem: Problem
    device_type: str
    best: TimedKernel
    # cuBLASLt with the algorithm that its heuristic puts first; None on CPUs, and where it was not measured.
    baseline: TimedKernel | None
    # Kernels that were measured in any round, and kernels of the campaign's grid that can run there.
    tried: int
    grid: int
    # Device time of all their rows, without and with the baseline's alone.
    device_s: float
    baseline_device_s: float
    # ProblemOnType other campaigns measured the full grid: its best time, and that of this kernel in the same rows.
    grid_best_ms: float | None = None
    grid_found_ms: float | None = None

    @property
    def speed_up(self) -> float | None:
        """The baseline's time over that of the best kernel."""
        return None if self.baseline is None else self.baseline.runtime_ms / self.best.runtime_ms

    @property
    def speed_up_95(self) -> tuple[float, float] | None:
        """The 95% interval of the speed-up from the two standard errors (delta method on logarithms)."""
        if self.baseline is None or self.speed_up is None:
            return None
        apart = math.exp(NORMAL_95 * math.hypot(self.best.runtime_rse, self.baseline.runtime_rse))
        return self.speed_up / apart, self.speed_up * apart

    @property
    def share_of_best(self) -> float | None:
        """The grid's best time over this kernel's, both from the grid's own rows: it judges the choice of the kernel, not its timing."""
        return (
            None if self.grid_best_ms is None or self.grid_found_ms is None else self.grid_best_ms / self.grid_found_ms
        )

    def to_json(self) -> dict[str, Any]:
        p = self.problem
        shown = {name: value for name, value in asdict(self).items() if name != "problem"}
        return {
            **{"m": p.shape.m, "n": p.shape.n, "k": p.shape.k, "types": str(p.types), "layout": str(p.layout)},
            **{"alpha": p.alpha, "beta": p.beta, **added_columns(p)},
            **shown,
            **{"speed_up": self.speed_up, "speed_up_95": self.speed_up_95, "share_of_best": self.share_of_best},
        }


def summary(found: Sequence[BestKernel]) -> dict[str, Any]:
    """Medians and totals over problems and device types; None where no problem has the figure."""
    speed_ups = [one.speed_up for one in found if one.speed_up is not None]
    shares = [one.share_of_best for one in found if one.share_of_best is not None]
    return {
        "problems": len(found),
        "kernels_tried": sum(one.tried for one in found),
        "kernels_of_the_grid": sum(one.grid for one in found),
        "device_s": sum(one.device_s for one in found),
        "baseline_device_s": sum(one.baseline_device_s for one in found),
        "with_baseline": len(speed_ups),
        "median_speed_up": statistics.median(speed_ups) if speed_ups else None,
        "max_speed_up": max(speed_ups, default=None),
        # Problems of which no kernel is faster than the baseline.
        "baseline_fastest": sum(one <= 1 for one in speed_ups),
        "with_share_of_best": len(shares),
        "median_share_of_best": statistics.median(shares) if shares else None,
        "worst_share_of_best": min(shares, default=None),
    }


# The baseline counts as one of the campaign's kernels only where the campaign has it.
_OF_BASELINE = "(c.family = :baseline_family AND c.parameters = CAST(:baseline_parameters AS jsonb))"
_CANDIDATE = f"(:has_baseline OR NOT {_OF_BASELINE})"
_TIMES = f"""
SELECT c.device_type, {PROBLEM}, c.family, c.parameters, count(*) AS rows, max(c.runtime_rse) AS runtime_rse,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY c.runtime_ms) AS runtime_ms,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY c.runtime_q1_ms) AS runtime_q1_ms,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY c.runtime_q3_ms) AS runtime_q3_ms,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY c.runtime_burst_ms) AS runtime_burst_ms, bool_or(c.power_limited) AS power_limited
FROM v_measurements c WHERE c.campaign_id = :campaign_id AND {{which}}
GROUP BY c.device_type, {PROBLEM}, c.family, c.parameters
"""
_BEST = text(f"""
SELECT DISTINCT ON (c.device_type, {PROBLEM}) c.* FROM ({_TIMES.format(which=_CANDIDATE)}) c
ORDER BY c.device_type, {PROBLEM}, c.runtime_ms, c.family, c.parameters
""")
_BASELINES = text(_TIMES.format(which=_OF_BASELINE))
_SPENT = text(f"""
SELECT c.device_type, {PROBLEM}, count(DISTINCT c.configuration_id) FILTER (WHERE {_CANDIDATE}) AS tried,
    coalesce(sum(c.cost_s) FILTER (WHERE {_CANDIDATE}), 0) AS device_s,
    coalesce(sum(c.cost_s) FILTER (WHERE NOT {_CANDIDATE}), 0) AS baseline_device_s
FROM v_all_measurements c WHERE c.campaign_id = :campaign_id GROUP BY c.device_type, {PROBLEM}
""")


def best(connection: Connection, campaign_id: int, campaign: Campaign) -> list[BestKernel]:
    """The best kernels so far, by device type and problem. A campaign that does not search has them too."""
    baseline = BASELINES[DeviceKind.CUDA]
    parameters = {
        "campaign_id": campaign_id,
        "baseline_family": baseline.family,
        "baseline_parameters": json.dumps(dict(baseline.parameters)),
        "has_baseline": campaign.measures(baseline),
    }
    fastest = {_where(row): row for row in connection.execute(_BEST, parameters).mappings()}
    baselines = {_where(row): row for row in connection.execute(_BASELINES, parameters).mappings()}
    spent = {_where(row): row for row in connection.execute(_SPENT, parameters).mappings()}
    grids = (
        _sizes(connection, parameters) if campaign.search is None else _grids(connection, campaign, parameters, fastest)
    )
    return [
        BestKernel(
            problem=where[0],
            device_type=where[1],
            best=_timed(row),
            baseline=_timed(baselines[where]) if where in baselines else None,
            grid=grids[where].kernels,
            grid_best_ms=grids[where].best_ms,
            grid_found_ms=grids[where].found_ms,
            **{name: spent[where][name] for name in ("tried", "device_s", "baseline_device_s")},
        )
        for where, row in fastest.items()
    ]


def _where(row: Mapping[Any, Any]) -> ProblemOnType:
    return problem_of(row), row["device_type"]


def _kernel(row: Mapping[Any, Any]) -> Kernel:
    return Kernel(row["family"], tuple(sorted(row["parameters"].items())))


def _timed(row: Mapping[Any, Any]) -> TimedKernel:
    return TimedKernel(
        kernel=str(_kernel(row)),
        **{name: row[name] for name in TimedKernel.__dataclass_fields__ if name != "kernel"},
    )


# --- the full grid -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Grid:
    """The kernels of the campaign's grid that can run on one problem, and what other campaigns measured of them."""

    kernels: int = 0
    known: int = 0  # measured in another campaign under its own rules, or known not to run
    fastest_ms: float = math.inf
    own_ms: float | None = None  # of the kernel that this campaign found

    @property
    def best_ms(self) -> float | None:
        return self.fastest_ms if self.own_ms is not None and self.known == self.kernels else None

    @property
    def found_ms(self) -> float | None:
        return self.own_ms if self.best_ms is not None else None


_GRID = f"""
FROM lanes l JOIN pools p ON p.id = l.pool_id JOIN jobs j ON j.lane_id = l.id
JOIN configurations c ON c.id = j.configuration_id
CROSS JOIN LATERAL (
    SELECT unnest(p.device_types) UNION SELECT type FROM devices WHERE uuid = p.device_uuid
) t(device_type)
WHERE l.campaign_id = :campaign_id AND l.round = 0 AND j.state <> 'invalid' AND {_CANDIDATE}
"""
_SIZES = text(f"""
SELECT t.device_type, {PROBLEM}, count(DISTINCT j.configuration_id) AS kernels {_GRID} GROUP BY t.device_type, {PROBLEM}
""")
_KERNELS = text(
    f"SELECT DISTINCT t.device_type, {PROBLEM}, j.configuration_id {_GRID} ORDER BY t.device_type, {PROBLEM}"
)


def _sizes(connection: Connection, parameters: Mapping[str, Any]) -> dict[ProblemOnType, _Grid]:
    """The number of kernels of each problem, where the campaign measures all of them."""
    rows = connection.execute(_SIZES, parameters).mappings()
    return defaultdict(_Grid, {_where(row): _Grid(kernels=row["kernels"]) for row in rows})


MAX_AT_ONCE = 20_000
"""Kernels whose times are looked up in one query."""


def _grids(
    connection: Connection,
    campaign: Campaign,
    parameters: Mapping[str, Any],
    found: Mapping[ProblemOnType, Mapping[Any, Any]],
) -> dict[ProblemOnType, _Grid]:
    """The grid of each problem of a search, and what other campaigns measured of it."""
    assert campaign.search is not None
    best_of = {where: Configuration(where[0], _kernel(row)).id for where, row in found.items()}
    grids = defaultdict[ProblemOnType, _Grid](_Grid)
    # Kernels that were not drawn have no jobs.
    drawn = campaign.search.draws_kernels
    kernels = _expanded(connection, campaign) if drawn else _stored(connection, parameters)
    while chunk := list(islice(kernels, MAX_AT_ONCE)):
        known = _known_elsewhere(connection, parameters["campaign_id"], campaign.measure.protocol, chunk)
        for where, configuration_id in chunk:
            grid, time_ms = grids[where], known.get((configuration_id, where[1]))
            grid.kernels += 1
            grid.known += time_ms is not None
            grid.fastest_ms = min(grid.fastest_ms, time_ms or math.inf)
            if configuration_id == best_of.get(where) and time_ms is not None and math.isfinite(time_ms):
                grid.own_ms = time_ms
    return grids


def _stored(connection: Connection, parameters: Mapping[str, Any]) -> Iterator[tuple[ProblemOnType, uuid.UUID]]:
    """Every kernel of every problem, from the jobs of the first round."""
    rows = connection.execute(_KERNELS, parameters, execution_options={"yield_per": MAX_AT_ONCE}).mappings()
    for _, of_problem in groupby(rows, key=lambda row: tuple(row.values())[:-1]):  # the id comes last
        kernels = list(of_problem)
        where = _where(kernels[0])
        yield from ((where, row["configuration_id"]) for row in kernels)


def _expanded(connection: Connection, campaign: Campaign) -> Iterator[tuple[ProblemOnType, uuid.UUID]]:
    """Every kernel of every problem that can run on the known devices, from the campaign itself."""
    known = campaigns.known_devices(connection)
    type_of = {device.uuid: device.type for device in known}
    planned = plan(campaign, known, allow_missing=True)
    for problem, configurations in groupby(planned.configurations(), key=lambda configuration: configuration.problem):
        seen = set[tuple[str, uuid.UUID]]()
        for job in planned.grid(configurations):
            types = job.pool.device_types or (type_of.get(job.pool.device_uuid or "", ""),)
            if job.invalid_reason is None:
                seen |= {(device_type, job.configuration.id) for device_type in types}
        yield from (((problem, device_type), configuration_id) for device_type, configuration_id in seen)


_TIMES_ELSEWHERE = text("""
SELECT g.id, g.type, percentile_cont(0.5) WITHIN GROUP (ORDER BY r.runtime_ms) AS runtime_ms
FROM unnest(CAST(:ids AS uuid[]), CAST(:types AS text[])) AS g(id, type)
JOIN measurements r ON r.configuration_id = g.id JOIN devices d ON d.id = r.device_id AND d.type = g.type
LEFT JOIN jobs j ON j.id = r.job_id LEFT JOIN lanes l ON l.id = j.lane_id
WHERE r.source IN ('measured', 'recorded') AND r.campaign_id <> :campaign_id AND l.rules IS NULL AND r.protocol = :protocol
GROUP BY g.id, g.type
""")
_FAILED_ELSEWHERE = text("""
SELECT DISTINCT g.id, g.type
FROM unnest(CAST(:ids AS uuid[]), CAST(:types AS text[])) AS g(id, type)
JOIN pools p ON g.type = ANY(p.device_types) OR p.device_uuid IN (SELECT uuid FROM devices WHERE type = g.type)
JOIN lanes l ON l.pool_id = p.id AND l.campaign_id <> :campaign_id AND l.rules IS NULL
JOIN jobs j ON j.lane_id = l.id AND j.configuration_id = g.id AND j.state IN ('invalid', 'dead')
""")


def _known_elsewhere(
    connection: Connection, campaign_id: int, protocol: str, kernels: Sequence[tuple[ProblemOnType, uuid.UUID]]
) -> dict[tuple[uuid.UUID, str], float]:
    """The time in ms in other campaigns of the protocol by configuration and device type; infinite for a kernel that does not run."""

    def arguments(pairs: Iterable[tuple[uuid.UUID, str]]) -> dict[str, Any]:
        listed = list(pairs)
        return {
            "campaign_id": campaign_id,
            "protocol": protocol,
            "ids": [i for i, _ in listed],
            "types": [kind for _, kind in listed],
        }

    pairs = [(configuration_id, device_type) for (_, device_type), configuration_id in kernels]
    times = connection.execute(_TIMES_ELSEWHERE, arguments(dict.fromkeys(pairs)))
    found = {(row.id, row.type): row.runtime_ms for row in times}
    if found:
        failed = connection.execute(
            _FAILED_ELSEWHERE, arguments(dict.fromkeys(pair for pair in pairs if pair not in found))
        )
        found |= {(row.id, row.type): math.inf for row in failed}
    return found
