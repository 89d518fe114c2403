"""Results of a query as columns: a million rows come by COPY in binary, as Arrow, without a Python object for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, text

_EXPORT = text("SELECT pg_export_snapshot()")


def snapshot_of(connection: Connection) -> str:
    """What `read` needs to see what this connection sees, which must be in a transaction of REPEATABLE READ."""
    name: str = connection.execute(_EXPORT).scalar_one()
    return name


def read(engine: Engine, statement: str, *, snapshot: str | None = None) -> Any:
    """What a query finds, as an Arrow table, over a connection of its own; in a snapshot of `snapshot_of`, where one is given."""
    # Not through their dbapi modules, which load pandas: as long as reading half a million rows takes.
    import pyarrow as pa
    from adbc_driver_manager import AdbcConnection, AdbcStatement
    from adbc_driver_postgresql import connect

    url = engine.url.set(drivername="postgresql").update_query_dict({"application_name": "farm"})
    with (
        connect(url.render_as_string(hide_password=False)) as database,
        AdbcConnection(database) as connection,
        AdbcStatement(connection) as query,
    ):
        if snapshot is not None:
            connection.set_autocommit(False)
            for begin in ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", f"SET TRANSACTION SNAPSHOT '{snapshot}'"):
                query.set_sql_query(begin)
                query.execute_update()
        query.set_sql_query(statement)
        stream, _ = query.execute_query()
        return pa.RecordBatchReader.from_stream(stream).read_all()


def numbers(column: Any) -> Any:
    """An Arrow column or array of numbers as a numpy array, NaN for null. Arrow's own `to_numpy` loads pandas."""
    whole = storage(column)
    dtype = {"double": np.float64, "int64": np.int64, "int32": np.int32}[str(whole.type)]
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


def codes(column: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[Any]]:
    """A number for each value of a column without nulls, and the values by number."""
    encoded = storage(column).dictionary_encode()
    found: np.ndarray[Any, np.dtype[np.int64]] = numbers(encoded.indices).astype(np.int64)
    return found, encoded.dictionary.to_pylist()
