"""A driver library and a CuPy that answer as the real ones, on this machine's memory.

Kernels are launched by computing them with NumPy at the addresses they are given, so pointers, strides and scalars are
checked as on a card.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from farm.gemm import ElementType
from workers.measure import digest
from workers.measure.elements import STORAGE, decode, unpacked

# --- a driver library ---------------------------------------------------------------------------------


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakePynvml(ModuleType):
    """`pynvml` for a host with one H200, or with what a test puts there."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_TOTAL_POWER_SAMPLES = 1, 2, 0, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.cards = [
            {"uuid": "GPU-11111111-aaaa", "name": "NVIDIA H200", "bus": "00000000:0B:00.0", "capability": (9, 0)}
        ]
        self.slices: list[dict[str, Any]] = []
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []
        self.sessions = 0
        self.sampled_mw, self.clock_events = 600_000, 0
        self.application_clock_mhz = 1980
        self.sm_clock_mhz = 1980
        self.sm_clocks_mhz: list[int] = []  # what it is before
        self.utilizations: list[int] = []  # percent; it is at rest after them

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            calls, failing = super().__getattribute__("calls"), super().__getattribute__("failing")
            found = super().__getattribute__(name)

            def call(*arguments: Any) -> Any:
                calls.append(name)
                if name in failing:
                    raise FakeNvmlError(failing[name])
                asked = self.cards[arguments[0]] if name == "nvmlDeviceGetHandleByIndex" else (*arguments, None)[0]
                if isinstance(asked, dict) and asked.get("lost") == name:
                    raise FakeNvmlError(15)
                return found(*arguments)

            return call
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str:
        return str(handle["uuid"])

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> bytes:
        return str(handle["name"]).encode()

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(total=handle.get("memory", 2**37))

    def nvmlDeviceGetCudaComputeCapability(self, handle: dict[str, Any]) -> tuple[int, int]:
        return tuple(handle["capability"])

    def nvmlDeviceGetPciInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(busId=handle["bus"].encode())

    def nvmlDeviceGetMigMode(self, handle: dict[str, Any]) -> tuple[int, int]:
        return (1, 1) if self.slices else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], index: int) -> dict[str, Any]:
        if index >= len(self.slices):
            raise FakeNvmlError(6)
        return self.slices[index]

    def nvmlDeviceGetAttributes(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(multiprocessorCount=16)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: dict[str, Any]) -> int:
        return 700_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: dict[str, Any]) -> int:
        return 650_000

    def nvmlDeviceGetTemperatureThreshold(self, handle: dict[str, Any], kind: int) -> int:
        return {0: 95, 1: 92}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: dict[str, Any]) -> int:
        return 82_000

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(gpu=self.utilizations.pop(0) if self.utilizations else 0)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: dict[str, Any]) -> int:
        return int(time.perf_counter() * 10) * 60_000  # 600 W in steps of 100 ms

    def nvmlDeviceGetSamples(self, handle: dict[str, Any], kind: int, since_us: int) -> tuple[int, list[Any]]:
        now_us = int(1e6 * time.time())
        times = range(max(since_us, now_us - 2_400_000), now_us, 20_000)
        return 1, [SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=self.sampled_mw)) for at in times]

    def nvmlDeviceGetClockInfo(self, handle: dict[str, Any], clock: int) -> int:
        if clock == self.NVML_CLOCK_SM and self.sm_clocks_mhz:
            return self.sm_clocks_mhz.pop(0)
        return {1: self.sm_clock_mhz, 2: 3201}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: dict[str, Any]) -> int:
        return self.clock_events

    def nvmlDeviceGetTemperature(self, handle: dict[str, Any], sensor: int) -> int:
        return 47

    def nvmlDeviceGetApplicationsClock(self, handle: dict[str, Any], clock: int) -> int:
        return self.application_clock_mhz

    def nvmlDeviceGetDefaultApplicationsClock(self, handle: dict[str, Any], clock: int) -> int:
        return 1980


