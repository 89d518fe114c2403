"""Reads training tables from Postgres.

Rows come in parts, and each part becomes compact columns at once. Millions of rows have few different texts, devices and kernels, and a Python
object for each value would take ten times the memory.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from psycopg import sql
from sqlalchemy import Engine

from farm.db import arrow_columns
from farm.forest.columns import NONE
from farm.gemm import PROBLEM_COLUMNS
from farm.measurement import TEST_ROW, Source
from trainer.choice import FACTS, FAMILY
from trainer.memory import require_memory
from trainer.table import PROBLEM, UNTRUSTED

COLUMNS = (
    *("measurement_id", "campaign", "configuration_id", "device_type", "device_uuid", "device_name", "host", "backend"),
    *("source", "measured_at", *PROBLEM_COLUMNS, "family", "parameters"),
    *("flops", "bytes", "runtime_ms", "runtime_rse", "runtime_burst_ms", "power_w", "energy_mj", "tflops", "cost_s"),
    "protocol",
)
"""What the trainer reads of the view `v_measurements`."""

CONDITIONS = {
    "l2": "v.l2",
    "distribution": "v.distribution",
    "clock_policy": "v.clock_policy",
    "power_source": "CASE WHEN v.power_w IS NOT NULL THEN v.power_source END",
    "driver": "v.environment->>'driver'",
    "file": "coalesce(d.facts->>'imported_from', v.environment->>'recording')",
    "provenance": "coalesce(d.facts->>'provenance', v.environment->>'provenance')",
}
"""The columns that say how a row was measured, with their SQL: see `trainer.conditions`. A model does not learn from them."""

_FACTS = ", ".join(f"'{name}', v.details->'{name}'" for name in FACTS)

_DECODED = {
    "parameters": "v.parameters",
    "details": f"CASE WHEN v.family = '{FAMILY}' THEN jsonb_strip_nulls(jsonb_build_object({_FACTS})) END",
}
"""The columns of mappings, with their SQL. `details` are the facts about the kernel that a library chose, which only its family has."""

_SELECTED = {
    **{name: f"v.{name}" for name in COLUMNS},
    "configuration_id": "v.configuration_id::text",
    **CONDITIONS,
    **{name: f"({of})::text" for name, of in _DECODED.items()},
}
"""SQL of each column of the table."""


_LABELLED = f"v.source <> '{Source.MEASURED}' AND v.details->>'purpose' = '{TEST_ROW['purpose']}'"
"""Rows that the file they come from labels as rows of a test set: see `farm.measurement.TEST_ROW`."""


def _kept_apart(alias: str) -> str:
    """The columns of a problem by which test sets are kept apart, as SQL: another distribution of rows over groups is nearly the
    same problem, so of groups counts whether there are any."""
    return ", ".join(f"{alias}.{name}" if name != "groups" else f"({alias}.groups <> '{NONE}')" for name in PROBLEM)


_TESTED = f"""
SELECT {_kept_apart("c")}
FROM lanes l JOIN pools p ON p.id = l.pool_id JOIN jobs j ON j.lane_id = l.id JOIN configurations c ON c.id = j.configuration_id
WHERE l.purpose = 'test'
  AND (p.device_types @> ARRAY[CAST({{device_type}} AS text)]
       OR p.device_uuid IN (SELECT uuid FROM devices WHERE type = {{device_type}}))
UNION
SELECT {_kept_apart("v")} FROM v_measurements v WHERE v.device_type = {{device_type}} AND {_LABELLED}
"""
"""The problems of a device type that are in the test set of a campaign, or in one that was imported or recorded."""

_PROBLEM = f"({_kept_apart('v')})"


def read_training_table(
    engine: Engine, device_type: str, *, any_source: bool = False, of_campaign: int | None = None
) -> pd.DataFrame:
    """The measurements of a device type that models may learn from, oldest first.

    Only rows with source `measured`, unless `any_source`: recorded and imported numbers do not pass for fresh ones. Those of
    the campaign `of_campaign` count with every source. Problems of a test set are left out, independent of the source of the test
    set and of the rows, and for a problem in groups with all other groups of its shape. Columns of texts are categories.

    Raises:
        TooLittleMemory: a training on these rows needs more memory than this process can have.
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    only = "" if any_source else "AND (v.source = {source} OR v.campaign_id = {campaign_id})"
    return _read(engine, f"{only} AND {_PROBLEM} NOT IN ({_TESTED})", device_type, of_campaign)


def read_test_table(
    engine: Engine, device_type: str, *, any_source: bool = False, of_campaign: int | None = None
) -> pd.DataFrame:
    """The rows of the test sets of a device type, of one campaign or of all: no model may learn from them.

    With `any_source` also those of test sets that were imported or recorded. Raises what `read_training_table` raises.
    """
    labelled = f"OR {_LABELLED}" if any_source else ""
    return _read(
        engine,
        "AND (EXISTS (SELECT FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = v.job_id AND l.purpose = 'test') "
        f"{labelled}) AND (CAST({{campaign_id}} AS bigint) IS NULL OR v.campaign_id = {{campaign_id}})",
        device_type,
        of_campaign,
    )


def _read(engine: Engine, condition: str, device_type: str, campaign_id: int | None) -> pd.DataFrame:
    # Binary COPY takes no parameters, so the values are quoted.
    rows = sql.SQL(
        "FROM v_measurements v JOIN devices d ON d.uuid = v.device_uuid "
        f"WHERE v.device_type = {{device_type}} AND v.family <> ALL({{untrusted}}) {condition}"
    ).format(
        device_type=sql.Literal(device_type),
        untrusted=sql.Literal(list(UNTRUSTED)),
        source=sql.Literal(Source.MEASURED.value),
        campaign_id=sql.Literal(campaign_id),
    )
    counted = f"SELECT count(*) AS rows, count(DISTINCT v.configuration_id) AS configurations {rows.as_string()}"
    (counts,) = arrow_columns.read(engine, counted).to_pylist()
    require_memory(device_type, **counts)
    selected = ", ".join(f"{of} AS {name}" for name, of in _SELECTED.items())
    columns = {name: _Column() for name in _SELECTED}
    for part in arrow_columns.parts(engine, f"SELECT {selected} {rows.as_string()} ORDER BY v.measurement_id"):
        for name, column in columns.items():
            column.add(part[name])
    made = {name: columns.pop(name).made(decoded=name in _DECODED) for name in _SELECTED}
    return pd.DataFrame(made, copy=False)


class _Column:
    """A column of the table, whose parts are added in order: texts by their different values, and all else as numbers."""

    def __init__(self) -> None:
        self._parts = list[Any]()

    def add(self, part: Any) -> None:
        if pa.types.is_string(part.type):
            self._parts.append(part.dictionary_encode())
        else:
            self._parts.append((part.type, arrow_columns.numbers(part).copy()))

    def made(self, *, decoded: bool) -> Any:
        """The whole column. `decoded` texts are JSON, and equal ones become one object."""
        if not isinstance(self._parts[0], pa.Array):
            numbers = np.concatenate([part for _, part in self._parts])
            timed = pa.types.is_timestamp(self._parts[0][0])
            return pd.Series(numbers.view("datetime64[us]")).dt.tz_localize("UTC") if timed else numbers
        whole = pa.chunked_array(self._parts).combine_chunks()
        codes, texts = whole.indices.fill_null(-1).to_numpy(), whole.dictionary
        if not decoded:
            return pd.Categorical.from_codes(codes, pd.Index(texts.to_pandas()))
        values = np.array([*map(json.loads, texts.to_pylist()), None], object)
        return values[codes]
