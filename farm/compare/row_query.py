"""Loads the rows of a comparison as columns, a million rows in seconds.

Measurements and configurations come by binary COPY as Arrow tables and are joined here: a join in Postgres takes five times as
long. Kinds of rows (`RowKind`) are counted first, so rows are fetched with only the columns that separate two kinds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text

from farm.compare.breakdowns import Problems
from farm.compare.groups import RowKind
from farm.compare.statistics import Floats, Ints
from farm.compare.summaries import ComparedDevice
from farm.db.arrow_columns import Words, coded, keys, numbers, read, storage, words
from farm.db.device_sessions import OVERLAPPED
from farm.gemm import PROBLEM_COLUMNS

_DEVICES = text("""
SELECT d.id, d.uuid, d.type, h.name, d.facts->>'provenance'
FROM devices d JOIN hosts h ON h.id = d.host_id ORDER BY d.id
""")
_EXCLUDED = {
    "lanes WHERE rules IS NOT NULL": """NOT EXISTS (
    SELECT FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
)""",
    "device_overlaps": f"NOT {OVERLAPPED}",
}
"""Conditions on results, each with the rows without which it needs no check: short rounds, and overlaps of two workers."""


def devices(connection: Connection) -> list[ComparedDevice]:
    return [ComparedDevice(*row) for row in connection.execute(_DEVICES)]


def environments(connection: Connection) -> dict[uuid.UUID, dict[str, Any]]:
    return {row.id: row.content for row in connection.execute(text("SELECT id, content FROM environments"))}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which columns separate kinds of rows, in addition to the basic ones; and which rows are no results."""

    campaigns: bool = False
    times: tuple[datetime, ...] = ()
    days: bool = False
    # The campaigns to which the groups are limited; None: rows of every campaign, and without one.
    only_campaigns: tuple[int, ...] | None = None
    # SQL conditions, from `excluded_rows`.
    excluded: str = ""

    @property
    def condition(self) -> str:
        """SQL that follows other conditions. The index on the campaign finds the rows of few campaigns among all."""
        if self.only_campaigns is None:
            return self.excluded
        listed = ",".join(map(str, self.only_campaigns))
        return f" AND r.campaign_id = ANY('{{{listed}}}'){self.excluded}"

    def columns(self) -> dict[str, str]:
        """SQL of each field in which kinds can differ."""
        columns = {
            "device_id": "r.device_id",
            "environment_id": "r.environment_id",
            "source": "r.source",
            "clocks": "r.clock_policy",
            "distribution": "r.distribution",
            "l2": "r.l2",
            "protocol": "r.protocol",
        }
        if self.campaigns:
            columns["campaign_id"] = "r.campaign_id"
        if self.times:
            listed = ", ".join(f"'{when.isoformat()}'" for when in self.times)
            columns["epoch"] = f"width_bucket(r.measured_at, ARRAY[{listed}]::timestamptz[])"
        if self.days:
            columns["day"] = "to_char(r.measured_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        return columns


def excluded_rows(connection: Connection) -> str:
    """SQL that leaves out rows of short rounds, and rows that two workers measured at the same time."""
    exists = [connection.execute(text(f"SELECT EXISTS (SELECT FROM {rows})")).scalar_one() for rows in _EXCLUDED]
    return "".join(f" AND {sql}" for found, sql in zip(exists, _EXCLUDED.values(), strict=True) if found)


