"""The protocol of a retention rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from sqlalchemy import Engine

from farm.settings import Settings

BATCH = 1000
"""Rows or files that one step removes. An interrupted removal continues with the next run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where rules work: the farm's database, and this machine's home."""

    engine: Engine
    settings: Settings


@dataclass(frozen=True, slots=True)
class Old:
    """What a rule would remove, or removed. `bytes` is 0 where it is not known."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Old) -> Old:
        return Old(self.count + other.count, self.bytes + other.bytes)


class Rule(Protocol):
    """Removes one kind of data that is older than an age."""

    name: str
    """Names the rule in commands, and its setting `FARM_KEEP_<NAME>`."""

    what: str
    """What it removes, for people."""

    def find(self, place: Place, age: timedelta) -> Old:
        """What is that old. Changes nothing."""

    def remove(self, place: Place, age: timedelta) -> Old:
        """Removes up to `BATCH` of what is that old. Returns what was removed; `Old()` at the end."""
