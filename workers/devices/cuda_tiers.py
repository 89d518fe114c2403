"""The tiers of a measurement on a card under the protocol `farm`: how long a kernel takes, and how much it draws.

One load without a gap: its first part gives the burst time, the next the samples of the timing, and the rest the power. Where the
power limiter holds the card, the settled time comes from what was read once it had answered: see `workers.measure.settling`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from farm.measurement import MeasuringRules
from farm.protocols import PROTOCOLS, ProtocolName
from farm.vendors.nvidia import ClockEvent
from workers.devices.cuda_referee import Referee
from workers.kernels.base import BoundKernel
from workers.measure.exactness import Result
from workers.measure.explain import Explanation
from workers.measure.nvml import Card
from workers.measure.operands import OperandSet, Rotation
from workers.measure.power.series import DROPPED_SECONDS
from workers.measure.power.source import PowerReading, PowerSource
from workers.measure.replay import BATCH_MS, Runs, batches_of_replays, in_time
from workers.measure.settling import (
    AGREEING,
    ANSWER_SECONDS,
    BURST_FROM_SECONDS,
    BURST_UNTIL_SECONDS,
    LAW_RSE,
    LOOKED_SECONDS,
    MOVED,
    SWINGING_SECONDS,
    UNTOUCHED_SECONDS,
    Interval,
    agreeing,
    drawn_w,
    intervals,
    is_held,
    is_untouched,
    why_unsettled,
)
from workers.measure.telemetry import TelemetryLog
from workers.measure.times import Times
from workers.measure.timing import Timing, time_samples, warm_up
from workers.measure.verify import Verification

RING_SECONDS = 0.1
"""How much of the driver's power samples from before a kernel is read: at least the last one of them."""

WAITING_MS = 5.0
"""How long a kernel runs between two looks for a power sample."""

LOOK_SECONDS = 0.1
"""Between two looks at clocks and temperature while timing."""

AWAKE_SECONDS = 0.02
"""So long before a rest ends, the processor stays awake."""

POLLING_SECONDS = 0.002
"""Between two looks at what has ended while the card is kept busy."""

REST_SECONDS = PROTOCOLS[ProtocolName.FARM].rest_s


@dataclass(slots=True)
class Work:
    """One configuration on the card, ready to be run: what the tiers share."""

    kernel: BoundKernel
    runs: Runs
    rotation: Rotation
    checked: Verification
    operands: OperandSet  # the first one
    result: Result  # its D
    gemm_ms: float  # as far as is known
    began_s: float  # of `time.perf_counter`: since then the card runs it to be measured
    rested_s: float = 0.0  # seconds of rest before that
    referee: Referee | None = None  # of a kernel that is not the farm's

    @property
    def ran_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began_s

    def keep_busy(self) -> None:
        """Queues some milliseconds of work and returns at once."""
        self.runs.keep_busy(self.gemm_ms)

    def drain(self) -> None:
        """Waits for all queued work."""
        self.runs.drain()

    def run_for(self, milliseconds: float) -> None:
        """Runs it for about so long, and waits for that."""
        self.runs.sample(max(1, round(milliseconds / (self.gemm_ms * self.runs.launches))))


@dataclass(slots=True)
class _Look:
    """Reads the card's telemetry every `LOOK_SECONDS` while it works, and its settings once."""

    card: Card
    log: TelemetryLog
    last: float = 0.0

    def __call__(self) -> None:
        if not self.last:
            self.log.application_clocks_mhz = self.card.application_clocks_mhz
        if time.perf_counter() - self.last >= LOOK_SECONDS:
            self.log.add(self.card.telemetry())
            self.last = time.perf_counter()


def _clocks(log: TelemetryLog) -> list[int]:
    return [look.sm_clock_mhz for look in log.looks if look.sm_clock_mhz]


