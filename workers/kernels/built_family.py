"""What families have in common whose kernels are built ahead of time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from farm.builds.record import Built
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from workers.kernels.base import CardContext
from workers.kernels.once import Once

Loaded = TypeVar("Loaded")


class BuiltFamily(ABC, Generic[Loaded]):
    """A family on one card. Binaries come from the card's context and are loaded once in a process."""

    def __init__(self, card: CardContext) -> None:
        self._card = card
        self._loaded = Once[Binary, Loaded]()

    def prepare(self, configuration: Configuration) -> None:
        self._load(configuration)

    def close(self) -> None:
        self._loaded.clear()

    def _load(self, configuration: Configuration) -> Loaded:
        binary = self._card.binary(configuration)
        return self._loaded.get(binary, lambda: self._loaded_from(self._card.kernels.get(binary)))

    @abstractmethod
    def _loaded_from(self, built: Built) -> Loaded:
        """Loads a binary on the card. Raises `InvalidOnDevice` where the card cannot run it."""
