"""Imports of measurements: rows are staged from a file and stored with their own devices, in one transaction.

A device of an import is a row of `devices` that no worker announces. It is drained and has no heartbeat, so it counts as neither
live nor expected. Its UUID begins with `IMP-` and the hash of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from farm.db.measurements import cursor_of
from farm.db.states import DeviceState
from farm.devices import IMPORTED_PREFIX, DeviceIdentity
from farm.errors import ImportNotAllowed, PulledMeanwhile, RowNotImported, first_line
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.schema.column import ColumnType
from farm.schema.results import CONFIGURATION, RESULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRow:
    """One row of a file."""

    # Position in the file, from 1.
    number: int
    # Key of the device in the file.
    device: str
    # None: unknown. The time of the import is used.
    measured_at: datetime | None
    configuration: Configuration
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDevice:
    """A device of a file."""

    key: str  # as in `ImportedRow.device`
    identity: DeviceIdentity
    host: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledRows:
    """Which rows of another farm an import holds: those of one device type of a campaign, with ids from above `after_row` to `last_row`."""

    farm: str
    campaign: str  # its digest
    after_row: int
    last_row: int
    # Whether the campaign's rows of every device type are stored up to there.
    whole: bool

    @property
    def facts(self) -> dict[str, Any]:
        """What the devices of the import keep of it."""
        return {"farm": self.farm, "campaign": self.campaign, "last_row": self.last_row, "whole": self.whole}


def uuid_of(content: str, key: str) -> str:
    """`IMP-3fa94c0e11d2ab47-GPU-4e7a…`: the UUID of the device `key` in the file with that SHA-256."""
    return f"{IMPORTED_PREFIX}{content[:16]}-{key}"


def key_of(device_uuid: str) -> str:
    """`3fa94c0e11d2ab47`: the first digits of the content's SHA-256, from the UUID of a device of the import."""
    return device_uuid.removeprefix(IMPORTED_PREFIX).partition("-")[0][:16]


_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
_FOUND = text("SELECT uuid FROM devices WHERE starts_with(uuid, :prefix) ORDER BY uuid")


def claim(connection: Connection, content: str) -> list[str]:
    """Locks the import of a file. Returns the UUIDs of its devices if it is imported already."""
    connection.execute(_LOCK, {"key": int.from_bytes(bytes.fromhex(content[:16]), signed=True)})
    return list(connection.execute(_FOUND, {"prefix": uuid_of(content, "")}).scalars())


_PULL_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 8))")
_PULLED = text("""
SELECT facts -> 'pulled' ->> 'campaign' AS campaign, type AS device_type,
    max(CAST(facts -> 'pulled' ->> 'last_row' AS bigint)) AS last_row,
    max(CAST(facts -> 'pulled' ->> 'last_row' AS bigint)) FILTER (WHERE facts -> 'pulled' ->> 'whole' = 'true') AS whole_row
FROM devices WHERE starts_with(uuid, :prefix) AND facts -> 'pulled' ->> 'farm' = :farm
    AND (CAST(:campaign AS text) IS NULL OR facts -> 'pulled' ->> 'campaign' = :campaign)
GROUP BY 1, 2 ORDER BY 1, 2
""")


def pulled(connection: Connection, farm: str, campaign: str | None = None) -> Sequence[Row[Any]]:
    """What was pulled from a farm, of one campaign or of all: the columns of `_PULLED` by campaign and device type.

    `last_row` is the highest id of the stored rows there, and `whole_row` that up to which rows of every device type are stored.
    """
    return connection.execute(_PULLED, {"prefix": IMPORTED_PREFIX, "farm": farm, "campaign": campaign}).all()


def claim_pulled(connection: Connection, rows: PulledRows, device_type: str) -> None:
    """Locks the pulls of a campaign of a farm until the transaction ends. Raises `PulledMeanwhile` if rows were stored since `after_row`."""
    connection.execute(_PULL_LOCK, {"key": f"{rows.farm}/{rows.campaign}"})
    known = pulled(connection, rows.farm, rows.campaign)
    if max((one.last_row for one in known if one.device_type == device_type), default=0) > rows.after_row:
        raise PulledMeanwhile(farm=rows.farm, campaign=rows.campaign[:12])


