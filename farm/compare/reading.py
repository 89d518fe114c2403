"""Rows for a comparison, as columns: fast enough for a million of them.

Measurements and configurations come by COPY in binary, as Arrow, and meet here: joined by Postgres they take five times as
long. What rows have in common (`Kind`) is counted first, so that of a million rows only those columns are fetched that tell
two kinds apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text

from farm.compare.groups import Problems
from farm.compare.sides import Device, Kind
from farm.compare.statistics import Floats, Ints
from farm.db.columns import Words, coded, keys, numbers, read, storage, words
from farm.db.device_sessions import OVERLAPPED
from farm.registry.conditions import RECORDED

_DEVICES = text("""
SELECT d.id, d.uuid, d.type, h.name, d.facts->>'provenance'
FROM devices d JOIN hosts h ON h.id = d.host_id ORDER BY d.id
""")
_SHORT_ROUNDS = text("SELECT EXISTS (SELECT FROM lanes WHERE rules IS NOT NULL)")
_OVERLAPS = text("SELECT EXISTS (SELECT FROM device_overlaps)")
_NOT_SHORT = """ AND NOT EXISTS (
    SELECT FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
)"""


def devices(connection: Connection) -> list[Device]:
    return [Device(*row) for row in connection.execute(_DEVICES)]


def environments(connection: Connection) -> dict[uuid.UUID, dict[str, Any]]:
    return {row.id: row.content for row in connection.execute(text("SELECT id, content FROM environments"))}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is told of a kind beside what is always told; and which rows are results at all."""

    campaigns: bool = False
    times: tuple[datetime, ...] = ()
    days: bool = False
    protocols: bool = False
    short_rounds: bool = False  # whether there are rows of short rounds, to be left out
    overlaps: bool = False  # whether there are rows that two workers measured at the same time, to be left out

    def columns(self) -> dict[str, str]:
        """SQL of each field by which kinds differ."""
        told = {
            "device_id": "r.device_id",
            "environment_id": "r.environment_id",
            "source": "r.source",
            "clocks": "r.clock_policy",
            "distribution": "r.distribution",
            "l2": "r.l2",
        }
        if self.campaigns:
            told["campaign_id"] = "r.campaign_id"
        if self.times:
            listed = ", ".join(f"'{when.isoformat()}'" for when in self.times)
            told["epoch"] = f"width_bucket(r.measured_at, ARRAY[{listed}]::timestamptz[])"
        if self.days:
            told["day"] = "to_char(r.measured_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        if self.protocols:
            told["timed"] = f"r.stop_reason <> '{RECORDED}'"
        return told

    @property
    def excluded(self) -> str:
        return (_NOT_SHORT if self.short_rounds else "") + (f" AND NOT {OVERLAPPED}" if self.overlaps else "")


def has_short_rounds(connection: Connection) -> bool:
    return bool(connection.execute(_SHORT_ROUNDS).scalar_one())


def has_overlaps(connection: Connection) -> bool:
    return bool(connection.execute(_OVERLAPS).scalar_one())


