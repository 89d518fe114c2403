"""Whose turn is it? Which jobs each live device should be given next: pure, so that fairness can be tested."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from farm.broker.queues import queue_of_device, queue_of_type, retries_of_type
from farm.coordinator.fairness import VirtualTimes
from farm.db.batches import BatchesInFlight, PendingJobs
from farm.db.fair_shares import ShareKey


@dataclass(frozen=True, slots=True)
class LiveDevice:
    """A device that takes work now."""

    id: int
    uuid: str
    type: str
    # Of what its worker runs (`farm.db.worker_versions`); None: not known, or of no concern.
    version_id: int | None = None

    def is_among(self, refusers: Container[int | None]) -> bool:
        """Whether it refused, or the version that its worker runs."""
        return self.id in refusers or (self.version_id is not None and -self.version_id in refusers)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Work, and the queue that it is formed for. `device_type` is that of the devices behind the queue."""

    work: PendingJobs
    queue: str
    device_type: str
    # What the batch takes a share of.
    resource: str


class Schedule:
    """Says what to form next, until every queue has enough or nothing waits.

    Higher priority first; among equals the owner, and of its campaigns the one, that used least of its fair share of the
    resource (`farm.coordinator.fairness`); then the older campaign. A queue has enough at `outstanding` batches for each
    live device behind it, and failed jobs at as many for each device. What failed goes back to the same device where no other one may take it.

    Args:
        live: devices that take work.
        work: what waits, the oldest campaign first.
        flights: batches that are queued, leased, or over and not counted yet.
        outstanding: batches ready or running for each device.
        shares: stored virtual times.
        weights: of owners; 1 for one that is not named.
        batch_seconds: device seconds that a batch is expected to take.
    """

    def __init__(
        self,
        live: Sequence[LiveDevice],
        work: Sequence[PendingJobs],
        flights: Sequence[BatchesInFlight],
        *,
        outstanding: int,
        shares: Mapping[ShareKey, float] | None = None,
        weights: Mapping[str, float] | None = None,
        batch_seconds: float = 4.0,
    ) -> None:
        self._by_type: defaultdict[str, list[LiveDevice]] = defaultdict(list)
        self._by_uuid = {device.uuid: device for device in live}
        for device in live:
            self._by_type[device.type].append(device)
        self._type_of = {device.id: device.type for device in live}
        self._outstanding = outstanding
        self._batch_seconds = batch_seconds
        self._resources: dict[str, _Resource] = {}
        for one in work:
            for resource in self._resources_for(one):
                resource.add(one)
        for flight in flights:
            if (taken := self._resources.get(flight.resource)) is not None:
                taken.occupy(flight)
        keys = {key for resource in self._resources.values() for key in resource.waiting_keys()}
        self._times = VirtualTimes(shares or {}, flights, keys, weights or {})
        self._order: list[_Rank] = []
        for resource in self._resources.values():
            resource.sort(self._times)
            self._consider(resource)
        self._dropped: set[PendingJobs] = set()

    @property
    def queues(self) -> list[str]:
        """The names of all queues that a live device serves."""
        return [*map(queue_of_type, self._by_type), *map(queue_of_device, self._by_uuid)]

    @property
    def started(self) -> Mapping[ShareKey, float]:
        """Virtual times to store before anything is formed: those of who waits for the first time."""
        return self._times.started

    @property
    def idle(self) -> Sequence[ShareKey]:
        """Virtual times that are no longer needed."""
        return self._times.idle

    def urgent(self) -> list[tuple[str, int]]:
        """Queues that are full, with work of that priority waiting, above that of unclaimed batches."""
        return [
            (resource.name, priority)
            for resource in self._resources.values()
            if not resource.has_room
            and (priority := resource.priority) is not None
            and any(queued and other < priority for other, queued in resource.queued.items())
        ]

    def make_room(self, queue: str, batches: int) -> None:
        """So many batches of that queue were taken back."""
        resource = self._resources[queue]
        resource.in_queue[queue] -= batches
        self._consider(resource)

    def next(self) -> Assignment | None:
        """What to form next. Follow it with `formed`, also before it is, or with `nothing_there`."""
        while self._order:
            resource = self._resources[self._order[0][3]]
            if (rank := resource.rank()) != self._order[0]:
                if rank is None:
                    heapq.heappop(self._order)
                else:
                    heapq.heapreplace(self._order, rank)
                continue
            work = resource.first()
            if work in self._dropped:
                resource.drop_first()
                continue
            if (chosen := resource.queue_for(work, self._only_on_avoided(work))) is None:
                resource.drop_first()
                continue
            queue, device_type = chosen
            return Assignment(work, queue, device_type, resource.name)
        return None

    def formed(self, assignment: Assignment) -> None:
        """The assignment, which came from `next` just now, becomes a batch."""
        resource = self._resources[assignment.resource]
        resource.formed(assignment.queue, self._times, self._batch_seconds)

    def nothing_there(self, assignment: Assignment) -> None:
        """There is nothing (more) to form of that work."""
        self._dropped.add(assignment.work)

    def not_formed(self, assignments: Iterable[Assignment]) -> None:
        """These became no batches although `formed` counted them: releases their places and turns."""
        resources: dict[str, _Resource] = {}
        for one in assignments:
            resource = resources[one.resource] = self._resources[one.resource]
            resource.not_formed(one, self._times, self._batch_seconds)
        for resource in resources.values():
            resource.sort_again(self._times)
            self._consider(resource)

    def _consider(self, resource: _Resource) -> None:
        if (rank := resource.rank()) is not None:
            heapq.heappush(self._order, rank)

    def _resources_for(self, work: PendingJobs) -> Iterable[_Resource]:
        """The resources on which a live device may take it."""
        if work.device_types is None:
            device = self._by_uuid.get(work.device_uuid or "")
            if device is None or device.is_among(work.refused_by):
                return []
            return [self._resource(queue_of_device(device.uuid), [device])]
        if not work.retry:
            return [self._resource(queue_of_type(kind), self._by_type[kind]) for kind in self._live_types(work)]
        only_on_avoided = self._only_on_avoided(work)
        shut = set(work.refused_by) if only_on_avoided else {*work.refused_by, work.avoid_device_id}
        return [
            self._resource(retries_of_type(kind), self._by_type[kind], retries=True)
            for kind in self._live_types(work)
            if self._able(kind, shut)
        ]

    def _resource(self, name: str, devices: Sequence[LiveDevice], *, retries: bool = False) -> _Resource:
        if name not in self._resources:
            self._resources[name] = _Resource(name, devices, self._outstanding, retries=retries)
        return self._resources[name]

    def _live_types(self, work: PendingJobs) -> list[str]:
        return [kind for kind in work.device_types or () if kind in self._by_type]

    def _able(self, kind: str, shut: Collection[int | None]) -> int:
        """How many live devices of that type are not among those."""
        if any(i is not None and i < 0 for i in shut):
            return sum(not device.is_among(shut) for device in self._by_type[kind])
        return len(self._by_type[kind]) - sum(i is not None and self._type_of.get(i) == kind for i in shut)

    def _only_on_avoided(self, work: PendingJobs) -> bool:
        """Whether the device on which it failed is the only live one that may take it."""
        shut = {*work.refused_by, work.avoid_device_id}
        return work.retry and not any(self._able(kind, shut) for kind in self._live_types(work))


