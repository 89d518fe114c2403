"""Tables that name a card and nothing else of their devices: all rows of a type of card belong to one device."""

from __future__ import annotations

from dataclasses import dataclass

from farm.db.imports import ImportedDevice
from farm.devices import Backend
from farm.gpus import traits_of_type
from farm.importers.landing import Reader, Table, check_name, imported_device
from farm.vendors import device_type_of


@dataclass(frozen=True, kw_only=True)
class CardTable(Table):
    """A table of rows that belong to cards.

    Attributes:
        provenance: Who measured it, and how.
        reads: Reads its rows.
        device: The card of a table that names none.
    """

    provenance: str
    reads: type[CardReader]
    device: str = ""

    def reader(self) -> CardReader:
        return self.reads(self)


class CardReader(Reader[CardTable]):
    """Reads such a table."""

    def __init__(self, table: CardTable) -> None:
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
        names = {key: name for name, key in reversed(self._names.items())}
        return [
            imported_device(
                self._table, key, host=None, rows=rows, type=key, name=names[key], backend=Backend.CUDA,
                traits=traits_of_type(key), facts={"provenance": self._table.provenance},
            )
            for key, rows in self._rows.items()
        ]  # fmt: skip
