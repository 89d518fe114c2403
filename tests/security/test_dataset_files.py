"""Data files that unpack to much more than their size cost their reader a bounded amount of memory, and one clear error."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import farm
from farm.memory_limit import READING_BYTES, MemoryBound
from farm.recording import readable_in_steps
from support.homes import environment

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"

MEASURED = """
import runpy, sys
try:
    runpy.run_module("farm", run_name="__main__", alter_sys=True)
finally:
    print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr, end="")
"""
"""`farm` with its arguments, which says at its end how much memory it had at most."""

MOST_BYTES = READING_BYTES + 600 * 2**20
"""Of a command: what reading may take, and the command itself."""


def repeated(path: Path, column: str = "host") -> None:
    """One text of 2 MB in each of 8,192 rows: 16 GB."""
    table = pq.read_table(RECORDING)
    (row,) = table.slice(0, 1).to_pylist()
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 8192, pa.int32()), pa.array(["x" * 2**21]))
    columns = {name: pa.array([row[name]] * 8192, table.schema.field(name).type) for name in table.column_names}
    made = pa.table({**columns, column: long}).replace_schema_metadata(table.schema.metadata)
    pq.write_table(made, path, compression="zstd")


def one_page(path: Path) -> None:
    """One text of 1.25 GB."""
    table, size = pq.read_table(RECORDING).slice(0, 1), 5 * 2**28
    ends = pa.array([0, size], pa.int64()).buffers()[1]
    long = pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(bytes(size)))
    made = table.set_column(table.column_names.index("host"), "host", long)
    pq.write_table(made, path, compression="zstd", use_dictionary=False, write_statistics=False)


def one_line(path: Path) -> None:
    """A CSV of GPPerf, packed, whose second line has 4 GB."""
    head = b"m,n,k\n"
    block = gzip.compress(b"x" * 2**26)
    path.write_bytes(gzip.compress(head) + block * 64)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "make", "arguments"),
    [
        ("rows.parquet", repeated, ("import", "dataset")),
        ("page.parquet", one_page, ("import", "dataset")),
        ("table.csv.gz", one_line, ("import", "gpperf")),
        ("replayed.parquet", partial(repeated, column="layout"), ("replay",)),
    ],
)
def test_a_file_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], None], arguments: tuple[str, ...]
) -> None:
    path = tmp_path / name
    make(path)
    assert path.stat().st_size < 2**23
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments, str(path)],
        cwd=tmp_path, env=environment(tmp_path / ".farm"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    *said, last = done.stderr.splitlines()
    assert int(last.split()[1]) * 1024 < MOST_BYTES
    assert done.returncode == 2, done.stderr
    text = " ".join(" ".join(said).split())
    assert f"{name} is not a recording of measurements: reading it takes more than 1,024 MiB of memory" in text
    assert "Traceback" not in text


def test_the_bound_ends_with_the_last_of_blocks_that_overlap() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    first, second = MemoryBound(), MemoryBound()
    first.__enter__()
    bound = resource.getrlimit(resource.RLIMIT_DATA)
    second.__enter__()
    first.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == bound != before
    with pytest.raises(MemoryError):
        bytearray(2 * READING_BYTES)
    second.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(2 * READING_BYTES)) == 2 * READING_BYTES


def test_a_reader_that_is_suspended_bounds_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    inside = []

    @readable_in_steps
    def reader(path: Path) -> Iterator[int]:
        for number in range(2):
            inside.append(resource.getrlimit(resource.RLIMIT_DATA))
            yield number

    rows = reader(tmp_path)
    assert next(rows) == 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert list(rows) == [1]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(set(inside)) == 1  # the bound is that of the first step, however much the process took meanwhile
    assert inside[0] != before
