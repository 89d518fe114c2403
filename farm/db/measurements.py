"""Writes results, and reads them from the view."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from farm.db.filters import EVERYTHING, Filter, computed
from farm.measurement import TEST_ROW, Measurement
from farm.schema.results import EXPORTED, RESULTS

_KEYS = ("job_id", "campaign_id", "configuration_id", "device_id", "environment_id")
_COLUMNS = (*_KEYS, *RESULTS)

# Foreign keys are checked at the end of a statement: rows and what they refer to may go in one.
_INSERT = text(f"""
WITH e AS (
    INSERT INTO environments (id, content)
    SELECT e.id, e.content FROM unnest(CAST(:environments AS uuid[]), CAST(:contents AS jsonb[])) AS e(id, content)
    ORDER BY e.id ON CONFLICT DO NOTHING
)
INSERT INTO measurements ({", ".join(_COLUMNS)})
SELECT {", ".join(f"r.{name}" for name in _COLUMNS)}
FROM jsonb_populate_recordset(CAST(NULL AS measurements), CAST(:rows AS jsonb)) WITH ORDINALITY r ORDER BY r.ordinality
""")


def cursor_of(connection: Connection) -> Any:
    """A psycopg cursor inside SQLAlchemy's transaction, for COPY."""
    driver = connection.connection.driver_connection
    assert driver is not None
    return driver.cursor()


Row = tuple[int | None, int | None, uuid.UUID, int, Measurement]
"""Job id, campaign id, configuration id, device id, and the measurement."""

UNSTORABLE = (DataError, IntegrityError, TypeError, ValueError)
"""Errors of `insert` for a row that the table refuses, or that cannot be converted to columns and JSON."""


def insert(connection: Connection, rows: Iterable[Row]) -> None:
    """Appends rows. Raises `UNSTORABLE`, and SQLAlchemy's error if the database does not answer."""
    listed = list(rows)
    if listed:
        connection.execute(_INSERT, parameters_of(listed))


def parameters_of(rows: Iterable[Row]) -> dict[str, Any]:
    """Parameters of a statement for the rows. The server has all of them before it locks a row.

    A COPY would lock the rows that it has already received, and the rows that these refer to.

    Raises one of `UNSTORABLE` for a row that cannot be sent.
    """
    ids: dict[str, uuid.UUID] = {}
    listed: list[dict[str, Any]] = []
    for job_id, campaign_id, configuration_id, device_id, row in rows:
        content = json.dumps(row.environment, sort_keys=True)
        if content not in ids:
            ids[content] = uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16])
        keys = (job_id, campaign_id, str(configuration_id), device_id, str(ids[content]))
        columns = zip(_COLUMNS, (*keys, *_values_of(row)), strict=True)
        listed.append({name: value for name, value in columns if value is not None})
    return {"rows": _dumped(listed), "environments": list(ids.values()), "contents": list(ids)}


_values_of = attrgetter(*RESULTS)


def _dumped(rows: list[dict[str, Any]]) -> str:
    """JSON of the rows. The slow conversion of each value is only used if the fast one fails."""
    try:
        dumped = json.dumps(rows, allow_nan=False)
        if "\\u0000" not in dumped:
            return dumped
    except (TypeError, ValueError):
        pass
    return json.dumps([{name: _as_json(name, value) for name, value in row.items()} for row in rows])


def _as_json(name: str, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{name} cannot contain NUL (0x00)")
    return value.item() if hasattr(value, "item") else value  # a number of NumPy


Result = TypeVar("Result")


def refusals(connection: Connection, store: Callable[[Result], None], results: Iterable[Result]) -> list[str | None]:
    """For each result, why `store` cannot store it, or None. Each is tried in a savepoint that is rolled back."""
    found = list[str | None]()
    for result in results:
        attempt = connection.begin_nested()
        try:
            store(result)
            found.append(None)
        except UNSTORABLE as error:
            why = str(error.orig if isinstance(error, DBAPIError) else error)
            found.append(next(iter(why.strip().splitlines()), type(error).__name__))
        finally:
            attempt.rollback()
    return found


_LABELLED = f"""
CASE WHEN round = 0 AND campaign_id IN (SELECT campaign_id FROM lanes WHERE purpose = 'test')
    THEN coalesce(details, CAST('{{}}' AS jsonb)) || CAST('{json.dumps(TEST_ROW)}' AS jsonb)
    ELSE details END AS details
"""
"""The details of a row, with a label for rows of a test set. The test set of a campaign is its round 0."""

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
    """Rows of v_measurements as dictionaries of `EXPORTED`; `details` labels rows of a test set. `order_by` is one of them, `-` for descending.

    Only rows with an id above `after`. With `short_rounds`, also rows of searches that were measured under cheaper rules.
    Raises `BadFilter` if `only` cannot be computed for a row.
    """
    column = order_by.removeprefix("-")
    if column not in EXPORTED:
        raise ValueError(f"no column {column}")
    direction = "DESC" if order_by.startswith("-") else "ASC"
    # Every row has an id; with NULLS LAST its index would not be read from its end.
    nulls = "" if column == "measurement_id" else "NULLS LAST"
    columns = ", ".join(_LABELLED if name == "details" else name for name in EXPORTED)
    view = _EVERY_ROUND if short_rounds else "v_measurements"
    matching = f"""
        WHERE (CAST(:campaign_id AS bigint) IS NULL OR campaign_id = :campaign_id)
          AND (CAST(:device_type AS text) IS NULL OR device_type = :device_type)
          AND (CAST(:family AS text) IS NULL OR family = :family)
          AND (CAST(:after AS bigint) IS NULL OR measurement_id > :after)
          AND {only.sql}
    """
    order = f"ORDER BY {column} {direction} {nulls}"
    if column != "measurement_id" and limit is not None:
        # Rows are wide: all of them would be joined and sorted for the few that are read.
        matching = (
            f"WHERE measurement_id = ANY (ARRAY (SELECT measurement_id FROM {view} {matching} {order} LIMIT :limit))"
        )
    statement = text(f"SELECT {columns} FROM {view} {matching} {order} LIMIT :limit")
    parameters = {
        "campaign_id": campaign_id,
        "device_type": device_type,
        "family": family,
        "limit": limit,
        "after": after,
    }
    with computed(only):
        return [dict(row) for row in connection.execute(statement, {**parameters, **only.values}).mappings()]
