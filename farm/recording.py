"""Recordings: the required columns of a Parquet file of measurements, and its provenance.

A row has the columns of a configuration (`parameters` is a JSON object), `runtime_ms`, and any other column of
`farm.measurement.Measurement`. The Parquet that `farm results` exports for one device type is a recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from farm.errors import BadRecording, MissingColumns, first_line
from farm.gemm import ADDED_COLUMNS
from farm.memory_limit import READING_BYTES, MemoryBound
from farm.protocols import ProtocolName
from farm.provenance import Provenance
from farm.schema.results import CONFIGURATION, UNSTATED

NEEDED_COLUMNS = (*(name for name in CONFIGURATION if name not in ADDED_COLUMNS), "runtime_ms")
"""Recordings may lack the columns that problems did not have before."""

UNSTATED_IN_RECORDINGS: Mapping[str, object] = {
    **UNSTATED,
    "l2": "cold",
    "distribution": "uniform",
    "protocol": ProtocolName.FARM.value,
}
"""Defaults of columns that a recording lacks."""


T = TypeVar("T")
P = ParamSpec("P")


@contextmanager
def readable(path: Path, bound: MemoryBound | None = None) -> Iterator[None]:
    """Converts errors of Arrow and the operating system to `BadRecording`, and bounds the memory that reading the file takes."""
    import pyarrow as pa

    try:
        with bound or MemoryBound():
            yield
    except MemoryError:
        why = f"reading it takes more than {READING_BYTES // 2**20:,} MiB of memory"
        raise BadRecording(path=path, why=why) from None
    except FileNotFoundError:
        raise BadRecording(path=path, why="there is no such file") from None
    except PermissionError:
        raise BadRecording(path=path, why="you may not read it") from None
    except IsADirectoryError:
        raise BadRecording(path=path, why="it is a folder") from None
    except (pa.ArrowException, OSError) as error:
        raise BadRecording(path=path, why=first_line(error)) from None


def readable_in_steps(
    reader: Callable[Concatenate[Path, P], Iterator[T]],
) -> Callable[Concatenate[Path, P], Iterator[T]]:
    """For a generator function that reads a file: each step is `readable`, and no bound is in force between two steps."""

    @wraps(reader)
    def read(path: Path, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        bound, steps, end = MemoryBound(), reader(path, *args, **kwargs), object()
        try:
            while True:
                with readable(path, bound):
                    step = next(steps, end)
                if step is end:
                    return
                yield step  # type: ignore[misc]
        finally:
            steps.close()  # type: ignore[attr-defined]

    return read


def configuration_columns(found: Collection[str]) -> list[str]:
    """The columns of a configuration that a recording with these columns has."""
    return [name for name in CONFIGURATION if name in found]


def check_columns(path: Path, found: Collection[str], needed: Collection[str] = NEEDED_COLUMNS) -> None:
    """Raises `MissingColumns` if a required column is missing."""
    missing = [name for name in needed if name not in found]
    if missing:
        raise MissingColumns(path=path, missing=", ".join(missing), found=", ".join(found))


def provenance_in(path: Path, metadata: bytes) -> Provenance:
    """The provenance that stands in a file's metadata as JSON. Raises `BadRecording`."""
    try:
        return Provenance.from_json(json.loads(metadata))
    except KeyError as error:
        raise BadRecording(path=path, why=f"its provenance cannot be read: it has no {error.args[0]}") from None
    except (AttributeError, RecursionError, TypeError, ValueError):
        why = "its provenance cannot be read: it is not the JSON that farm results writes"
        raise BadRecording(path=path, why=why) from None
