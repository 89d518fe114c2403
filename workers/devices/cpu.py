"""The machine's own processor: kernels of any family for CPUs, really timed.

What is timed is a call into an output that exists already: of the family `blas`, NumPy's `matmul`, so a short GEMM includes
NumPy's call, about half a microsecond. A batch is one call with stacked matrices. Operands are stored in the layout of the
problem, and passed as transposed views.
"""

from __future__ import annotations

import math
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np

from farm import host_memory
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits
from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.lazy import load
from farm.measurement import Measurement, MeasuringRules
from farm.operands import OperandRules
from farm.protocols import ProtocolName
from farm.vendors import CPU, device_type_of
from workers.devices import host
from workers.kernels.base import CpuFamily, CpuKernel
from workers.kernels.blas import blas_libraries
from workers.kernels.families import worker_parts
from workers.measure.digest import digest
from workers.measure.exactness import Exactness, Result, compare
from workers.measure.explain import Explanation
from workers.measure.nvml import Telemetry
from workers.measure.operands import OPERANDS_VERSION, HostArena, OperandSet, Rotation, SetLayout, plan_rotation
from workers.measure.power.rapl_power import packages
from workers.measure.power.source import PowerSource
from workers.measure.soak import Soak, soak
from workers.measure.times import Times
from workers.measure.timing import Timing, time_samples, warm_up
from workers.measure.verify import Verification, verify

MIN_SAMPLE_MS = 0.2
"""A sample is a group of GEMMs at least this long: the clock and the loop around it then cost under 0.1%."""

MAX_SETS = 8192
"""The maximum number of operand sets. With more, creating the views would take longer than measuring."""

LOAD_SECONDS = 0.01
"""How long a soak computes between two looks at the clock."""

OPERANDS_SHARE = 0.4
"""The share of memory that a rotation may take; a single set may take more."""

CANARY = Configuration.parse("blas(threads=1) 128x128x128 f32")

SENTINEL = Configuration.parse("blas(threads=1) 512x512x512 f32")

_HOSTS = uuid.UUID("6f0d3b0e-7a6b-4a53-9d0c-3f2f6c1f5f11")  # the name space of CPU devices


def identify() -> DeviceIdentity:
    """The processor of this host as a device. Reads /proc and /sys only."""
    name = host.processor_name()
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=host_memory.total_bytes(), threads=host.usable_threads())
    return DeviceIdentity(
        uuid=f"{CPU.uuid_prefixes[0]}{uuid.uuid5(_HOSTS, f'{host.host_id()} {name}')}",
        type=device_type_of(name, Backend.CPU),
        name=name,
        backend=Backend.CPU,
        traits=traits,
        facts={
            "last_level_cache_bytes": host.last_level_cache_bytes(),
            "clock_governor": host.clock_governor(),
            "rapl_packages": len(packages()),
        },
    )


def find(_word: str, _selection: str) -> list[DeviceIdentity]:
    """The one device that a word of FARM_DEVICES may name."""
    return [identify()]


class CpuDevice:
    """Measures every family that runs on processors."""

    def __init__(self, identity: DeviceIdentity) -> None:
        self.identity = identity

    def open(self) -> None:
        self._cache_bytes = host.last_level_cache_bytes()
        # What a rotation of small problems takes; a larger problem lets it grow.
        self._arena = HostArena(2 * self._cache_bytes)
        self._families: dict[str, CpuFamily] = {name: make() for name, make in worker_parts(DeviceKind.CPU).items()}
        self._power_source: PowerSource = load(CPU.power_source)()
        governor = host.clock_governor()
        self._clock_policy = None if governor is None else f"governor:{governor}"
        self._environment = self._describe()

    def close(self) -> None:
        del self._arena

    def canary(self) -> Configuration:
        return CANARY

    def sentinel(self) -> Configuration:
        return SENTINEL

    def prepare(self, configuration: Configuration) -> None:
        """Does nothing."""

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        start = time.perf_counter()
        if rules.protocol is not ProtocolName.FARM:
            raise InvalidOnDevice(why=f"a CPU cannot follow the protocol {rules.protocol}, only {ProtocolName.FARM}")
        operands, rotation = self._operands(configuration, rules)
        with self._families[configuration.kernel.family].bind(configuration) as kernel:
            try:
                checked = _run_and_verify(configuration, kernel, operands[0], rules.operands)
                result = _Result(kernel, operands[0])
            except MemoryError as error:
                raise MeasurementFailed(why=f"no memory for the verification: {error}") from None
            verified = time.perf_counter()
            timing, group = _timed(_Gemms(kernel, operands), rules, explanation)
            timed = time.perf_counter()
            taken = Explanation()
            warm = _timed(_Gemms(kernel, operands[:1]), rules, taken)[0] if rules.timing.warm_l2 else None
            warmed = time.perf_counter()
            power = None
            if rules.wants_power(configuration.id):
                gemms = _Gemms(kernel, operands)
                power = self._power_source.measure(lambda: gemms.sample(group), rules)
            end = time.perf_counter()
            exact = _exactness(configuration, kernel, operands[0], result, rules)
            compared = time.perf_counter()
        if explanation is not None:
            explanation.warm_l2_ms = taken.samples_ms
            explanation.seconds |= {"preparing and verifying": verified - start, "timing": timed - verified}
            explanation.seconds |= {"warm cache": warmed - timed, "power": end - warmed}
            explanation.seconds |= {"comparing bits": compared - end}
        return Measurement(
            **Times(timing=timing, settled=timing).columns(),
            l2=rotation.l2,
            runtime_warm_ms=None if warm is None else warm.median_ms,
            **({} if power is None else power.columns()),
            verify_error=checked.error,
            **exact.columns(),
            distribution=rules.operands.text,
            seed=rules.operands.seed,
            clock_policy=self._clock_policy,
            cost_s=time.perf_counter() - start,
            window_s=end - verified,
            environment=self._environment,
            details=_details(rotation, **kernel.details, gemms_per_sample=group, verified_by=checked.method),
        )

    def soak(self, configuration: Configuration, rules: MeasuringRules, seconds: float) -> Iterator[Soak]:
        operands, _ = self._operands(configuration, rules)
        with self._families[configuration.kernel.family].bind(configuration) as kernel:
            _run_and_verify(configuration, kernel, operands[0], rules.operands)
            yield from soak(_CpuLoad(_Gemms(kernel, operands), _Result(kernel, operands[0])), seconds)

    def _operands(self, configuration: Configuration, rules: MeasuringRules) -> tuple[list[OperandSet], Rotation]:
        why = configuration.why_invalid(self.identity.traits)
        if why is not None:
            raise InvalidOnDevice(why=why)
        layout = SetLayout.of(configuration.problem, HostArena.ALIGNMENT)
        rotation = plan_rotation(
            layout.bytes_at_work,
            stored_bytes=layout.bytes,
            cache_bytes=self._cache_bytes,
            memory_bytes=int(self.identity.traits.memory_bytes * OPERANDS_SHARE),
            max_sets=MAX_SETS,
        )
        return self._arena.sets(layout, rotation.sets, rules.operands), rotation

    def _describe(self) -> dict[str, Any]:
        libraries = [
            " ".join(str(library.get(key)) for key in ("internal_api", "version", "architecture") if library.get(key))
            for library in blas_libraries().info()
        ]
        return {
            "blas": ", ".join(libraries),
            "numpy": np.__version__,
            "operands": OPERANDS_VERSION,
            "python": platform.python_version(),
            "os": platform.platform(),
            "clock_governor": host.clock_governor(),
        }


