"""A span that has ended, as programs of the farm hand it to each other (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from farm.tracing.ids import SpanIds

Value = str | int | float | bool

PREFIX = "gemm_farm."
"""Of the names of the farm's own attributes."""

MAX_ERROR_CHARACTERS = 300
"""Of the error of a span that has the message of a failure."""


class Kind(StrEnum):
    """The role of a span, as OpenTelemetry names it."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was done between two moments. Times are nanoseconds since 1970.

    Attributes:
        ids: its ids.
        parent: the span that it is a part of; None: it is the first one of its trace.
        links: spans of other traces that it belongs to.
        error: why it failed; None: it did not.
    """

    name: str
    ids: SpanIds
    began_ns: int
    ended_ns: int
    parent: SpanIds | None = None
    kind: Kind = Kind.INTERNAL
    attributes: Mapping[str, Value] = field(default_factory=dict)
    links: tuple[SpanIds, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        parent = self.parent
        return {
            "name": self.name,
            "ids": self.ids.to_json(),
            "began_ns": self.began_ns,
            "ended_ns": self.ended_ns,
            "parent": None if parent is None else parent.to_json(),
            "kind": self.kind,
            "attributes": self.attributes,
            "links": [one.to_json() for one in self.links],
            "error": self.error,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Span:
        """Raises `TypeError`, `KeyError` or `ValueError` for anything but the result of `to_json`."""
        parent = found["parent"]
        return cls(
            **{
                **found,
                "ids": SpanIds(*found["ids"]),
                "parent": None if parent is None else SpanIds(*parent),
                "kind": Kind(found["kind"]),
                "links": tuple(SpanIds(*one) for one in found["links"]),
            }
        )


@dataclass(slots=True)
class ActiveSpan:
    """A span that has not ended: what its block adds to it."""

    name: str
    ids: SpanIds
    attributes: dict[str, Value]
    links: list[SpanIds] = field(default_factory=list)
    error: str | None = None
