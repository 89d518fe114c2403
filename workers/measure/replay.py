"""Timing kernels on a GPU: CUDA graphs replayed between events, so that the kernel is timed and not its launch.

A launch from Python takes several microseconds, as long as a short kernel runs; inside a captured graph it takes one.
What cannot be captured is launched in groups behind a kernel that holds the card until the whole group is queued, as
nvbench does; whether that worked is seen, not assumed. CuPy's module is given, never imported.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise, repeat, takewhile
from typing import Any, NamedTuple, Protocol

MIN_REPLAY_MS = 1.0
"""A sample is one replay at least this long: the gap between two graphs, some microseconds, is then under 1%."""

BATCH_MS = 20.0
"""Replays are queued one behind the other for about this long, then read together: the card does not run dry."""

MAX_IN_BATCH = 64
MAX_LOTS = 100_000
"""Of a card that is kept busy for long, so many lots are remembered: at least 100 s."""

QUEUED_MS = 10.0
"""Work kept in each of two places before the card while it is kept busy; a reading of its power takes some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """How launches are divided into graphs. Replayed in turn, the graphs walk over all operand sets again and again.

    `launches` has the number of launches of each graph. A graph goes on at the set at which the one before it stopped.
    """

    launches: tuple[int, ...]


def plan_replays(sets: int, estimate_ms: float) -> ReplayPlan:
    """Graphs of at least 1 ms, and not much more, because a sample is one graph.

    Where a walk over all sets takes less than 1 ms, one graph walks over them several times. A longer walk is divided into
    graphs whose lengths differ by one launch at most. Of a kernel that takes 1 ms, each set has its own graph.
    """
    launches = max(1, math.ceil(MIN_REPLAY_MS / estimate_ms))
    if launches >= sets:
        return ReplayPlan(launches=(math.ceil(launches / sets) * sets,))
    graphs = sets // launches
    each, longer = divmod(sets, graphs)
    return ReplayPlan(launches=(each + 1,) * longer + (each,) * (graphs - longer))


LOADING_MS = 100.0
"""A first launch may have to load the kernel, which takes up to that long; what takes longer is the kernel."""

TOLD_BY_ONE_MS = 0.1
"""A single launch takes about 10 us longer than its kernel: of one that takes so long, it tells enough."""


def timed_launch_ms(cp: Any, stream: Any, launch: Callable[[int], None], index: int) -> float:
    """A single launch on that operand set, waited for."""
    before = stream.record()
    launch(index)
    after = stream.record()
    after.synchronize()
    return float(cp.cuda.get_elapsed_time(before, after))


def estimate_ms(
    cp: Any, stream: Any, launch: Callable[[int], None], sets: int, *, first_ms: float, loaded: bool
) -> float:
    """How long a launch takes, to size groups by, after a first one that took `first_ms`; `loaded`: it was not the first.

    A long kernel is not launched again, unless to see whether it was loading that took so long. Of one that is not much
    longer than its launch, it is the least of four that are queued together.
    """
    if first_ms >= LOADING_MS or (loaded and first_ms >= TOLD_BY_ONE_MS):
        return first_ms
    if first_ms >= TOLD_BY_ONE_MS:
        first_ms = min(first_ms, timed_launch_ms(cp, stream, launch, 1 % sets))
        if first_ms >= TOLD_BY_ONE_MS:
            return first_ms
    events = [stream.record()]
    for index in range(1, 5):  # the first operand set's result may still be looked at
        launch(index % sets)
        events.append(stream.record())
    events[-1].synchronize()
    elapsed = [float(cp.cuda.get_elapsed_time(a, b)) for a, b in pairwise(events)]
    return max(min(first_ms, *elapsed), 1e-3)  # events resolve about half a microsecond


class Lot(NamedTuple):
    """Launches that were queued together, a replay or a group, to keep a card busy."""

    ended_s: float  # since the first lot began
    gemm_ms: float  # mean
    launches: int
    late: bool = False  # the host queued it after the card had run dry, so its time is too long


def in_time(lots: Sequence[Lot]) -> Sequence[Lot]:
    """The lots that are not late; all where every one is."""
    return [lot for lot in lots if not lot.late] or lots


class Runs(Protocol):
    """One configuration, run again and again on one stream."""

    launches: int
    """Launches in one sample. A sample may have one more."""

    def sample(self, replays: int = 1, meanwhile: Callable[[], None] | None = None) -> list[float]:
        """Milliseconds per launch of each of some samples in a row. `meanwhile` is called while they run."""

    def begin(self, gemm_ms: float, milliseconds: float) -> list[Lot]:
        """Runs for at least about so long, from rest, and waits for that. Returns the samples in order."""

    busy_since_s: float
    """When `keep_busy` was called for the first time after a `drain`, in seconds of the wall clock."""

    def keep_busy(self, gemm_ms: float) -> None:
        """Queues work until there is twice `QUEUED_MS` of it before the card; returns at once."""

    def drain(self) -> None:
        """Waits for all that was queued."""

    def pace(self) -> list[Lot]:
        """What `keep_busy` queued from the first time after a `drain` on, as far as it has ended, in order."""

    def details(self) -> dict[str, Any]:
        """What a row should hold of the way it was run."""