def kinds(
    connection: Connection, known: Iterable[Device], contents: Mapping[uuid.UUID, dict[str, Any]], asked: Asked
) -> list[Kind]:
    """Every kind of result there is, with its rows; sentinels and short rounds are none."""
    columns = asked.columns()
    told = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    found = connection.execute(
        text(
            f"SELECT {told}, count(*) AS rows FROM measurements r WHERE r.source <> 'sentinel'{asked.excluded} "
            f"GROUP BY {', '.join(map(str, range(1, len(columns) + 1)))}".replace(":", r"\:")
        )
    )
    by_id = {device.id: device for device in known}
    return [
        Kind(
            device=by_id[row.pop("device_id")],
            environment=contents[row["environment_id"]],
            **row,
        )
        for row in (dict(mapping) for mapping in found.mappings())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Measurements, column by column; NaN where a row has no such figure."""

    kind: Ints  # which of the kinds that were asked for
    configuration: Ints  # which of `ids`
    runtime_ms: Floats
    runtime_rse: Floats
    power_w: Floats
    runtime_sustained_ms: Floats
    ids: Words  # [configurations, 2]

    def taken(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Those rows alone; `ids` stays."""
        names = ("kind", "configuration", "runtime_ms", "runtime_rse", "power_w", "runtime_sustained_ms")
        return Rows(ids=self.ids, **{name: getattr(self, name)[which] for name in names})


_FIGURES = ("runtime_ms", "runtime_rse", "power_w", "runtime_sustained_ms")


def rows(engine: Engine, wanted: Sequence[Kind], asked: Asked) -> Rows:
    """Every row of the wanted kinds."""
    columns = asked.columns()
    values = {name: [_value(kind, name) for kind in wanted] for name in columns}
    told = [name for name in columns if len(set(values[name])) > 1]
    # Rows of other kinds are told by the columns in which the wanted ones are alike.
    alike = [
        f"{columns[name]} IS NOT DISTINCT FROM {_literal(values[name][0])}" for name in columns if name not in told
    ]
    among = [f"r.device_id = ANY('{{{','.join(str(i) for i in sorted(set(values['device_id'])))}}}')"]
    if "source" in told:
        among.append(f"r.source IN ({', '.join(_literal(source) for source in sorted(set(values['source'])))})")
    selected = [f"{columns[name]} AS {name}" for name in told]
    selected += [f"r.{name}" for name in ("configuration_id", *_FIGURES)]
    found = read(
        engine,
        f"SELECT {', '.join(selected)} FROM measurements r WHERE {' AND '.join([*among, *alike])}{asked.excluded}",
    )
    kind = _which_kind([(found[name], values[name]) for name in told], len(found))
    codes, ids = coded(words(found["configuration_id"]))
    figures: dict[str, Floats] = {name: numbers(found[name]) for name in _FIGURES}
    all_rows = Rows(kind=kind, configuration=codes, ids=ids, **figures)
    return all_rows if (kind >= 0).all() else all_rows.taken(kind >= 0)


def _value(kind: Kind, name: str) -> Any:
    return kind.device.id if name == "device_id" else getattr(kind, name)


def _literal(value: Any) -> str:
    """SQL of a value that came out of the database; COPY takes no parameters."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'"


def _which_kind(told: Sequence[tuple[Any, Sequence[Any]]], count: int) -> Ints:
    """The kind of each row by the columns that tell: [rows], -1 where it is none of them."""
    code, of_kind, size = np.zeros(count, np.int64), np.zeros(len(told[0][1]) if told else 1, np.int64), 1
    outside = np.zeros(count, bool)
    for column, values in told:
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
    """Where in `known` each value of an Arrow column is, -1 where it is not there."""
    encoded = storage(column).dictionary_encode(null_encoding="encode")
    place = {_plain(value): number for number, value in enumerate(known)}
    of_entry = np.array([place.get(entry, -1) for entry in encoded.dictionary.to_pylist()] or [-1])
    found: Ints = of_entry[numbers(encoded.indices)]
    return found


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


_PROBLEM = "c.m, c.n, c.k, c.ab || ':' || c.cd || ':' || c.acc AS types, c.beta, c.family"
_WHOLE = """
c.id::text AS configuration_id, c.m, c.n, c.k, c.ab, c.cd, c.acc, c.layout, c.alpha, c.beta, c.family,
c.parameters::text AS parameters
"""
_HELD = text("SELECT reltuples FROM pg_class WHERE oid = 'configurations'::regclass")
AT_ONCE = 20_000
"""Configurations that are asked for by id in one query."""


def problems(engine: Engine, ids: Words) -> Problems:
    """The problem of each id [configurations, 2]."""
    found, at = _of_ids(engine, ids, _PROBLEM)
    types, families = (storage(found[name]).dictionary_encode() for name in ("types", "family"))
    return Problems(
        **{name: numbers(found[name])[at] for name in ("m", "n", "k", "beta")},
        types=numbers(types.indices)[at].astype(np.int64),
        types_known=types.dictionary.to_pylist(),
        family=numbers(families.indices)[at].astype(np.int64),
        families=families.dictionary.to_pylist(),
    )


def described(engine: Engine, ids: Words) -> Any:
    """The columns of configurations as an Arrow table, in the order of `ids` [configurations, 2]; parameters are JSON."""
    found, at = _of_ids(engine, ids, _WHOLE)
    return found.drop_columns(["id"]).take(at)


def _of_ids(engine: Engine, ids: Words, columns: str) -> tuple[Any, Ints]:
    """These columns of configurations as an Arrow table, and where in it each id is.

    All of the table are read where a good part of it is wanted.
    """
    import pyarrow as pa

    with engine.connect() as connection:
        held = connection.execute(_HELD).scalar_one()  # -1 where nobody counted yet
    select = f"SELECT c.id, {columns} FROM configurations c"
    if len(ids) * 4 >= held:
        found = read(engine, select)
    else:
        chunks = [
            f"{select} WHERE c.id = ANY('{{{_listed_ids(ids[start : start + AT_ONCE])}}}')"
            for start in range(0, len(ids), AT_ONCE)
        ]
        found = pa.concat_tables([read(engine, chunk) for chunk in chunks])
    return found, _found_at(words(found["id"]), ids)


def _found_at(there: Words, wanted: Words) -> Ints:
    """Where each wanted id [n, 2] is in `there`, which has all of them."""
    held, asked = keys(there), keys(wanted)
    order = np.argsort(held)
    # The wanted ones are in order of their keys, so the search walks on.
    at = order[np.searchsorted(held[order], asked)]
    if (there[at] == wanted).all():
        return at
    place = {one.tobytes(): number for number, one in enumerate(there)}
    return np.array([place[one.tobytes()] for one in wanted])


def as_uuids(ids: Words) -> list[uuid.UUID]:
    return [uuid.UUID(bytes=one.tobytes()) for one in ids]


def _listed_ids(ids: Words) -> str:
    return ",".join(map(str, as_uuids(ids)))