def kinds(
    connection: Connection,
    known: Iterable[ComparedDevice],
    contents: Mapping[uuid.UUID, dict[str, Any]],
    row_filter: RowFilter,
) -> list[RowKind]:
    """Every kind of result with its number of rows; without sentinels and short rounds."""
    columns = row_filter.columns()
    selected = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    found = connection.execute(
        text(
            f"SELECT {selected}, count(*) AS rows, count(r.runtime_burst_ms) AS with_burst "
            f"FROM measurements r WHERE r.source <> 'sentinel'{row_filter.condition} "
            f"GROUP BY {', '.join(map(str, range(1, len(columns) + 1)))}".replace(":", r"\:")
        )
    )
    by_id = {device.id: device for device in known}
    return [
        RowKind(
            device=by_id[row.pop("device_id")],
            environment=contents[row["environment_id"]],
            **row,
        )
        for row in (dict(mapping) for mapping in found.mappings())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRows:
    """Measurements as columns; NaN where a row has no such figure."""

    kind: Ints  # number of the requested kind
    configuration: Ints  # position in `ids`
    runtime_ms: Floats
    runtime_rse: Floats
    power_w: Floats
    runtime_settled_ms: Floats
    runtime_burst_ms: Floats
    runtime_burst_rse: Floats
    ids: Words  # [configurations, 2]

    def taken(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> MeasurementRows:
        """The chosen rows; `ids` stays."""
        names = ("kind", "configuration", *_FIGURES, *_OF_BURST)
        return replace(self, **{name: getattr(self, name)[which] for name in names})


_FIGURES = ("runtime_ms", "runtime_rse", "power_w", "runtime_settled_ms")
_OF_BURST = ("runtime_burst_ms", "runtime_burst_rse")
"""Read only where a row has them."""


def rows(engine: Engine, wanted: Sequence[RowKind], row_filter: RowFilter) -> MeasurementRows:
    """All rows of the wanted kinds."""
    columns = row_filter.columns()
    values = {name: [_value(kind, name) for kind in wanted] for name in columns}
    separating = [name for name in columns if len(set(values[name])) > 1]
    # Columns in which all wanted kinds are equal become conditions.
    conditions = [
        f"{columns[name]} IS NOT DISTINCT FROM {_literal(values[name][0])}"
        for name in columns
        if name not in separating
    ]
    among = [f"r.device_id = ANY('{{{','.join(str(i) for i in sorted(set(values['device_id'])))}}}')"]
    if "source" in separating:
        among.append(f"r.source IN ({', '.join(_literal(source) for source in sorted(set(values['source'])))})")
    selected = [f"{columns[name]} AS {name}" for name in separating]
    of_burst = _OF_BURST if any(kind.with_burst for kind in wanted) else ()
    selected += [f"r.{name}" for name in ("configuration_id", *_FIGURES, *of_burst)]
    found = read(
        engine,
        f"SELECT {', '.join(selected)} FROM measurements r WHERE {' AND '.join([*among, *conditions])}{row_filter.condition}",
    )
    kind = _which_kind([(found[name], values[name]) for name in separating], len(found))
    codes, ids = coded(words(found["configuration_id"]))
    figures: dict[str, Floats] = {name: np.full(len(found), np.nan) for name in _OF_BURST}
    figures |= {name: numbers(found[name]) for name in (*_FIGURES, *of_burst)}
    all_rows = MeasurementRows(kind=kind, configuration=codes, ids=ids, **figures)
    return all_rows if (kind >= 0).all() else all_rows.taken(kind >= 0)


def _value(kind: RowKind, name: str) -> Any:
    return kind.device.id if name == "device_id" else getattr(kind, name)


def _literal(value: Any) -> str:
    """The SQL literal of a value from the database: COPY takes no parameters."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'"


def _which_kind(separating: Sequence[tuple[Any, Sequence[Any]]], count: int) -> Ints:
    """The kind of each row from the columns that separate kinds: [rows], -1 for another kind."""
    code, of_kind, size = np.zeros(count, np.int64), np.zeros(len(separating[0][1]) if separating else 1, np.int64), 1
    outside = np.zeros(count, bool)
    for column, values in separating:
        known = list(dict.fromkeys(values))
        place = _places(column, known)
        outside |= place < 0
        code = code * len(known) + place
        of_kind = of_kind * len(known) + np.array([known.index(value) for value in values])
        size *= len(known)
    order = np.argsort(of_kind)
    at = np.minimum(np.searchsorted(of_kind[order], code), len(of_kind) - 1)
    kind = order[at]
    kind[outside | (of_kind[kind] != code)] = -1
    return kind


def _places(column: Any, known: Sequence[Any]) -> Ints:
    """The position in `known` of each value of an Arrow column, -1 where it is missing."""
    encoded = storage(column).dictionary_encode(null_encoding="encode")
    place = {_plain(value): number for number, value in enumerate(known)}
    of_entry = np.array([place.get(entry, -1) for entry in encoded.dictionary.to_pylist()] or [-1])
    found: Ints = of_entry[numbers(encoded.indices)]
    return found


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


_PROBLEM = (
    "c.m, c.n, c.k, c.ab || ':' || c.cd || ':' || c.acc AS types, c.beta, c.batch, c.scale, c.fused, c.groups, "
    "c.sparsity, c.family"
)
_WHOLE = f"""
c.id::text AS configuration_id, {", ".join(f"c.{name}" for name in PROBLEM_COLUMNS)}, c.family,
c.parameters::text AS parameters
"""
_STORED = text("SELECT reltuples FROM pg_class WHERE oid = 'configurations'::regclass")
_TEXTS = {
    "types": "types_known",
    "scale": "scales",
    "fused": "fusions",
    "groups": "groupings",
    "sparsity": "sparsities",
    "family": "families",
}
"""Columns of texts, with the attribute of `Problems` that lists those that occur."""
IDS_PER_QUERY = 20_000
"""Configurations that one query fetches by id."""


def problems(engine: Engine, ids: Words) -> Problems:
    """The problem of each id [configurations, 2]."""
    found, at = _of_ids(engine, ids, _PROBLEM)
    texts = dict[str, Any]()
    for name, known in _TEXTS.items():
        encoded = storage(found[name]).dictionary_encode()
        texts[name] = numbers(encoded.indices)[at].astype(np.int64)
        texts[known] = encoded.dictionary.to_pylist()
    return Problems(**{name: numbers(found[name])[at] for name in ("m", "n", "k", "beta", "batch")}, **texts)


def configuration_table(engine: Engine, ids: Words) -> Any:
    """An Arrow table of configurations in the order of `ids` [configurations, 2]; parameters are JSON."""
    found, at = _of_ids(engine, ids, _WHOLE)
    return found.drop_columns(["id"]).take(at)


def _of_ids(engine: Engine, ids: Words, columns: str) -> tuple[Any, Ints]:
    """These columns of configurations as an Arrow table, and the position of each id in it.

    Reads the whole table where at least a quarter of it is wanted.
    """
    import pyarrow as pa

    with engine.connect() as connection:
        stored = connection.execute(_STORED).scalar_one()  # -1 before the first ANALYZE
    select = f"SELECT c.id, {columns} FROM configurations c"
    if len(ids) * 4 >= stored:
        found = read(engine, select)
    else:
        chunks = [
            f"{select} WHERE c.id = ANY('{{{_listed_ids(ids[start : start + IDS_PER_QUERY])}}}')"
            for start in range(0, len(ids), IDS_PER_QUERY)
        ]
        found = pa.concat_tables([read(engine, chunk) for chunk in chunks])
    return found, _positions(words(found["id"]), ids)


def _positions(present: Words, wanted: Words) -> Ints:
    """The position of each wanted id [n, 2] in `present`, which has all of them."""
    present_keys, wanted_keys = keys(present), keys(wanted)
    order = np.argsort(present_keys)
    at = order[np.searchsorted(present_keys[order], wanted_keys)]
    if (present[at] == wanted).all():
        return at
    place = {one.tobytes(): number for number, one in enumerate(present)}
    return np.array([place[one.tobytes()] for one in wanted])


def as_uuids(ids: Words) -> list[uuid.UUID]:
    return [uuid.UUID(bytes=one.tobytes()) for one in ids]


def _listed_ids(ids: Words) -> str:
    return ",".join(map(str, as_uuids(ids)))
