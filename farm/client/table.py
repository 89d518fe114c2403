"""Rows of a result, and the tables that other libraries make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from farm.client.measured_rows import MeasuredRows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Table(Sequence[Mapping[str, Any]]):
    """Rows, each a mapping of columns. A slice of it is a table too.

    Rows of measurements have the columns that docs/sql.md lists, with their units.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of measurements are `MeasuredRows`, so that even a table without rows has their columns."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Table:
        if isinstance(index, slice):
            return Table(self._rows[index])
        return self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows>"

    def to_arrow(self) -> pa.Table:
        """The rows as a pyarrow table. Columns of measurements have their declared types, and objects are JSON text."""
        if isinstance(self._rows, MeasuredRows):
            return self._rows.table
        import pyarrow as pa

        return pa.Table.from_pylist([dict(row) for row in self._rows])

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame. `parameters`, `environment` and `details` of measurements hold dictionaries."""
        if isinstance(self._rows, MeasuredRows):
            return self._rows.to_pandas()
        import pandas as pd

        return pd.DataFrame(self._rows)
