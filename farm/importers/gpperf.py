"""Tables of GPPerf, the measurements behind "Understanding GEMM Performance and Energy on NVIDIA Ada Lovelace".

Two kinds of file can be imported: CUTLASS kernels as `cutlass_profiler` timed them, and the paper's tiled kernel. The
configuration of a row is read from the kernel that ran: the requested block, stages and layout never reached it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from farm.db.imports import ImportedRow
from farm.errors import BadRecording
from farm.formatting import shortened
from farm.gemm import ElementTypes, Problem, Shape
from farm.importers import files
from farm.importers.cards import CardReader, CardTable
from farm.importers.formats import Importer
from farm.importers.landing import Row, measurement_of, positive, sha256_of
from farm.importers.profiler import kernel_named
from farm.kernels import Configuration, Kernel
from farm.kernels.families import TILE_STUDY
from farm.recording import check_columns

RTX_4070 = "NVIDIA GeForce RTX 4070"
"""The card of the published tables. Those of the tiled kernel do not name it."""

_PAPER = "GPPerf (arXiv 2411.16954)"
_POWER = "Average Power Usage (W)"
_ONLY_POWER = (
    "it has powers and no times, and they are of whole processes, which also filled, copied and checked operands. "
    "They cannot become rows of the farm"
)
_F32 = ElementTypes.parse("f32")

CUTLASS_COLUMNS = ("m", "n", "k", "kernel", "alpha", "beta", "runtime_ms", "gpu")
TILED_COLUMNS = ("M", "N", "K", "Tile Size", "Execution Time")


def look(path: Path, *, device: str = RTX_4070) -> CardTable:
    """Reads the header of a file, counts its rows and hashes it. `device` is the card of a table that names none.

    Raises `BadRecording`, `MissingColumns`.
    """
    content = sha256_of(path)
    columns, rows = files.csv_head(path)
    if "kernel" in columns:
        check_columns(path, columns, CUTLASS_COLUMNS)
        how = f"{_PAPER}: CUTLASS SGEMM, timed by cutlass_profiler"
        return CardTable(path=path, content=content, rows=rows, provenance=how, reads=CutlassReader)
    if "Tile Size" not in columns:
        of = " or ".join(", ".join(names) for names in (CUTLASS_COLUMNS, TILED_COLUMNS))
        raise BadRecording(path=path, why=f"a table of GPPerf has the columns {of}. It has: {', '.join(columns)}")
    if _POWER in columns and "Execution Time" not in columns:
        raise BadRecording(path=path, why=_ONLY_POWER)
    check_columns(path, columns, TILED_COLUMNS)
    how = f"{_PAPER}: the paper's tiled kernel, one launch by a new process"
    return CardTable(path=path, content=content, rows=rows, provenance=how, reads=TiledReader, device=device)


class CutlassReader(CardReader):
    """Reads rows of `cutlass_profiler`."""

    def _batches(self) -> Iterable[Iterable[Row]]:
        return files.csv_batches(self._table.path)

    def _row(self, number: int, row: Row) -> ImportedRow | None:
        name = _text(row, "kernel")
        kernel = kernel_named(name)
        if kernel is None:
            self._leave_out(name, "no kernel family of the farm has a kernel of that name", whole=True)
            return None
        m, n, k = (_whole(row, extent) for extent in ("m", "n", "k"))
        configuration = kernel.configuration(m, n, k, _number(row, "alpha"), _number(row, "beta"))
        if row.get("power_w"):
            self._leave_out("power_w", "it was read after the kernel had ended", whole=False)
        limit = positive("power_limit_w", _number(row, "power_limit_w")) if row.get("power_limit_w") else None
        measurement = measurement_of(
            _time(row, "runtime_ms"),
            power_limit_w=limit,
            environment={"tool": "cutlass_profiler"},
            details={"kernel": name},
        )
        return ImportedRow(
            number=number,
            device=self._device(_text(row, "gpu")),
            measured_at=_written_at(row),
            configuration=configuration,
            measurement=measurement,
        )


class TiledReader(CardReader):
    """Reads rows of the paper's own kernel."""

    def _batches(self) -> Iterable[Iterable[Row]]:
        return files.csv_batches(self._table.path)

    def _row(self, number: int, row: Row) -> ImportedRow:
        shape = Shape(*(_whole(row, extent) for extent in ("M", "N", "K")))
        kernel = Kernel.of(TILE_STUDY.name, tile=_whole(row, "Tile Size"))
        return ImportedRow(
            number=number,
            device=self._device(self._table.device),
            measured_at=None,
            configuration=Configuration(Problem(shape, _F32), kernel),
            measurement=measurement_of(_time(row, "Execution Time")),
        )


IMPORTER = Importer(
    name="gpperf",
    files="CSV of GPPerf, compressed by gzip or not.",
    help="""Import tables of GPPerf: CUTLASS kernels as its profiler timed them, and the paper's tiled kernel.

    Examples:
        farm import gpperf cutlass.csv
        farm import gpperf tiled.csv --device nvidia-geforce-rtx-4070 --dry-run
    """,
    look=look,
    device=RTX_4070,
)


# --- cells -------------------------------------------------------------------------------------------


def _text(row: Row, name: str) -> str:
    if None in row:
        raise ValueError("it has more cells than the header has columns")
    text = row[name]
    if text is None or not text.strip():
        raise ValueError(f"{name} is missing")
    return str(text).strip()


def _whole(row: Row, name: str) -> int:
    text = _text(row, name)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {shortened(repr(text))}, which is not a whole number") from None


def _number(row: Row, name: str) -> float:
    text = _text(row, name)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} is {shortened(repr(text))}, which is not a number")
    return found


def _time(row: Row, name: str) -> float:
    return positive(name, _number(row, name))


def _written_at(row: Row) -> datetime | None:
    """`timestamp`, in seconds since 1970: when the row was written, after its kernel had run."""
    if not row.get("timestamp"):
        return None
    try:
        return datetime.fromtimestamp(_whole(row, "timestamp"), UTC)
    except (OverflowError, OSError, ValueError):
        given = shortened(repr(row["timestamp"]))
        raise ValueError(f"timestamp is {given}, which is not seconds since 1970") from None
