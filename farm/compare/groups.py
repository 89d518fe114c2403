"""Groups of a comparison: conditions on rows, and which kinds of rows meet them (pure)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from farm.compare.summaries import ComparedDevice
from farm.errors import AmbiguousDevice, BadMoment, BadParameter, BadSide, NothingOfThat, TooManySides
from farm.formatting import some_of
from farm.measurement import Source
from farm.time_parsing import moment

MAX_GROUPS = 12
SOURCES = tuple(source.value for source in Source if source is not Source.SENTINEL)
OWN_KEYS = ("type", "host", "device", "campaign", "since", "until", "clocks", "distribution", "protocol", "source")
"""Conditions on columns of a row; any other key is one of its environment."""

UNKNOWN = "unknown"
"""The name of a clock policy that a row does not have."""


class NamedDevice(Protocol):
    """A device with the names that select it."""

    @property
    def uuid(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def host(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    """What rows have in common: it decides which group they belong to and whether they may be compared."""

    device: ComparedDevice
    environment_id: uuid.UUID
    environment: Mapping[str, Any] = field(hash=False)
    source: str
    clocks: str | None
    distribution: str
    l2: str
    protocol: str
    # None unless a group names a campaign.
    campaign_id: int | None = None
    # How many of the groups' times are not after the row's: `width_bucket`. None unless a group names times.
    epoch: int | None = None
    # As 2026-05-01, UTC. None unless groups are days.
    day: str | None = None
    rows: int = 0
    # How many of them have `runtime_burst_ms`.
    with_burst: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Conditions on rows, None where not given; `name` is the text as written."""

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
    protocol: str | None = None
    source: str | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def has(self, device: NamedDevice) -> bool:
        """Whether the device meets the conditions on type, host and device."""
        return (
            self.type in (None, device.type) and self.host in (None, device.host) and self.device in (None, device.uuid)
        )

    def conditions(self) -> dict[str, str]:
        """The conditions that are not about devices, as written."""
        names = ("campaign", "since", "until", "clocks", "distribution", "protocol", "source")
        given = {name: getattr(self, name) for name in names}
        return {name: str(value) for name, value in given.items() if value is not None} | dict(self.environment)


def parse(text: str) -> Group:
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
    return Group(name=text, word=found.get(""), environment=environment, **own, **times)


def times_of(groups: Iterable[Group]) -> list[datetime]:
    """The start and end times of all groups, in order: what `RowKind.epoch` counts."""
    return sorted({when for group in groups for when in (group.since, group.until) if when is not None})


def resolve(group: Group, devices: Sequence[NamedDevice], predictable: Collection[str] = ()) -> Group:
    """The group with its bare word and its abbreviated UUID resolved. Types in `predictable` need no device.

    Raises `NothingOfThat` or `AmbiguousDevice` for an unknown type, host or device.
    """
    types, hosts = sorted({d.type for d in devices} | set(predictable)), sorted({d.host for d in devices})
    if group.word is not None:
        key = "type" if group.word in types else "host" if group.word in hosts else "device"
        if getattr(group, key) is not None:
            raise BadSide(side=group.name, why=f"{group.word} is a {key}, and {key} is given twice")
        if key == "device" and not _beginning(group.word, devices):
            alike = [name for name in types if group.word.lower() in name]
            meant = f"Did you mean {' or '.join(alike)}? " if 0 < len(alike) <= MAX_GROUPS else ""
            there = (
                f"{meant}Types: {_listed(types)}. Hosts: {_listed(hosts)}. Devices: {_listed(d.uuid for d in devices)}"
            )
            raise NothingOfThat(what="type, host or device", value=group.word, there=there)
        made_exact: dict[str, Any] = {"word": None, key: group.word}
        group = replace(group, **made_exact)
    if group.type is not None and group.type not in types:
        raise NothingOfThat(what="device type", value=group.type, there=f"Types: {_listed(types)}")
    if group.host is not None and group.host not in hosts:
        raise NothingOfThat(what="host", value=group.host, there=f"Hosts: {_listed(hosts)}")
    if group.device is not None:
        found = _beginning(group.device, devices)
        if not found:
            there = f"Devices: {_listed(d.uuid for d in devices)}"
            raise NothingOfThat(what="device", value=group.device, there=there)
        if len(found) > 1:
            raise AmbiguousDevice(which=group.device, candidates=_listed(f"{d.uuid} on {d.host}" for d in found))
        group = replace(group, device=found[0].uuid)
    return group


