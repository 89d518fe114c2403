"""The fields of a configuration, which notes those that were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.errors import BadLanguageModel
from farm.gemm import MAX_EXTENT

MAX_LAYERS = 4096


class Fields:
    """The fields of a `config.json` or of a mapping in one. A field that is null counts as missing.

    Attributes:
        where: What errors call the configuration.
        read: The names that were asked for and are there.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where
        self.read: set[str] = set()

    def value(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that is there."""
        for name in names:
            if self.data.get(name) is not None:
                self.read.add(name)
                return self.data[name]
        return default

    def number(self, *names: str, default: int | None = None, smallest: int = 1, largest: int = MAX_EXTENT) -> int:
        """A whole number. Raises `BadLanguageModel` without a default if the field is missing."""
        found = self.value(*names, default=default)
        if found is None:
            raise BadLanguageModel(where=self.where, why=f"the configuration has no {' or '.join(names)}")
        if type(found) is not int or not smallest <= found <= largest:
            raise BadLanguageModel(
                where=self.where, why=f"{names[0]} is {found!r}; it is a whole number from {smallest} to {largest:,}"
            )
        return found

    def texts(self, name: str, layers: int) -> list[str] | None:
        """A list with a text for each layer. Longer lists have the layers that predict further tokens at their end."""
        found = self._list(name, layers)
        return None if found is None else [str(each) for each in found]

    def flags(self, name: str, layers: int) -> list[bool] | None:
        """A list with 0 or 1 for each layer."""
        found = self._list(name, layers)
        return None if found is None else [bool(each) for each in found]

    def _list(self, name: str, layers: int) -> list[Any] | None:
        found = self.value(name)
        if not isinstance(found, list):
            return None
        if len(found) < layers:
            raise BadLanguageModel(where=self.where, why=f"{name} has {len(found)} entries for {layers} layers")
        return found[:layers]

    def inner(self, name: str) -> Fields | None:
        """A mapping in the configuration."""
        found = self.value(name)
        return Fields(found, f"{self.where}: {name}") if isinstance(found, dict) else None
