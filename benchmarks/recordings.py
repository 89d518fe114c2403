"""What a benchmark measured, as recordings: files that say where their rows come from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import command
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY

SAID = ("driver", "cuda_runtime", "nvrtc", "cupy", "numpy", "python")
"""Of a row's environment, what the provenance repeats."""


def export(campaign: str, folder: Path) -> Path | None:
    """The rows of a campaign as a recording in that folder; None where it has none, or of several device types.

    Its provenance names the command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{campaign}.parquet"
    options = ["results", "--campaign", campaign, "--output", str(made)]
    subprocess.run([sys.executable, "-m", "farm", *options], check=True, stdout=subprocess.DEVNULL, timeout=300)
    table = pq.read_table(made)
    metadata = (table.schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        made.unlink()
        return None
    said = json.loads(metadata)
    said["provenance"] += "; " + origin(said["device_name"], table.to_pylist(), command())
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(said)}), made, compression="zstd")
    return made.rename(folder / f"{said['device_type']}-{campaign}.parquet")


def configuration_of(row: Mapping[str, Any]) -> Configuration:
    """What a row of a recording is of; there its parameters are JSON."""
    return Configuration.from_columns({**row, "parameters": json.loads(row["parameters"])})


def origin(name: str, rows: Sequence[Mapping[str, Any]], by: str) -> str:
    """The cards by UUID, the versions, the clock policy and the command, from exported rows."""
    cards = sorted({str(row["device_uuid"]) for row in rows})
    environments = [json.loads(row["environment"] or "{}") for row in rows]

    def all_of(found: Sequence[Any]) -> str:
        return " and ".join(sorted({str(value) for value in found if value is not None})) or "unknown"

    versions = [f"{key} {all_of(found)}" for key in SAID if any(found := [e.get(key) for e in environments])]
    clocks = all_of([row["clock_policy"] for row in rows])
    parts = [f"{len(cards)} x {name} ({', '.join(cards)})", ", ".join(versions), f"clocks: {clocks}", by]
    return "; ".join(part for part in parts if part)


def together(earlier: Path, later: Path) -> None:
    """Puts the rows of an earlier recording before those of a later one, whose provenance then names both origins."""
    first, second = pq.read_table(earlier), pq.read_table(later)
    before, after = (json.loads((table.schema.metadata or {})[METADATA_KEY]) for table in (first, second))
    after["provenance"] = f"{before['provenance']}; and {after['provenance']}"
    joined = pa.concat_tables([first, second], promote_options="default")
    pq.write_table(joined.replace_schema_metadata({METADATA_KEY: json.dumps(after)}), later, compression="zstd")
