"""The table of GPUs: complete, consistent, and found by the names that drivers give cards."""

from __future__ import annotations

import pytest

from farm.devices import UNKNOWN_MEMORY_BYTES, Backend, DeviceKind, DeviceTraits, traits_of_capability
from farm.gemm import ElementType
from farm.gpus import Gpu, all_gpus, find_gpu, traits_of_type
from farm.vendors import device_type_of


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_a_card_is_complete_and_its_types_order_as_hardware_does(gpu: Gpu) -> None:
    assert gpu.source
    assert gpu.limits.threads % 32 == 0
    assert {"f64", "f32", "f16"} <= set(gpu.tflops) <= {"f64", "f32", "tf32", "f16", "bf16", "f8", "i8"}
    peaks = [gpu.tflops[name] for name in ("f64", "f32", "tf32", "f16", "f8") if name in gpu.tflops]
    assert peaks == sorted(peaks)
    # CUDA cores do two operations a clock; no card has more than 128 of them in a multiprocessor.
    assert gpu.tflops["f32"] <= 1.02 * gpu.multiprocessors * 128 * 2 * gpu.boost_mhz / 1e6


def test_no_name_is_of_two_cards() -> None:
    names = [name for gpu in all_gpus() for name in gpu.names]
    assert len(names) == len(set(names))
    assert all(find_gpu(name) is gpu for gpu in all_gpus() for name in gpu.names)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("NVIDIA GeForce RTX 4070", "GeForce RTX 4070"),
        ("NVIDIA GeForce RTX 4070 Ti", None),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA A10G", None),
    ],
)
def test_a_product_is_found_and_its_relatives_are_not_taken_for_it(product: str, name: str | None) -> None:
    gpu = find_gpu(device_type_of(product, Backend.CUDA))
    assert (gpu.name if gpu else None) == name


def test_a_recording_of_a_card_counts_as_the_card_and_a_cpu_is_none() -> None:
    assert find_gpu("recorded-nvidia-h200") is find_gpu("nvidia-h200")
    assert find_gpu("cpu-amd-epyc-9575f") is None


def test_a_type_that_nobody_opened_has_the_limits_of_its_card_and_one_that_is_not_known_has_none() -> None:
    known, unknown = traits_of_type("nvidia-h100-80gb-hbm3"), traits_of_type("nvidia-z900")
    assert (known.kind, known.compute_capability, known.memory_bytes) == (DeviceKind.CUDA, (9, 0), 80 * 10**9)
    assert known.shared_memory_per_block_bytes == 227 * 1024
    assert unknown == DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=UNKNOWN_MEMORY_BYTES)


@pytest.mark.parametrize(
    ("capability", "kib"),
    [((6, 1), 48), ((7, 0), 96), ((7, 2), 96), ((7, 5), 64), ((8, 0), 163), ((8, 6), 99), ((9, 0), 227), ((12, 0), 99)],
)
def test_a_block_may_take_what_the_programming_guide_says(capability: tuple[int, int], kib: int) -> None:
    assert traits_of_capability(capability).shared_memory_per_block_bytes == kib * 1024


def test_pairs_of_8_bit_floats_have_the_peak_of_8_bit_floats() -> None:
    h200, a100 = find_gpu("nvidia-h200"), find_gpu("nvidia-a100-sxm4-80gb")
    assert h200 is not None
    assert a100 is not None
    assert h200.peak_tflops(ElementType.F8E4M3E5M2) == h200.peak_tflops(ElementType.F8E4M3) == 1978.9
    assert a100.peak_tflops(ElementType.F8E4M3) is None
