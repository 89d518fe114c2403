"""A CUDA card or MIG slice: kernels of any family, timed as captured graphs, their power read by NVML.

CuPy is imported in `open`, in the process that owns the device. Nothing here changes the card: clocks, limits and modes
are read and recorded.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from farm.devices import DeviceIdentity, DeviceKind
from farm.errors import CudaUnavailable, DeviceOutOfMemory, FarmError, InvalidOnDevice, MeasurementFailed
from farm.kernels import FAMILIES, MEMORY_SHARE, Configuration
from farm.lazy import load
from farm.measurement import Measurement, MeasuringRules
from farm.operands import OperandRules
from farm.protocols import ProtocolName
from farm.vendors import NVIDIA
from workers.devices.cards import require_cupy
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.devices.cuda_digest import CudaDigests
from workers.devices.cuda_errors import cuda_errors
from workers.devices.cuda_exactness import CardLoad, exactness
from workers.devices.cuda_protocols import ProtocolRunner
from workers.devices.cuda_referee import GUARD_BYTES, Referee, Verdict, new_seed, refused_if_wrong, why_not_refereed
from workers.devices.cuda_tiers import Tiers, Work
from workers.devices.cuda_verify import CudaVerifier
from workers.kernels.base import BoundKernel, CardContext, CudaFamily, Placement
from workers.kernels.families import worker_parts
from workers.kernels.sources import Kernels
from workers.measure.elements import poison
from workers.measure.exactness import Result
from workers.measure.explain import Explanation
from workers.measure.nvml import Card, Nvml
from workers.measure.operands import OPERANDS_VERSION, Buffers, Rotation, SetLayout, plan_rotation
from workers.measure.replay import Runs, estimate_ms, plan_replays, runs_of, timed_launch_ms
from workers.measure.soak import Soak, soak
from workers.measure.telemetry import TelemetryLog
from workers.measure.times import Times
from workers.measure.verify import Verification

MAX_SETS = 2048
"""The maximum number of operand sets. A launch of each is captured into a graph, which takes some microseconds."""

ROTATION_SHARE = 0.8
"""The share of free memory that a rotation may take; a single set may take more."""

LAUNCH_MS, INSTANTIATING_MS = 0.008, 0.4
"""Time in ms to capture one launch, and to create the graph, on a current host."""

MAX_WARMING_MS = 5.0
"""Kernels that take longer are not launched to warm up while graphs are captured."""

CANARY = Configuration.parse("tiled(tile=16) 256x256x256 f32")

SENTINEL = Configuration.parse("tiled(tile=32) 2048x2048x2048 f32")
"""Some milliseconds of a compute-bound kernel of the farm's own, so that the result does not depend on installed libraries."""


