"""Whose turn is it? Which jobs each live device should be given next: pure, so that fairness can be tested."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from farm.broker import queue_of_device, queue_of_type
from farm.db.batches import Flight, Work


@dataclass(frozen=True, slots=True)
class LiveDevice:
    """A device that takes work now."""

    id: int
    uuid: str
    type: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Work, and the queue that it is formed for. `device_type` is that of the devices behind the queue."""

    work: Work
    queue: str
    device_type: str


class Schedule:
    """Says what to form next, until every queue has enough or nothing waits.

    Higher priority first; among equals the owner with the fewest batches in flight, then the one served longest ago,
    then the older campaign. A queue has enough at `outstanding` batches for each live device behind it. What failed on
    the only live device waits while one of the `awaited` may take it, which fell silent lately.
    """

    def __init__(
        self,
        live: Sequence[LiveDevice],
        work: Sequence[Work],
        flights: Sequence[Flight],
        *,
        outstanding: int,
        awaited: Sequence[LiveDevice] = (),
    ) -> None:
        self._by_type: defaultdict[str, list[LiveDevice]] = defaultdict(list)
        self._by_uuid = {device.uuid: device for device in live}
        for device in live:
            self._by_type[device.type].append(device)
        self._awaited = awaited
        self._outstanding = outstanding
        self._in_queue: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._served: defaultdict[str, int] = defaultdict(int)
        for flight in flights:
            self._in_queue[flight.queue] += flight.batches
            self._in_flight[flight.owner] += flight.batches
            self._served[flight.owner] = max(self._served[flight.owner], flight.newest)
        self._waiting: defaultdict[tuple[int, str], list[Work]] = defaultdict(list)
        for one in reversed(work):
            self._waiting[one.priority, one.owner].append(one)

    @property
    def queues(self) -> list[str]:
        """The names of all queues that a live device serves."""
        return [*map(queue_of_type, self._by_type), *map(queue_of_device, self._by_uuid)]

    def next(self) -> Assignment | None:
        """What to form next. Follow it with `formed` or `nothing_there`."""
        while self._waiting:
            key = min(self._waiting, key=lambda k: (-k[0], self._in_flight[k[1]], self._served[k[1]], k[1]))
            work = self._waiting[key][-1]
            chosen = self._queue_for(work)
            if chosen is not None:
                return Assignment(work, *chosen)
            self._drop(work)
        return None

    def formed(self, assignment: Assignment, batch_id: int) -> None:
        """The assignment became a batch."""
        self._in_queue[assignment.queue] += 1
        self._in_flight[assignment.work.owner] += 1
        self._served[assignment.work.owner] = batch_id

    def nothing_there(self, assignment: Assignment) -> None:
        """There was nothing (more) to form of that work."""
        self._drop(assignment.work)

    def _drop(self, work: Work) -> None:
        """Nothing of it can be formed in this turn: queues only get fuller, and lanes emptier."""
        key = work.priority, work.owner
        self._waiting[key].pop()
        if not self._waiting[key]:
            del self._waiting[key]

    def _queue_for(self, work: Work) -> tuple[str, str] | None:
        """The queue with the most room for it, and the type of its devices."""
        if work.device_types is None:
            device = self._by_uuid.get(work.device_uuid or "")
            return self._emptiest([device] if device else [])
        if work.retry:
            able = [
                device
                for kind in work.device_types
                for device in self._by_type.get(kind, ())
                if device.id not in work.refused_by
            ]
            others = [device for device in able if device.id != work.avoid_device_id]
            if not others and self._may_be_back(work):
                return None
            return self._emptiest(others or able)
        rooms = [
            (self._outstanding - self._in_queue[queue_of_type(kind)] / len(self._by_type[kind]), kind)
            for kind in work.device_types
            if kind in self._by_type
        ]
        room, kind = max(rooms, default=(0.0, ""))
        return (queue_of_type(kind), kind) if room > 0 else None

    def _may_be_back(self, work: Work) -> bool:
        """Whether another device than the one on which it failed may take it soon."""
        kinds = work.device_types or ()
        without = {work.avoid_device_id, *work.refused_by}
        return any(device.type in kinds and device.id not in without for device in self._awaited)

    def _emptiest(self, able: Sequence[LiveDevice]) -> tuple[str, str] | None:
        device = min(able, key=lambda d: (self._in_queue[queue_of_device(d.uuid)], d.id), default=None)
        if device is None or self._in_queue[queue_of_device(device.uuid)] >= self._outstanding:
            return None
        return queue_of_device(device.uuid), device.type
