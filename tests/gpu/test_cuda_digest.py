"""A card's digest is NumPy's, of every size of an element, and its rows have it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from farm.errors import ResultCorrupted
from farm.gemm import ElementType
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from workers.devices import cuda_tiers
from workers.devices.cuda import CudaDevice
from workers.kernels.tiled import _BoundTiled
from workers.measure.digest import BITS, digest, text

QUICK = MeasuringRules(timing=TimingRules(max_seconds=0.05, warmup_seconds=0.005))
ASKED = QUICK.model_copy(update={"determinism": True})

CASES = [
    "tiled(tile=16) 300x333x64 f32",
    "tiled(tile=16) 257x129x512 f64 tn alpha=2 beta=-1",
    "cublaslt(algorithm=0) 512x512x4096 f16",
    "cublaslt(algorithm=0) 512x768x4096 bf16 nt",
    "cublaslt(algorithm=0) 512x512x512 tf32",
    "cublaslt(algorithm=0) 512x512x512 i8 nt",
    "cublaslt(algorithm=0) 512x512x4096 f8e4m3 nt",
]


def on_card(device: CudaDevice, d: Any) -> int:
    import cupy

    with device._stream:
        found: int = device._digests.begin(cupy.asarray(d))()
    return found


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 31, 257, 65_537, 1_000_003, 4096**2])
def test_a_card_takes_the_digest_that_numpy_takes(device: CudaDevice, size: int, count: int) -> None:
    bits = np.random.default_rng(count).integers(0, 2**63, count, dtype=np.uint64)
    d = (bits * np.uint64(2) + np.uint64(1)).astype(BITS[size])
    assert on_card(device, d) == digest(d)
    for place in {0, count // 2, count - 1}:
        d[place] ^= d.dtype.type(1 << (8 * size - 1))
        assert on_card(device, d) == digest(d)


def test_more_elements_than_32_bits_count_have_a_digest(device: CudaDevice) -> None:
    import cupy

    count = 2**32 + 5
    if cupy.cuda.runtime.memGetInfo()[0] < 2 * count:
        pytest.skip("no memory for 4 GiB")
    with device._stream:
        d = cupy.zeros(count, np.uint8)
        before = device._digests.begin(d)()
        d[-1] = 1
        after = device._digests.begin(d)()
    del d
    cupy.get_default_memory_pool().free_all_blocks()
    golden, last = 0x9E3779B97F4A7C15, count * 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z &= 2**64 - 1
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    assert golden % 2
    assert (after - before) % 2**64 == (mix(last + 1) - mix(last)) % 2**64


@pytest.mark.parametrize("case", CASES)
def test_the_digest_of_a_row_is_that_of_its_result(device: CudaDevice, case: str) -> None:
    configuration = Configuration.parse(case)
    if (why := configuration.why_invalid(device.identity.traits)) is not None:
        pytest.skip(why)
    rows = [device.measure(configuration, rules) for rules in (QUICK, ASKED)]
    with device.replaying(configuration, OperandRules()) as work:
        found = digest(work.operands.d.get())
    assert [row.result_digest for row in rows] == [text(found)] * 2
    assert rows[0].deterministic is None
    assert rows[1].deterministic is True
    assert rows[1].batch_invariant in {True, False}


def test_an_own_kernel_is_batch_invariant(device: CudaDevice) -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        row = device.measure(Configuration.parse(f"tiled(tile=16) 200x190x180 f32 {layout} alpha=2 beta=1"), ASKED)
        assert row.batch_invariant is True


def test_a_bit_that_changes_under_load_is_a_failure(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = cuda_tiers.Tiers.measure

    def corrupts(self: Any, work: Any, *rest: Any, **named: Any) -> Any:
        times = measure(self, work, *rest, **named)
        work.operands.d.view(np.uint32)[17, 5] ^= 1
        return times

    monkeypatch.setattr(cuda_tiers.Tiers, "measure", corrupts)
    with pytest.raises(ResultCorrupted, match=r"1 of 99,900 elements differ, the first at \(17, 5\)"):
        device.measure(Configuration.parse("tiled(tile=16) 300x333x64 f32"), QUICK)


@pytest.mark.parametrize(
    "configuration", ["tiled(tile=16) 300x333x64 f32", "cublaslt(algorithm=0) 4096x4096x4096 bf16 nt"]
)
def test_a_card_is_busy_in_a_soak_and_gives_the_same_bits(device: CudaDevice, configuration: str) -> None:
    *_, found = device.soak(Configuration.parse(configuration), QUICK, 3.0)
    assert found.digests >= 15
    assert (found.differences, found.difference) == (0, None)
    assert found.sm_clock_mhz is not None
    assert found.sm_clock_mhz[0] > 500  # it is not at rest
    assert found.temperature_c is not None


def test_a_soak_finds_a_bit_that_changes_now_and_then(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, count = _BoundTiled.launch, itertools.count()

    def flips(self: Any, index: int) -> None:
        launch(self, index)
        if index == 0 and next(count) % 3 == 1:
            device._arena._arena._outputs[ElementType.F32].view(np.uint32)[:1] ^= 1

    soak = device.soak(Configuration.parse("tiled(tile=16) 300x333x64 f32"), QUICK, 2.0)
    next(soak)  # what was captured before has no flips
    monkeypatch.setattr(_BoundTiled, "launch", flips)
    *_, found = soak
    assert 0 < found.differences < found.digests
    assert "1 of 99,900 elements differ, the first at (0, 0)" in str(found.difference)
