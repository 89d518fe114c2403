"""Named protocols: their rules, and what a card without a GPU does by them (see support/fake_cuda.py)."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from farm import protocols
from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.protocols import PROTOCOLS, ProtocolName
from support.fake_cuda import FakeCupy, FakePynvml
from workers.devices import cuda_protocols, discover, open_device
from workers.devices.cuda import CudaDevice
from workers.measure import nvml
from workers.measure.explain import Explanation

CUBE = Configuration.parse("tiled(tile=16) 64x64x64 f32")


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protocols whose warm-up, load and cool-down are a twentieth as long."""
    for name, one in PROTOCOLS.items():
        times = {
            field: getattr(one, field) / 20
            for field in ("rest_s", "warm_up_s", "seconds", "max_seconds", "cool_down_s")
        }
        monkeypatch.setitem(protocols.PROTOCOLS, name, replace(one, min_launches=min(one.min_launches, 100), **times))  # type: ignore[arg-type, call-overload]


def under(name: str, **more: Any) -> MeasuringRules:
    return MeasuringRules.model_validate({"protocol": name, **more})


@pytest.mark.parametrize("name", [name for name in ProtocolName if name is not ProtocolName.FIXED_FREQUENCY])
def test_a_row_has_the_time_that_its_protocol_defines(device: CudaDevice, name: ProtocolName) -> None:
    explanation = Explanation()
    row = device.measure(CUBE, under(name), explanation)
    protocol = PROTOCOLS[name]
    assert row.protocol == name
    assert row.runtime_ms > 0
    if name is not ProtocolName.FARM:
        assert (row.runtime_burst_ms == row.runtime_ms) is (protocol.time == "burst")
        assert (row.runtime_settled_ms == row.runtime_ms) is (protocol.time == "settled")
        assert row.samples >= protocol.min_samples
        average = {"mean": statistics.fmean, "median": statistics.median}[protocol.average]
        assert row.runtime_ms == pytest.approx(average(explanation.samples_ms))
        assert any(str(name) in note and protocol.source in note for note in explanation.notes)


def test_aiconfigurator_replays_a_graph_of_six_launches_nine_times(device: CudaDevice, cupy: FakeCupy) -> None:
    device.measure(CUBE, under("farm"))
    launches = len(cupy.launches)
    row = device.measure(CUBE, under("aiconfigurator"))
    assert row.samples == 6
    assert len(cupy.launches) - launches >= 9 * 6


def test_a_flushing_protocol_overwrites_the_cache_before_each_launch(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = []
    empty = FakeCupy.empty

    def watched(self: FakeCupy, count: int, dtype: Any) -> Any:
        found = empty(self, count, dtype)
        if dtype == "f8":
            caches.append(found)
        return found

    monkeypatch.setattr(FakeCupy, "empty", watched)
    device.measure(CUBE, under("do-bench"))
    (cache,) = caches
    assert cache.nbytes == 2 * FakeCupy.CARD["L2CacheSize"]
    assert not cache.any()


def test_a_protocol_of_a_server_rests_before_each_launch(device: CudaDevice) -> None:
    start = time.perf_counter()
    row = device.measure(CUBE, under("server"))
    assert row.samples >= 50
    assert time.perf_counter() - start >= 50 * PROTOCOLS[ProtocolName.SERVER].gap_s


def test_fixed_frequency_needs_locked_clocks_and_uses_zeros(
    device: CudaDevice, pynvml: FakePynvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "SETTINGS_SECONDS", 0.0)
    with pytest.raises(InvalidOnDevice, match="needs locked clocks"):
        device.measure(CUBE, under("fixed-frequency"))
    pynvml.application_clock_mhz = 1500
    row = device.measure(CUBE, under("fixed-frequency", operands={"distribution": "normal"}))
    assert (row.clock_policy, row.distribution) == ("locked:1500", "zeros")


def test_power_is_read_under_a_protocol_with_a_load_alone(device: CudaDevice) -> None:
    row = device.measure(CUBE, under("fixed-power", power="all"))
    assert row.power_w == pytest.approx(600, rel=0.1)
    for name in ("do-bench", "nvbench", "server"):
        with pytest.raises(ValidationError, match=f"the protocol {name} has gaps between launches"):
            under(name, power="all")


def test_a_burst_after_another_protocol_comes_after_a_rest(device: CudaDevice) -> None:
    device.measure(CUBE, under("do-bench"))
    assert device.measure(CUBE, under("farm")).details["rested_s"] > 0
    assert device.measure(CUBE, under("farm")).details["rested_s"] == 0


def test_sampling_goes_on_until_the_error_is_small_or_the_time_is_up(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvbench = PROTOCOLS[ProtocolName.NVBENCH]
    monkeypatch.setitem(PROTOCOLS, ProtocolName.NVBENCH, replace(nvbench, rse=1e-9, max_seconds=0.2))  # type: ignore[index]
    start = time.perf_counter()
    row = device.measure(CUBE, under("nvbench"))
    assert time.perf_counter() - start >= 0.2
    assert row.samples > cuda_protocols.BATCH


def test_a_processor_follows_the_protocol_of_the_farm_alone() -> None:
    (identity,) = discover("cpu")
    processor = open_device(identity)
    processor.open()
    line = Configuration.parse("blas(threads=1) 32x32x32 f32")
    with pytest.raises(InvalidOnDevice, match="a CPU cannot follow the protocol nvbench, only farm"):
        processor.measure(line, under("nvbench"))
    quick = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=5, max_seconds=0.05, warmup_seconds=0.0))
    row = processor.measure(line, quick)
    assert (row.protocol, row.runtime_settled_ms, row.runtime_burst_ms) == ("farm", row.runtime_ms, None)
    processor.close()
