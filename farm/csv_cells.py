"""CSV cells that a spreadsheet does not interpret as formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a formula in a spreadsheet."""


def cell(value: object) -> object:
    """The value. Text that begins like a formula gets an apostrophe, which spreadsheets hide."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_STARTS) else value


def cells(table: pa.Table) -> pa.Table:
    """Applies `cell` to the text columns of a table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            first = pc.utf8_slice_codeunits(column, 0, 1)
            formula = pc.is_in(first, value_set=pa.array(_STARTS, column.type))
            text = pc.binary_join_element_wise(pc.if_else(formula, "'", ""), column, "")
            table = table.set_column(place, name, text)
    return table
