"""A CUDA card or MIG slice: hand-written kernels through CuPy, timed as captured graphs, their power read by NVML.

CuPy is imported in `open`, in the process that owns the device. Nothing here changes the card: clocks, limits and modes
are read and recorded.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.devices import DeviceIdentity
from farm.errors import CudaUnavailable, DeviceOutOfMemory, InvalidOnDevice, MeasurementFailed
from farm.gemm import ElementType
from farm.kernels import MEMORY_SHARE, Configuration
from farm.measurement import Measurement, MeasuringRules
from workers.devices.cards import require_cupy
from workers.devices.cuda_arena import DeviceArena
from workers.devices.cuda_errors import cuda_errors
from workers.kernels.tiled import FILL_ENTRY, TILED_ENTRY, TiledKernel, fill_options, source
from workers.measure.nvml import Card, Nvml
from workers.measure.operands import NUMPY_TYPES, Rotation, SetLayout, plan_rotation, views
from workers.measure.power import PowerReading, TelemetryLog, measure_power
from workers.measure.replay import Replays, estimate_ms, plan_replays, replays_in_batch
from workers.measure.timing import Timing, time_samples, warm_up
from workers.measure.verify import Verification, verify

ALIGNMENT = 256  # bytes: what cudaMalloc gives

MOST_SETS = 2048
"""Operand sets at the most: a launch of each is captured into a graph, which takes some microseconds."""

ROTATION_SHARE = 0.8
"""The share of free memory that a rotation may take; a single set may take more."""

CANARY = Configuration.parse("tiled(tile=16) 256x256x256 f32")

LOOK_SECONDS = 0.1
"""Between two looks at clocks and temperature while timing."""


@dataclass(slots=True)
class _Look:
    """Looks at the card now and then, while it works."""

    card: Card
    log: TelemetryLog
    last: float = 0.0

    def __call__(self) -> None:
        if time.perf_counter() - self.last >= LOOK_SECONDS:
            self.log.add(self.card.telemetry())
            self.last = time.perf_counter()


class CudaDevice:
    """Measures the family `tiled`."""

    def __init__(self, identity: DeviceIdentity) -> None:
        self.identity = identity
        self._kernels: dict[TiledKernel, Any] = {}
        self._fills: dict[ElementType, Any] = {}

    # --- taking and leaving the device ------------------------------------------------------------

    def open(self) -> None:
        self._nvml = Nvml()
        require_cupy(self._nvml.driver)
        self._card = self._nvml.card(self.identity.uuid)
        self._idle_power_w = self._card.power_now_w  # before this process wakes the card
        self._power_limit_w = self._card.power_limit_w
        # Read when CUDA starts, which importing CuPy does not yet do; `farm-worker` has set it for its processes already.
        os.environ["CUDA_VISIBLE_DEVICES"] = self.identity.uuid
        try:
            self._cp: Any = importlib.import_module("cupy")
        except ImportError as error:
            raise CudaUnavailable(why=f"CuPy cannot be imported: {error}") from None
        with cuda_errors():
            self._check_it_is_the_card()
            self._read_limits()
            self._stream = self._cp.cuda.Stream(non_blocking=True)
            self._arena = DeviceArena(self._cp, self._fill_uniform, 2 * self._l2_bytes)
        self._environment = self._describe()

    def close(self) -> None:
        self._kernels.clear()
        self._fills.clear()
        with cuda_errors():
            self._arena.clear()
        self._nvml.close()

    def _check_it_is_the_card(self) -> None:
        """CUDA must have started on this card and no other, or rows would carry another card's name."""
        runtime = self._cp.cuda.runtime
        count = runtime.getDeviceCount()
        if count != 1:
            raise CudaUnavailable(
                why=f"CUDA had started in this process before, and sees {count} cards instead of one."
            )
        bus, expected = runtime.deviceGetPCIBusId(0).lower(), self._card.pci_bus_id
        if expected is not None and bus != expected:
            raise CudaUnavailable(
                why=f"CUDA had started on the card at {bus} before, {self.identity.uuid} is at {expected}."
            )
        runtime.setDevice(0)

    def _read_limits(self) -> None:
        runtime = self._cp.cuda.runtime

        def attribute(name: str) -> int:
            return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), 0))

        self._l2_bytes = attribute("L2CacheSize")
        self._threads_per_multiprocessor = attribute("MaxThreadsPerMultiProcessor")
        self._multiprocessors = attribute("MultiProcessorCount")
        self.identity = replace(
            self.identity,
            traits=replace(
                self.identity.traits,
                multiprocessors=self._multiprocessors,
                l2_bytes=self._l2_bytes,
                max_threads_per_block=attribute("MaxThreadsPerBlock"),
                shared_memory_per_block_bytes=attribute("MaxSharedMemoryPerBlockOptin"),
            ),
        )

    def _describe(self) -> dict[str, Any]:
        runtime = self._cp.cuda.runtime
        version = runtime.runtimeGetVersion()
        return {
            "driver": self._nvml.driver,
            "cuda_runtime": f"{version // 1000}.{version % 1000 // 10}",
            "nvrtc": ".".join(str(part) for part in self._cp.cuda.nvrtc.getVersion()),
            "cupy": self._cp.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "os": platform.platform(),
        }

    # --- kernels and operands ---------------------------------------------------------------------

    def _fill_uniform(self, numbers: Any, kind: ElementType, seed: int) -> None:
        if kind not in self._fills:
            module = self._cp.RawModule(code=source("operands.cu"), options=fill_options(kind))
            self._fills[kind] = module.get_function(FILL_ENTRY)
        blocks = min(-(-numbers.size // 256), 32 * self._multiprocessors)
        self._fills[kind]((blocks,), (256,), (numbers, np.uint64(numbers.size), np.uint64(seed)))

    def _compiled(self, kernel: TiledKernel) -> Any:
        if kernel not in self._kernels:
            module = self._cp.RawModule(code=kernel.code, options=kernel.options)
            self._kernels[kernel] = module.get_function(TILED_ENTRY)
        return self._kernels[kernel]

    def _rotation(self, layout: SetLayout) -> Rotation:
        free, total = self._cp.cuda.runtime.memGetInfo()
        free += self._arena.bytes + self._cp.get_default_memory_pool().free_bytes()
        if layout.bytes > total * MEMORY_SHARE:
            raise InvalidOnDevice(why=f"one operand set takes {layout.bytes:,} bytes, the device has {total:,}")
        if layout.bytes > free:
            raise MeasurementFailed(
                why=f"one operand set takes {layout.bytes:,} bytes, and others leave {free:,} of {total:,} free"
            )
        return plan_rotation(
            layout.bytes,
            cache_bytes=self._l2_bytes,
            memory_bytes=int(free * ROTATION_SHARE),
            most_sets=MOST_SETS,
        )

    def _launcher(
        self,
        configuration: Configuration,
        kernel: Any,
        launch: TiledKernel,
        layout: SetLayout,
        inputs: Any,
        outputs: Any,
    ) -> Callable[[int], None]:
        """A function that launches the kernel on an operand set, on the current stream."""
        p = configuration.problem
        scalar = NUMPY_TYPES[p.types.acc]
        ab, cd = p.types.ab.bytes, p.types.cd.bytes
        first_input, first_output = int(inputs.data.ptr), int(outputs.data.ptr)
        grid, block = launch.grid(p.shape), launch.block
        # Python integers reach a kernel as 64 bits: pointers and extents alike.
        rest = (p.shape.m, p.shape.n, p.shape.k, scalar(p.alpha), scalar(p.beta))

        def run(index: int) -> None:
            a = first_input + index * layout.inputs * ab
            c = a + layout.c_offset * ab if p.beta else 0
            d = first_output + index * layout.outputs * cd
            kernel(grid, block, (a, a + layout.b_offset * ab, c, d, *rest))

        return run

    # --- measuring --------------------------------------------------------------------------------

    def canary(self) -> Configuration:
        return CANARY

    def measure(self, configuration: Configuration, rules: MeasuringRules) -> Measurement:
        start = time.perf_counter()
        why = configuration.why_invalid(self.identity.traits)
        if why is not None:
            raise InvalidOnDevice(why=why)
        try:
            with cuda_errors(), self._stream:
                return self._measure(configuration, rules, start)
        except DeviceOutOfMemory:  # the next job finds the card as it was at first
            self._arena.clear()
            raise

    def _measure(self, configuration: Configuration, rules: MeasuringRules, start: float) -> Measurement:
        layout = SetLayout.of(configuration.problem, ALIGNMENT)
        rotation = self._rotation(layout)
        inputs, outputs = self._arena.buffers(layout, rotation.sets, rules.operands.seed)
        launch = TiledKernel.of(configuration)
        kernel = self._compiled(launch)
        run = self._launcher(configuration, kernel, launch, layout, inputs, outputs)
        checked = self._verify(configuration, layout, inputs, outputs, run, rules.operands.seed)
        plan = plan_replays(rotation.sets, estimate_ms(self._cp, self._stream, run, rotation.sets))
        replays = Replays(self._cp, self._stream, run, rotation.sets, plan)
        log = TelemetryLog()
        timing = self._time(replays, rules, log)
        power = self._power(replays, rules, timing, log) if rules.power == "all" else None
        details = {
            **self._kernel_details(kernel, launch, configuration),
            "operand_sets": rotation.sets,
            "footprint_bytes": rotation.footprint_bytes,
            "launches_per_sample": plan.launches,
            "verified_by": checked.method,
            **({} if power is None else power.details()),
        }
        return Measurement(
            **timing.columns(),
            l2=rotation.l2,
            power_w=None if power is None else power.power_w,
            power_source=None if power is None else power.source,
            idle_power_w=self._idle_power_w,
            power_limit_w=self._power_limit_w,
            **log.columns(),
            verify_error=checked.error,
            distribution=rules.operands.distribution,
            seed=rules.operands.seed,
            clock_policy=log.clock_policy(*self._card.application_clocks_mhz),
            kernel_hash=launch.hash,
            cost_s=time.perf_counter() - start,
            environment=self._environment,
            details=details,
        )

    def _verify(
        self,
        configuration: Configuration,
        layout: SetLayout,
        inputs: Any,
        outputs: Any,
        run: Callable[[int], None],
        seed: int,
    ) -> Verification:
        operands = views(layout, inputs, outputs, 0)
        operands.d.fill(np.nan)
        run(0)
        self._stream.synchronize()  # an error of the kernel shows here, not in the reference
        return verify(configuration.problem, operands, self._cp, seed=seed)

    def _time(self, replays: Replays, rules: MeasuringRules, log: TelemetryLog) -> Timing:
        gemm_ms = warm_up(replays.sample, rules.timing.warmup_seconds)
        batch, look = replays_in_batch(gemm_ms * replays.launches), _Look(self._card, log)
        return time_samples(lambda: replays.sample(batch, look), rules.timing)

    def _power(self, replays: Replays, rules: MeasuringRules, timing: Timing, log: TelemetryLog) -> PowerReading | None:
        try:
            return measure_power(self._card, lambda: replays.keep_busy(timing.median_ms), rules.power_seconds, log)
        finally:
            replays.drain()

    def _kernel_details(self, kernel: Any, launch: TiledKernel, configuration: Configuration) -> dict[str, Any]:
        """What the compiler and the device make of the kernel. Occupancy: resident warps over the most there can be."""
        resident = int(
            self._cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, launch.threads, 0)
        )
        columns, rows = launch.grid(configuration.problem.shape)
        warps = -(-launch.threads // 32)
        return {
            "registers": int(kernel.num_regs),
            "static_shared_bytes": int(kernel.shared_size_bytes),
            "local_bytes": int(kernel.local_size_bytes),
            "blocks": columns * rows,
            "blocks_per_multiprocessor": resident,
            "occupancy": resident * warps * 32 / self._threads_per_multiprocessor,
            "waves": columns * rows / (resident * self._multiprocessors) if resident else None,
        }
