"""What importers share: all rows of a file are imported or none, and only once.

The SHA-256 of a file's bytes names its import. Rows become `imported` rows of devices that belong to this import alone.
An importer makes a `Table` of the head of a file, and a `Reader` turns its rows into the farm's.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine

from farm.db import imports
from farm.db.audit import Actor, change, local_actor
from farm.db.engine import take_time
from farm.db.imports import ImportedDevice, ImportedRow, PulledRows
from farm.devices import DeviceIdentity
from farm.errors import BadRecording, FarmError, RowNotImported, first_line
from farm.formatting import shortened
from farm.measurement import Measurement, Source
from farm.recording import readable
from farm.schema.results import UNSTATED

Progress = Callable[[int], None]
"""Called with the number of rows that have been read."""

Row = Mapping[str, Any]
"""One row of a file: its columns as Python values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows, or a column of rows, that an import leaves out on purpose."""

    rows: int
    # Which rows, or a column of rows that came in.
    what: str
    whole: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """The head of a file, before its rows are read."""

    path: Path
    content: str  # SHA-256 of its bytes, in hex
    rows: int
    # The name that the sender gave it, where the path is that of an upload.
    sent_as: str = ""
    # Where the rows come from another farm's server, and not from a file that somebody gave.
    pulled: PulledRows | None = None

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return Path(self.sent_as).name or self.path.name

    @property
    def device_type(self) -> str | None:
        """The type of all its devices, where the head of the file says it."""
        return None

    @abstractmethod
    def reader(self) -> Reader[Any]:
        """What reads the rows."""


_T = TypeVar("_T", bound=Table)


class Reader(ABC, Generic[_T]):
    """Reads the rows of a file once. Then it has their devices, the parts that were left out, and the rows of a test set."""

    def __init__(self, table: _T) -> None:
        self._table = table
        self._left_out: Counter[tuple[str, bool, str]] = Counter()
        self.test_rows = 0

    def rows(self, progress: Progress) -> Iterator[ImportedRow]:
        """The rows in their order. Raises `BadRecording`, `RowNotImported`."""
        number = 0
        for batch in self._batches():
            for row in batch:
                number += 1
                try:
                    imported = self._row(number, row)
                except (FarmError, ValueError) as error:
                    why = shortened(first_line(error), MAX_REASON)
                    raise RowNotImported(path=self._table.path, row=number, why=why) from None
                if imported is not None:
                    yield imported
            progress(number)

    @abstractmethod
    def _batches(self) -> Iterable[Iterable[Row]]:
        """The rows of the file, some thousands at a time. Raises `BadRecording`."""

    @abstractmethod
    def _row(self, number: int, row: Row) -> ImportedRow | None:
        """The row to store; None if it is left out, which `_leave_out` notes. A `ValueError` refuses the row."""

    @abstractmethod
    def devices(self) -> list[ImportedDevice]:
        """The devices of the rows that were read, in the order in which they came."""

    def _leave_out(self, what: str, why: str, *, whole: bool) -> None:
        self._left_out[what, whole, why] += 1

    def left_out(self) -> list[LeftOut]:
        """The parts that were left out, the most frequent first."""
        counts = self._left_out.most_common()
        return [LeftOut(rows=rows, what=what, whole=whole, why=why) for (what, whole, why), rows in counts]


def imported_device(
    table: Table, key: str, *, host: str | None, rows: int, facts: Mapping[str, Any], **identity: Any
) -> ImportedDevice:
    """The device of rows of a table.

    Args:
        key: Tells it from the other devices of the table.
        host: The host that the table names.
        facts: Other facts to store with it.
        **identity: The fields of its `DeviceIdentity`.
    """
    facts = {"imported_from": table.name, "sha256": table.content, **facts}
    if table.pulled is not None:
        facts["pulled"] = table.pulled.facts
    device = DeviceIdentity(uuid=imports.uuid_of(table.content, key), facts=facts, **identity)
    return ImportedDevice(key=key, identity=device, host=f"imported:{host or 'unknown'}", rows=rows)


def measurement_of(runtime_ms: float, **given: Any) -> Measurement:
    """A measurement of a file that has one time for a row, and not its spread."""
    times = dict.fromkeys(("runtime_ms", "runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms"), runtime_ms)
    return Measurement(**{**UNSTATED, **times, **given}, source=Source.IMPORTED)


def positive(name: str, value: float) -> float:
    """A time or power of a row. Raises `ValueError` if it is not above 0 and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value:g}, and must be above 0 and finite")
    return value


