"""Times on a card by the rules of a named protocol other than `farm`: see `farm.protocols`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from farm.errors import InvalidOnDevice
from farm.measurement import MeasuringRules
from farm.protocols import PROTOCOLS, Protocol
from workers.devices.cuda_tiers import Tiers, Work
from workers.measure.explain import Explanation
from workers.measure.nvml import Card
from workers.measure.power.source import PowerReading
from workers.measure.replay import ReplayPlan, Replays
from workers.measure.telemetry import TelemetryLog
from workers.measure.times import Times
from workers.measure.timing import Spread, Timing

BATCH = 20
"""Samples that are queued one behind the other and read together."""

Take = Callable[[int], list[float]]
"""Takes so many samples: ms for each launch."""


@dataclass(frozen=True, slots=True)
class ProtocolRunner:
    """Follows protocols on one card."""

    cp: Any
    stream: Any
    meter: Card
    tiers: Tiers
    cache_bytes: int

    def measure(
        self,
        work: Work,
        rules: MeasuringRules,
        log: TelemetryLog,
        explanation: Explanation | None = None,
        *,
        power: bool = False,
    ) -> tuple[Times, PowerReading | None]:
        """Times the work by the rules of its protocol, and reads its power where `power` is true.

        Raises `InvalidOnDevice` where the card cannot follow them.
        """
        protocol = PROTOCOLS[rules.protocol]
        log.application_clocks_mhz = self.meter.application_clocks_mhz
        self.stream.synchronize()
        time.sleep(protocol.rest_s)
        take = self._take(work, protocol)
        samples = self._samples(take, work, protocol, log)
        timing = Timing.of(samples, "converged" if protocol.rse is None else "settled")
        if protocol.average == "mean":
            timing = replace(timing, median_ms=sum(samples) / len(samples))
        work.gemm_ms = timing.median_ms
        reading = self.tiers.power(work, rules, log, explanation) if power else None
        if explanation is not None:
            explanation.samples_ms = samples
            explanation.note(f"protocol {rules.protocol}: {protocol.meaning} ({protocol.source})")
        self.tiers.needs_rest()
        time.sleep(protocol.cool_down_s)
        burst, settled = (timing if protocol.time == name else None for name in ("burst", "settled"))
        return Times(timing=timing, burst=burst, settled=settled), reading

    def _samples(self, take: Take, work: Work, protocol: Protocol, log: TelemetryLog) -> list[float]:
        end = time.perf_counter() + protocol.warm_up_s
        while time.perf_counter() < end:
            take(BATCH)
            log.add(self.meter.telemetry())
        if protocol.locked_clocks and log.clock_policy == "default":
            raise InvalidOnDevice(
                why="the protocol needs locked clocks, and those of this card are not; its administrator locks them with"
                " nvidia-smi --lock-gpu-clocks=MHZ"
            )
        if protocol.warm_up_samples:
            take(protocol.warm_up_samples)
        log.looks.clear()
        spread, samples, began = Spread(), list[float](), time.perf_counter()
        per_sample = protocol.launches or work.runs.launches
        batch = min(BATCH, protocol.min_samples) if protocol.launches else BATCH
        while True:
            for sample in take(batch):
                samples.append(sample)
                spread.add(sample)
            log.add(self.meter.telemetry())
            seconds = time.perf_counter() - began
            enough = len(samples) >= protocol.min_samples and len(samples) * per_sample >= protocol.min_launches
            precise = protocol.rse is None or spread.relative_standard_error <= protocol.rse
            if (enough and precise and seconds >= protocol.seconds) or seconds >= protocol.max_seconds:
                return samples

    def _take(self, work: Work, protocol: Protocol) -> Take:
        """How the protocol takes samples."""
        if protocol.graphed and protocol.launches is None:
            return work.runs.sample
        launch, sets = work.kernel.launch, work.rotation.sets
        if protocol.graphed and work.kernel.capturable:
            return Replays(self.cp, self.stream, launch, sets, ReplayPlan(launches=(protocol.launches or 1,))).sample
        indices, launches = cycle(range(sets)), protocol.launches or 1
        cache = self.cp.empty(2 * self.cache_bytes // 8, "f8") if protocol.flush else None

        def one() -> tuple[Any, Any]:
            if protocol.gap_s:
                self.stream.synchronize()
                time.sleep(protocol.gap_s)
            if cache is not None:
                cache.data.memset_async(0, cache.nbytes)
            before = self.stream.record()
            for _ in range(launches):
                launch(next(indices))
            return before, self.stream.record()

        def take(count: int) -> list[float]:
            events = [one() for _ in range(count)]
            events[-1][1].synchronize()
            return [float(self.cp.cuda.get_elapsed_time(*pair)) / launches for pair in events]

        return take