# The staged rows meet the constraints of the table that they are for, so that COPY names the row that does not.
_STAGE = (
    "CREATE TEMPORARY TABLE imported_rows (LIKE measurements INCLUDING CONSTRAINTS) ON COMMIT DROP",
    "ALTER TABLE imported_rows DROP COLUMN id, DROP COLUMN job_id, DROP COLUMN campaign_id, DROP COLUMN device_id, "
    "ADD COLUMN number bigint, ADD COLUMN device text, ADD COLUMN environment jsonb"
    + "".join(
        f", ADD COLUMN {c.name} {'double precision' if c.type is ColumnType.DOUBLE else c.type}"
        for c in CONFIGURATION.values()
    ),
)
_KEYS = ("number", "device", "configuration_id", "environment_id", "environment", "measured_at")
_COPY = sql.SQL("COPY imported_rows ({}) FROM STDIN").format(
    sql.SQL(", ").join(map(sql.Identifier, (*_KEYS, *CONFIGURATION, *RESULTS)))
)
_MOMENT = text("SELECT clock_timestamp()")


def stage(connection: Connection, rows: Iterable[ImportedRow], *, path: Path) -> None:
    """Copies a file's rows into a temporary table, which the end of the transaction drops.

    Raises `RowNotImported` for a row that the database refuses, and `ImportNotAllowed`.
    """
    numbers = array("q")
    known = set[bytes]()
    moment = connection.execute(_MOMENT).scalar_one()
    try:
        with cursor_of(connection) as cursor:
            for statement in _STAGE:
                cursor.execute(statement)
            with cursor.copy(_COPY) as copy:
                for row in rows:
                    numbers.append(row.number)
                    if (why := why_not_storable(row.measurement)) is not None:
                        raise RowNotImported(path=path, row=row.number, why=why)
                    content = json.dumps(row.measurement.environment, sort_keys=True)
                    digest = hashlib.sha256(content.encode()).digest()[:16]
                    environment = None if digest in known else content
                    known.add(digest)
                    keys = (row.number, row.device, row.configuration.id, uuid.UUID(bytes=digest), environment)
                    copy.write_row((*keys, row.measured_at or moment, *_values_of(row)))
    except psycopg.Error as error:
        raise _translated(connection, error, path, numbers) from error


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that Postgres stores neither in text nor in JSON: the zero character, and halves of surrogate pairs."""


def why_not_storable(measurement: Measurement) -> str | None:
    """Returns why the database would refuse a measurement (column, value and reason), or None."""
    for name in (*RESULTS, "environment"):
        value = getattr(measurement, name)
        if value is None:
            continue
        if name in RESULTS and RESULTS[name].positive and not value > 0:
            return f"{name} is {value!r}, and must be above 0"
        if isinstance(value, (str, dict)) and (found := unstorable(value)) is not None:
            return f"{name} holds {found}"
    return None


def unstorable(value: object) -> str | None:
    """Describes the part of a text or JSON value that Postgres cannot store, or returns None."""
    if isinstance(value, str):
        found = _UNSTORABLE.search(value)
        return None if found is None else f"the character {found[0]!a}, which cannot be stored"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}, which JSON does not have"
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = (*value.keys(), *value.values())
    elif isinstance(value, (list, tuple)):
        inside = value
    return next((why for one in inside if (why := unstorable(one)) is not None), None)


def _values_of(row: ImportedRow) -> Iterable[Any]:
    configuration = row.configuration.columns()
    for value in (
        *(configuration[name] for name in CONFIGURATION),
        *(getattr(row.measurement, name) for name in RESULTS),
    ):
        yield json.dumps(value) if isinstance(value, dict) else value


def _translated(connection: Connection, error: psycopg.Error, path: Path, numbers: Sequence[int]) -> BaseException:
    """Converts an error of COPY to `RowNotImported` if a row caused it, and otherwise to SQLAlchemy's error."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ImportNotAllowed(why=first_line(error))
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        where = r"^COPY imported_rows, line (\d+)(?:, column (\w+)(?:: \"(.{0,60}))?)?"
        found = re.search(where, error.diag.context or "", flags=re.MULTILINE)
        row = numbers[int(found[1]) - 1 if found else -1]
        column, value = (found[2], found[3]) if found else (None, None)
        what = "a value" if column is None else column if value is None else f"{column} ({value.strip(chr(34))})"
        return RowNotImported(path=path, row=row, why=f"the database cannot store {what}")
    driver = connection.connection.driver_connection
    lost = driver is None or bool(driver.closed)
    return DBAPIError.instance("COPY imported_rows", None, error, psycopg.Error, connection_invalidated=lost)