class CudaDevice:
    """Measures every family that runs on CUDA cards."""

    def __init__(self, identity: DeviceIdentity, kernels: Kernels) -> None:
        self.identity = identity
        self._kernels = kernels
        self._families: dict[str, CudaFamily] = {}
        self._loaded: set[str] = set()  # hashes of the kernels that this process has launched

    # --- taking and leaving the device ------------------------------------------------------------

    def open(self) -> None:
        self._nvml = Nvml()
        require_cupy(self._nvml.driver)
        self.meter: Card = self._nvml.card(self.identity.uuid)
        self._idle_power_w = self.meter.resting_power_w  # before this process wakes the card
        self._power_limit_w = self.meter.power_limit_w
        self.tiers = Tiers(self.meter, load(NVIDIA.power_source)(self.meter))
        # Read when CUDA starts, which importing CuPy does not yet do; `farm-worker` has set it for its processes already.
        os.environ["CUDA_VISIBLE_DEVICES"] = self.identity.uuid
        try:
            self._cp: Any = importlib.import_module("cupy")
        except ImportError as error:
            raise CudaUnavailable(why=f"CuPy cannot be imported: {error}") from None
        with cuda_errors():
            self._check_it_is_the_card()
            threads = self._read_limits()
            self._stream = self._cp.cuda.Stream(non_blocking=True)
            multiprocessors = self.identity.traits.multiprocessors or 1
            self._arena = DeviceArena(self._cp, 2 * self._l2_bytes, multiprocessors)
            self._verifier = CudaVerifier(self._cp, multiprocessors)
            self._digests = CudaDigests(self._cp, multiprocessors)
        self._other_protocols = ProtocolRunner(self._cp, self._stream, self.meter, self.tiers, self._l2_bytes)
        card = CardContext(
            cp=self._cp, traits=self.identity.traits, threads_per_multiprocessor=threads, kernels=self._kernels
        )
        self._families = {name: make(card) for name, make in worker_parts(DeviceKind.CUDA).items()}
        self._environment = self._describe()

    def close(self) -> None:
        with cuda_errors():
            for family in self._families.values():
                family.close()
            self._families.clear()
            self._arena.clear()
        self._nvml.close()

    def _check_it_is_the_card(self) -> None:
        """Checks that CUDA started on this card and no other. Otherwise rows would name the wrong card."""
        runtime = self._cp.cuda.runtime
        count = runtime.getDeviceCount()
        if count != 1:
            raise CudaUnavailable(
                why=f"CUDA had started in this process before, and sees {count} cards instead of one."
            )
        bus, expected = runtime.deviceGetPCIBusId(0).lower(), self.meter.pci_bus_id
        if expected is not None and bus != expected:
            raise CudaUnavailable(
                why=f"CUDA had started on the card at {bus} before, {self.identity.uuid} is at {expected}."
            )
        runtime.setDevice(0)

    def _read_limits(self) -> int:
        """Completes the traits with CUDA's device attributes. Returns the maximum number of threads of a multiprocessor."""
        runtime = self._cp.cuda.runtime

        def attribute(name: str) -> int:
            return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), 0))

        self._l2_bytes = attribute("L2CacheSize")
        traits = replace(
            self.identity.traits,
            multiprocessors=attribute("MultiProcessorCount"),
            l2_bytes=self._l2_bytes,
            max_threads_per_block=attribute("MaxThreadsPerBlock"),
            shared_memory_per_block_bytes=attribute("MaxSharedMemoryPerBlockOptin"),
        )
        self.identity = replace(self.identity, traits=traits)
        return attribute("MaxThreadsPerMultiProcessor")

    def _describe(self) -> dict[str, Any]:
        runtime = self._cp.cuda.runtime
        version = runtime.runtimeGetVersion()
        return {
            "driver": self._nvml.driver,
            "cuda_runtime": f"{version // 1000}.{version % 1000 // 10}",
            "nvrtc": ".".join(str(part) for part in self._cp.cuda.nvrtc.getVersion()),
            "cupy": self._cp.__version__,
            "numpy": np.__version__,
            "operands": OPERANDS_VERSION,
            "python": platform.python_version(),
            "os": platform.platform(),
        }

    # --- measuring --------------------------------------------------------------------------------

    def canary(self) -> Configuration:
        return CANARY

    def sentinel(self) -> Configuration:
        return SENTINEL

    def prepare(self, configuration: Configuration) -> None:
        """Errors are suppressed. They are raised again when the configuration is measured."""
        with suppress(FarmError), cuda_errors():
            if configuration.why_invalid(self.identity.traits) is None:
                self._cp.cuda.runtime.setDevice(0)  # each thread has its own current device
                self._families[configuration.kernel.family].prepare(configuration)
                self._verifier.prepare(configuration.problem)
                self._digests.prepare(configuration.problem)

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        start = time.perf_counter()
        if self._idle_power_w is None:  # it was at work when this process opened it
            self._idle_power_w = self.meter.resting_power_w
        log = TelemetryLog(before=self.meter.telemetry())
        untrusted = FAMILIES[configuration.kernel.family].untrusted
        operands = rules.operands_used
        if untrusted:
            if (why := why_not_refereed(rules)) is not None:
                raise InvalidOnDevice(why=why)
            operands = operands.model_copy(update={"seed": new_seed()})
        tiers = self.tiers if rules.protocol is ProtocolName.FARM else self._other_protocols
        with self.replaying(configuration, operands) as work:
            times, power = tiers.measure(work, rules, log, explanation, power=rules.wants_power(configuration.id))
            timed = time.perf_counter()
            warm_ms = None
            if rules.timing.warm_l2 and not untrusted:  # a kernel could keep the result of the one operand set
                runs = self._runs(work.kernel, 1, work.gemm_ms)
                warm_ms = self.tiers.time_warm_l2(runs, rules, explanation)
                if times.power_limited:
                    self.tiers.needs_rest()
            end = time.perf_counter()
            family = self._families[configuration.kernel.family]
            exact = exactness(self._cp, self._digests, family, configuration, work, rules, self.identity.traits)
            verdict = self._referee(work, times)
            if explanation is not None:
                explanation.telemetry = [look for look in (log.before, *log.looks) if look is not None]
                prepared = work.began_s - work.rested_s - start
                explanation.seconds |= {"preparing and verifying": prepared, "rest": work.rested_s}
                explanation.seconds |= {"timing and power": timed - work.began_s, "warm cache": end - timed}
                explanation.seconds |= {"comparing bits": time.perf_counter() - end}
            details = {
                **work.kernel.details(),
                "operand_sets": work.rotation.sets,
                "footprint_bytes": work.rotation.footprint_bytes,
                **work.runs.details(),
                "verified_by": work.checked.method,
                "rested_s": round(work.rested_s, 4),
                **({} if verdict is None else verdict.details()),
                **({} if power is None else power.details()),
            }
            return Measurement(
                **times.columns(),
                l2=work.rotation.l2,
                runtime_warm_ms=warm_ms,
                **({} if power is None else power.columns()),
                idle_power_w=self._idle_power_w,
                power_limit_w=self._power_limit_w,
                **log.columns(times.power_limited),
                verify_error=work.checked.error,
                **exact.columns(),
                distribution=operands.text,
                seed=operands.seed,
                protocol=rules.protocol,
                kernel_hash=work.kernel.hash,
                cost_s=time.perf_counter() - start,
                window_s=end - work.began_s,
                environment=self._environment,
                details=details,
            )

    def _referee(self, work: Work, times: Times) -> Verdict | None:
        """What the referee says of a kernel that is not the farm's. Raises `KernelRefused`."""
        if work.referee is None:
            return None
        with cuda_errors(), self._stream:
            verdict = work.referee.check(
                work.kernel.launch, times, device_type=self.identity.type, rest=self.tiers.rest
            )
        if times.power_limited:
            self.tiers.needs_rest()
        return verdict

    def soak(self, configuration: Configuration, rules: MeasuringRules, seconds: float) -> Iterator[Soak]:
        with self.replaying(configuration, rules.operands) as work:
            try:
                yield from soak(CardLoad(work, self.meter), seconds)
            finally:
                work.drain()

    @contextmanager
    def replaying(self, configuration: Configuration, rules: OperandRules) -> Iterator[Work]:
        """The configuration verified and its graphs captured, inside the block.

        Raises `InvalidOnDevice`, `WrongResult`, `ElementNotWritten`, `MeasurementFailed` and `DevicePoisoned`.
        """
        why = configuration.why_invalid(self.identity.traits)
        if why is not None:
            raise InvalidOnDevice(why=why)
        try:
            with cuda_errors(), self._stream:
                buffers, rotation, referee = self._operands(configuration, rules)
                kernel = self._families[configuration.kernel.family].bind(
                    configuration, Placement.of(buffers, rotation.sets)
                )
                try:
                    with nullcontext() if referee is None else refused_if_wrong("result"):
                        checked, result, rough_ms = self._verify(configuration, buffers, kernel, rules, rotation.sets)
                    rest = self.tiers.rest_left_s() > 0
                    warming_s = None if rest else self._warm_meanwhile(kernel, rotation.sets, rough_ms)
                    runs = self._runs(kernel, rotation.sets, rough_ms)
                    rest_s = self.tiers.rest(self._stream)
                    yield Work(
                        kernel=kernel,
                        runs=runs,
                        rotation=rotation,
                        checked=checked,
                        operands=buffers.views(0),
                        result=result,
                        gemm_ms=rough_ms,
                        began_s=warming_s or time.perf_counter(),
                        rested_s=rest_s,
                        referee=referee,
                    )
                finally:
                    kernel.close()
        except DeviceOutOfMemory:  # the next job finds the card as it was at first
            self._arena.clear()
            raise

    def _operands(self, configuration: Configuration, rules: OperandRules) -> tuple[Buffers, Rotation, Referee | None]:
        """The operand sets of a configuration; for a kernel that is not the farm's with its referee, and in guard zones."""
        layout = SetLayout.of(configuration.problem, ALIGNMENT)
        if not FAMILIES[configuration.kernel.family].untrusted:
            rotation = self._rotation(layout)
            return self._arena.buffers(layout, rotation.sets, rules), rotation, None
        guarded = SetLayout.of(configuration.problem, ALIGNMENT, guard_bytes=GUARD_BYTES)
        rotation = self._rotation(layout, guarded=guarded)
        referee = Referee(
            self._cp, self._stream, self._arena, self._verifier, self._digests, guarded, rotation.sets, rules
        )
        return referee.buffers, rotation, referee

    def _warm_meanwhile(self, kernel: BoundKernel, sets: int, gemm_ms: float) -> float | None:
        """Queues warm-up launches for about the time that capturing will take. Returns when they began, or None without any.

        A kernel that is much shorter than its launch would not keep the card busy. A long kernel would take longer than capturing.
        """
        if not (kernel.capturable and 2 * LAUNCH_MS <= gemm_ms <= MAX_WARMING_MS):
            return None
        began_s, plan = time.perf_counter(), plan_replays(sets, gemm_ms)
        for index in range(math.ceil((sum(plan.launches) * LAUNCH_MS + INSTANTIATING_MS) / gemm_ms)):
            kernel.launch(index % sets)
        return began_s

    def _runs(self, kernel: BoundKernel, sets: int, gemm_ms: float) -> Runs:
        return runs_of(self._cp, self._stream, kernel.launch, sets, gemm_ms, capturable=kernel.capturable)

    def _rotation(self, layout: SetLayout, *, guarded: SetLayout | None = None) -> Rotation:
        """`guarded`: the same with guard zones, which take memory, one set more among them."""
        free, total = self._cp.cuda.runtime.memGetInfo()
        free += self._arena.bytes + self._cp.get_default_memory_pool().free_bytes()
        if layout.bytes > total * MEMORY_SHARE:
            raise InvalidOnDevice(why=f"one operand set takes {layout.bytes:,} bytes, the device has {total:,}")
        if layout.bytes > free:
            raise MeasurementFailed(
                why=f"one operand set takes {layout.bytes:,} bytes, and others leave {free:,} of {total:,} free"
            )
        sets = MAX_SETS if guarded is None else min(MAX_SETS, int(free * ROTATION_SHARE) // guarded.bytes - 1)
        if sets < 1:
            raise MeasurementFailed(why=f"two operand sets take {2 * layout.bytes:,} bytes, and {free:,} are free")
        return plan_rotation(
            layout.bytes_at_work,
            stored_bytes=layout.bytes,
            cache_bytes=self._l2_bytes,
            memory_bytes=int(free * ROTATION_SHARE),
            max_sets=sets,
        )

    def _verify(
        self, configuration: Configuration, buffers: Buffers, kernel: BoundKernel, rules: OperandRules, sets: int
    ) -> tuple[Verification, Result, float]:
        """Verifies the result, begins its digest, and estimates the time of a launch in ms. All is queued in this order."""
        operands, problem = buffers.views(0), configuration.problem
        operands.d.fill(poison(problem.types.cd))
        first_ms = timed_launch_ms(self._cp, self._stream, kernel.launch, 0)  # an error of the kernel shows here
        checking = self._verifier.begin(problem, operands, rules, roundings=kernel.roundings)
        result = Result(
            operands.d,
            lambda: kernel.launch(0),
            self._digests.begin,
            poison=poison(problem.types.cd),
            deterministic=kernel.deterministic,
        )
        rough_ms = estimate_ms(
            self._cp, self._stream, kernel.launch, sets, first_ms=first_ms, loaded=kernel.hash in self._loaded
        )
        self._loaded.add(kernel.hash)
        return checking(), result, rough_ms
