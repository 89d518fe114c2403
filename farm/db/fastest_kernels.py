"""The fastest measured kernel of given problems on device types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, text

from farm.both_times import time_of
from farm.db.device_sessions import OVERLAPPED
from farm.gemm import PROBLEM_COLUMNS, Problem
from farm.kernels import Configuration, Kernel
from farm.kernels.configuration import problem_columns
from farm.measurement import Source
from farm.model_plans.fastest_kernel import FastestKernel
from farm.operands import OperandRules
from farm.protocols import PROTOCOLS, Time

UNKNOWN_OPERANDS = "unknown"
"""The distribution of imported rows whose file does not name one."""


_TIMES: Mapping[Time, tuple[str, str]] = {
    "settled": ("r.runtime_settled_ms", "r.runtime_settled_rse"),
    "burst": ("r.runtime_burst_ms", "r.runtime_burst_rse"),
}


def _statement(time: Time) -> str:
    """SQL for one of both times: the column of that time, or `runtime_ms` of protocols that measure it."""
    column, rse = _TIMES[time]
    own = ", ".join(f"'{name}'" for name in PROTOCOLS if time_of(name) == time)
    ms = f"coalesce({column}, CASE WHEN r.protocol IN ({own}) THEN r.runtime_ms END)"
    of_rse = f"coalesce({rse}, r.runtime_rse)"
    mj = "r.power_w * coalesce(r.runtime_settled_ms, r.runtime_ms)"

    def median(of: str) -> str:
        return f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {of})"

    columns = ", ".join(f"c.{name}" for name in PROBLEM_COLUMNS)
    wanted = ", ".join(f"w.{name}" for name in PROBLEM_COLUMNS)
    return f"""
SELECT DISTINCT ON (k.number, k.device_type) k.* FROM (
    SELECT w.number, d.type AS device_type, c.family, c.parameters, count(*) AS rows,
        {median(ms)} AS ms, min({ms}) AS ms_min, max({ms}) AS ms_max, max({of_rse}) AS rse,
        {median(mj)} AS mj, min({mj}) AS mj_min, max({mj}) AS mj_max, max(r.power_rse) AS power_rse, min(r.power_limit_w) AS limit_w,
        bool_or(r.power_limited) AS power_limited
    FROM jsonb_to_recordset(CAST(:problems AS jsonb)) AS w(
        number int, m bigint, n bigint, k bigint, ab text, cd text, acc text, layout text, alpha float8, beta float8,
        batch bigint, scale text, fused text, groups text, sparsity text
    )
    JOIN configurations c ON ({columns}) = ({wanted})
    JOIN measurements r ON r.configuration_id = c.id
    JOIN devices d ON d.id = r.device_id
    LEFT JOIN jobs j ON j.id = r.job_id
    LEFT JOIN lanes l ON l.id = j.lane_id
    WHERE d.type = ANY(:types) AND r.source = ANY(:sources) AND l.rules IS NULL AND NOT {OVERLAPPED}
        AND (r.campaign_id = :campaign_id OR CAST(:campaign_id AS bigint) IS NULL
            AND r.distribution IN (:distribution, :unknown) AND coalesce(r.clock_policy, '') NOT LIKE 'locked%')
        AND {ms} IS NOT NULL
    GROUP BY w.number, d.type, c.id
) k ORDER BY k.number, k.device_type, k.ms, k.family, k.parameters
"""


def fastest_kernels(
    connection: Connection,
    problems: Sequence[Problem],
    device_types: Sequence[str],
    *,
    time: Time,
    campaign_id: int | None = None,
    any_source: bool = False,
) -> dict[tuple[Problem, str], FastestKernel]:
    """By problem and device type. Without a campaign: rows of the usual operands, at clocks that are not locked.

    Args:
        time: Which of both times. Rows without it are left out.
        campaign_id: Only rows of this campaign, with any operands and clocks.
        any_source: Recorded and imported rows too.
    """
    distinct = list(dict.fromkeys(problems))
    sources = [Source.MEASURED, Source.RECORDED, Source.IMPORTED] if any_source else [Source.MEASURED]
    parameters = {
        "problems": json.dumps([{"number": number, **problem_columns(one)} for number, one in enumerate(distinct)]),
        "types": list(device_types),
        "sources": [one.value for one in sources],
        "campaign_id": campaign_id,
        "distribution": OperandRules().text,
        "unknown": UNKNOWN_OPERANDS,
    }
    found = dict[tuple[Problem, str], FastestKernel]()
    for row in connection.execute(text(_statement(time)), parameters).mappings():
        problem = distinct[row["number"]]
        kernel = Kernel(row["family"], tuple(sorted(row["parameters"].items())))
        figures = {name: row[name] for name in FastestKernel.__dataclass_fields__ if name != "configuration"}
        found[problem, row["device_type"]] = FastestKernel(configuration=Configuration(problem, kernel), **figures)
    return found
