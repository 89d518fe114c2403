"""The rows of the farm's tables as text of COPY: read in one snapshot, loaded in one transaction, and compared.

Rows are in the order of their primary key, text by its bytes, so equal rows give equal text on every server. Memory does not
grow with the number of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, Engine, text

from farm.backup.errors import TableUnusable
from farm.backup.files import BLOCK
from farm.backup.tables import KEPT
from farm.db.measurements import cursor_of
from farm.db.tables import Base
from farm.errors import first_line

PART_IDS = 1_000_000
"""A table whose ids a sequence gives is written in parts of this many ids: parts that did not change are equal in the next backup."""

_SAME_TEXT = text("""
SELECT set_config('DateStyle', 'ISO, YMD', true), set_config('IntervalStyle', 'postgres', true),
    set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true),
    set_config('statement_timeout', '0', true)
""")
_COLUMNS = text("""
SELECT a.attname AS name, a.atttypid = CAST('text' AS regtype) AS is_text, array_position(CAST(i.indkey AS int2[]), a.attnum) AS place
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = CAST(CAST(:table AS text) AS regclass) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
""")
_SEQUENCE = text("SELECT pg_get_serial_sequence(:table, 'id') WHERE :has_id")
_LAST = text("SELECT pg_sequence_last_value(CAST(CAST(:sequence AS text) AS regclass))")
_SET_LAST = text("SELECT setval(CAST(CAST(:sequence AS text) AS regclass), :last)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table, the order of its rows, and its sequence if it has one."""

    table: str
    columns: tuple[str, ...]
    order: str
    sequence: str | None


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads, and sees the database at one time."""
    with engine.connect() as connection:
        frozen = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with frozen.begin():
            wait_long(frozen)
            yield frozen


def wait_long(connection: Connection) -> None:
    """Lets this transaction pause for an hour, while files or a store of kernels are read and written."""
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '1h'"))


def kept_tables() -> list[str]:
    """The tables of a backup: each comes after those that it refers to."""
    return [table.name for table in Base.metadata.sorted_tables if table.name in KEPT]


def layout_of(connection: Connection, table: str) -> Layout:
    columns = connection.execute(_COLUMNS, {"table": table}).all()
    keys = sorted((row for row in columns if row.place is not None), key=lambda row: row.place)
    order = ", ".join(f'{row.name} COLLATE "C"' if row.is_text else row.name for row in keys)
    has_id = any(row.name == "id" for row in columns)
    sequence = connection.execute(_SEQUENCE, {"table": table, "has_id": has_id}).scalar_one_or_none()
    return Layout(table, tuple(row.name for row in columns), order, sequence)


def parts_of(connection: Connection, layout: Layout) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The rows of a table in parts, each with its number. Blocks end with the end of a row, and have some MB at most."""
    if layout.sequence is None:
        yield 0, rows_of(connection, layout)
        return
    first, last = connection.execute(text(f"SELECT min(id), max(id) FROM {layout.table}")).one()
    if first is None:
        return
    for number in range(first // PART_IDS, last // PART_IDS + 1):
        begin, end = number * PART_IDS, (number + 1) * PART_IDS
        yield number, rows_of(connection, layout, f"id >= {begin} AND id < {end}")


def rows_of(
    connection: Connection, layout: Layout, condition: str = "true", columns: Sequence[str] | None = None
) -> Iterator[bytes]:
    """The rows of a table as text of COPY."""
    connection.execute(_SAME_TEXT)
    listed = ", ".join(layout.columns if columns is None else columns)
    query = f"COPY (SELECT {listed} FROM {layout.table} WHERE {condition} ORDER BY {layout.order}) TO STDOUT"
    with _refused(layout.table, "read"), cursor_of(connection) as cursor, cursor.copy(query) as copy:
        gathered = bytearray()
        for row in copy:
            gathered += row
            if len(gathered) >= BLOCK:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)


def load(connection: Connection, table: str, columns: Sequence[str], blocks: Iterable[bytes]) -> None:
    """Loads text of COPY into a table."""
    connection.execute(_SAME_TEXT)
    query = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with _refused(table, "loaded"), cursor_of(connection) as cursor, cursor.copy(query) as copy:
        for block in blocks:
            copy.write(block)


@contextmanager
def _refused(table: str, how: str) -> Iterator[None]:
    """Raises `TableUnusable` for errors of psycopg, which COPY does not pass through SQLAlchemy."""
    try:
        yield
    except psycopg.Error as error:
        raise TableUnusable(table=table, how=how, why=first_line(error)) from None


def last_of(connection: Connection, layout: Layout) -> int | None:
    """The last id that the sequence of a table gave. Read it after the rows: it belongs to no snapshot."""
    if layout.sequence is None:
        return None
    last: int | None = connection.execute(_LAST, {"sequence": layout.sequence}).scalar_one()
    return last


def set_last(connection: Connection, layout: Layout, last: int | None) -> None:
    if layout.sequence is not None and last is not None:
        connection.execute(_SET_LAST, {"sequence": layout.sequence, "last": last})


class Tally:
    """The number of rows that passed through, and the SHA-256 of their text."""

    def __init__(self) -> None:
        self.rows = 0
        self._digest = hashlib.sha256()

    def through(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.rows += block.count(b"\n")  # COPY writes line breaks of values as \n
            self._digest.update(block)
            yield block

    def add(self, blocks: Iterable[bytes]) -> None:
        for _ in self.through(blocks):
            pass

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def tallies(
    connection: Connection, tables: Iterable[str], report: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[int, str]]:
    """The number of rows of each table, and the SHA-256 of their text: an audit of two databases compares these."""
    found = {}
    for table in tables:
        report(table)
        tally = Tally()
        tally.add(rows_of(connection, layout_of(connection, table)))
        found[table] = (tally.rows, tally.sha256)
    return found
