"""Which devices corrupt results: the devices of a type vote on the bits of each result (pure).

The same kernel, libraries and operands give the same bits on every device of a type, in every row. A digest that more than
half of the devices with that work have, and at least two, is right. Rows with another digest differ. A device may have
both kinds of rows, as one that corrupts a result now and then has. Without such a digest no one is known to be right: the
devices disagree, and none is accused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from farm.formatting import counted

CHANGING = "changing"
"""In place of the digest of a row whose launches all gave other bits. If most devices have it, the kernel is not deterministic."""

MIN_VOTES = 2
"""Minimum number of devices with a digest that is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestRows:
    """Rows of one device that have one digest, or `CHANGING`, for the same work."""

    device_id: int
    configuration_id: UUID
    # Everything that decides the bits of the result: equal work has equal digests.
    work: Hashable
    digest: str
    rows: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedResults:
    """Jobs with one configuration whose result changed from one launch to another on a device."""

    device_id: int
    configuration_id: UUID
    jobs: int
    last_message: str
    first_at: datetime
    last_at: datetime


@dataclass(slots=True)
class Corruption:
    """What shows that a device corrupts results, or may."""

    changed: list[ChangedResults] = field(default_factory=list)
    differing: list[DigestRows] = field(default_factory=list)
    # Configurations on which devices disagree without a majority, with the other devices that have them.
    disagreeing: dict[UUID, set[int]] = field(default_factory=dict)

    @property
    def _corrupted(self) -> list[ChangedResults | DigestRows]:
        return [*self.changed, *self.differing]

    @property
    def configurations(self) -> set[UUID]:
        """The configurations whose results are corrupted."""
        return {one.configuration_id for one in self._corrupted}

    @property
    def first_at(self) -> datetime:
        """The first corrupted result."""
        return min(one.first_at for one in self._corrupted)

    @property
    def last_message(self) -> str:
        """The message of the last job whose result changed."""
        return max(self.changed, key=lambda one: one.last_at).last_message

    def after(self, when: datetime) -> Corruption:
        """Only corrupted results after that time."""
        return Corruption(
            changed=[one for one in self.changed if one.last_at > when],
            differing=[one for one in self.differing if one.last_at > when],
        )

    def __str__(self) -> str:
        jobs, rows = sum(one.jobs for one in self.changed), sum(one.rows for one in self.differing)
        seen = []
        if jobs:
            seen.append(
                f"the result of {counted(jobs, 'job')} changed between launches, the last: {self.last_message.rstrip('.')}"
            )
        if rows:
            verb = "has" if rows == 1 else "have"
            seen.append(f"{counted(rows, 'row')} {verb} other bits than the same work on most devices of its type")
        return f"it corrupted results of {counted(len(self.configurations), 'configuration')}: {'; '.join(seen)}"


def corruptions(changed: Iterable[ChangedResults], digests: Iterable[DigestRows]) -> dict[int, Corruption]:
    """The devices that corrupt results or disagree, by id.

    A configuration whose result changed on several devices counts against none of them: its kernel is at fault.
    """
    found = defaultdict[int, Corruption](Corruption)
    of_configuration = defaultdict[UUID, list[ChangedResults]](list)
    for one in changed:
        of_configuration[one.configuration_id].append(one)
    for alike in of_configuration.values():
        if len({one.device_id for one in alike}) == 1:
            found[alike[0].device_id].changed += alike
    of_work = defaultdict[Hashable, list[DigestRows]](list)
    for rows in digests:
        of_work[rows.work].append(rows)
    for same_work in of_work.values():
        _vote(same_work, found)
    return dict(found)


def _vote(same_work: list[DigestRows], found: Mapping[int, Corruption]) -> None:
    """Adds the devices that differ from the majority, or disagree, to `found`."""
    devices = {rows.device_id for rows in same_work}
    votes = defaultdict[str, set[int]](set)
    for rows in same_work:
        votes[rows.digest].add(rows.device_id)
    right = {digest for digest, voters in votes.items() if len(voters) >= MIN_VOTES and 2 * len(voters) > len(devices)}
    if CHANGING in right:
        return
    if right:
        for rows in same_work:
            if rows.digest not in right:
                found[rows.device_id].differing.append(rows)
    elif len(votes) > 1:
        for device_id in devices:
            others = found[device_id].disagreeing.setdefault(same_work[0].configuration_id, set())
            others |= devices - {device_id}