MAX_REASON = 400
"""Characters of a message about a row, which repeats values of the file."""


MAX_NAME = 200
"""Characters of a device's UUID, host or card in a file."""


def check_name(name: str, what: str) -> None:
    """Raises `ValueError` for a name that no list could show."""
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:40]!r} cannot be the name of {what}")


class Outcome(StrEnum):
    IMPORTED = "imported"
    IMPORTABLE = "importable"  # a dry run found no mistake
    KNOWN = "known"  # imported before


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """The result for one file. For a file that was imported before, only the UUIDs of its devices are known."""

    table: Table
    outcome: Outcome
    configurations: int = 0
    new_configurations: int = 0
    devices: tuple[ImportedDevice, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    # Rows that the file labels as rows of a test set.
    test_rows: int = 0
    # UUIDs of the devices: those of the earlier import, where it was imported before.
    uuids: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that came in, or would."""
        return sum(device.rows for device in self.devices)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex. Raises `BadRecording`."""
    with readable(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def import_table(
    engine: Engine,
    table: Table,
    *,
    dry_run: bool,
    progress: Progress,
    actor: Actor | None = None,
    name: str | None = None,
) -> Import:
    """Imports a file in one transaction. A dry run reads and checks every row, and stores none.

    Args:
        engine: of the farm's database.
        table: the file.
        dry_run: whether nothing is stored.
        progress: hears how many rows were read.
        actor: who imports, for the audit; None: this account.
        name: the file's own name, where `table.path` is a copy.

    Raises:
        BadRecording: the file is no such file, or changed while it was read.
        RowNotImported: a row cannot be stored.
        ImportNotAllowed: the database role may not import.
        PulledMeanwhile: another pull stored rows of the same campaign.
    """
    file = Path(name).name if name else table.name
    with change(engine, actor or local_actor(), "imports_import") as changing:
        connection = changing.connection
        take_time(connection)
        known = imports.claim(connection, table.content)
        if known or dry_run:
            changing.nothing()
        if known:
            return Import(table=table, outcome=Outcome.KNOWN, uuids=tuple(known))
        if table.pulled is not None:
            imports.claim_pulled(connection, table.pulled, table.device_type or "")
        reader = table.reader()
        imports.stage(connection, reader.rows(progress), path=table.path)
        if sha256_of(table.path) != table.content:
            raise BadRecording(path=table.path, why="it was changed while it was read")
        devices, left_out = reader.devices(), reader.left_out()
        if not devices:
            reasons = "; ".join(f"{one.what}: {one.why}" for one in left_out)
            raise BadRecording(path=table.path, why=f"none of its rows can be imported ({reasons})")
        configurations, new = imports.staged_configurations(connection)
        if not dry_run:
            imports.land(connection, devices, reason=f"imported from {file}; nothing runs on it")
            changing.record(
                "import", file, key=table.content,
                after={"rows": sum(device.rows for device in devices), "devices": len(devices)},
            )  # fmt: skip
    return Import(
        table=table,
        outcome=Outcome.IMPORTABLE if dry_run else Outcome.IMPORTED,
        configurations=configurations,
        new_configurations=new,
        devices=tuple(devices),
        left_out=tuple(left_out),
        test_rows=reader.test_rows,
        uuids=tuple(device.identity.uuid for device in devices),
    )
