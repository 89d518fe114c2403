"""Results: writing them with COPY, and reading them from the view."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from farm.db.filters import EVERYTHING, Filter, computed
from farm.measurement import MEASUREMENT_COLUMNS, Measurement

_KEYS = ("job_id", "campaign_id", "configuration_id", "device_id", "environment_id")
_COPY = sql.SQL("COPY measurements ({}) FROM STDIN").format(
    sql.SQL(", ").join(map(sql.Identifier, (*_KEYS, *MEASUREMENT_COLUMNS)))
)
_ENVIRONMENT = text(
    "INSERT INTO environments (id, content) VALUES (:id, CAST(:content AS jsonb)) ON CONFLICT DO NOTHING"
)


def cursor_of(connection: Connection) -> Any:
    """A psycopg cursor inside SQLAlchemy's transaction, for COPY."""
    driver = connection.connection.driver_connection
    assert driver is not None
    return driver.cursor()


Row = tuple[int | None, int | None, uuid.UUID, int, Measurement]
"""Job id, campaign id, configuration id, device id, and what was measured."""

UNSTORABLE = (DataError, IntegrityError, TypeError, ValueError)
"""What `insert` raises for a row that the table does not take, or that cannot be written as columns and JSON."""


def insert(connection: Connection, rows: Iterable[Row]) -> None:
    """Appends rows. Raises `UNSTORABLE`, and what SQLAlchemy raises where the database does not answer."""
    listed = list(rows)
    if not listed:
        return
    contents = [json.dumps(row[-1].environment, sort_keys=True) for row in listed]
    ids = {content: uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16]) for content in set(contents)}
    connection.execute(_ENVIRONMENT, [{"id": i, "content": content} for content, i in sorted(ids.items())])
    try:
        with cursor_of(connection) as cursor, cursor.copy(_COPY) as copy:
            for (job_id, campaign_id, configuration_id, device_id, row), content in zip(listed, contents, strict=True):
                copy.write_row([job_id, campaign_id, configuration_id, device_id, ids[content], *_column_values(row)])
    except psycopg.Error as error:
        raise _translated(connection, error) from error


def _translated(connection: Connection, error: psycopg.Error) -> BaseException:
    """The error as SQLAlchemy raises it. COPY goes past SQLAlchemy, which would not learn of a lost connection either."""
    driver = connection.connection.driver_connection
    lost = driver is None or bool(driver.closed)
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance("COPY measurements", None, error, psycopg.Error, connection_invalidated=lost)


def refusals(connection: Connection, rows: Iterable[Row]) -> list[str | None]:
    """Of each row, why it is unstorable; None where it is not. They are tried one by one, and none stays."""
    found = list[str | None]()
    for row in rows:
        attempt = connection.begin_nested()
        try:
            insert(connection, [row])
            found.append(None)
        except UNSTORABLE as error:
            why = str(error.orig if isinstance(error, DBAPIError) else error)
            found.append(next(iter(why.strip().splitlines()), type(error).__name__))
        finally:
            attempt.rollback()
    return found


def _column_values(row: Measurement) -> Iterator[Any]:
    for name in MEASUREMENT_COLUMNS:
        value = getattr(row, name)
        yield json.dumps(value) if isinstance(value, dict) else value


RESULT_COLUMNS: Sequence[str] = (
    "campaign", "device_type", "host", "device_uuid", "family", "parameters", "m", "n", "k", "ab", "cd", "acc", "layout",
    "alpha", "beta", "runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms", "runtime_rse", "samples",
    "stop_reason", "l2", "runtime_warm_ms", "runtime_sustained_ms", "tflops", "intensity", "power_w", "power_rse",
    "energy_mj", "gflops_per_w", "power_source", "power_disagrees", "idle_power_w", "power_limit_w", "sm_clock_mhz",
    "memory_clock_mhz", "temperature_before_c", "temperature_c", "throttle_reasons", "verify_error", "distribution",
    "seed", "source", "clock_policy", "kernel_hash", "cost_s", "window_s", "round", "measured_at", "measurement_id",
    "configuration_id", "environment", "details",
)  # fmt: skip
"""What `farm results` exports, in order: columns of v_measurements."""


_EVERY_ROUND = """(
    SELECT a.*, coalesce(l.round, 0) AS round
    FROM v_all_measurements a LEFT JOIN jobs j ON j.id = a.job_id LEFT JOIN lanes l ON l.id = j.lane_id
) every_round"""


def read(
    connection: Connection,
    *,
    campaign_id: int | None = None,
    device_type: str | None = None,
    family: str | None = None,
    order_by: str = "measurement_id",
    limit: int | None = None,
    after: int | None = None,
    short_rounds: bool = False,
    only: Filter = EVERYTHING,
) -> list[dict[str, Any]]:
    """Rows of v_measurements as dictionaries of `RESULT_COLUMNS`. `order_by` is one of them, `-` for descending.

    Of those with an id beyond `after`. With `short_rounds` those of searches too, which were measured under rules that cost less than their campaign's.
    Raises `BadFilter` where `only` cannot be computed for a row.
    """
    column = order_by.removeprefix("-")
    if column not in RESULT_COLUMNS:
        raise ValueError(f"no column {column}")
    direction = "DESC" if order_by.startswith("-") else "ASC"
    # Every row has an id; with NULLS LAST its index would not be read from its end.
    nulls = "" if column == "measurement_id" else "NULLS LAST"
    statement = text(f"""
        SELECT {", ".join(RESULT_COLUMNS)} FROM {_EVERY_ROUND if short_rounds else "v_measurements"}
        WHERE (CAST(:campaign_id AS bigint) IS NULL OR campaign_id = :campaign_id)
          AND (CAST(:device_type AS text) IS NULL OR device_type = :device_type)
          AND (CAST(:family AS text) IS NULL OR family = :family)
          AND (CAST(:after AS bigint) IS NULL OR measurement_id > :after)
          AND {only.sql}
        ORDER BY {column} {direction} {nulls} LIMIT :limit
    """)
    parameters = {
        "campaign_id": campaign_id,
        "device_type": device_type,
        "family": family,
        "limit": limit,
        "after": after,
    }
    with computed(only):
        return [dict(row) for row in connection.execute(statement, {**parameters, **only.values}).mappings()]
