"""What is measured on: the identity of a device, and the traits that decide what it can run."""

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
        """Whether a device of this backend executes kernels: a recording answers without, and needs none built."""
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
    # Driver, libraries, power limit, clocks: whatever describes the device at rest.
    facts: dict[str, Any] = field(default_factory=dict)


def host_name() -> str:
    """The name under which this host's devices are announced."""
    return platform.node() or "localhost"


_SHARED_KIB = {
    (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227,
    (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""Shared memory that one block may opt in to, by compute capability, in KiB: CUDA C++ Programming Guide, technical
specifications."""


UNKNOWN_MEMORY_BYTES = 2**50
"""Of a device whose memory is not known: more than any has, so that it rules nothing out."""


def traits_of_capability(compute_capability: tuple[int, int]) -> DeviceTraits:
    """The limits that every card of a compute capability has: for kernels that are built where there is none."""
    return DeviceTraits(
        kind=DeviceKind.CUDA,
        memory_bytes=UNKNOWN_MEMORY_BYTES,  # what a card has decides about shapes, and not about kernels
        compute_capability=compute_capability,
        max_threads_per_block=1024,
        shared_memory_per_block_bytes=1024 * _SHARED_KIB.get(compute_capability, 48),
    )
