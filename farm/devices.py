"""Devices: their identity, and the traits that decide what they can run."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

IMPORTED_PREFIX = "IMP-"
"""How the UUIDs of devices of imports begin, and no others."""


class DeviceKind(StrEnum):
    """What executes a kernel. It decides which kernel families a device can run."""

    CPU = "cpu"
    CUDA = "cuda"


class Backend(StrEnum):
    """Where a device's measurements come from."""

    CPU = "cpu"
    CUDA = "cuda"
    RECORDED = "recorded"

    @property
    def runs_kernels(self) -> bool:
        """Whether a device of this backend executes kernels. A recording does not, and needs no built kernels."""
        return self is not Backend.RECORDED

    @property
    def refuses_by_traits(self) -> bool:
        """Whether two devices of one type and equal traits refuse the same configurations. Each recording has its own rows."""
        return self.runs_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """The limits of a device that a kernel's validity depends on. A limit that is None does not apply."""

    kind: DeviceKind
    memory_bytes: int
    # CPU: logical processors that this process may use.
    threads: int | None = None
    # CUDA: compute capability as (major, minor).
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    max_threads_per_block: int | None = None
    # CUDA: shared memory that one block may take when it opts in to more than 48 KiB.
    shared_memory_per_block_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceTraits:
        capability = data.get("compute_capability")
        return cls(
            **{
                **data,
                "kind": DeviceKind(data["kind"]),
                "compute_capability": tuple(capability) if capability else None,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """One card, MIG slice or CPU, as a worker announces it."""

    # `GPU-…` and `MIG-…` as NVML gives them; `CPU-…` and `REC-…` derived from the host and the source.
    uuid: str
    # Normalised product name: `nvidia-h200`, `cpu-amd-epyc-9575f`, `recorded-nvidia-h200`.
    type: str
    # Product name as the vendor writes it.
    name: str
    backend: Backend
    traits: DeviceTraits
    # What describes the idle device: driver, libraries, power limit, clocks.
    facts: dict[str, Any] = field(default_factory=dict)


def host_name() -> str:
    """The name under which this host's devices are announced."""
    return platform.node() or "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiprocessorLimits:
    """What one multiprocessor holds at a time, and what one block of threads may take of it."""

    threads: int
    blocks: int
    shared_kib: int
    # Shared memory of each block that CUDA reserves.
    reserved_kib: int = 1
    registers: int = 65_536

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kib

    @property
    def shared_per_block_bytes(self) -> int:
        """What a block may opt in to."""
        return 1024 * (self.shared_kib - self.reserved_kib)


LIMITS = {
    (7, 0): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=96, reserved_kib=0),
    (7, 2): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=96, reserved_kib=0),
    (7, 5): MultiprocessorLimits(threads=1024, blocks=16, shared_kib=64, reserved_kib=0),
    (8, 0): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=164),
    (8, 6): MultiprocessorLimits(threads=1536, blocks=16, shared_kib=100),
    (8, 7): MultiprocessorLimits(threads=1536, blocks=16, shared_kib=164),
    (8, 9): MultiprocessorLimits(threads=1536, blocks=24, shared_kib=100),
    (9, 0): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=228),
    (10, 0): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=228),
    (10, 3): MultiprocessorLimits(threads=2048, blocks=32, shared_kib=228),
    (11, 0): MultiprocessorLimits(threads=1536, blocks=24, shared_kib=228),
    (12, 0): MultiprocessorLimits(threads=1536, blocks=24, shared_kib=100),
    (12, 1): MultiprocessorLimits(threads=1536, blocks=24, shared_kib=100),
}
"""By compute capability. Source: CUDA C++ Programming Guide, technical specifications per compute capability. The table of NVIDIA's
CCCL 13.3 (`cuda/__device/arch_traits.h`) has the same numbers."""

SHARED_EVERYWHERE_BYTES = 48 * 1024
"""Shared memory that a block may take on every compute capability, without opting in."""

THREADS_PER_BLOCK = 1024
"""The same on every compute capability so far."""

UNKNOWN_MEMORY_BYTES = 2**50
"""Stands for the memory of a device that is not known. It is more than any device has, so it rules nothing out."""


def traits_of_capability(compute_capability: tuple[int, int] | None) -> DeviceTraits:
    """The limits that all cards of a compute capability share. Their memory is not among them."""
    limits = LIMITS.get(compute_capability) if compute_capability is not None else None
    return DeviceTraits(
        kind=DeviceKind.CUDA,
        memory_bytes=UNKNOWN_MEMORY_BYTES,
        compute_capability=compute_capability,
        max_threads_per_block=THREADS_PER_BLOCK,
        shared_memory_per_block_bytes=SHARED_EVERYWHERE_BYTES if limits is None else limits.shared_per_block_bytes,
    )