# --- a CuPy -------------------------------------------------------------------------------------------


class CUDARuntimeError(RuntimeError):
    pass


def error_of_status(status: int) -> CUDARuntimeError:
    """CuPy makes its error of cudaError_t's number."""
    names = {1: "InvalidValue", 2: "MemoryAllocation", 35: "InsufficientDriver", 100: "NoDevice", 700: "IllegalAddress"}
    return CUDARuntimeError(f"cudaError{names[status]}: status {status}")


class OutOfMemoryError(MemoryError):
    pass


class FakeArray(np.ndarray):
    """A NumPy array with what CuPy's has besides."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        def memset_async(byte: int, count: int) -> None:
            ctypes.memset(self.ctypes.data, byte, count)

        return SimpleNamespace(ptr=self.ctypes.data, memset_async=memset_async)

    def get(self, *, out: Any = None, blocking: bool = True) -> Any:
        assert blocking or out is not None
        if out is None:
            return np.asarray(self)
        out[...] = self
        return out


@lru_cache(maxsize=64)
def at_address(address: int, count: int, dtype: type) -> Any:
    """The numbers that are in memory there now."""
    size = np.dtype(dtype).itemsize
    kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(kind)), (count,)).view(dtype)


def gelu(x: Any) -> Any:
    """The approximation by tanh, in the type of x."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
# CUTLASS's functors.
ACTIVATIONS |= {
    "Identity": ACTIVATIONS["none"], "ReLu": ACTIVATIONS["relu"], "GELU_taylor": gelu, "SiLu": ACTIVATIONS["silu"],
}  # fmt: skip


VERIFIED_TYPES = [
    *(ElementType.F64, ElementType.F32, ElementType.F16, ElementType.BF16, ElementType.F8E4M3, ElementType.F8E5M2),
    *(ElementType.I8, ElementType.I32),
    ElementType.I4,
    ElementType.F4,
]
"""The types by their numbers in verify.cu."""


