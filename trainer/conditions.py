"""The conditions of a training table: where its rows come from and how they were measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from farm.measurement import Source
from farm.registry.conditions import (
    MAX_LISTED,
    MAX_TEXT,
    UNKNOWN,
    Conditions,
    Protocol,
    RowSource,
    most_frequent,
)
from trainer.table import protocols_of


def conditions_of(table: pd.DataFrame) -> Conditions:
    """Of a table with the columns of `trainer.table.CONDITIONS`. What it lacks is unknown."""
    sources = _counts(table, "source", "file", "provenance")
    protocols: Counter[Protocol] = Counter()
    named = table.assign(protocol=protocols_of(table))
    for (name, l2, operands, clocks, source, how), rows in _counts(
        named, "protocol", "l2", "distribution", "clock_policy", "source", "provenance"
    ).items():
        one = Protocol.of(name=name or UNKNOWN, l2=l2, operands=operands, clocks=clocks, source=source, provenance=how)
        protocols[one] += rows
    first, last, undated = _dates(table)
    return Conditions(
        sources=tuple(_sources(sources)),
        protocols=tuple(replace(one, rows=rows) for one, rows in protocols.most_common(MAX_LISTED)),
        power=most_frequent(_named(_counts(table, "power_source"), "none")),
        drivers=most_frequent(_named(_counts(table, "driver"), UNKNOWN)),
        measured_from=first,
        measured_until=last,
        undated_rows=undated,
    )


def _sources(counts: Counter[tuple[str | None, ...]]) -> Iterator[RowSource]:
    for (source, file, provenance), rows in counts.most_common(MAX_LISTED):
        if source == Source.MEASURED:
            yield RowSource(source=source, rows=rows)
        else:
            how = None if provenance is None else provenance[:MAX_TEXT]
            yield RowSource(source=source or UNKNOWN, file=file, provenance=how, rows=rows)
    rest = counts.most_common()[MAX_LISTED:]
    if rest:
        yield RowSource(source="other", file=f"{len(rest)} other files", rows=sum(rows for _, rows in rest))


def _counts(table: pd.DataFrame, *columns: str) -> Counter[tuple[str | None, ...]]:
    """Rows by the values of these columns; None where a row, or the table, has none."""
    known = table.reindex(columns=list(columns)).astype(object)
    groups = known.groupby(list(columns), dropna=False, sort=True).size()
    found: Counter[tuple[str | None, ...]] = Counter()
    for key, rows in groups.items():
        values = key if isinstance(key, tuple) else (key,)
        found[tuple(None if pd.isna(value) else str(value) for value in values)] += int(rows)
    return found


def _named(counts: Counter[tuple[str | None, ...]], gap: str) -> dict[str, int]:
    return {value or gap: rows for (value,), rows in counts.items()}


def _dates(table: pd.DataFrame) -> tuple[str | None, str | None, int]:
    """The days of the first and the last row with a date, and how many rows have none.

    Rows of a file without dates are stored with the time of their import, all with the same.
    """
    if "measured_at" not in table:
        return None, None, len(table)
    times = pd.to_datetime(table["measured_at"], utc=True)
    if "device_uuid" in table:
        same = times.groupby(table["device_uuid"], observed=True).transform("nunique") == 1
        times = times.mask(same & (table["source"] == Source.IMPORTED))
    days = times.dropna()
    if days.empty:
        return None, None, len(table)
    return days.min().date().isoformat(), days.max().date().isoformat(), len(table) - len(days)
