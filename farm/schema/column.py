"""What is declared of a column of results (pure)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any

FIRST_VERSION = "0.1.0"


class ColumnType(StrEnum):
    """The type of a column, under its name in Postgres; `double` is `double precision`."""

    BIGINT = "bigint"
    SMALLINT = "smallint"
    DOUBLE = "double"
    TEXT = "text"
    BOOLEAN = "boolean"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    JSONB = "jsonb"


class Group(StrEnum):
    """The heading under which `farm measure` shows a column."""

    TIME = "time"
    POWER = "power and energy"
    CLOCKS = "clocks and temperature"
    OPERANDS = "operands and cache"
    VERIFICATION = "verification"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of results.

    Of a column that is a field of `farm.measurement.Measurement`, the name, the type and `nullable` are those of the field.

    Attributes:
        meaning: one line for reference documents, without the unit.
        unit: of the values; empty where they have none.
        group: the heading under which `farm measure` shows it; None: it does not.
        label: what `farm measure` calls it there.
        percent: a share from 0 to 1, which `farm measure` shows in percent.
        positive: the database takes values above 0 alone.
        unstated: what a row of an imported file counts as where the file does not say.
        server_default: the table's default, as SQL.
        since: the first version of the farm that has the column.
    """

    meaning: str
    unit: str = ""
    group: Group | None = None
    _: KW_ONLY
    label: str = ""
    percent: bool = False
    positive: bool = False
    unstated: Any = None
    server_default: str | None = None
    exported: bool = True
    filterable: bool = True
    since: str = FIRST_VERSION
    name: str = ""
    type: ColumnType = ColumnType.TEXT
    nullable: bool = False