class FakeCupy(ModuleType):
    """`cupy` over NumPy: kernels run at once, or when the graph that captured them is launched."""

    __version__ = "14.2.0"
    CARD: ClassVar[dict[str, int]] = {
        "L2CacheSize": 2**20,
        "MaxThreadsPerMultiProcessor": 2048,
        "MultiProcessorCount": 132,
        "MaxThreadsPerBlock": 1024,
        "MaxSharedMemoryPerBlockOptin": 227 * 1024,
    }

    def __init__(self) -> None:
        super().__init__("cupy")
        self.gemm: Callable[[Any, Any], Any] = lambda a, b: a @ b
        self.fault: Exception | None = None
        self.launches: list[int] = []  # the address of A of every launch
        self.written: list[int] = []  # and of D
        self.capturing: list[Callable[[], None]] | None = None
        self.free = 2**33
        self.freed = 0
        self.queue_runs_dry = True  # an event that is recorded has happened
        self.held_ms: list[float] = []
        self.attributes: list[tuple[int, int]] = []  # that were set of functions
        self.loaded: list[bytes] = []  # binaries
        # Kernels of users, by entry: called with grid, block, dynamic shared memory and the arguments.
        self.own: dict[str, Callable[..., None]] = {}
        self.compiled: list[tuple[str, ...]] = []  # options of the sources of these
        self.compile_error: Exception | None = None
        self.function_attributes = {0: 1024, 1: 0, 3: 0, 4: 40}  # as funcGetAttribute gives them
        self.workspaces: list[int] = []  # of launches by libraries
        self.launch_status = 0  # that such a launch returns
        self._launch_packed = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._launched_packed)
        names = {f"cudaDevAttr{name}": number for number, name in enumerate(self.CARD)}
        numbers = dict(enumerate(self.CARD.values()))
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                **names,
                CUDARuntimeError=error_of_status,
                deviceGetAttribute=lambda attribute, _: numbers[attribute],
                getDeviceCount=lambda: 1,
                deviceGetPCIBusId=lambda _: "0000:0B:00.0",
                setDevice=lambda _: None,
                runtimeGetVersion=lambda: 13000,
                memGetInfo=lambda: (self.free, 2**34),
            ),
            driver=SimpleNamespace(
                occupancyMaxActiveBlocksPerMultiprocessor=lambda _, threads, __: 2048 // threads,
                funcGetAttribute=lambda attribute, _: self.function_attributes[attribute],
                funcSetAttribute=lambda _, attribute, value: self.attributes.append((attribute, value)),
            ),
            function=SimpleNamespace(Module=lambda: FakeBinary(self)),
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
            Stream=lambda non_blocking: FakeStream(self),
            get_current_stream=lambda: SimpleNamespace(
                ptr=ctypes.cast(self._launch_packed, ctypes.c_void_p).value,
                record=lambda: SimpleNamespace(synchronize=lambda: None),
            ),
            alloc_pinned_memory=bytearray,
            get_elapsed_time=lambda a, b: 1e3 * (b.at - a.at),
        )
        for name in (
            "isnan",
            "isfinite",
            "where",
            "abs",
            "zeros",
            "ascontiguousarray",
            "concatenate",
            "multiply",
            "clip",
            "rint",
            "arange",
            "exp",
            "maximum",
            "tanh",
            "floor",
            "searchsorted",
            "signbit",
            "stack",
        ):
            setattr(self, name, getattr(np, name))

    def _launched_packed(self, packed: int) -> int:
        """A launch by the library of a `Toolkit`, which hands over what it packed: 32-bit elements, in its layouts."""
        a_transposed, b_transposed, swap, scale, workspace, activation, m, n, k, a, b, c, d, alpha, beta, *_ = (
            struct.unpack("<4qQ48s3q4Q2d4q", ctypes.string_at(packed, 192))
        )
        kinds = scale >= 0  # of gemm3x_kinds.cu
        batch, a_factors, b_factors, bias, groups, table = (
            struct.unpack("<q3QqQ", ctypes.string_at(packed + 192, 48)) if kinds else (1, 0, 0, 0, 0, 0)
        )
        scale, name = max(0, scale), activation.split(b"\0")[0].decode().rpartition("::")[2] or "Identity"
        kernel = FakeKernel(
            self,
            "",
            {
                "A_TRANSPOSED": str(a_transposed),
                "B_TRANSPOSED": str(b_transposed),
                "ACTIVATION": name,
            },
        )
        left = np.s_[:, None] if scale == 2 else np.s_[:]

        def product(number: int, rows: int, a: int, b: int, c: int, d: int, a_factors: int, b_factors: int) -> None:
            factors = 1
            if scale:
                assert scale in (1, 2)  # blocks are of 8-bit floats
                of_a, of_b = (rows, n) if scale == 2 else (1, 1)
                factors = at_address(a_factors, of_a, np.float32)[left] * at_address(b_factors, of_b, np.float32)
            added = at_address(bias + 4 * number * n, n, np.float32) if bias else None
            kernel.multiply(np.float32, a, b, c, d, rows, n, k, alpha, beta, added, factors)

        def run() -> None:
            self.workspaces.append(workspace)
            if not groups:
                per_a, per_b = {0: (0, 0), 1: (1, 1), 2: (m, n)}[scale]
                for i in range(batch):
                    at = (a + 4 * i * m * k, b + 4 * i * k * n, c and c + 4 * i * m * n, d + 4 * i * m * n)
                    product(i, m, *at, a_factors + 4 * i * per_a, b_factors + 4 * i * per_b)
                return
            numbers = at_address(table, 9 * groups, np.int64).reshape(9, groups)
            extents = at_address(table + 72 * groups, 3 * groups, np.int32).reshape(groups, 3)
            for i, (*at, lead_a, lead_b, lead_d) in enumerate(numbers.T.tolist()):
                rows, columns, along = extents[i][[1, 0, 2] if swap else [0, 1, 2]].tolist()
                assert (columns, along) == (n, k)
                assert (lead_a, lead_b, lead_d) == (k, k if b_transposed else n, n)
                places = at[:4]
                of_b = b_factors + 4 * i if scale == 1 else at[5]
                if rows:
                    product(i, rows, *places, a_factors if scale == 1 else at[4], of_b)

        if self.capturing is not None:
            self.capturing.append(run)
        else:
            run()
        return self.launch_status

    def asarray(self, given: Any) -> Any:
        return np.asarray(given).view(FakeArray)

    def empty(self, count: int, dtype: type) -> Any:
        if self.fault is not None and isinstance(self.fault, OutOfMemoryError):
            raise self.fault
        return np.full(count, 77 if np.dtype(dtype).kind == "u" else -77, dtype).view(FakeArray)

    def get_default_memory_pool(self) -> Any:
        def free_all_blocks() -> None:
            self.freed += 1

        return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=free_all_blocks)

    def RawModule(self, *, code: str, options: tuple[str, ...] = ()) -> Any:
        defines = dict(o.removeprefix("-D").split("=") for o in options if o.startswith("-D"))

        def get_function(name: str) -> Any:
            if name not in self.own:
                return FakeKernel(self, name, defines)
            self.compiled.append(options)
            if self.compile_error is not None:
                raise self.compile_error
            return SimpleNamespace(kernel=FakeOwnKernel(self, name))

        return SimpleNamespace(get_function=get_function)


