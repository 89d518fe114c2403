"""Reads query results as Arrow columns, by binary COPY and without a Python object per value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

_EXPORT = text("SELECT pg_export_snapshot()")


Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]


def snapshot_of(connection: Connection) -> str:
    """Exports the snapshot of this connection for `read`. The connection must be in a REPEATABLE READ transaction."""
    name: str = connection.execute(_EXPORT).scalar_one()
    return name


def read(engine: Engine, statement: str, *, snapshot: str | None = None) -> Any:
    """Runs a query on a separate connection and returns an Arrow table. `snapshot` is from `snapshot_of`.

    The connection has the settings of the engine's connections, such as the statement timeout. Raises `sqlalchemy.exc.DBAPIError`.
    """
    with _reader(engine, statement, snapshot) as reader:
        return reader.read_all()


def parts(engine: Engine, statement: str) -> Iterator[Any]:
    """As `read`, but yields the result in Arrow record batches of about 16 MB, in the order of the rows. Without rows it is an empty one."""
    import pyarrow as pa

    with _reader(engine, statement) as reader:
        part = None
        for part in reader:
            yield part
        if part is None:
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)


@contextmanager
def _reader(engine: Engine, statement: str, snapshot: str | None = None) -> Iterator[Any]:
    """The result of a query as a `RecordBatchReader`. Errors inside the block are those of the query."""
    # Not through their dbapi modules: those load pandas, which takes as long as reading half a million rows.
    import pyarrow as pa
    from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
    from adbc_driver_postgresql import connect
    from psycopg.conninfo import make_conninfo

    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with (
            connect(make_conninfo(url, **engine.get_execution_options()["connect_args"])) as database,
            AdbcConnection(database) as connection,
            AdbcStatement(connection) as query,
        ):
            if snapshot is not None:
                connection.set_autocommit(False)
                for begin in (
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                    f"SET TRANSACTION SNAPSHOT '{snapshot}'",
                ):
                    query.set_sql_query(begin)
                    query.execute_update()
            query.set_sql_query(statement)
            stream, _ = query.execute_query()
            yield pa.RecordBatchReader.from_stream(stream)
    except Error as error:
        raise DBAPIError.instance(statement, None, error, Error) from error
    except OSError as error:
        # What pyarrow raises where the server ends the query or goes away while it sends rows.
        raise OperationalError(statement, None, error) from error


_DTYPES = {"double": np.float64, "int64": np.int64, "int32": np.int32, "timestamp[us, tz=UTC]": np.int64}


def numbers(column: Any) -> Any:
    """An Arrow column or array of numbers as a numpy array, NaN for null. Arrow's own `to_numpy` loads pandas.

    Times are microseconds since 1970.
    """
    whole = storage(column)
    dtype = _DTYPES[str(whole.type)]
    if not len(whole):
        return np.zeros(0, dtype)
    there, data = whole.buffers()
    span = slice(whole.offset, whole.offset + len(whole))
    found = np.frombuffer(data, dtype)[span]
    if not whole.null_count:
        return found
    bits = np.unpackbits(np.frombuffer(there, np.uint8), bitorder="little")
    return np.where(bits[span] == 1, found, np.nan)


def storage(column: Any) -> Any:
    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return whole.storage if hasattr(whole, "storage") else whole


def codes(column: Any) -> tuple[Ints, list[Any]]:
    """A number for each value of a column, and the values by number; null is one of them."""
    encoded = storage(column).dictionary_encode(null_encoding="encode")
    found: Ints = numbers(encoded.indices).astype(np.int64)
    return found, encoded.dictionary.to_pylist()


def words(column: Any) -> Words:
    """UUIDs as two words each: [rows, 2]."""
    stored = storage(column)
    data = np.frombuffer(stored.buffers()[1], dtype=np.uint64) if len(stored) else np.zeros(0, np.uint64)
    begin = 2 * stored.offset
    return data[begin : begin + 2 * len(stored)].reshape(-1, 2)


def coded(ids_of_rows: Words) -> tuple[Ints, Words]:
    """A number for each id in order of the keys, and the ids by number."""
    _, codes = np.unique(keys(ids_of_rows), return_inverse=True)
    ids = np.zeros((int(codes.max(initial=-1)) + 1, 2), np.uint64)
    ids[codes] = ids_of_rows
    if (ids[codes] != ids_of_rows).any():  # two ids of one key: once in many millions of farms
        ids, codes = np.unique(ids_of_rows, axis=0, return_inverse=True)
    return codes.astype(np.int64, copy=False).reshape(-1), ids


def keys(ids: Words) -> Words:
    return ids[:, 0] ^ (ids[:, 1] * np.uint64(0x9E3779B97F4A7C15))