def _run_and_verify(
    configuration: Configuration, kernel: CpuKernel, operands: OperandSet, rules: OperandRules
) -> Verification:
    operands.d.fill(np.nan)
    kernel.multiply(operands.a, operands.b, operands.d)
    return verify(configuration.problem, operands, rules, roundings=kernel.roundings)


class _Result(Result):
    """D of an operand set, which a kernel has written."""

    def __init__(self, kernel: CpuKernel, operands: OperandSet) -> None:
        def begin(d: Any) -> Callable[[], int]:
            found = digest(d)
            return lambda: found

        super().__init__(
            operands.d,
            lambda: kernel.multiply(operands.a, operands.b, operands.d),
            begin,
            poison=np.nan,
            deterministic=kernel.deterministic,
        )


class _CpuLoad:
    """A configuration that keeps a processor busy: see `workers.measure.soak.Load`."""

    def __init__(self, gemms: _Gemms, result: Result) -> None:
        self._gemms = gemms
        self.result = result

    def work(self) -> None:
        """Computes GEMMs for some milliseconds."""
        end = time.perf_counter() + LOAD_SECONDS
        while time.perf_counter() < end:
            self._gemms.sample(1)

    def copy(self) -> Any:
        return self.result.d.copy()

    def telemetry(self) -> Telemetry:
        """A processor tells nothing."""
        return Telemetry()


def _exactness(
    configuration: Configuration, kernel: CpuKernel, operands: OperandSet, result: Result, rules: MeasuringRules
) -> Exactness:
    """Compares the bits of the last result with those of the first. Raises `ResultCorrupted`."""

    def digest_with(rows: int) -> int | None:
        if configuration.problem.groups is not None:
            return None
        a, d = operands.a[..., :rows, :], np.full_like(operands.d[..., :rows, :], np.nan)
        if configuration.problem.layout.a_transposed:
            a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
        else:
            a = np.ascontiguousarray(a)
        kernel.multiply(a, operands.b, d)
        return digest(d)

    return compare(result, configuration.problem.shape.m, digest_with, determinism=rules.determinism)


def _timed(gemms: _Gemms, rules: MeasuringRules, explanation: Explanation | None = None) -> tuple[Timing, int]:
    """The time of one GEMM, and how many make a sample."""
    estimate_ms = warm_up(lambda: gemms.sample(1), rules.timing.warmup_seconds, explanation=explanation)
    group = max(1, math.ceil(MIN_SAMPLE_MS / estimate_ms))
    return time_samples(lambda: gemms.sample(group), rules.timing, explanation=explanation), group


def _details(rotation: Rotation, **more: Any) -> dict[str, Any]:
    return {"operand_sets": rotation.sets, "footprint_bytes": rotation.footprint_bytes, **more}


class _Gemms:
    """Runs GEMMs one after the other, each on the next operand set."""

    def __init__(self, kernel: CpuKernel, operands: list[OperandSet]) -> None:
        self._multiply: Callable[[Any, Any, Any], object] = kernel.multiply
        self._next = cycle([(o.a, o.b, o.d) for o in operands])

    def sample(self, count: int) -> tuple[float]:
        """Milliseconds of one GEMM, as the mean of `count`."""
        multiply = self._multiply
        group = islice(self._next, count)
        start = time.perf_counter_ns()
        for a, b, d in group:
            multiply(a, b, d)
        return ((time.perf_counter_ns() - start) / count / 1e6,)