class FakeBinary:
    """A module of a binary that a `Toolkit` compiled, which ends with the macros."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy

    def load(self, code: bytes) -> None:
        self._cupy.loaded.append(code)
        if b"-D" not in code:  # of a user
            return
        macros = code[code.index(b"-D") :].decode().split()
        self._defines = dict(macro.removeprefix("-D").split("=", 1) for macro in macros if "=" in macro)

    def get_function(self, name: str) -> Any:
        if name in self._cupy.own:
            return FakeOwnKernel(self._cupy, name)
        of_triton = name == "gemm" and "GROUP_M" in self._defines
        return FakeKernel(self._cupy, "triton_gemm" if of_triton else name, self._defines)


class FakeOwnKernel:
    """A kernel of a user, as a function of the driver."""

    ptr = 2

    def __init__(self, cupy: FakeCupy, name: str) -> None:
        self.cupy, self.name = cupy, name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        def run() -> None:
            if self.cupy.fault is not None:
                raise self.cupy.fault
            self.cupy.own[self.name](grid, block, shared_mem, *arguments)

        if self.cupy.capturing is not None:
            self.cupy.capturing.append(run)
        else:
            run()


class FakeKernel:
    num_regs, shared_size_bytes, local_size_bytes = 40, 2048, 0
    kernel = SimpleNamespace(ptr=1)
    ptr = 1

    def __init__(self, cupy: FakeCupy, name: str, defines: dict[str, str]) -> None:
        self.cupy, self.name, self.defines = cupy, name, defines

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        def run() -> None:
            self.shared_mem = shared_mem
            getattr(self, self.name)(grid, block, *arguments)

        if self.cupy.capturing is not None:
            self.cupy.capturing.append(run)
        else:
            run()

    def hold(self, _: Any, __: Any, nanoseconds: int) -> None:
        self.cupy.held_ms.append(nanoseconds / 1e6)
        self.cupy.queue_runs_dry = self.cupy.held_ms[-1] < 4

    def fill(self, _: Any, __: Any, numbers: Any, first: Any, count: Any, seed: Any, scale: Any) -> None:
        assert int(count) == numbers.size
        random = np.random.default_rng([int(seed), int(first)])
        draw: Any = {"0": lambda n: random.uniform(-1, 1, n), "1": random.standard_normal, "2": np.zeros, "3": np.ones}
        draw["5"] = lambda n: random.integers(-2, 3, n)
        numbers[:] = scale * draw[self.defines["DISTRIBUTION"]](numbers.size)

    # The kernels of verify.cu: each operand as it lies in memory, whatever the view that is given.

    def stored(self, name: str, array: Any, batch: int, rows: int, columns: int, transposed: int = 0) -> Any:
        kind = VERIFIED_TYPES[int(self.defines[f"{name}_KIND"])]
        memory = at_address(array.ctypes.data, batch * rows * columns // kind.per_item, STORAGE[kind])
        flat = decode(kind, unpacked(kind, memory))
        return flat.reshape(batch, columns, rows).swapaxes(1, 2) if transposed else flat.reshape(batch, rows, columns)

    def grouped(self, matrices: Any, seed: Any) -> Any:
        batch, rows, columns = matrices.shape
        padded = np.zeros((batch, rows, -(-columns // 32) * 32))
        padded[..., :columns] = matrices * np.random.default_rng(int(seed)).choice([-1.0, 1.0], columns)
        return padded.reshape(batch, rows, -1, 32).sum(axis=3)

    def raised(self, largest: Any, errors: Any) -> None:
        largest[0] = max(largest[0], np.where(np.isnan(errors), np.inf, errors).max())

    def widen(self, _: Any, __: Any, a: Any, wide: Any, count: int) -> None:
        wide[:] = self.stored("A", a, 1, 1, count)[0, 0]

    def sum_groups(
        self, _: Any, __: Any, b: Any, sums: Any, batch: int, k: int, n: int, transposed: int, seed: Any
    ) -> None:
        sums[:] = self.grouped(self.stored("B", b, batch, k, n, transposed), seed).ravel()

    def compare_groups(
        self, _: Any, __: Any, sums: Any, c: Any, d: Any, rows: int, n: int, alpha: float, beta: float, scale: float,
        seed: Any, largest: Any,
    ) -> None:  # fmt: skip
        found = self.stored("D", d, 1, rows, n)
        rest = found - beta * self.stored("D", c, 1, rows, n) if beta else found
        self.raised(largest, np.abs(alpha * sums.reshape(1, rows, -1) - self.grouped(rest, seed)) / scale)

    def compare_elements(
        self, _: Any, __: Any, a: Any, b: Any, c: Any, d: Any, batch: int, m: int, n: int, k: int, a_transposed: int,
        b_transposed: int, alpha: float, beta: float, scale: float, every: int, seed: Any, largest: Any,
    ) -> None:  # fmt: skip
        a_stored = self.stored("A", a, batch, m, k, a_transposed)
        expected = alpha * (a_stored @ self.stored("B", b, batch, k, n, b_transposed))
        if beta:
            expected += beta * self.stored("D", c, batch, m, n)
        errors = np.abs(self.stored("D", d, batch, m, n) - expected) / scale
        self.raised(largest, errors if every else errors[:: max(1, batch - 1), :: max(1, m - 1), :: max(1, n - 1)])

    def digest(self, grid: Any, block: Any, d: Any, count: Any, total: Any) -> None:
        """The kernel of digest.cu."""
        assert (int(count), int(self.defines["BYTES"]), block) == (d.size, d.itemsize, (256,))
        assert total[0] == 0
        total[0] = digest.digest(np.asarray(d))

    def tiled_gemm(
        self, grid: Any, block: Any, a: int, b: int, c: int, d: int, m: int, n: int, k: int, alpha: Any, beta: Any,
        *added: Any,
    ) -> None:  # fmt: skip
        dtype = {"float": np.float32, "double": np.float64}[self.defines["ELEMENT"]]
        tile, size = int(self.defines["TILE"]), np.dtype(dtype).itemsize
        assert type(alpha) is type(beta) is dtype
        assert block == (tile, tile)
        assert self.defines["BATCHED"] == str(int(grid[2] != 1))
        assert len(added) == int(self.defines["BIAS"]) + 2 * int(self.defines["GROUPED"])
        columns = n // 2 if self.defines["GATED"] == "1" else n

        def bias_of(number: int) -> Any:
            return at_address(added[0] + number * n * size, n, dtype) if self.defines["BIAS"] == "1" else None

        if self.defines["GROUPED"] == "1":
            tiles, count = added[-2:]
            assert (tiles.shape, tiles.dtype) == ((count, 4), np.int64)
            assert grid == (-(-columns // tile), min(count, 65_535), 1)
            for number, (first_tile, first_row, end, group) in enumerate(tiles.tolist()):
                first = first_row + (number - first_tile) * tile
                rows = min(tile, end - first)
                places = (a + first * k * size, b + group * k * n * size, c + first * n * size)
                places = (*places, d + first * columns * size)
                self.multiply(dtype, *places, rows, n, k, alpha, beta, bias_of(group))
            return
        assert grid[:2] == (-(-columns // tile), -(-m // tile))
        for z in range(grid[2]):
            places = (
                first + z * count * size for first, count in ((a, m * k), (b, k * n), (c, m * n), (d, m * columns))
            )
            self.multiply(dtype, *places, m, n, k, alpha, beta, bias_of(z))

    def multiply(
        self, dtype: Any, a: int, b: int, c: int, d: int, m: int, n: int, k: int, alpha: Any, beta: Any,
        bias: Any = None, factors: Any = 1,
    ) -> None:  # fmt: skip
        self.cupy.launches.append(a)
        self.cupy.written.append(d)
        if self.cupy.fault is not None:
            raise self.cupy.fault
        a_stored, b_stored = at_address(a, m * k, dtype), at_address(b, k * n, dtype)
        left = a_stored.reshape(k, m).T if self.defines["A_TRANSPOSED"] == "1" else a_stored.reshape(m, k)
        right = b_stored.reshape(n, k).T if self.defines["B_TRANSPOSED"] == "1" else b_stored.reshape(k, n)
        result = alpha * self.cupy.gemm(left, right) * factors
        if beta:
            result = result + beta * at_address(c, m * n, dtype).reshape(m, n)
        if bias is not None:
            result = result + bias
        gate, up = result, 1
        if self.defines.get("GATED", "0") == "1":
            gate, up = np.split(result, 2, axis=1)
        result = ACTIVATIONS[self.defines.get("ACTIVATION", "none")](gate) * up
        columns = result.shape[1]
        at_address(d, m * columns, dtype).reshape(m, columns)[: result.shape[0]] = result

    # The kernel of gemm_triton.py, with 32-bit elements; parameters after beta are scratch memory.

    def triton_gemm(
        self, grid: Any, block: Any, a: int, b: int, c: int, d: int, scale_a: int, scale_b: int, bias: int, *more: Any
    ) -> None:
        grouped = self.defines["GROUPED"] == "1"
        m, n, k, alpha, beta, *scratch = more[grouped:]
        tile, of_row = int(self.defines["TILE_M"]), -(-n // int(self.defines["TILE_N"]))
        rows = len(more[0]) if grouped else -(-m // tile)
        assert (grid[0], grid[2]) == (rows * of_row, 1)
        assert (block, self.shared_mem) == ((256,), 98304)
        assert {type(extent) for extent in (m, n, k)} == {np.int32}
        assert type(alpha) is type(beta) is np.float32
        if self.defines["TMA"] == "1":
            assert (scratch[0].size, scratch.pop(0).dtype) == (256 * math.prod(grid), np.uint8)
        assert not any(scratch)
        assert (self.defines["ADDS_C"] == "1") == bool(beta) == bool(c)
        assert (self.defines["SCALE_A"] != "none") == bool(scale_a) == bool(scale_b)
        assert (self.defines["BIAS"] == "1") == bool(bias)
        m, n, k = int(m), int(n), int(k)
        columns = n // 2 if self.defines["GATED"] == "1" else n
        if grouped:
            assert more[0].dtype == np.int64
            for number, (first_tile, first_row, end, group) in enumerate(more[0].tolist()):
                first = first_row + (number - first_tile) * tile
                places = (a + 4 * first * k, b + 4 * group * k * n, c and c + 4 * first * n, d + 4 * first * columns)
                self.multiply(np.float32, *places, min(tile, end - first), n, k, alpha, beta)
            return
        for product in range(grid[1]):
            inputs, outputs = (4 * product * extent for extent in (m * k, m * columns))
            self.multiply(
                np.float32, a + inputs, b + 4 * product * k * n, c and c + outputs, d + outputs, m, n, k, alpha, beta
            )

    # The kernels of gemm2x.cu, and of gemm2x_universal.cu with its further parameters. `Params` are 12 numbers of 8 bytes here.

    def gemm_pack(
        self, grid: Any, block: Any, packed: Any, launch: Any, m: int, n: int, k: int, a: int, b: int, c: int, d: int,
        between_inputs: int, between_outputs: int, alpha: Any, beta: Any, split_k: int, semaphores: Any, *added: int,
    ) -> None:  # fmt: skip
        (sets,), size = grid, packed.size // grid[0]
        tiles = -(-m // int(self.defines["TILE_M"])), -(-n // int(self.defines["TILE_N"]))
        assert block == (1,)
        assert type(alpha) is type(beta) is {"float": np.float32, "double": np.float64}[self.defines["ACC"]]
        assert len(added) == (3 if "ACTIVATION" in self.defines else 0)
        batch, bias, between_biases = added or (1, 0, 0)
        assert not (bias and beta)
        assert 1 in {batch, split_k}
        assert (split_k > 1) == (not isinstance(semaphores, int))
        if split_k > 1:
            assert semaphores.size == tiles[0] * tiles[1]
            assert not semaphores.any()
        for index in range(sets):
            inputs, outputs = index * between_inputs, index * between_outputs
            places = [a + inputs, b + inputs, c and c + outputs, d + outputs, bias and bias + index * between_biases]
            integers = [m, n, k, *places, split_k, batch]
            held = np.array(integers, np.int64).tobytes() + np.array([alpha, beta], np.float64).tobytes()
            packed[index * size :][: len(held)] = np.frombuffer(held, np.uint8)
        launch[:] = [*tiles, split_k * batch, 4 * tiles[0] * tiles[1] * (split_k > 1)]

    def gemm(self, grid: Any, block: Any, params: Any) -> None:
        assert params.shape == (1,)  # of a void type, which CuPy passes by value
        held = params.tobytes()
        m, n, k, a, b, c, d, bias, split_k, batch = (int(number) for number in np.frombuffer(held[:80], np.int64))
        alpha, beta = np.frombuffer(held[80:96], np.float64)
        assert grid == (-(-m // int(self.defines["TILE_M"])), -(-n // int(self.defines["TILE_N"])), split_k * batch)
        assert (block, self.shared_mem) == ((128,), 49152)
        dtype = {"float": np.float32, "double": np.float64}[self.defines["AB"]]
        for product in range(batch):
            places = (
                first and first + product * count * np.dtype(dtype).itemsize
                for first, count in ((a, m * k), (b, k * n), (c, m * n), (d, m * n), (bias, n))
            )
            *matrices, bias_of_product = places
            self.multiply(
                dtype, *matrices, m, n, k, alpha, beta,
                at_address(bias_of_product, n, dtype) if bias_of_product else None,
            )  # fmt: skip


class FakeStream:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def record(self) -> Any:
        assert self.cupy.capturing is None
        return SimpleNamespace(at=time.perf_counter(), done=self.cupy.queue_runs_dry, synchronize=lambda: None)

    def synchronize(self) -> None:
        return None

    def begin_capture(self) -> None:
        self.cupy.capturing = []

    def end_capture(self) -> Any:
        captured, self.cupy.capturing = self.cupy.capturing, None
        assert captured

        def launch(stream: FakeStream) -> None:
            assert stream is self
            for run in captured:
                run()

        return SimpleNamespace(launch=launch, upload=lambda stream: None)
