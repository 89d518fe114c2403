"""Rows of measurements, held as an Arrow table, which takes less memory than dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from farm.api.results import Results

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ITERATED_ROWS = 1_000
"""Rows that are made Python objects at once."""


class MeasuredRows(Sequence[Mapping[str, Any]]):
    """A sequence of rows with the columns of an export. Each row is made when it is read."""

    def __init__(self, table: pa.Table) -> None:
        """`table` has the schema `farm.schema.arrow.SCHEMA`."""
        self.table = table

    @classmethod
    def of_pages(cls, pages: Iterable[Results]) -> MeasuredRows:
        """The rows of at least one page."""
        import pyarrow as pa

        from farm.schema.arrow import arrow_table

        return cls(pa.concat_tables([arrow_table(page.rows) for page in pages]))

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> MeasuredRows: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | MeasuredRows:
        place = range(len(self))[index]  # raises IndexError
        if isinstance(place, int):
            return next(iter(MeasuredRows(self.table.slice(place, 1))))
        if place.step == 1:
            return MeasuredRows(self.table.slice(place.start, len(place)))
        return MeasuredRows(self.table.take(list(place)))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        from farm.schema.arrow import python_values

        names = self.table.column_names
        for first in range(0, len(self), ITERATED_ROWS):
            part = self.table.slice(first, ITERATED_ROWS)
            for values in zip(*(python_values(name, part[name]) for name in names), strict=True):
                yield dict(zip(names, values, strict=True))

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame of the rows, a column at a time."""
        import pandas as pd

        from farm.schema.arrow import python_values

        names = self.table.column_names
        return pd.DataFrame({name: pd.Series(python_values(name, self.table[name])) for name in names}, columns=names)
