"""The name of a training table by its content: see `table_hash`.

The rows are JSON lines in sorted order. A large table has gigabytes of these, so only a part of them exists at a time: the columns that say
what was measured order the rows first, and rows that these do not tell apart are in one part.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from farm.gemm import ADDED_COLUMNS
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName
from trainer.row_keys import Ints, distinct, ordered_key
from trainer.table import LEARNED_FROM, chosen_of, protocols_of, with_added_columns

_ORDERED_BY = LEARNED_FROM[: LEARNED_FROM.index("runtime_ms")]
"""The columns at the beginning of each line that have few different values."""

_SINCE_ADDED = ("details", "runtime_burst_ms", "protocol", *ADDED_COLUMNS)
"""What else a line may have, which older tables lack."""

_PART_ROWS = 50_000
_BEFORE_PROTOCOLS = (ProtocolName.FARM, UNKNOWN_PROTOCOL)
"""What rows were of before they had a protocol."""


def table_hash(table: pd.DataFrame) -> str:
    """SHA-256 over what a model learns from the table. The order of rows, ids and times do not matter."""
    digest, separator = hashlib.sha256(), ""
    table = table[[name for name in (*LEARNED_FROM, *_SINCE_ADDED) if name in table]]
    for rows in _parts(ordered_key(_order(table[name]) for name in _ORDERED_BY)):
        lines = sorted(_lines(table.iloc[rows]))
        digest.update((separator + "\n".join(lines)).encode())
        separator = "\n"
    return digest.hexdigest()


def _parts(key: Ints) -> Iterator[Ints]:
    """Positions of rows in the order of their keys, in parts. Rows of one key are in one part."""
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))  # where another key begins
    start = 0
    while start < len(order):
        after = np.searchsorted(begins, start + _PART_ROWS)
        end = int(begins[after]) if after < len(begins) else len(order)
        yield order[start:end]
        start = end


def _order(column: pd.Series) -> tuple[Ints, int]:
    """The place of each row's text among the sorted texts of a column [rows], and their number.

    No JSON text with a comma after it begins another one, so lines are in the order of their texts, column by column.
    """
    codes, values = distinct(column)
    texts = [f"{_text(value)}," for value in values]
    place = {text: number for number, text in enumerate(sorted(set(texts)))}
    return np.array([place[text] for text in texts], np.intp)[codes], len(place)


def _lines(table: pd.DataFrame) -> Iterator[str]:
    """A JSON array for each row. Rows without a choice, a burst, another protocol or an added column have the line that they had before
    tables had such columns."""
    bursts = _texts(table["runtime_burst_ms"]) if "runtime_burst_ms" in table else [_GAP] * len(table)
    added = with_added_columns(table)
    more = (_unless(added[name], name, [usual]) for name, usual in ADDED_COLUMNS.items())
    rows = zip(
        zip(*(_texts(table[name]) for name in LEARNED_FROM), strict=True),
        chosen_of(table),
        bursts,
        _unless(protocols_of(table), "protocol", _BEFORE_PROTOCOLS),
        zip(*more, strict=True),
        strict=True,
    )
    for texts, choice, burst, protocol, others in rows:
        chosen = "" if all(map(math.isnan, choice)) else "," + ",".join(map(_text, choice))
        timed = "" if burst == _GAP else f',"burst",{burst}'
        yield f"[{','.join(texts)}{chosen}{timed}{protocol}{''.join(others)}]"


_GAP = "null"


def _texts(column: pd.Series) -> list[str]:
    """The JSON text of each value."""
    if pd.api.types.is_float_dtype(column.dtype):
        return [repr(value) if math.isfinite(value) else _text(value) for value in column.astype("float64").tolist()]
    codes, values = distinct(column)
    texts = [_text(value) for value in values]
    return [texts[code] for code in codes.tolist()]


def _unless(column: pd.Series, name: str, usual: Collection[Any]) -> list[str]:
    """`,"name",value` for each value of a column; empty for the usual ones."""
    codes, values = distinct(column)
    texts = ["" if value in usual else f",{_text(name)},{_text(value)}" for value in values]
    return [texts[code] for code in codes.tolist()]


def _text(value: Any) -> str:
    return json.dumps(_plain(value), separators=(",", ":"), sort_keys=True)


def _plain(value: Any) -> Any:
    """A value in the one form that it has in every source: Postgres, Parquet, CSV."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str):
        return _plain(json.loads(value)) if value.startswith("{") else value
    number = float(value) if value is not None and not pd.isna(value) else math.nan
    return None if math.isnan(number) else number