class Tiers:
    """Times, and reads power, on one card."""

    def __init__(self, meter: Card, power_source: PowerSource) -> None:
        self._meter = meter
        self._power_source = power_source
        self._limit_w = meter.power_limit_w
        self._samples_power = bool(meter.power_samples(0))
        self._tells_power = self._samples_power and self._limit_w is not None
        self._fastest_mhz: int | None = None  # the highest SM clock that was seen
        self._at_limit_until_s = -math.inf  # of `time.perf_counter`: when the last load at the limit ended

    def rest_left_s(self) -> float:
        """Seconds until the card has rested enough after a load at its limit."""
        return max(0.0, self._at_limit_until_s + REST_SECONDS - time.perf_counter())

    def needs_rest(self) -> None:
        """Says that the card has just run a kernel that may have been at the limit."""
        self._at_limit_until_s = time.perf_counter()

    def rest(self, stream: Any) -> float:
        """Lets the card rest as long as it must. Returns the seconds.

        The last milliseconds are not slept: a processor that has just woken up queues short graphs too slowly.
        """
        rest_s = self.rest_left_s()
        if rest_s:
            stream.synchronize()
            time.sleep(max(0.0, rest_s - AWAKE_SECONDS))
            while self.rest_left_s():
                pass
        return rest_s

    def measure(
        self,
        work: Work,
        rules: MeasuringRules,
        log: TelemetryLog,
        explanation: Explanation | None = None,
        *,
        power: bool = False,
    ) -> tuple[Times, PowerReading | None]:
        """Times it by the rules, and reads its power where `power` is true; `work.gemm_ms` is the time of a GEMM then."""
        began_s = time.time() - work.ran_s
        burst, later_ms = self._burst(work, rules, log, explanation)
        reading = self.power(work, rules, log, explanation) if power else None
        settled, timing = None, None
        if reading is not None:
            self._note_clocks(log)
            settled = self._at_limit(self._seen(work, began_s), burst, explanation)
            if settled is None:
                timing = self._timing_of_lots(work, rules, explanation)
        elif (why := self._why_unsettled(work, log, began_s, burst, later_ms)) is not None:
            if explanation is not None:
                explanation.note(f"the card had not settled: {why}")
            log.looks.clear()
            seen = self._settle(work, log, began_s, burst)
            settled = self._at_limit(seen[-AGREEING:] if self._agree(seen) else seen, burst, explanation)
            if settled is None:
                timing = self._timing_of_lots(work, rules, explanation)
            later_ms = []
        timing = settled or timing or self._timed(work, rules, log, explanation, later_ms)
        limited = True if settled is not None else self._is_slowed(log, burst, timing)
        if limited:
            self.needs_rest()
        return Times(timing=timing, burst=burst, settled=timing, power_limited=limited), reading

    def _burst(
        self, work: Work, rules: MeasuringRules, log: TelemetryLog, explanation: Explanation | None
    ) -> tuple[Timing, list[float]]:
        """The burst, and the samples that came after it."""
        after_ms = rules.timing.min_samples * work.gemm_ms * work.runs.launches
        lots = work.runs.begin(work.gemm_ms, 1e3 * BURST_UNTIL_SECONDS + min(after_ms, BATCH_MS))
        _Look(self._meter, log)()
        begins = chain([0.0], (lot.ended_s for lot in lots))
        first = [
            lot
            for lot, begin_s in zip(lots, begins, strict=False)
            if begin_s >= BURST_FROM_SECONDS and lot.ended_s <= BURST_UNTIL_SECONDS
        ] or lots[:1]
        burst = Timing.of([lot.gemm_ms for lot in in_time(first)], "burst")
        work.gemm_ms = burst.median_ms
        if explanation is not None:
            explanation.burst_ms = [lot.gemm_ms for lot in in_time(first)]
            explanation.note(f"burst: {burst.median_ms:.4g} ms, the median of {burst.samples} samples")
        warm_up_s = max(BURST_UNTIL_SECONDS, rules.timing.warmup_seconds)
        while work.ran_s < rules.timing.warmup_seconds:
            work.run_for(BATCH_MS)
        return burst, [lot.gemm_ms for lot in lots if lot.ended_s > warm_up_s and not lot.late]

    def _seen(self, work: Work, began_s: float) -> list[Interval]:
        """Times and power since the limiter has answered, of what the card was last kept busy with."""
        busy_s = work.runs.busy_since_s
        since_us = int(1e6 * (busy_s - RING_SECONDS))
        samples = [(at_us / 1e6 - busy_s, watts) for at_us, watts in self._meter.power_samples(since_us)]
        answered_s = began_s + ANSWER_SECONDS - busy_s
        return [one for one in intervals(work.runs.pace(), samples) if one.begin_s >= answered_s]

    def _settle(self, work: Work, log: TelemetryLog, began_s: float, burst: Timing) -> list[Interval]:
        """Keeps the card busy until its times at the limit agree, or for `SWINGING_SECONDS` since it began.

        Ends sooner, with nothing, where the limiter has had its time and the kernel is not slower.
        """
        look = _Look(self._meter, log)
        seen: list[Interval] = []
        while (ran_s := time.time() - began_s) < SWINGING_SECONDS and not self._agree(seen):
            work.keep_busy()
            time.sleep(POLLING_SECONDS)
            look()
            if self._tells_power:
                seen = self._seen(work, began_s) if ran_s >= ANSWER_SECONDS else []
                ran_ms = [lot.gemm_ms for lot in in_time(work.runs.pace())]
                if not seen and ran_s >= UNTOUCHED_SECONDS and is_untouched(ran_ms, burst.median_ms):
                    break
        log.add(self._meter.telemetry())  # clocks are read with a delay
        work.drain()
        return seen

    def _agree(self, seen: Sequence[Interval]) -> bool:
        return self._limit_w is not None and agreeing(seen, self._limit_w)

    def _at_limit(self, seen: Sequence[Interval], burst: Timing, explanation: Explanation | None) -> Timing | None:
        """The settled time of a kernel that the limiter holds; None where it does not."""
        limit_w = self._limit_w
        if limit_w is None or not is_held(seen, limit_w, burst.median_ms):
            return None
        times = [one.at_limit_ms(limit_w) for one in seen]
        found = Timing.of(times, "converged" if agreeing(seen, limit_w) else "budget")
        if explanation is not None:
            watts = statistics.median(one.watts for one in seen)
            explanation.note(
                f"held by the power limiter: {found.median_ms:.4g} ms at its {limit_w:.0f} W, told from"
                f" {found.samples} power samples around {watts:.0f} W"
            )
            explanation.samples_ms = times
        return replace(found, rse=math.hypot(found.rse, LAW_RSE))

    def _timing_of_lots(self, work: Work, rules: MeasuringRules, explanation: Explanation | None) -> Timing | None:
        """The timing of what the card was last kept busy with. None where that is not as much as the rules ask for."""
        ran = work.runs.pace()
        lots = in_time([lot for lot in ran if lot.ended_s >= DROPPED_SECONDS] or ran)
        if len(lots) < rules.timing.min_samples:
            return None
        timing = Timing.of([lot.gemm_ms for lot in lots], "converged")
        if timing.rse > rules.timing.target_rse:
            timing = replace(timing, stop_reason="budget")
        work.gemm_ms = timing.median_ms
        if explanation is not None:
            explanation.samples_ms = [lot.gemm_ms for lot in lots]
        return timing

    def _is_slowed(self, log: TelemetryLog, burst: Timing, timing: Timing) -> bool | None:
        """Whether the limiter slows the card down below its power limit; told from clocks and events.

        These may still be those of an earlier kernel. So on a card whose power samples tell kernels at the limit, the time must be
        longer than the burst as well.
        """
        if self._tells_power and timing.median_ms <= (1 + MOVED) * burst.median_ms:
            return False
        clocks, events = _clocks(log), log.clock_events
        if events is None or not clocks or self._fastest_mhz is None:
            return False if self._tells_power else None
        return bool(events & ClockEvent.SW_POWER_CAP) and min(clocks) < (1 - MOVED) * self._fastest_mhz

    def _timed(
        self, work: Work, rules: MeasuringRules, log: TelemetryLog, explanation: Explanation | None, taken: list[float]
    ) -> Timing:
        """Times it by the rules; `taken` are samples that it has already."""
        runs, look = work.runs, _Look(self._meter, log)
        batches = batches_of_replays(work.gemm_ms * runs.launches, rules.timing.min_samples)
        first = [taken] if taken else []

        def sample() -> list[float]:
            return first.pop() if first else runs.sample(next(batches), look)

        timing = time_samples(sample, rules.timing, explanation=explanation)
        work.gemm_ms = timing.median_ms
        return timing

    def _why_unsettled(
        self, work: Work, log: TelemetryLog, began_s: float, burst: Timing, later_ms: list[float]
    ) -> str | None:
        """Why the clocks are not settled yet; None if they are. The card has run this work since `began_s` of the wall clock.

        Adds samples to `later_ms`, those after the burst, until a limiter would have answered.
        """
        while (left_s := LOOKED_SECONDS - work.ran_s) > 0:
            replay_ms = work.gemm_ms * work.runs.launches
            later_ms += work.runs.sample(max(1, round(1e3 * left_s / replay_ms)))
        log.add(self._meter.telemetry())
        known = self._fastest_mhz  # the clocks of the first kernel may still be those of an earlier one
        self._note_clocks(log)
        drawn_w = self._drawn_w(work, began_s)
        if self._tells_power:  # clocks are read with a delay
            why = why_unsettled([], drawn_w, self._limit_w, None)
        else:
            why = why_unsettled(log.looks, drawn_w, self._limit_w, known and self._fastest_mhz)
        if why is None and not is_untouched(later_ms, burst.median_ms):
            why = f"it takes up to {100 * (max(later_ms) / burst.median_ms - 1):.0f}% longer than in its burst"
        return why

    def _note_clocks(self, log: TelemetryLog) -> None:
        self._fastest_mhz = max([*_clocks(log), self._fastest_mhz or 0]) or None

    def _drawn_w(self, work: Work, began_s: float) -> list[float]:
        """See `settling.drawn_w`. Runs the kernel until the driver has enough samples."""
        if self._limit_w is None:
            return []
        since_us = int(1e6 * (began_s - RING_SECONDS))
        while True:
            samples = [(at_us / 1e6, watts) for at_us, watts in self._meter.power_samples(since_us)]
            found = drawn_w(samples, began_s)
            if found or not self._samples_power or work.ran_s >= ANSWER_SECONDS:
                return found
            work.run_for(WAITING_MS)

    def time_warm_l2(self, runs: Runs, rules: MeasuringRules, explanation: Explanation | None) -> float:
        """The median, in ms, of runs with one operand set again and again: what fits into the L2 stays there."""
        gemm_ms = warm_up(runs.sample, rules.timing.warmup_seconds)
        batches = batches_of_replays(gemm_ms * runs.launches, rules.timing.min_samples)
        taken = Explanation()
        timing = time_samples(lambda: runs.sample(next(batches)), rules.timing, explanation=taken)
        if explanation is not None:
            explanation.warm_l2_ms = taken.samples_ms
        return timing.median_ms

    def power(
        self, work: Work, rules: MeasuringRules, log: TelemetryLog, explanation: Explanation | None = None
    ) -> PowerReading | None:
        """Reads the power while the card runs the kernel. None if the card measures no power."""
        try:
            return self._power_source.measure(work.keep_busy, rules, ran_s=work.ran_s, log=log, explanation=explanation)
        finally:
            work.drain()
