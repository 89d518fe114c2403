"""Loads the rows of a fleet as columns, and checks its health."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text

from farm.compare import breakdowns, row_query
from farm.compare.groups import Group, resolve
from farm.compare.health.assessment import WINDOW, FleetReport, HealthQuery, Member
from farm.compare.health.diagnosis import diagnose
from farm.compare.health.fleet_rows import Fleet, FleetRows
from farm.compare.statistics import Ints
from farm.db import corrupted_results
from farm.db.arrow_columns import Words, coded, codes, numbers, read, words
from farm.devices import IMPORTED_PREFIX
from farm.errors import BadParameter
from farm.measurement import Source
from farm.vendors.nvidia import events_named

_NOW = text("SELECT clock_timestamp()")
_MEMBERS = text(f"""
WITH done AS (
    SELECT b.device_id, sum(b.done)::bigint AS jobs
    FROM lanes l JOIN batches b ON b.lane_id = l.id AND b.finished_at >= :since
    WHERE b.device_id IS NOT NULL GROUP BY b.device_id
), refuted AS (
    SELECT f.device_id, count(DISTINCT f.job_id) AS jobs, (array_agg(f.message ORDER BY f.id DESC))[1] AS message
    FROM failures f JOIN jobs j ON j.id = f.job_id AND j.state = 'done'
    JOIN measurements r ON r.job_id = j.id AND r.device_id <> f.device_id
    WHERE f.at >= :since AND f.kind IN ('failed', 'killed') AND f.device_id IS NOT NULL
    GROUP BY f.device_id
)
SELECT d.id, d.uuid, d.type, h.name AS host, d.state, d.state_reason, d.state_changed_at, d.vanished_at,
    nullif(d.last_seen_at, '-infinity') AS last_seen_at,
    NOT foreign_rows AND isfinite(d.last_seen_at)
        AND d.last_seen_at < clock_timestamp() - make_interval(secs => :silent_after) AS silent,
    NOT foreign_rows AND NOT isfinite(coalesce(d.last_seen_at, '-infinity')) AS stopped, foreign_rows AS "foreign",
    (d.facts->>'slowdown_c')::float8 AS slowdown_c, (d.facts->>'default_power_limit_w')::float8 AS default_limit_w,
    coalesce(done.jobs, 0) AS done, coalesce(refuted.jobs, 0) AS refuted, refuted.message AS last_failure
FROM devices d JOIN hosts h ON h.id = d.host_id
LEFT JOIN done ON done.device_id = d.id
LEFT JOIN refuted ON refuted.device_id = d.id
CROSS JOIN LATERAL (SELECT starts_with(d.uuid, '{IMPORTED_PREFIX}') OR d.backend = 'recorded' AS foreign_rows) f
WHERE :any_source OR NOT foreign_rows
ORDER BY d.type, h.name, d.uuid
""")


def fleet_health(engine: Engine, query: HealthQuery) -> FleetReport:
    """The health of the requested devices. Raises `BadInput`, `NotFound`."""
    with engine.connect() as connection:
        since, until = window(connection, query)
        fleet_members, query = members(connection, query, since=since)
    rows = fleet(engine, fleet_members, query, since=since)
    return diagnose(fleet_members, rows, query, since=since, until=until)


def window(connection: Connection, query: HealthQuery) -> tuple[datetime, datetime]:
    """Start and end of the window, by the database's clock. Raises `BadInput` for a start in the future."""
    until: datetime = connection.execute(_NOW).scalar_one().astimezone(UTC)
    since = until - WINDOW if query.since is None else query.since
    # A time such as `7d` is by this machine's clock, which may be slightly ahead.
    if since > until + timedelta(minutes=5):
        raise BadParameter(parameter="since", value=f"{since:%Y-%m-%d %H:%M} UTC", why="this is in the future.")
    return since, until


