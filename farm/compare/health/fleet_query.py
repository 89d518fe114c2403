"""Loads the rows of a fleet as columns, and checks its health."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from farm.compare.summaries import ComparedDevice
from farm.db.arrow_columns import Words, coded, codes, numbers, read, words
from farm.devices import IMPORTED_PREFIX
from farm.errors import BadInput
from farm.measurement import Source
from farm.vendors.nvidia import events_named

_NOW = text("SELECT clock_timestamp()")
_MEMBERS = text(f"""
SELECT d.id, d.uuid, d.type, h.name AS host, d.state, d.state_reason, d.state_changed_at, d.vanished_at,
    nullif(d.last_seen_at, '-infinity') AS last_seen_at,
    NOT foreign_rows AND isfinite(d.last_seen_at)
        AND d.last_seen_at < clock_timestamp() - make_interval(secs => :silent_after) AS silent,
    NOT foreign_rows AND NOT isfinite(coalesce(d.last_seen_at, '-infinity')) AS stopped, foreign_rows AS "foreign",
    (d.facts->>'slowdown_c')::float8 AS slowdown_c, (d.facts->>'default_power_limit_w')::float8 AS default_limit_w
FROM devices d JOIN hosts h ON h.id = d.host_id
CROSS JOIN LATERAL (SELECT starts_with(d.uuid, '{IMPORTED_PREFIX}') OR d.backend = 'recorded' AS foreign_rows) f
WHERE :any_source OR NOT foreign_rows
ORDER BY d.type, h.name, d.uuid
""")
_DONE = text("""
SELECT b.device_id, sum(b.done)::bigint AS done
FROM lanes l JOIN batches b ON b.lane_id = l.id AND b.finished_at >= :since
WHERE b.device_id IS NOT NULL GROUP BY b.device_id
""")
_REFUTED = text("""
SELECT f.device_id, count(DISTINCT f.job_id) AS refuted, (array_agg(f.message ORDER BY f.id DESC))[1] AS message
FROM failures f JOIN jobs j ON j.id = f.job_id AND j.state = 'done'
JOIN measurements r ON r.job_id = j.id AND r.device_id <> f.device_id
WHERE f.at >= :since AND f.kind IN ('failed', 'killed') AND f.device_id IS NOT NULL
GROUP BY f.device_id
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
        raise BadInput(detail=f"--since {since:%Y-%m-%d %H:%M} UTC is in the future.")
    return since, until


def members(connection: Connection, query: HealthQuery, *, since: datetime) -> tuple[list[Member], HealthQuery]:
    """The requested devices and their peers, and the query with the device's whole UUID.

    Raises `NothingOfThat`, `AmbiguousDevice` for unknown names.
    """
    parameters = {"silent_after": query.silent_after_s, "any_source": query.any_source}
    found = [Member(**row) for row in connection.execute(_MEMBERS, parameters).mappings()]
    known = [ComparedDevice(one.id, one.uuid, one.type, one.host) for one in found]
    side = resolve(Group(name="", type=query.device_type, host=query.host, device=query.device), known)
    query = replace(query, device=side.device)
    types = {
        one.type
        for one in found
        if side.type in (None, one.type) and side.host in (None, one.host) and side.device in (None, one.uuid)
    }
    done = {row.device_id: row.done for row in connection.execute(_DONE, {"since": since})}
    refuted = {row.device_id: row for row in connection.execute(_REFUTED, {"since": since})}
    counted = [
        replace(
            one,
            done=done.get(one.id, 0),
            refuted=refuted[one.id].refuted if one.id in refuted else 0,
            last_failure=refuted[one.id].message if one.id in refuted else None,
        )
        for one in found
        if one.type in types
    ]
    return counted, query


_CONDITIONS = ("device_id", "environment_id", "source", "distribution", "clock_policy", "l2")
_FIGURES = ("runtime_ms", "power_w", "runtime_sustained_ms", "temperature_c", "power_limit_w")


def fleet(engine: Engine, fleet_members: Sequence[Member], query: HealthQuery, *, since: datetime) -> Fleet:
    """All rows of these devices, without short rounds of searches."""
    with engine.connect() as connection:
        excluded = row_query.excluded_rows(connection)
    listed = ",".join(str(one.id) for one in fleet_members)
    sources = "" if query.any_source else f" AND r.source IN ('{Source.MEASURED}', '{Source.SENTINEL}')"
    columns = ", ".join(
        f"r.{name}" for name in (*_CONDITIONS, "configuration_id", "measured_at", "throttle_reasons", *_FIGURES)
    )
    found = read(
        engine, f"SELECT {columns} FROM measurements r WHERE r.device_id = ANY('{{{listed}}}'){sources}{excluded}"
    )
    # Read after the rows, to have all their environments.
    with engine.connect() as connection:
        contents = row_query.environments(connection)
    told = {name: _coded(found[name]) for name in (*_CONDITIONS[1:], "throttle_reasons")}
    known = np.array([one.id for one in fleet_members])
    order = known.argsort()
    configuration, ids = coded(words(found["configuration_id"]))
    condition, conditions = _combined([told[name] for name in ("source", "distribution", "clock_policy", "l2")])
    origins, policies, reasons = (told[name] for name in ("source", "clock_policy", "throttle_reasons"))
    bits = np.array([-1 if names is None else events_named(names) for names in reasons.known] or [-1])
    rows = FleetRows(
        device=order[np.searchsorted(known[order], numbers(found["device_id"]))],
        cell=configuration * conditions + condition,
        clocks=policies.number,
        environment=told["environment_id"].number,
        when=numbers(found["measured_at"]) / 1e6,
        reasons=bits[reasons.number],
        **{name: numbers(found[name]).astype(np.float64, copy=False) for name in _FIGURES},
    )
    sentinel = np.array([source == Source.SENTINEL for source in origins.known] or [False])[origins.number]
    results = rows.taken(~sentinel) if sentinel.any() else rows
    return Fleet(
        rows=results,
        sentinels=rows.taken(sentinel),
        shapes=_shapes(
            engine, ids, np.unique(results.cell[results.when >= since.timestamp()] // conditions), conditions
        ),
        configurations=np.repeat(np.arange(len(ids)), conditions),
        environments=[contents[uuid.UUID(bytes=bytes(one))] for one in told["environment_id"].known],
        clocks=policies.known,
    )


@dataclass(frozen=True, slots=True)
class _Coded:
    """A column as numbers into the list of its values."""

    number: Ints
    known: list[Any]


def _coded(column: Any) -> _Coded:
    return _Coded(*codes(column))


def _combined(columns: Sequence[_Coded]) -> tuple[Ints, int]:
    """Numbers for the occurring combinations of values, and how many there are."""
    code, size = np.zeros(len(columns[0].number), np.int64), 1
    for column in columns:
        code = code * len(column.known) + column.number
        size *= max(1, len(column.known))
    there = np.bincount(code, minlength=size) > 0
    return (np.cumsum(there) - 1)[code], max(1, int(there.sum()))


def _shapes(engine: Engine, ids: Words, wanted: Ints, conditions: int) -> Ints:
    """The shape of each cell of the wanted configurations, 0 for all others."""
    shapes = np.zeros(len(ids), np.int64)
    if len(wanted):
        shapes[wanted] = breakdowns.shapes_of(row_query.problems(engine, ids[wanted]))
    return np.repeat(shapes, conditions)
