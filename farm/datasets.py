"""Datasets: recordings that come with the farm, and other recordings that can be replayed.

`farm.shipped` finds them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm import shipped as shipped_files
from farm.errors import BadRecording, NoSuchDataset
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY, Provenance
from farm.recording import check_columns, configuration_columns, provenance_in, readable, readable_in_steps

ROWS_AT_A_TIME = 65_536

DEVICE_COLUMN = "device_uuid"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a dataset."""

    path: Path
    rows: int
    origin: Provenance


@dataclass(frozen=True, slots=True)
class Dataset:
    """Recordings that are replayed together: one campaign on one or more types of device."""

    name: str
    parts: tuple[Part, ...]
    # The campaign that was measured; None for a file of one's own, whose configurations are the campaign.
    campaign: Path | None

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def device_types(self) -> list[str]:
        return sorted({part.origin.device_type for part in self.parts})


def shipped() -> dict[str, Dataset]:
    """Datasets that come with the farm, by name. Other files, such as those of sentinels, are skipped."""
    recordings, campaigns = shipped_files.folder("datasets"), shipped_files.folder("campaigns")
    if recordings is None or campaigns is None:
        return {}
    parts: dict[str, list[Part]] = {}
    for path in sorted(recordings.glob("*.parquet")):
        try:
            part = look(path)
        except BadRecording:
            continue
        parts.setdefault(path.stem.removeprefix(f"{part.origin.device_type}-"), []).append(part)
    return {
        name: Dataset(name, tuple(of_name), file if (file := campaigns / f"{name}.yaml").is_file() else None)
        for name, of_name in sorted(parts.items())
    }


def find(name: str) -> Dataset:
    """The dataset of that name, or the recording at that path. Raises `NoSuchDataset`, `BadRecording`, `MissingColumns`."""
    known = shipped()
    if name in known:
        return known[name]
    path = Path(name)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        part = look(path)
        return Dataset(path.stem, (part,), None)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    raise NoSuchDataset(name=name, hint=_hint(close, list(known)))


def _hint(close: Sequence[str], known: Sequence[str]) -> str:
    if not known:
        return "This installation brings no datasets: name the path of a Parquet file that farm results exported."
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}Known: {', '.join(known)}. Or name the path of a Parquet file that farm results exported."


def look(path: Path) -> Part:
    """Reads the head of a recording. Raises `BadRecording`, `MissingColumns`."""
    import pyarrow.parquet as pq

    with readable(path):
        metadata = pq.read_metadata(path)
    keys = metadata.metadata or {}
    if METADATA_KEY not in keys:
        raise BadRecording(
            path=path, why="its metadata has no key gemm-farm, so it does not say what device was measured"
        )
    check_columns(path, metadata.schema.names)
    return Part(path.absolute(), metadata.num_rows, provenance_in(path, keys[METADATA_KEY]))


def configurations(path: Path) -> Iterator[tuple[str | None, Configuration]]:
    """The device and the configuration of each row. Raises `BadRecording`, `MissingColumns`."""
    for batch in _batches(path):
        yield from batch


@readable_in_steps
def _batches(path: Path) -> Iterator[list[tuple[str | None, Configuration]]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        found_columns = file.schema_arrow.names
        columns = [*configuration_columns(found_columns), *({DEVICE_COLUMN} & {*found_columns})]
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=columns):
            try:
                found = [
                    (row.pop(DEVICE_COLUMN, None), Configuration.from_columns(_with_parameters(row)))
                    for row in batch.to_pylist()
                ]
            except (ValueError, TypeError, KeyError) as error:
                raise BadRecording(path=path, why=f"a row is not a configuration: {error}") from None
            yield found


def _with_parameters(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "parameters": json.loads(row["parameters"])}


def devices(path: Path) -> tuple[str | None, ...]:
    """The devices of a recording that answer each for itself; a lone None where the file answers as one device.

    Several cards that measured the same configurations are several devices. Cards that shared a campaign, each measuring a part
    of it, answer together.
    """
    of: dict[str | None, set[Configuration]] = {}
    for device, configuration in configurations(path):
        of.setdefault(device, set()).add(configuration)
    sets = list(of.values())
    alike = len(sets) > 1 and None not in of and all(one == sets[0] for one in sets)
    return tuple(sorted(name for name in of if name)) if alike else (None,)
