"""Devices that campaigns are planned for."""

from __future__ import annotations

from farm.campaign import KnownDevice
from farm.devices import Backend, DeviceKind, DeviceTraits

CPU = KnownDevice(
    "CPU-1", "cpu-laptop", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**33, threads=2), Backend.CPU
)
H200 = KnownDevice(
    "GPU-1",
    "nvidia-h200",
    "gpu01",
    DeviceTraits(
        kind=DeviceKind.CUDA,
        memory_bytes=2**37,
        max_threads_per_block=1024,
        shared_memory_per_block_bytes=227 * 1024,
        compute_capability=(9, 0),
    ),
    Backend.CUDA,
)
