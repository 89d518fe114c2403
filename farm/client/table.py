"""Rows of a result, and the tables that other libraries make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from farm.schema.results import EXPORTED

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Table(Sequence[Mapping[str, Any]]):
    """Rows, each a mapping of columns. A slice of it is a table too.

    Rows of measurements have the columns that docs/sql.md lists, with their units.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], *, measurements: bool = True) -> None:
        """`measurements`: the rows are of `v_measurements`, so that even a table without rows has their columns."""
        self._rows = rows
        self._measurements = measurements

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Table:
        if isinstance(index, slice):
            return Table(self._rows[index], measurements=self._measurements)
        return self._rows[index]

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows>"

    def to_arrow(self) -> pa.Table:
        """The rows as a pyarrow table. Columns of measurements have their declared types, and objects are JSON text."""
        if self._measurements:
            from farm.schema.arrow import arrow_table

            return arrow_table(self._rows)
        import pyarrow as pa

        return pa.Table.from_pylist([dict(row) for row in self._rows])

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame. `parameters`, `environment` and `details` of measurements hold dictionaries."""
        import pandas as pd

        return pd.DataFrame(self._rows, columns=list(EXPORTED) if self._measurements else None)