def _beginning(word: str, devices: Sequence[NamedDevice]) -> list[NamedDevice]:
    exact = [d for d in devices if d.uuid == word]
    return exact or [d for d in devices if d.uuid.lower().startswith(word.lower())]


def types_of(group: Group, devices: Iterable[NamedDevice]) -> tuple[str, ...]:
    """The device types of a resolved group: those of the devices that meet its conditions, or the type that it names."""
    return tuple(sorted({device.type for device in devices if group.has(device)})) or (
        (group.type,) if group.type is not None else ()
    )


def check_environment(group: Group, environments: Iterable[Mapping[str, Any]]) -> None:
    """Raises `NothingOfThat` for a key or a version that no row has."""
    values = defaultdict[str, set[str]](set)
    for environment in environments:
        for key, value in environment.items():
            values[key].add(str(value))
    for key, value in group.environment:
        if key not in values:
            there = f"Keys: {', '.join(OWN_KEYS)}; of environments: {_listed(sorted(values))}"
            raise NothingOfThat(what="condition", value=key, there=there)
        if value not in values[key]:
            raise NothingOfThat(what=key, value=value, there=f"Known values: {_listed(sorted(values[key]))}")


def includes(
    group: Group,
    kind: RowKind,
    *,
    times: Sequence[datetime] = (),
    campaigns: Mapping[str, int],
    any_source: bool = False,
) -> bool:
    """Whether rows of that kind belong to the resolved group. `campaigns` maps names to ids.

    Without a condition on the source, only measured rows do.
    """
    if group.source is None and not any_source and kind.source != Source.MEASURED:
        return False
    wanted = {
        "campaign": (None if group.campaign is None else campaigns[group.campaign], kind.campaign_id),
        "clocks": (group.clocks, kind.clocks or UNKNOWN),
        "distribution": (group.distribution, kind.distribution),
        "protocol": (group.protocol, kind.protocol),
        "source": (group.source, kind.source),
    }
    return (
        group.has(kind.device)
        and all(value is None or value == actual for value, actual in wanted.values())
        and all(key in kind.environment and str(kind.environment[key]) == value for key, value in group.environment)
        and (group.since is None or (kind.epoch or 0) > times.index(group.since))
        and (group.until is None or (kind.epoch or 0) <= times.index(group.until))
    )


def groups_by(key: str, kinds: Sequence[RowKind]) -> tuple[list[str], dict[str, list[RowKind]], int]:
    """The values of a key, those with most rows first; the kinds of each; and the number of rows without one.

    Raises `NothingOfThat`, `TooManySides`.
    """
    of = defaultdict[str, list[RowKind]](list)
    without = 0
    for kind in kinds:
        device = kind.device
        own = {
            "type": device.type,
            "host": device.host,
            "device": device.uuid,
            "day": kind.day,
            "protocol": kind.protocol,
        }
        value = own[key] if key in own else kind.environment.get(key)
        if value is None:
            without += kind.rows
        else:
            of[str(value)].append(kind)
    if not of:
        known = sorted({name for kind in kinds for name in kind.environment})
        raise NothingOfThat(
            what="key to group by", value=key, there=f"Keys: type, host, device, day, protocol; {_listed(known)}"
        )
    if len(of) > MAX_GROUPS:
        raise TooManySides(by=key, count=len(of), most=MAX_GROUPS)
    names = sorted(of, key=lambda name: (-sum(kind.rows for kind in of[name]), name))
    return names, dict(of), without


def parse_prices(given: Iterable[str], names: Sequence[str]) -> dict[str, float]:
    """Money per hour of each group from `GROUP=PER_HOUR`. Raises `BadInput`."""
    prices = dict[str, float]()
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not name or not 0 < price < float("inf"):
            raise BadParameter(parameter="price", value=text, why="write GROUP=PER_HOUR, as in nvidia-h200=3.50")
        if name not in names:
            raise BadParameter(parameter="price", value=text, why=f"no group is {name!r}. Groups: {_listed(names)}")
        prices[name] = price
    return prices


def _listed(names: Iterable[str]) -> str:
    return some_of(list(names)) or "none yet"
