"""Pairs as tables: for lists of what differs most, and for files of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import reading
from farm.compare.findings import Pairs
from farm.compare.statistics import Floats, Ints, Verdict
from farm.csv_cells import cells

WORDS = {Verdict.LESS: "faster", Verdict.TIE: "tie", Verdict.MORE: "slower", Verdict.UNSURE: "unsure"}
_FIGURES = ("runtime_ms", "power_w", "energy_mj")


def table(engine: Engine, pairs: Pairs, which: Ints) -> Any:
    """An Arrow table of these pairs: the columns of the configuration, both sides' figures, null where there is none."""
    import pyarrow as pa

    columns = {}
    for name in _FIGURES:
        columns[f"baseline_{name}"] = _numbers(getattr(pairs.baseline, name)[which])
        columns[name] = _numbers(getattr(pairs.side, name)[which])
    columns["time_ratio"] = _numbers(pairs.time_ratio[which])
    words = pa.array([WORDS[verdict] for verdict in Verdict])
    columns["verdict"] = pa.DictionaryArray.from_arrays(pa.array(pairs.verdict[which]), words).cast(pa.string())
    columns["baseline_predicted"] = pa.array(pairs.baseline_predicted[which])
    columns["predicted"] = pa.array(pairs.predicted[which])
    for name in ("least", "most"):
        ratios = np.full(len(which), np.nan)
        if pairs.bounds is not None:
            baseline, side = getattr(pairs.bounds, name)
            ratios = (side.runtime_ms / baseline.runtime_ms)[which]
        columns[f"time_ratio_{name}"] = _numbers(ratios)
    found = reading.described(engine, pairs.ids[which])
    for name, column in columns.items():
        found = found.append_column(name, column)
    return found


def _numbers(values: Floats) -> Any:
    import pyarrow as pa

    return pa.array(values, mask=~np.isfinite(values))


def most_different(engine: Engine, pairs: Pairs, count: int) -> tuple[dict[str, Any], ...]:
    """The pairs that differ most in time, the most different first: rows of `table`, with parameters as a mapping."""
    rows = table(engine, pairs, pairs.most_different(count)).to_pylist()
    return tuple({**row, "parameters": json.loads(row["parameters"])} for row in rows)


AT_ONCE = 200_000


def write_csv(engine: Engine, baseline: str, sides: Iterator[tuple[str, Pairs]], path: Path) -> int:
    """Every pair of these sides, by name; how many. Empty where a side has no such figure. Raises `OSError`."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    written, writer = 0, None
    with path.open("wb") as file:
        for name, pairs in sides:
            for start in range(0, len(pairs.ids), AT_ONCE):
                chunk = table(engine, pairs, np.arange(start, min(start + AT_ONCE, len(pairs.ids))))
                for place, (column, value) in enumerate((("baseline", baseline), ("side", name))):
                    chunk = chunk.add_column(place, column, pa.repeat(value, len(chunk)))
                chunk = cells(chunk)
                if writer is None:
                    writer = pa_csv.CSVWriter(file, chunk.schema)
                writer.write_table(chunk)
                written += len(chunk)
        if writer is not None:
            writer.close()
    return written
