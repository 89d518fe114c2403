"""Fair shares of devices: start-time fair queueing by virtual times (pure).

A *resource* is what batches queue for: the queue of a device type, the queue of one device (for campaigns whose target it
is), or the failed jobs of a device type. On each resource, and within each priority, owners share device seconds in
proportion to their weights, and the campaigns of one owner share what the owner gets.

Each has a virtual time: the device seconds that it used, divided by its weight. The smallest virtual time goes next. Batches
that are queued or running count with the seconds that they are expected to take, so no owner gets two batches while
another waits for its first; when a batch is counted (`batches.fold`), what it really took is stored instead.

- Who has nothing stored starts at the smallest virtual time of those that wait: it neither waits for others to use as much
  as they did before it came, nor has them wait until it has caught up.
- Who has nothing to do is forgotten as soon as the others have caught up with it. So it saves up no credit, and cannot get
  rid of what it used too much by pausing for a moment.

The stored times are the whole state: another coordinator that takes over goes on with the same turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from farm.db.batches import BatchesInFlight
from farm.db.fair_shares import ShareKey

_Group: TypeAlias = tuple[str, int, str | None]


def _group(key: ShareKey) -> _Group:
    """Those that compare their virtual times: the owners on a resource, or the campaigns of one owner there."""
    return key.resource, key.priority, key.owner if key.campaign_id else None


class VirtualTimes:
    """The virtual times of all that wait or have batches, as of one turn.

    Args:
        stored: virtual times of the database.
        flights: batches that are not part of them yet.
        waiting: those that have work which a live device may take; of each owner the owner itself too.
        weights: of owners; 1 for one that is not named.
    """

    def __init__(
        self,
        stored: Mapping[ShareKey, float],
        flights: Iterable[BatchesInFlight],
        waiting: Iterable[ShareKey],
        weights: Mapping[str, float],
    ) -> None:
        self._weights = weights
        expected: defaultdict[ShareKey, float] = defaultdict(float)
        for flight in flights:
            owner = ShareKey(flight.resource, flight.priority, flight.owner)
            for key in (owner, owner._replace(campaign_id=flight.campaign_id)):
                expected[key] += flight.seconds / self._weight(key)
        self._now = {key: virtual_s + expected.get(key, 0.0) for key, virtual_s in stored.items()}
        waiting = set(waiting)
        among_waiting: dict[_Group, float] = {}
        among_all: dict[_Group, float] = {}
        for key, now in self._now.items():
            group = _group(key)
            among_all[group] = min(now, among_all.get(group, now))
            if key in waiting:
                among_waiting[group] = min(now, among_waiting.get(group, now))
        floors = among_all | among_waiting
        busy = {_group(key) for key in waiting} | {_group(key) for key in expected}
        self.started = {key: floors.get(_group(key), 0.0) for key in waiting if key not in stored}
        """Virtual times to store, of those that wait and have none."""
        self.idle = [
            key
            for key in stored
            if key not in waiting and (_group(key) not in busy or self._now[key] <= floors[_group(key)])
        ]
        """Those to forget: they have nothing to do, and are not ahead of the others."""
        for key, virtual_s in self.started.items():
            self._now[key] = virtual_s + expected.get(key, 0.0)

    def of(self, key: ShareKey) -> float:
        """The virtual time of one that waits."""
        return self._now[key]

    def charge(self, key: ShareKey, seconds: float) -> None:
        """A batch of that many seconds was formed, for a campaign and for its owner."""
        for one in (key, key._replace(campaign_id=0)):
            self._now[one] += seconds / self._weight(one)

    def _weight(self, key: ShareKey) -> float:
        return 1.0 if key.campaign_id else self._weights.get(key.owner, 1.0)
