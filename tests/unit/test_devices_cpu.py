"""The CPU device, measuring this machine for real, and what it reads of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.devices import Backend, DeviceKind
from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from workers.devices import cpu, host
from workers.measure.power.rapl_power import RaplPower

QUICK = MeasuringRules(timing=TimingRules(min_samples=5, max_seconds=0.05, warmup_seconds=0.002))


@pytest.fixture(scope="module")
def device() -> Iterator[cpu.CpuDevice]:
    """This machine, as if its cache were small: a server's takes a gigabyte of operands and more sets than there may be."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host, "last_level_cache_bytes", lambda: 2**23)
        opened = cpu.CpuDevice(cpu.identify())
        opened.open()
    yield opened
    opened.close()


def test_the_device_is_the_same_each_time_it_is_identified() -> None:
    first, again = cpu.identify(), cpu.identify()
    assert first == again
    assert first.uuid.startswith("CPU-")
    assert first.type.startswith("cpu-")
    assert (first.backend, first.traits.kind) == (Backend.CPU, DeviceKind.CPU)
    assert first.traits.threads == host.usable_threads()
    assert 0 < first.traits.memory_bytes <= 2**50


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_type_and_layout_is_measured(device: Any, types: str, layout: str) -> None:
    configuration = Configuration.parse(f"blas(threads=1) 96x80x72 {types} {layout}")
    row = device.measure(configuration, QUICK)
    assert 0 < row.runtime_min_ms <= row.runtime_q1_ms <= row.runtime_ms <= row.runtime_q3_ms < 1000
    assert row.samples >= 5
    assert row.stop_reason in {"converged", "settled", "budget", "max_samples"}
    assert 0 <= row.verify_error < 1e-5
    assert row.details["threads"] == 1
    assert row.l2 == "cold"
    assert row.cost_s > row.samples * row.runtime_min_ms / 1e3
    assert row.environment["numpy"] == np.__version__
    assert row.environment["blas"]


@pytest.mark.parametrize("shape", ["1x1x1", "1x700x1", "700x1x5", "1x1x9000", "513x1x129", "1x257x255", "130x140x150"])
def test_shapes_with_extents_of_one_are_measured(device: Any, shape: str) -> None:
    assert device.measure(Configuration.parse(f"blas(threads=1) {shape} f64 tt"), QUICK).runtime_ms > 0


def test_a_larger_product_takes_longer(device: Any) -> None:
    small, large = (
        device.measure(Configuration.parse(f"blas(threads=1) {n}x{n}x{n} f64"), QUICK).runtime_min_ms for n in (64, 512)
    )
    assert large > 20 * small  # 512 times the work


def test_more_threads_than_the_machine_has_are_invalid(device: Any) -> None:
    with pytest.raises(InvalidOnDevice, match="threads"):
        device.measure(Configuration.parse("blas(threads=4096) 8x8x8 f32"), QUICK)


def test_threads_that_blas_does_not_grant_are_invalid(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 2**23)
    generous = cpu.CpuDevice(device.identity)
    generous.open()
    generous.identity = dataclasses.replace(
        device.identity, traits=dataclasses.replace(device.identity.traits, threads=4096)
    )
    with pytest.raises(InvalidOnDevice, match="BLAS threads"):
        generous.measure(Configuration.parse("blas(threads=4096) 8x8x8 f32"), QUICK)


@pytest.mark.parametrize(
    "text", ["tiled(tile=8) 8x8x8 f32", "blas(threads=1) 8x8x8 f16", "blas(threads=1) 8x8x8 f32 nn beta=1"]
)
def test_what_numpy_cannot_compute_is_invalid(device: Any, text: str) -> None:
    with pytest.raises(InvalidOnDevice):
        device.measure(Configuration.parse(text), QUICK)


def test_a_wrong_blas_is_a_wrong_result_and_no_row(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.matmul

    def wrong(a: Any, b: Any, d: Any) -> None:
        right(a, b, d)
        d[-1, -1] += 0.5

    monkeypatch.setattr(cpu.np, "matmul", wrong)
    with pytest.raises(WrongResult, match=r"\(39, 49\)"):
        device.measure(Configuration.parse("blas(threads=1) 40x50x60 f32"), QUICK)
    monkeypatch.setattr(cpu.np, "matmul", lambda a, b, d: right(a[:-1], b, d[:-1]))
    with pytest.raises(ElementNotWritten, match=r"\(39, 0\)"):
        device.measure(Configuration.parse("blas(threads=1) 40x50x60 f32"), QUICK)


def test_power_is_measured_where_the_machine_can_say(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = QUICK.model_copy(update={"power": "all", "power_seconds": 0.5})
    configuration = Configuration.parse("blas(threads=1) 64x64x64 f32")

    class Counter:
        def __init__(self) -> None:
            self.readings = iter([7_000_000, 27_000_000])

        def read(self) -> int:
            return next(self.readings)

        def since(self, before: int, now: int) -> int:
            return now - before

    monkeypatch.setattr(device._power_source, "_packages", [Counter()])
    row = device.measure(configuration, rules)
    assert row.power_source == "rapl"
    assert row.power_w == pytest.approx(20 / 0.5, rel=0.1)
    monkeypatch.setattr(device, "_power_source", RaplPower(tmp_path))
    row = device.measure(configuration, rules)
    assert (row.power_w, row.power_source) == (None, None)


# --- the host -----------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_last_level_cache_is_counted_once_for_the_processors_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SYS", tmp_path)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert host.last_level_cache_bytes() == host.ASSUMED_CACHE_BYTES
    for processor, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        cache = tmp_path / f"devices/system/cpu/cpu{processor}/cache"
        for index, level, kind, size in ((0, 1, "Data", "32K"), (1, 1, "Instruction", "64K"), (3, 3, "Unified", "16M")):
            write(cache / f"index{index}/level", f"{level}\n")
            write(cache / f"index{index}/type", f"{kind}\n")
            write(cache / f"index{index}/size", f"{size}\n")
            write(cache / f"index{index}/shared_cpu_list", f"{shared if level == 3 else processor}\n")
    assert host.last_level_cache_bytes() == 32 * 2**20


def test_a_processor_without_a_name_still_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PROC", tmp_path)
    assert host.processor_name()
    write(tmp_path / "cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\n")
    assert host.processor_name() == "AMD EPYC 9575F 64-Core Processor"