_Rank = tuple[int, float, int, str]

_Campaigns = list[tuple[float, int, list[PendingJobs]]]
"""A heap of an owner's campaigns: virtual time, id, and what waits, the first at the end."""


@dataclass(slots=True)
class _Resource:
    """The devices behind one or more queues, and what waits for them."""

    name: str
    devices: Sequence[LiveDevice]
    outstanding: int
    # Whether it is the failed jobs of a type, each for the queue of one device, and not a queue.
    retries: bool
    in_queue: Counter[str] = field(default_factory=Counter)
    # Batches that nobody has claimed, by priority.
    queued: Counter[int] = field(default_factory=Counter)
    _work: dict[ShareKey, list[PendingJobs]] = field(default_factory=dict)
    # Heaps of owners by priority, the highest last: virtual time, oldest campaign, name, and the owner's campaigns.
    _owners: list[tuple[int, list[tuple[float, int, str, _Campaigns]]]] = field(default_factory=list)
    # Devices that take more, of retries.
    _free: list[LiveDevice] = field(default_factory=list)

    def add(self, work: PendingJobs) -> None:
        self._work.setdefault(ShareKey(self.name, work.priority, work.owner, work.campaign_id), []).append(work)

    def occupy(self, flight: BatchesInFlight) -> None:
        self.in_queue[flight.queue] += flight.batches
        self.queued[flight.priority] += flight.queued

    def waiting_keys(self) -> Iterable[ShareKey]:
        for key in self._work:
            yield key
            yield key._replace(campaign_id=0)

    def sort(self, times: VirtualTimes) -> None:
        """After all work and flights are known."""
        self._find_free()
        found: defaultdict[int, defaultdict[str, _Campaigns]] = defaultdict(lambda: defaultdict(list))
        for key, waiting in self._work.items():
            found[key.priority][key.owner].append((times.of(key), key.campaign_id, waiting[::-1]))
        for priority in sorted(found):
            owners = []
            for owner, campaigns in found[priority].items():
                heapq.heapify(campaigns)
                oldest = min(campaign_id for _, campaign_id, _ in campaigns)
                owners.append((times.of(ShareKey(self.name, priority, owner)), oldest, owner, campaigns))
            heapq.heapify(owners)
            self._owners.append((priority, owners))

    def sort_again(self, times: VirtualTimes) -> None:
        """After virtual times and queues changed in another way than by forming what is first."""
        self._find_free()
        for priority, owners in self._owners:
            for number, (_, oldest, owner, campaigns) in enumerate(owners):
                key = ShareKey(self.name, priority, owner)
                campaigns[:] = [(times.of(key._replace(campaign_id=i)), i, waiting) for _, i, waiting in campaigns]
                heapq.heapify(campaigns)
                owners[number] = (times.of(key), oldest, owner, campaigns)
            heapq.heapify(owners)

    def _find_free(self) -> None:
        if self.retries:
            self._free = [d for d in self.devices if self.in_queue[queue_of_device(d.uuid)] < self.outstanding]

    @property
    def priority(self) -> int | None:
        """The highest priority that waits."""
        return self._owners[-1][0] if self._owners else None

    @property
    def has_room(self) -> bool:
        if self.retries:
            return bool(self._free)
        return self.in_queue[self.name] < self.outstanding * len(self.devices)

    def rank(self) -> _Rank | None:
        """Its place among the resources: the most urgent work, then the emptiest queues; then what failed, what is fresh,
        and suspects. None: it takes no more.
        """
        if not self._owners or not self.has_room:
            return None
        first = self.first()
        kind = 2 if first.solo else 0 if first.retry else 1
        return -self._owners[-1][0], self.in_queue.total() / len(self.devices), kind, self.name

    def first(self) -> PendingJobs:
        """Whose turn it is."""
        _, _, _, campaigns = self._owners[-1][1][0]
        return campaigns[0][2][-1]

    def drop_first(self) -> None:
        """Nothing of it can be formed here in this turn: queues only get fuller, and job groups emptier."""
        owners = self._owners[-1][1]
        campaigns = owners[0][3]
        campaigns[0][2].pop()
        if campaigns[0][2]:
            return
        heapq.heappop(campaigns)
        if campaigns:
            return
        heapq.heappop(owners)
        if not owners:
            self._owners.pop()

    def queue_for(self, work: PendingJobs, only_on_avoided: bool) -> tuple[str, str] | None:
        """The queue with the most room for it, and the type of its devices."""
        if not self.retries:
            return self.name, self.devices[0].type
        able = [
            device
            for device in self._free
            if not device.is_among(work.refused_by) and (only_on_avoided or device.id != work.avoid_device_id)
        ]
        device = min(able, key=lambda d: (self.in_queue[queue_of_device(d.uuid)], d.id), default=None)
        return None if device is None else (queue_of_device(device.uuid), device.type)

    def formed(self, queue: str, times: VirtualTimes, seconds: float) -> None:
        """A batch was formed of what is first."""
        priority, owners = self._owners[-1]
        _, oldest, owner, campaigns = owners[0]
        _, campaign_id, waiting = campaigns[0]
        key = ShareKey(self.name, priority, owner, campaign_id)
        times.charge(key, seconds)
        heapq.heapreplace(campaigns, (times.of(key), campaign_id, waiting))
        heapq.heapreplace(owners, (times.of(key._replace(campaign_id=0)), oldest, owner, campaigns))
        self.in_queue[queue] += 1
        if self.retries and self.in_queue[queue] >= self.outstanding:
            self._free = [device for device in self._free if queue_of_device(device.uuid) != queue]

    def not_formed(self, assignment: Assignment, times: VirtualTimes, seconds: float) -> None:
        """The reverse of `formed`, for any of its batches. Follow it with `sort_again`."""
        work = assignment.work
        times.charge(ShareKey(self.name, work.priority, work.owner, work.campaign_id), -seconds)
        self.in_queue[assignment.queue] -= 1
