"""Filters of results: `--where` expressions (`farm.expressions`) over export columns and kernel parameters, as SQL.

Postgres evaluates them, so only matching rows reach Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from uuid import UUID

from sqlalchemy.exc import DataError

from farm.campaign import constraints
from farm.campaign.constraints import parameter_names
from farm.errors import BadFilter, first_line
from farm.expressions.parser import Vocabulary, parse
from farm.expressions.sql import Translator
from farm.expressions.tree import BadExpression, Kind
from farm.measurement import Source
from farm.schema import results
from farm.schema.column import ColumnType
from farm.time_parsing import moment

_KINDS: Mapping[ColumnType, Kind] = {
    ColumnType.BIGINT: "number", ColumnType.SMALLINT: "number", ColumnType.DOUBLE: "number", ColumnType.TEXT: "word",
    ColumnType.BOOLEAN: "truth", ColumnType.TIMESTAMPTZ: "time", ColumnType.UUID: "id", ColumnType.JSONB: "object",
}  # fmt: skip
COLUMNS: Mapping[str, Kind] = {c.name: _KINDS[c.type] for c in results.COLUMNS.values() if c.filterable}
"""Names that a filter may use besides kernel parameters, and their kinds."""


@cache
def _vocabulary() -> Vocabulary:
    parameters = sorted(parameter_names())
    return Vocabulary(
        kinds={**dict.fromkeys(parameters, "number"), **COLUMNS},
        words={**constraints.vocabulary().words, "source": tuple(s for s in Source if s is not Source.SENTINEL)},
        noun="column",
        listing=f"Columns: {', '.join(COLUMNS)}. Kernel parameters: {', '.join(parameters)}",
        functions=("min", "max", "abs", "has"),
        instead={
            "parameters": "name the parameter itself, as in tile == 16",
            "details": "name a part of it, as in details.registers > 128",
            "environment": "name a part of it, as in environment.driver == '580.159.04'",
            "id": "an export has them in configuration_id",
            **dict.fromkeys(("True", "False"), "write power_disagrees, or not power_disagrees"),
        },
        objects=("details", "environment"),
        readers={"time": moment, "id": UUID},
    )


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on rows that have the columns `COLUMNS`, as SQL, and the values of its parameters."""

    sql: str = "true"
    values: Mapping[str, object] = field(default_factory=dict)


EVERYTHING = Filter()


def chosen(
    *,
    where: Sequence[str] = (),
    device_uuids: Sequence[str] | None = None,
    sources: Sequence[Source] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> Filter:
    """Builds a filter for rows that match every condition. `since` is inclusive, `until` exclusive.

    Raises `BadFilter` with the position of the mistake and a correction.
    """
    of_parameters = {name: f"CAST(parameters ->> '{name}' AS bigint)" for name in parameter_names()}
    translator = Translator({**of_parameters, **{name: name for name in COLUMNS}})
    conditions = list[str]()
    for written in where:
        try:
            conditions.append(translator.sql(parse(written, _vocabulary()).root))
        except BadExpression as error:
            raise BadFilter(value=written if error.character else "", why=str(error)) from None
    values: dict[str, object] = dict(translator.values)
    for condition, name, value in (
        ("device_uuid = ANY(:only_devices)", "only_devices", None if device_uuids is None else list(device_uuids)),
        ("source = ANY(:only_sources)", "only_sources", [str(source) for source in sources] or None),
        ("measured_at >= :only_since", "only_since", since),
        ("measured_at < :only_until", "only_until", until),
    ):
        if value is not None:
            conditions.append(condition)
            values[name] = value
    return Filter(" AND ".join(conditions) or "true", values)


@contextmanager
def computed(only: Filter) -> Iterator[None]:
    """Converts the error of a filter that Postgres cannot compute for a row to `BadFilter`."""
    try:
        yield
    except DataError as error:
        if only.sql == "true":
            raise
        raise BadFilter(why=f"it cannot be computed for a row: {first_line(error.orig)}") from None
