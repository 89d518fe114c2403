"""Pairs as tables: lists of those that differ most, and CSV files of all pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from farm.compare import row_query
from farm.compare.findings import Pairs
from farm.compare.statistics import Floats, Ints, PairVerdict
from farm.csv_cells import cells

_FIGURES = {"runtime_ms": "runtime_ms", "power_w": "power_w", "energy_mj": "energy_mj", "runtime_burst_ms": "burst_ms"}
"""Columns of a table, each with its name in `Medians`."""


def table(engine: Engine, pairs: Pairs, which: Ints) -> Any:
    """An Arrow table of these pairs: configuration and figures of both groups, null where a figure is unknown."""
    import pyarrow as pa

    found = row_query.configuration_table(engine, pairs.ids[which])
    for name, field in _FIGURES.items():
        found = found.append_column(f"baseline_{name}", _numbers(getattr(pairs.baseline, field)[which]))
        found = found.append_column(name, _numbers(getattr(pairs.side, field)[which]))
    verdicts = pa.array([verdict.name.lower() for verdict in PairVerdict])
    verdict = pa.DictionaryArray.from_arrays(pa.array(pairs.verdict[which]), verdicts).cast(pa.string())
    found = found.append_column("time_ratio", _numbers(pairs.time_ratio[which])).append_column("verdict", verdict)
    found = found.append_column("baseline_predicted", pa.array(pairs.baseline_predicted[which]))
    found = found.append_column("predicted", pa.array(pairs.predicted[which]))
    for name, bound in (("least", "min"), ("most", "max")):
        ratios = np.full(len(which), np.nan)
        if pairs.bounds is not None:
            baseline, side = getattr(pairs.bounds, bound)
            ratios = (side.runtime_ms / baseline.runtime_ms)[which]
        found = found.append_column(f"time_ratio_{name}", _numbers(ratios))
    return found


def _numbers(values: Floats) -> Any:
    import pyarrow as pa

    return pa.array(values, mask=~np.isfinite(values))


def most_different(engine: Engine, pairs: Pairs, count: int) -> tuple[dict[str, Any], ...]:
    """The pairs that differ most in time, the largest difference first: rows of `table`, with parameters as a mapping."""
    rows = table(engine, pairs, pairs.most_different(count)).to_pylist()
    return tuple({**row, "parameters": json.loads(row["parameters"])} for row in rows)


ROWS_PER_CHUNK = 200_000


def write_csv(engine: Engine, baseline: str, pairs_by_group: Iterator[tuple[str, Pairs]], path: Path) -> int:
    """Writes all pairs and returns their number. A cell is empty where a figure is unknown. Raises `OSError`."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    written, writer = 0, None
    with path.open("wb") as file:
        for name, pairs in pairs_by_group:
            for start in range(0, len(pairs.ids), ROWS_PER_CHUNK):
                chunk = table(engine, pairs, np.arange(start, min(start + ROWS_PER_CHUNK, len(pairs.ids))))
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
