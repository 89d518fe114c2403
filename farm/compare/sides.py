"""What a side of a comparison is: conditions on rows, and which kinds of rows meet them (pure)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from farm.errors import AmbiguousDevice, BadInput, BadMoment, BadSide, NothingOfThat, TooManySides
from farm.measurement import Source
from farm.time_parsing import moment

MOST_SIDES = 12
SOURCES = tuple(source.value for source in Source if source is not Source.SENTINEL)
OWN_KEYS = ("type", "host", "device", "campaign", "since", "until", "clocks", "distribution", "source")
"""Conditions on columns of a row; any other key is one of its environment."""

UNKNOWN = "unknown"
"""How a clock policy is called that a row does not tell."""


@dataclass(frozen=True, slots=True)
class Device:
    id: int
    uuid: str
    type: str
    host: str
    # What the file of an imported or recorded device says about itself.
    provenance: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What rows have in common, as far as it decides which side they belong to and whether they compare."""

    device: Device
    environment_id: uuid.UUID
    environment: Mapping[str, Any] = field(hash=False)
    source: str
    clocks: str | None
    distribution: str
    l2: str
    # None unless a side asks for one.
    campaign_id: int | None = None
    # How many of the asked times are not after the row's: `width_bucket`. None unless a side asks for times.
    epoch: int | None = None
    # As 2026-05-01, UTC. None unless sides are days.
    day: str | None = None
    # Whether their stop reason says how the time was measured. None unless protocols are asked for.
    timed: bool | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Conditions that all hold, None for those that were not given; `name` as it was written."""

    name: str
    word: str | None = None
    type: str | None = None
    host: str | None = None
    device: str | None = None
    campaign: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    clocks: str | None = None
    distribution: str | None = None
    source: str | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def conditions(self) -> dict[str, str]:
        """What it asks of rows beside the devices that they are of, as it was written."""
        given = {
            name: getattr(self, name) for name in ("campaign", "since", "until", "clocks", "distribution", "source")
        }
        return {name: str(value) for name, value in given.items() if value is not None} | dict(self.environment)


def parse(text: str) -> Side:
    """Reads `type=nvidia-h200,since=2026-05-01`, or a bare word. Raises `BadSide`."""
    found = dict[str, str]()
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            key, value = "", key
        if not value or (equals and not key):
            raise BadSide(side=text, why=f"{part.strip()!r} is neither key=value nor a word")
        if key in found:
            raise BadSide(side=text, why=f"{key} is given twice" if key else "it has two words without a key")
        found[key] = value
    if "source" in found and found["source"] not in SOURCES:
        raise BadSide(side=text, why=f"source is one of {', '.join(SOURCES)}")
    try:
        times: dict[str, Any] = {key: moment(found[key]) for key in ("since", "until") if key in found}
    except BadMoment as error:
        raise BadSide(side=text, why=str(error).rstrip(".")) from None
    if len(times) == 2 and times["since"] >= times["until"]:
        raise BadSide(side=text, why="since is not before until")
    own: dict[str, Any] = {key: value for key, value in found.items() if key in OWN_KEYS and key not in times}
    environment = tuple(sorted((key, value) for key, value in found.items() if key and key not in OWN_KEYS))
    return Side(name=text, word=found.get(""), environment=environment, **own, **times)


def times_of(sides: Iterable[Side]) -> list[datetime]:
    """Every time that a side begins or ends at, in order: what `Kind.epoch` counts."""
    return sorted({when for side in sides for when in (side.since, side.until) if when is not None})


def settle(side: Side, devices: Sequence[Device], predictable: Collection[str] = ()) -> Side:
    """The side with its bare word and the beginning of a UUID made exact. `predictable` are types that need no device.

    Raises `NothingOfThat` or `AmbiguousDevice` for a type, host or device that the farm does not know.
    """
    types, hosts = sorted({d.type for d in devices} | set(predictable)), sorted({d.host for d in devices})
    if side.word is not None:
        key = "type" if side.word in types else "host" if side.word in hosts else "device"
        if getattr(side, key) is not None:
            raise BadSide(side=side.name, why=f"{side.word} is a {key}, and {key} is given twice")
        if key == "device" and not _beginning(side.word, devices):
            alike = [name for name in types if side.word.lower() in name]
            meant = f"Did you mean {' or '.join(alike)}? " if 0 < len(alike) <= MOST_SIDES else ""
            there = (
                f"{meant}Types: {_listed(types)}. Hosts: {_listed(hosts)}. Devices: {_listed(d.uuid for d in devices)}"
            )
            raise NothingOfThat(what="type, host or device", value=side.word, there=there)
        made_exact: dict[str, Any] = {"word": None, key: side.word}
        side = replace(side, **made_exact)
    if side.type is not None and side.type not in types:
        raise NothingOfThat(what="device type", value=side.type, there=f"Types: {_listed(types)}")
    if side.host is not None and side.host not in hosts:
        raise NothingOfThat(what="host", value=side.host, there=f"Hosts: {_listed(hosts)}")
    if side.device is not None:
        found = _beginning(side.device, devices)
        if not found:
            there = f"Devices: {_listed(d.uuid for d in devices)}"
            raise NothingOfThat(what="device", value=side.device, there=there)
        if len(found) > 1:
            raise AmbiguousDevice(which=side.device, candidates=_listed(f"{d.uuid} on {d.host}" for d in found))
        side = replace(side, device=found[0].uuid)
    return side


def _beginning(word: str, devices: Sequence[Device]) -> list[Device]:
    exact = [d for d in devices if d.uuid == word]
    return exact or [d for d in devices if d.uuid.lower().startswith(word.lower())]


def types_of(side: Side, devices: Iterable[Device]) -> tuple[str, ...]:
    """The device types that a settled side means: those of the devices that its conditions leave, or the one that it names."""
    wanted = {"type": side.type, "host": side.host, "uuid": side.device}
    left = {
        d.type for d in devices if all(getattr(d, key) == value for key, value in wanted.items() if value is not None)
    }
    return tuple(sorted(left)) or ((side.type,) if side.type is not None else ())


def check_environment(side: Side, environments: Iterable[Mapping[str, Any]]) -> None:
    """Raises `NothingOfThat` for a key or a version that no row has."""
    values = defaultdict[str, set[str]](set)
    for environment in environments:
        for key, value in environment.items():
            values[key].add(str(value))
    for key, value in side.environment:
        if key not in values:
            there = f"Keys: {', '.join(OWN_KEYS)}; of environments: {_listed(sorted(values))}"
            raise NothingOfThat(what="condition", value=key, there=there)
        if value not in values[key]:
            raise NothingOfThat(what=key, value=value, there=f"There is: {_listed(sorted(values[key]))}")


def takes(
    side: Side, kind: Kind, *, times: Sequence[datetime] = (), campaigns: Mapping[str, int], any_source: bool = False
) -> bool:
    """Whether rows of that kind belong to the settled side. `campaigns` has the id of each campaign by its name.

    Without a condition on the source, measured rows alone.
    """
    if side.source is None and not any_source and kind.source != Source.MEASURED:
        return False
    wanted = {
        "type": (side.type, kind.device.type),
        "host": (side.host, kind.device.host),
        "device": (side.device, kind.device.uuid),
        "campaign": (None if side.campaign is None else campaigns[side.campaign], kind.campaign_id),
        "clocks": (side.clocks, kind.clocks or UNKNOWN),
        "distribution": (side.distribution, kind.distribution),
        "source": (side.source, kind.source),
    }
    return (
        all(asked is None or asked == found for asked, found in wanted.values())
        and all(key in kind.environment and str(kind.environment[key]) == value for key, value in side.environment)
        and (side.since is None or (kind.epoch or 0) > times.index(side.since))
        and (side.until is None or (kind.epoch or 0) <= times.index(side.until))
    )


def sides_by(key: str, kinds: Sequence[Kind]) -> tuple[list[str], dict[str, list[Kind]], int]:
    """The values of a key, those with most rows first; the kinds of each; and how many rows have none.

    Raises `NothingOfThat`, `TooManySides`.
    """
    of = defaultdict[str, list[Kind]](list)
    without = 0
    for kind in kinds:
        own = {"type": kind.device.type, "host": kind.device.host, "device": kind.device.uuid, "day": kind.day}
        value = own[key] if key in own else kind.environment.get(key)
        if value is None:
            without += kind.rows
        else:
            of[str(value)].append(kind)
    if not of:
        known = sorted({name for kind in kinds for name in kind.environment})
        raise NothingOfThat(what="--by", value=key, there=f"Keys: type, host, device, day; {_listed(known)}")
    if len(of) > MOST_SIDES:
        raise TooManySides(by=key, count=len(of), most=MOST_SIDES)
    names = sorted(of, key=lambda name: (-sum(kind.rows for kind in of[name]), name))
    return names, dict(of), without


def prices_of(given: Iterable[str], names: Sequence[str]) -> dict[str, float]:
    """Money per hour of each side from `GROUP=PER_HOUR`. Raises `BadInput`."""
    prices = dict[str, float]()
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not name or not 0 < price < float("inf"):
            raise BadInput(detail=f"--price {text}: write GROUP=PER_HOUR, as in nvidia-h200=3.50")
        if name not in names:
            raise BadInput(detail=f"--price {text}: no group is {name!r}. Groups: {_listed(names)}")
        prices[name] = price
    return prices


def _listed(names: Iterable[str], most: int = 12) -> str:
    listed = list(names)
    return (", ".join(listed[:most]) or "none yet") + (
        f" and {len(listed) - most:,} more" if len(listed) > most else ""
    )