class _Busy(ABC):
    """Keeps a card busy with groups of launches that follow each other without a gap."""

    def __init__(self, cp: Any, stream: Any, launches: int) -> None:
        self._cp = cp
        self._stream = stream
        self.launches = launches
        self.busy_since_s = 0.0
        self._pending: deque[Any] = deque()  # the ends of what was queued together
        self._last: Any = None  # the event from which on the next lot runs; None: the card is not kept busy
        self._running: deque[tuple[Any, int, bool]] = deque()  # of lots: their end, launches, and whether they are late
        self._lots: list[Lot] = []

    @abstractmethod
    def _group(self) -> int:
        """Queues a sample's launches. Returns how many they are."""

    def keep_busy(self, gemm_ms: float) -> None:
        """Queues groups until there is twice `QUEUED_MS` of work before the card; returns at once."""
        while self._pending and self._pending[0].done:
            self._pending.popleft()
        self.pace()
        del self._lots[:-MAX_LOTS]
        while len(self._pending) < 2:
            self._queue(gemm_ms, QUEUED_MS)
            self._pending.append(self._running[-1][0])

    def _queue(self, gemm_ms: float, milliseconds: float) -> None:
        """Queues groups of at least about so long."""
        if self._last is None:
            self._last, self.busy_since_s, self._lots = self._stream.record(), time.time(), []
        queued = 0
        while queued * gemm_ms < milliseconds:
            before = self._running[-1][0] if self._running else self._last
            launches = self._group()
            late = bool(self._running or self._lots) and bool(before.done)
            self._running.append((self._stream.record(), launches, late))
            queued += launches

    def drain(self) -> None:
        """Waits for all that was queued."""
        self._stream.synchronize()
        self._end_lots(len(self._running))
        self._pending.clear()
        self._last = None

    def pace(self) -> list[Lot]:
        self._end_lots(sum(1 for _ in takewhile(lambda lot: lot[0].done, self._running)))
        return self._lots

    def _end_lots(self, count: int) -> None:
        """Takes the times of so many lots that have ended."""
        for _ in range(count):
            end, launches, late = self._running.popleft()
            took_ms = float(self._cp.cuda.get_elapsed_time(self._last, end))
            since_s = (self._lots[-1].ended_s if self._lots else 0.0) + took_ms / 1e3
            self._lots.append(Lot(since_s, took_ms / launches, launches, late))
            self._last = end


class Replays(_Busy):
    """The captured graphs of one configuration on one stream."""

    def __init__(self, cp: Any, stream: Any, launch: Callable[[int], None], sets: int, plan: ReplayPlan) -> None:
        """`launch(index)` launches the kernel on operand set `index`, on the current stream."""
        super().__init__(cp, stream, min(plan.launches))
        graphs, walk = [], cycle(range(sets))
        for launches in plan.launches:
            stream.begin_capture()
            try:
                for index in islice(walk, launches):
                    launch(index)
            finally:
                graph = stream.end_capture()
            if len(plan.launches) > 1:
                graph.upload(
                    stream
                )  # warming up may replay only some of them, and a first replay would be timed with it
            graphs.append((graph, launches))
        self._count = len(graphs)
        self._graphs = cycle(graphs)
        self._late = 0

    def begin(self, gemm_ms: float, milliseconds: float) -> list[Lot]:
        """As `Runs.begin`: all is queued at once."""
        self._lots = []
        while (left_ms := milliseconds - 1e3 * (self._lots[-1].ended_s if self._lots else 0.0)) > 0:
            self._queue(gemm_ms, left_ms)
            self._stream.synchronize()
            self._end_lots(len(self._running))
            gemm_ms = min(gemm_ms, *(lot.gemm_ms for lot in self._lots))  # it may take less than was known
        self.drain()
        return self._lots

    def _group(self) -> int:
        graph, launches = next(self._graphs)
        graph.launch(self._stream)
        return int(launches)

    def sample(self, replays: int = 1, meanwhile: Callable[[], None] | None = None) -> list[float]:
        """Milliseconds per launch of each of some replays in a row. `meanwhile` is called while they run.

        Where there are several, one more runs ahead of them, so that none of them waits for its launch. Where the host was
        late all the same, and the card had nothing to do, the sample is left out, if there are others.
        """
        if replays > 1:
            self._group()
        events, launches, late = [self._stream.record()], list[int](), list[bool]()
        for _ in range(replays):
            launches.append(self._group())
            late.append(replays > 1 and events[-1].done)
            events.append(self._stream.record())
        if meanwhile is not None:
            meanwhile()
        events[-1].synchronize()
        elapsed = self._cp.cuda.get_elapsed_time
        samples = [elapsed(a, b) / count for (a, b), count in zip(pairwise(events), launches, strict=True)]
        self._late += sum(late)
        return [sample for sample, was_late in zip(samples, late, strict=True) if not was_late] or samples

    def details(self) -> dict[str, Any]:
        return {
            "timed_by": "graph",
            "launches_per_sample": self.launches,
            "graphs": self._count,
            "late_samples": self._late,
        }


