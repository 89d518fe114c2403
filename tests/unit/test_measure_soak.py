"""A soak: digests under load, what it says of a device that corrupts results, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from support.fake_cuda import FakeCupy
from workers.devices import cpu
from workers.devices.cuda import CudaDevice
from workers.kernels import tiled
from workers.measure.digest import digest
from workers.measure.exactness import Result
from workers.measure.nvml import Telemetry
from workers.measure.soak import DIGEST_SECONDS, REPORT_SECONDS, Soak, soak

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
TILED = Configuration.parse("tiled(tile=16) 40x33x64 f32")
BLAS = Configuration.parse("blas(threads=1) 40x33x64 f32")

STEP = 0.02
"""Seconds of work between two looks at the clock."""


class Loaded:
    """A device with a clock of its own, whose launches are wrong where a test says so."""

    def __init__(self, wrong: Callable[[int], bool] = lambda _: False, *, declared: bool = True) -> None:
        self.now = 0.0
        self.launches = 0
        self._wrong = wrong
        self.d = np.zeros((3, 4), np.float32)
        self.result = Result(self.d, self._launch, self._begin, poison=np.nan, deterministic=declared)
        self.readings = iter([(1980, 40), (1500, None), (1700, 61), (None, 50)])
        self.room = True

    def _launch(self) -> None:
        self.launches += 1
        self.d[...] = 0
        if self._wrong(self.launches):
            self.d.view(np.uint32)[1, 2] = 8

    @staticmethod
    def _begin(d: Any) -> Callable[[], int]:
        found = digest(d)
        return lambda: found

    def clock(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += STEP

    def copy(self) -> Any:
        if not self.room:
            raise MemoryError
        return self.d.copy()

    def telemetry(self) -> Telemetry:
        clock, temperature = next(self.readings, (1600, 45))
        return Telemetry(sm_clock_mhz=clock, temperature_c=temperature)


def run(load: Loaded, seconds: float) -> Soak:
    *_, last = soak(load, seconds, load.clock)
    return last


def test_digests_are_taken_ten_times_a_second_until_the_end() -> None:
    load = Loaded()
    found = run(load, 6.0)
    assert (found.wanted_s, found.differences, found.difference) == (6.0, 0, None)
    assert found.seconds == pytest.approx(6.0, abs=STEP)
    assert load.launches == found.digests
    assert 0.8 * 6 / (DIGEST_SECONDS + STEP) <= found.digests <= 6 / DIGEST_SECONDS


def test_clocks_and_temperatures_are_ranges() -> None:
    found = run(Loaded(), 2.0)
    assert (found.sm_clock_mhz, found.temperature_c) == ((1500, 1980), (40, 61))


def test_what_was_seen_so_far_is_reported_twice_a_second() -> None:
    load = Loaded()
    reports = [(seen.seconds, seen.digests) for seen in soak(load, 3.0, load.clock)]
    assert reports[0] == (0.0, 0)
    times = [seconds for seconds, _ in reports]
    assert len(reports) == pytest.approx(3.0 / REPORT_SECONDS + 2, abs=1)
    assert times == sorted(times)
    assert reports[-1][1] > reports[1][1] > 0


def test_each_difference_counts_and_the_first_one_is_named() -> None:
    found = run(Loaded(lambda launch: launch in {4, 9, 10}), 3.0)
    assert found.differences == 3
    assert found.difference is not None
    assert found.difference.startswith("After 0.")
    assert found.difference.endswith(
        "1 of 12 elements differ, the first at (1, 2), where 0x00000000 became 0x00000008."
    )


def test_the_last_digest_counts() -> None:
    load = Loaded()
    last = run(load, 1.0).digests
    assert run(Loaded(lambda launch: launch == last), 1.0).differences == 1


def test_a_difference_without_room_for_a_copy_still_counts() -> None:
    load = Loaded(lambda launch: launch == 3)
    load.room = False
    found = run(load, 1.0)
    assert found.differences == 1
    assert "no memory for a copy" in str(found.difference)


def test_a_device_that_is_always_wrong_is_not_compared_with_itself() -> None:
    found = run(Loaded(lambda _: True), 1.0)
    assert found.differences == found.digests > 0
    assert "3 further launches differ as well" in str(found.difference)


def test_a_kernel_whose_launches_may_differ_is_refused() -> None:
    load = Loaded(declared=False)
    with pytest.raises(InvalidOnDevice, match="launches of this kernel may differ"):
        run(load, 1.0)
    assert load.launches == 0


# --- on devices ---------------------------------------------------------------------------------------


def test_a_card_under_load_gives_the_same_bits(device: CudaDevice) -> None:
    *_, found = device.soak(TILED, QUICK, 0.5)
    assert found.digests >= 1
    assert found.differences == 0
    assert (found.sm_clock_mhz, found.temperature_c) == ((1980, 1980), (47, 47))


def test_a_processor_under_load_gives_the_same_bits(processor: cpu.CpuDevice) -> None:
    *_, found = processor.soak(BLAS, QUICK, 0.5)
    assert found.digests >= 1
    assert (found.differences, found.sm_clock_mhz) == (0, None)


def test_a_card_that_flips_bits_under_load_is_found(device: CudaDevice, cupy: FakeCupy) -> None:
    seen = device.soak(TILED, QUICK, 60.0)
    next(seen)  # verified, and the first digest is known
    right, launches = cupy.gemm, iter(range(10**9))

    def flips_now_and_then(a: Any, b: Any) -> Any:
        d = right(a, b)
        if next(launches) % 7 < 6:
            d.view(np.uint32)[3, 5] ^= 1
        return d

    cupy.gemm = flips_now_and_then
    assert any(found.differences for found in seen)


def test_a_kernel_with_atomics_has_no_soak(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled._BoundTiled, "deterministic", False)
    with pytest.raises(InvalidOnDevice, match="may differ"):
        next(device.soak(TILED, QUICK, 0.1))
