"""The tiers of a measurement on a card: how long a kernel takes, and how much it draws."""

from __future__ import annotations

import time
from dataclasses import dataclass

from farm.measurement import MeasuringRules
from workers.kernels.base import BoundKernel
from workers.measure.exactness import Result
from workers.measure.explain import Explanation
from workers.measure.nvml import Card
from workers.measure.operands import OperandSet, Rotation
from workers.measure.power.series import DROPPED_SECONDS
from workers.measure.power.source import PowerReading, PowerSource
from workers.measure.replay import Runs, batches_of_replays, mean_ms
from workers.measure.settling import ANSWER_SECONDS, drawn_w, why_unsettled
from workers.measure.telemetry import TelemetryLog
from workers.measure.timing import Timing, time_samples, warm_up
from workers.measure.verify import Verification

RING_SECONDS = 0.1
"""How much of the driver's power samples from before a kernel is read: at least the last one of them."""

WAITING_MS = 5.0
"""How long a kernel runs between two looks for a power sample."""

LOOK_SECONDS = 0.1
"""Between two looks at clocks and temperature while timing."""


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

    @property
    def ran_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began_s

    def keep_busy(self) -> None:
        """Queues 50 to 100 ms of work and returns at once."""
        self.runs.keep_busy(self.gemm_ms)

    def drain(self) -> None:
        """Waits for all queued work."""
        self.runs.drain()

    def sustained_ms(self) -> float | None:
        """The mean time of a GEMM while the card was last kept busy, over the part of the window that its power is read from.

        None if it was not kept busy.
        """
        return mean_ms(self.runs.pace(), DROPPED_SECONDS)

    def run_for(self, milliseconds: float) -> None:
        """Runs it for about so long, and waits for that."""
        self.runs.sample(max(1, round(milliseconds / (self.gemm_ms * self.runs.launches))))


@dataclass(slots=True)
class _Look:
    """Reads the card's telemetry every `LOOK_SECONDS` while it works, and its settings, which takes a millisecond, once."""

    card: Card
    log: TelemetryLog
    last: float = 0.0

    def __call__(self) -> None:
        if not self.last:
            self.log.application_clocks_mhz = self.card.application_clocks_mhz
        if time.perf_counter() - self.last >= LOOK_SECONDS:
            self.log.add(self.card.telemetry())
            self.last = time.perf_counter()


class Tiers:
    """Times, and reads power, on one card."""

    def __init__(self, meter: Card, power_source: PowerSource) -> None:
        self._meter = meter
        self._power_source = power_source
        self._limit_w = meter.power_limit_w
        self._samples_power = bool(meter.power_samples(0))
        self._fastest_mhz: int | None = None  # the highest SM clock that was seen

    def time(
        self, work: Work, rules: MeasuringRules, log: TelemetryLog, explanation: Explanation | None = None
    ) -> Timing:
        """Times it by the rules; `work.gemm_ms` is the median then.

        It is timed again where there are signs that the card had not settled: see `workers.measure.settling`.
        """
        began_s = time.time()
        work.gemm_ms = warm_up(work.runs.sample, rules.timing.warmup_seconds, explanation=explanation)
        settled = work.ran_s >= ANSWER_SECONDS
        timing = self._timed(work, rules, log, explanation)
        why = None if settled else self._why_unsettled(work, log, began_s)
        if why is None:
            return timing
        if explanation is not None:
            explanation.note(f"{timing.median_ms:.4g} ms, but the card had not settled: {why}. Timed again")
        log.looks.clear()
        while work.ran_s < ANSWER_SECONDS:
            work.run_for(1e3 * (ANSWER_SECONDS - work.ran_s))
        return self._timed(work, rules, log, explanation)

    def _timed(self, work: Work, rules: MeasuringRules, log: TelemetryLog, explanation: Explanation | None) -> Timing:
        runs, look = work.runs, _Look(self._meter, log)
        batches = batches_of_replays(work.gemm_ms * runs.launches, rules.timing.min_samples)
        timing = time_samples(lambda: runs.sample(next(batches), look), rules.timing, explanation=explanation)
        work.gemm_ms = timing.median_ms
        return timing

    def _why_unsettled(self, work: Work, log: TelemetryLog, began_s: float) -> str | None:
        """Why the clocks are not settled yet; None if they are. The card has run this work since `began_s` of the wall clock."""
        log.add(self._meter.telemetry())
        clocks = [look.sm_clock_mhz for look in log.looks if look.sm_clock_mhz]
        known = self._fastest_mhz  # the clocks of the first kernel may still be those of an earlier one
        self._fastest_mhz = max([*clocks, known or 0]) or None
        return why_unsettled(log.looks, self._drawn_w(work, began_s), self._limit_w, known and self._fastest_mhz)

    def _drawn_w(self, work: Work, began_s: float) -> list[float]:
        """See `settling.drawn_w`. Runs the kernel until the driver has enough samples."""
        if self._limit_w is None:
            return []
        since_us = int(1e6 * (began_s - RING_SECONDS))
        while True:
            samples = [(at_us / 1e6, watts) for at_us, watts in self._meter.power_samples(since_us)]
            found = drawn_w(samples, began_s, self._limit_w)
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
            return self._power_source.measure(work.keep_busy, rules, log=log, explanation=explanation)
        finally:
            work.drain()