HOLD = r"""
extern "C" __global__ void hold(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"""

MAX_QUEUED = 500
"""Launches in a group: about a thousand fit into a stream's queue before a launch waits."""

MAX_HOLD_MS = 200.0


class Launches(_Busy):
    """The launches of one configuration that no graph can capture, in groups behind a kernel that holds the card.

    Where the holding kernel is still running when the last launch of a group is queued, none of them was waited for.
    """

    def __init__(self, cp: Any, stream: Any, launch: Callable[[int], None], sets: int, plan: ReplayPlan) -> None:
        sizes = [min(launches, MAX_QUEUED) for launches in plan.launches]
        super().__init__(cp, stream, min(sizes))
        self._sizes = cycle(sizes)
        self._launch = launch
        self._next = cycle(range(sets))
        self._hold = cp.RawModule(code=HOLD).get_function("hold")
        self._hold_ms = 1.0
        self.hidden = True

    def _group(self) -> int:
        launches = next(self._sizes)
        for index in islice(self._next, launches):
            self._launch(index)
        return launches

    def begin(self, gemm_ms: float, milliseconds: float) -> list[Lot]:
        """As `Runs.begin`: group by group, each behind a hold."""
        lots, began_s = list[Lot](), time.perf_counter()
        while not lots or 1e3 * lots[-1].ended_s < milliseconds:
            sample_ms = self._one()
            lots.append(Lot(time.perf_counter() - began_s, sample_ms, self.launches))
        return lots

    def sample(self, replays: int = 1, meanwhile: Callable[[], None] | None = None) -> list[float]:
        """As `Runs.sample`. A group whose launches were not hidden is taken again behind a longer hold."""
        samples = [self._one() for _ in range(replays)]
        if meanwhile is not None:
            meanwhile()
        return samples

    def _one(self) -> float:
        while True:
            self._hold((1,), (1,), (int(self._hold_ms * 1e6),))
            before = self._stream.record()
            launches = self._group()
            after = self._stream.record()
            hidden = not before.done
            after.synchronize()
            if hidden or self._hold_ms >= MAX_HOLD_MS:
                self.hidden = self.hidden and hidden
                return float(self._cp.cuda.get_elapsed_time(before, after)) / launches
            self._hold_ms *= 2

    def details(self) -> dict[str, Any]:
        return {"timed_by": "launches", "launches_per_sample": self.launches, "launches_hidden": self.hidden}


LAUNCH_BOUND_MS = 0.03
"""A shorter estimate may be the time that the host takes for a launch, which was up to three times that of the kernel."""


def runs_of(
    cp: Any, stream: Any, launch: Callable[[int], None], sets: int, gemm_ms: float, *, capturable: bool
) -> Runs:
    """The way to run a kernel of about that time that does not time its launches."""
    plan = plan_replays(sets, gemm_ms)
    if not capturable:
        return Launches(cp, stream, launch, sets, plan)
    if len(plan.launches) > 1 and gemm_ms < LAUNCH_BOUND_MS:
        # Graphs of 1 ms by the estimate may last 0.3 ms. The first of them shows how long the kernel takes.
        first = Replays(cp, stream, launch, sets, ReplayPlan(launches=plan.launches[:1]))
        plan = plan_replays(sets, min(gemm_ms, *first.sample(2)))
    return Replays(cp, stream, launch, sets, plan)


def replays_in_batch(replay_ms: float) -> int:
    """How many replays to queue before reading their times."""
    return max(1, min(MAX_IN_BATCH, round(BATCH_MS / replay_ms)))


def batches_of_replays(replay_ms: float, min_samples: int) -> Iterator[int]:
    """How many replays to queue for each batch in turn. After the first `min_samples`, most rows need no more."""
    batch = replays_in_batch(replay_ms)
    return chain([min(batch, min_samples)], repeat(batch))