_COUNTS = text("""
SELECT count(*) AS configurations, count(*) FILTER (WHERE c.id IS NULL) AS new
FROM (SELECT DISTINCT configuration_id AS id FROM imported_rows) s LEFT JOIN configurations c USING (id)
""")


def staged_configurations(connection: Connection) -> tuple[int, int]:
    """Counts the configurations of the staged rows, and those that are new to the farm."""
    row = connection.execute(_COUNTS).one()
    return row.configurations, row.new


_NEW_HOST = text("INSERT INTO hosts (name) VALUES (:name) ON CONFLICT (name) DO NOTHING")
_DEVICE = text("""
INSERT INTO devices (uuid, host_id, type, name, backend, traits, facts, state, state_reason, last_seen_at, measured)
VALUES (:uuid, (SELECT id FROM hosts WHERE name = :host), :type, :name, :backend, CAST(:traits AS jsonb),
    CAST(:facts AS jsonb), :state, :reason, '-infinity', :rows)
RETURNING id
""")
_ENVIRONMENTS = text("""
INSERT INTO environments (id, content)
SELECT environment_id, environment FROM imported_rows WHERE environment IS NOT NULL ORDER BY environment_id
ON CONFLICT DO NOTHING
""")
# In the same order as a submission, so the two cannot deadlock.
_CONFIGURATIONS = text(f"""
INSERT INTO configurations (id, {", ".join(CONFIGURATION)})
SELECT DISTINCT ON (configuration_id) configuration_id, {", ".join(CONFIGURATION)}
FROM imported_rows ORDER BY configuration_id
ON CONFLICT DO NOTHING
""")
_COLUMNS = ", ".join(("configuration_id", "environment_id", "measured_at", *RESULTS))
_MEASUREMENTS = text(f"""
INSERT INTO measurements (device_id, {_COLUMNS})
SELECT d.id, {_COLUMNS} FROM imported_rows
JOIN unnest(CAST(:keys AS text[]), CAST(:ids AS bigint[])) AS d(key, id) ON d.key = device
ORDER BY number
""")


def land(connection: Connection, devices: Sequence[ImportedDevice], *, reason: str) -> int:
    """Stores the devices and the staged rows, and returns how many rows.

    `reason` is shown in device lists. Raises `ImportNotAllowed`.
    """
    try:
        ids = [_stored(connection, device, reason) for device in devices]
        connection.execute(_ENVIRONMENTS)
        connection.execute(_CONFIGURATIONS)
        return connection.execute(_MEASUREMENTS, {"keys": [device.key for device in devices], "ids": ids}).rowcount
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
            raise ImportNotAllowed(why=first_line(error.orig)) from error
        raise


def _stored(connection: Connection, device: ImportedDevice, reason: str) -> int:
    connection.execute(_NEW_HOST, {"name": device.host})
    identity = device.identity
    parameters = {
        **{"uuid": identity.uuid, "host": device.host, "type": identity.type, "name": identity.name},
        **{
            "backend": identity.backend.value,
            "rows": device.rows,
            "reason": reason,
            "state": DeviceState.DRAINED.value,
        },
        "traits": json.dumps(identity.traits.to_json()),
        "facts": json.dumps(identity.facts),
    }
    found: int = connection.execute(_DEVICE, parameters).scalar_one()
    return found
