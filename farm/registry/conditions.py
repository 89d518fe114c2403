"""The origin of a model's training rows, how they were measured, and which models may be ranked together (pure).

The trainer writes a `Conditions` into the tag `conditions` of every version, because the rows themselves may be deleted, or on
another farm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farm.measurement import Source
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName

TAG = "conditions"
"""The tag of a model version that holds its conditions as JSON."""

UNKNOWN = UNKNOWN_PROTOCOL
OWN_ROWS = "measured by gemm-farm"
"""Start of the provenance of the farm's own exports."""

MAX_LISTED = 6
"""Sources, protocols and drivers listed individually: MLflow's older stores keep 5,000 characters of a tag."""

MAX_TEXT = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Rows of one origin: measured by this farm, recorded or imported, and from which file."""

    source: str
    # The name of the file, and what it says about itself. None for rows that this farm measured.
    file: str | None = None
    provenance: str | None = None
    rows: int

    def __str__(self) -> str:
        if self.file is None and self.provenance is None:
            return f"{self.rows:,} {self.source}"
        about = self.file or UNKNOWN
        return f"{self.rows:,} {self.source} from {about}" + (f" ({self.provenance})" if self.provenance else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One way in which rows were measured. A part that the rows do not record is `unknown`."""

    name: str  # of `farm.protocols`: the rules by which times were taken
    l2: str  # cold or warm, before each sample
    operands: str  # their distribution, as uniform
    clocks: str  # default, locked:<MHz>, governor:<name>
    # The origin of the rows, where a part is unknown: two such protocols are equal only if their origin is.
    method: str | None = None
    rows: int

    @classmethod
    def of(
        cls,
        *,
        name: str,
        l2: str | None,
        operands: str | None,
        clocks: str | None,
        source: str | None,
        provenance: str | None,
        rows: int = 0,
    ) -> Protocol:
        """The protocol of rows with these columns.

        Args:
            provenance: What their file says about itself. None for rows that this farm measured.
        """
        own = source == Source.MEASURED or (provenance or "").startswith(OWN_ROWS)
        parts = {
            "name": name,
            "l2": l2 or UNKNOWN,
            "operands": operands or UNKNOWN,
            "clocks": clocks or UNKNOWN,
        }
        about = OWN_ROWS if own else provenance and provenance[:MAX_TEXT]
        return cls(**parts, method=about if UNKNOWN in parts.values() else None, rows=rows)

    @property
    def key(self) -> tuple[str, ...]:
        """What must be equal for two models to be ranked together."""
        return (self.name, self.l2, self.operands, self.clocks, self.method or "")

    def __str__(self) -> str:
        parts = {"protocol": self.name, "L2": self.l2, "operands": self.operands, "clocks": self.clocks}
        known = [_PARTS[name].format(value) for name, value in parts.items() if value != UNKNOWN]
        unknown = [name for name, value in parts.items() if value == UNKNOWN]
        return ", ".join([*known, *([f"unknown: {', '.join(unknown)}"] if unknown else [])])


def _with_name(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored protocol. Those of before protocols had names say `time: burst` for the farm's own rows."""
    if "time" not in stored:
        return stored
    name = ProtocolName.FARM if stored["time"] == "burst" else UNKNOWN
    return {"name": str(name), **{part: value for part, value in stored.items() if part != "time"}}


_PARTS = {"protocol": "{}", "L2": "{} L2", "operands": "{} operands", "clocks": "clocks {}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of all training rows of a model."""

    sources: tuple[RowSource, ...]
    protocols: tuple[Protocol, ...]
    # Rows by the source of their power (see docs/measuring.md), and by the driver; `none` and `unknown` are values too.
    power: Mapping[str, int]
    drivers: Mapping[str, int]
    # ISO dates (UTC) of the first and the last row; None where no row has a date.
    measured_from: str | None = None
    measured_until: str | None = None
    # Rows of an import whose file has no dates.
    undated_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.to_tag())
        return found

    def to_tag(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_tag(cls, text: str | None) -> Conditions | None:
        """None where a version has no such tag, or one that this code cannot read."""
        try:
            found = json.loads(text or "")
            return cls(
                **{
                    **found,
                    "sources": tuple(RowSource(**each) for each in found["sources"]),
                    "protocols": tuple(Protocol(**_with_name(each)) for each in found["protocols"]),
                }
            )
        except (ValueError, TypeError, KeyError):
            return None

    def lines(self) -> list[str]:
        """One line each for sources, protocols, power, drivers and dates."""
        return [
            f"rows: {_listed(map(str, self.sources))}",
            f"protocol: {protocols_text(self.protocols)}",
            f"power: {_listed(_counted(self.power))}",
            f"driver: {_listed(_counted(self.drivers))}",
            f"measured: {self.dates}",
        ]

    @property
    def dates(self) -> str:
        undated = f"{self.undated_rows:,} rows without a date" if self.undated_rows else ""
        if self.measured_from is None:
            return undated or UNKNOWN
        days = (
            self.measured_from
            if self.measured_from == self.measured_until
            else (f"{self.measured_from} to {self.measured_until}")
        )
        return f"{days}; {undated}" if undated else days


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """The values with most rows; all others count as one value."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = ordered[MAX_LISTED:]
    found = {value[:MAX_TEXT]: rows for value, rows in ordered[:MAX_LISTED]}
    return {**found, f"{len(rest)} others": sum(rows for _, rows in rest)} if rest else found


def protocol_groups(models: Sequence[Conditions | None]) -> list[int]:
    """The number of each model's group, from 0. Models whose rows were measured by the same protocols share a group.

    A model with unknown conditions or an unknown protocol has a group of its own.
    """
    groups: dict[object, int] = {}
    found = []
    for number, conditions in enumerate(models):
        key: object = None if conditions is None else _known_key(conditions.protocols)
        found.append(groups.setdefault(number if key is None else key, len(groups)))
    return found


def same_protocols(model: Conditions | None, rows: Iterable[Protocol]) -> bool:
    """Whether predictions of the model may be compared with these rows: both have the same, known protocols."""
    own = None if model is None else _known_key(model.protocols)
    return own is not None and own == _known_key(rows)


def protocols_text(protocols: Iterable[Protocol]) -> str:
    """All protocols, with their numbers of rows where there are several."""
    rows: dict[str, int] = {}
    for one in protocols:
        rows[str(one)] = rows.get(str(one), 0) + one.rows
    return _listed(_counted(rows))


def _known_key(protocols: Iterable[Protocol]) -> frozenset[tuple[str, ...]] | None:
    """A key that is equal for equal protocols. None where one of them is unknown, or without any."""
    listed = list(protocols)
    if not listed or not all(one.method or UNKNOWN not in one.key for one in listed):
        return None
    return frozenset(one.key for one in listed)


def _counted(counts: Mapping[str, int]) -> list[str]:
    if len(counts) == 1:
        return list(counts)
    return [f"{value} ({rows:,} rows)" for value, rows in counts.items()]


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(texts) or UNKNOWN