def members(connection: Connection, query: HealthQuery, *, since: datetime) -> tuple[list[Member], HealthQuery]:
    """The requested devices and their peers, and the query with the device's whole UUID.

    Raises `NothingOfThat`, `AmbiguousDevice` for unknown names.
    """
    parameters = {"silent_after": query.silent_after_s, "any_source": query.any_source, "since": since}
    corrupting = corrupted_results.corrupting(connection, since=since, any_source=query.any_source)
    found = [
        Member(**row, corruption=corrupting.get(row["id"]))
        for row in connection.execute(_MEMBERS, parameters).mappings()
    ]
    group = resolve(Group(name="", type=query.device_type, host=query.host, device=query.device), found)
    types = {one.type for one in found if group.has(one)}
    return [one for one in found if one.type in types], replace(query, device=group.device)


_CONDITIONS = ("device_id", "environment_id", "source", "distribution", "clock_policy", "l2", "protocol")
_EVENTS = ("throttle_reasons", "power_limited")
_FIGURES = ("runtime_ms", "power_w", "runtime_settled_ms", "temperature_c", "power_limit_w")


def fleet(engine: Engine, fleet_members: Sequence[Member], query: HealthQuery, *, since: datetime) -> Fleet:
    """All rows of these devices, without short rounds of searches."""
    with engine.connect() as connection:
        excluded = row_query.excluded_rows(connection)
    listed = ",".join(str(one.id) for one in fleet_members)
    sources = "" if query.any_source else f" AND r.source IN ('{Source.MEASURED}', '{Source.SENTINEL}')"
    columns = ", ".join(f"r.{name}" for name in (*_CONDITIONS, "configuration_id", "measured_at", *_EVENTS, *_FIGURES))
    found = read(
        engine, f"SELECT {columns} FROM measurements r WHERE r.device_id = ANY('{{{listed}}}'){sources}{excluded}"
    )
    # Read after the rows, to have all their environments.
    with engine.connect() as connection:
        contents = row_query.environments(connection)
    column = {name: codes(found[name]) for name in (*_CONDITIONS[1:], *_EVENTS)}
    known = np.array([one.id for one in fleet_members])
    order = known.argsort()
    configuration, ids = coded(words(found["configuration_id"]))
    condition, conditions = _combined([column[name] for name in _CONDITIONS[2:]])
    source, sources_known = column["source"]
    policy, policies = column["clock_policy"]
    reason, reasons = column["throttle_reasons"]
    limited, limited_known = column["power_limited"]
    environment, environments = column["environment_id"]
    bits = np.array([-1 if names is None else events_named(names) for names in reasons] or [-1])
    rows = FleetRows(
        device=order[np.searchsorted(known[order], numbers(found["device_id"]))],
        cell=configuration * conditions + condition,
        clocks=policy,
        environment=environment,
        when=numbers(found["measured_at"]) / 1e6,
        reasons=bits[reason],
        power_limited=np.array([-1 if value is None else int(value) for value in limited_known] or [-1])[limited],
        **{name: numbers(found[name]).astype(np.float64, copy=False) for name in _FIGURES},
    )
    sentinel = np.array([value == Source.SENTINEL for value in sources_known] or [False])[source]
    results = rows.taken(~sentinel) if sentinel.any() else rows
    return Fleet(
        rows=results,
        sentinels=rows.taken(sentinel),
        shapes=_shapes(
            engine, ids, np.unique(results.cell[results.when >= since.timestamp()] // conditions), conditions
        ),
        configurations=np.repeat(np.arange(len(ids)), conditions),
        environments=[contents[uuid.UUID(bytes=bytes(one))] for one in environments],
        clocks=policies,
    )


def _combined(columns: Sequence[tuple[Ints, list[Any]]]) -> tuple[Ints, int]:
    """Numbers for the occurring combinations of values, and how many there are."""
    code, size = np.zeros(len(columns[0][0]), np.int64), 1
    for numbers_of_values, values in columns:
        code = code * len(values) + numbers_of_values
        size *= max(1, len(values))
    there = np.bincount(code, minlength=size) > 0
    return (np.cumsum(there) - 1)[code], max(1, int(there.sum()))


def _shapes(engine: Engine, ids: Words, wanted: Ints, conditions: int) -> Ints:
    """The shape of each cell of the wanted configurations, 0 for all others."""
    shapes = np.zeros(len(ids), np.int64)
    if len(wanted):
        shapes[wanted] = breakdowns.shapes_of(row_query.problems(engine, ids[wanted]))
    return np.repeat(shapes, conditions)
