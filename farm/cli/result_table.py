"""The default presenter of results: a table whose columns are the fields of the result.

>>> _MODELS = ResultTable("models", ModelLine)  # doctest: +SKIP
... _MODELS.show(found, otherwise="The registry has no models yet.")

A field is a column where its declaration has an `InTable`, which gives its heading, its unit and when it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from json import dumps
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from farm.api.operation import InTable
from farm.cli.output import console
from farm.cli.tables import Column, Table, unique_beginnings


class ResultTable(Table):
    """A table of documents of one kind.

    Args:
        key: What names it among all tables.
        document: What a row is made of.
        first: Fields whose columns come first. The others follow in the order of their declarations.
    """

    def __init__(self, key: str, document: type[BaseModel], *, first: Sequence[str] = ()) -> None:
        fields = document.model_fields
        self._shown = {
            name: shown
            for name in dict.fromkeys([*first, *fields])
            for shown in fields[name].metadata
            if isinstance(shown, InTable)
        }
        super().__init__(key, *(_column(name, fields[name], shown) for name, shown in self._shown.items()))

    def show(self, found: Iterable[BaseModel], *, otherwise: str = "", title: str | None = None) -> None:
        """Prints the documents. Where there are none, prints the text `otherwise`."""
        rows = [[_cell(getattr(one, name), shown) for name, shown in self._shown.items()] for one in found]
        if rows or not otherwise:
            self.print(rows, title=title)
        else:
            console.print(otherwise)


def _column(name: str, field: FieldInfo, shown: InTable) -> Column:
    kinds = {field.annotation, *get_args(field.annotation)}
    return Column(
        shown.heading or name.replace("_", " "),
        shown.unit or ("(UTC)" if datetime in kinds else ""),
        number=bool(kinds & {int, float}) if shown.number is None else shown.number,
        folds=shown.folds,
        priority=shown.priority,
        short=unique_beginnings if shown.is_uuid else None,
    )


def _cell(value: Any, shown: InTable) -> Any:
    """The cell of a value: `2026-11-22 08:30`, `champion, v3`, `state active, new_jobs 12`; `Table` formats the others."""
    if shown.text is not None:
        return shown.text(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or None
    if isinstance(value, dict):
        return values_text(value)
    return value


def values_text(values: Mapping[str, Any]) -> str:
    """`state active, new_jobs 12`."""
    return ", ".join(f"{name} {each if isinstance(each, str) else dumps(each)}" for name, each in values.items())
