"""Tables that name a card and nothing else of where they were measured: the device that their rows get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from farm.db import imports
from farm.db.imports import ImportedDevice
from farm.devices import Backend, DeviceIdentity
from farm.gpus import traits_of_type
from farm.importers.landing import Reader, Table, check_name
from farm.vendors import device_type_of


@dataclass(frozen=True, kw_only=True)
class CardTable(Table):
    """A table of rows that belong to cards."""

    # Who measured it, and how.
    provenance: str


_T = TypeVar("_T", bound=CardTable)


class CardReader(Reader[_T]):
    """Reads such a table: all rows of a type of card are of one device."""

    def __init__(self, table: _T) -> None:
        super().__init__(table)
        self._rows: dict[str, int] = {}
        self._names: dict[str, str] = {}

    def _device(self, name: str) -> str:
        """The key of the device of a row that names this card. Raises `ValueError`."""
        key = self._names.get(name)
        if key is None:
            check_name(name, "a card")
            key = self._names[name] = device_type_of(name, Backend.CUDA)
        self._rows[key] = self._rows.get(key, 0) + 1
        return key

    def devices(self) -> list[ImportedDevice]:
        of = {key: name for name, key in reversed(self._names.items())}
        return [self._stored(key, of[key], rows) for key, rows in self._rows.items()]

    def _stored(self, key: str, name: str, rows: int) -> ImportedDevice:
        table = self._table
        identity = DeviceIdentity(
            uuid=imports.uuid_of(table.content, key),
            type=key,
            name=name,
            backend=Backend.CUDA,
            traits=traits_of_type(key),
            facts={"imported_from": table.path.name, "sha256": table.content, "provenance": table.provenance},
        )
        return ImportedDevice(key=key, identity=identity, host="imported:unknown", rows=rows)
