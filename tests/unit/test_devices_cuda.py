"""The CUDA device without a GPU: see support/fake_cuda.py. What only a card can show is in tests/gpu."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.devices import Backend, DeviceKind
from farm.errors import (
    CudaUnavailable,
    DeviceOutOfMemory,
    DevicePoisoned,
    ElementNotWritten,
    InvalidOnDevice,
    MeasurementFailed,
    WrongResult,
)
from farm.gemm import ElementType, Layout, Shape
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import MatrixRules, OperandRules, operand_rules
from farm.vendors import NVIDIA
from farm.weights import describe
from support.fake_cuda import CUDARuntimeError, FakeCupy, FakeKernel, FakePynvml, OutOfMemoryError
from support.virtual_time import VirtualTime
from workers.devices import cards, cuda_tiers, cuda_verify, discover, open_device
from workers.devices.cuda import ALIGNMENT, CudaDevice
from workers.devices.cuda_errors import cuda_name, translate
from workers.kernels import tiled
from workers.kernels.tiled import TiledKernel
from workers.measure.explain import Explanation
from workers.measure.nvml import Nvml
from workers.measure.operands import SetLayout
from workers.measure.settling import LAW_RSE, POWER_EXPONENT, UNTOUCHED_SECONDS

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))

WARMED = QUICK.model_copy(update={"timing": QUICK.timing.model_copy(update={"warmup_seconds": 0.04})})
"""Long enough for a power sample of the kernel alone."""


# --- which devices there are --------------------------------------------------------------------------


def test_a_card_is_known_without_opening_it(pynvml: FakePynvml, cupy: FakeCupy) -> None:
    (identity,) = discover("auto")
    assert (identity.uuid, identity.type, identity.backend) == ("GPU-11111111-aaaa", "nvidia-h200", Backend.CUDA)
    assert identity.traits.kind is DeviceKind.CUDA
    assert identity.traits.compute_capability == (9, 0)
    assert identity.traits.shared_memory_per_block_bytes == 227 * 1024
    assert identity.traits.memory_bytes == 2**37
    assert identity.facts == {
        "driver": "580.159.04",
        "pci_bus_id": "0000:0b:00.0",
        "power_limit_w": 700.0,
        "default_power_limit_w": 650.0,
        "slowdown_c": 92.0,
        "mig_slice": False,
    }
    assert pynvml.sessions == 0


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"])
def test_a_lost_card_does_not_hide_its_neighbours(pynvml: FakePynvml, cupy: FakeCupy, call: str) -> None:
    (good,) = pynvml.cards
    pynvml.cards = [{**good, "uuid": "GPU-lost", "lost": call}, good]
    assert [identity.uuid for identity in cards.find_cards({})] == [good["uuid"]]
    with Nvml() as nvml:
        assert nvml.card(good["uuid"]).uuid == good["uuid"]


def test_mig_slices_are_devices_of_their_own(pynvml: FakePynvml, cupy: FakeCupy) -> None:
    pynvml.slices = [
        {"uuid": f"MIG-{n}", "name": "NVIDIA H200 MIG 1g.18gb", "memory": 2**34, "capability": (9, 0)} for n in range(2)
    ]
    del cupy  # installed, not imported
    found = cards.find_cards({})
    assert [i.uuid for i in found] == ["MIG-0", "MIG-1"]
    assert found[0].type == "nvidia-h200-mig-1g-18gb"
    assert (found[0].traits.memory_bytes, found[0].traits.multiprocessors) == (2**34, 16)
    with Nvml() as nvml:  # the card's power cannot be shared out between its slices
        assert nvml.card("MIG-1").total_energy_mj() is None
        assert nvml.card("MIG-1").power_samples(0) == []
        assert nvml.card("MIG-1").telemetry().sm_clock_mhz == 1980


@pytest.mark.parametrize(
    ("visible", "order", "found"),
    [
        (None, None, ["GPU-a1", "GPU-b2", "GPU-b3"]),
        ("", None, []),
        ("-1", None, []),
        ("GPU-b3,GPU-a1", None, ["GPU-b3", "GPU-a1"]),
        ("GPU-b", None, []),  # the beginning of two
        ("GPU-a", None, ["GPU-a1"]),
        ("GPU-a1,GPU-zz,GPU-b2", None, ["GPU-a1"]),  # CUDA stops at the first unknown one
        ("2,0", "PCI_BUS_ID", ["GPU-b3", "GPU-a1"]),
    ],
)
def test_cuda_visible_devices_is_respected(
    pynvml: FakePynvml, cupy: FakeCupy, visible: str | None, order: str | None, found: list[str]
) -> None:
    pynvml.cards = [
        {"uuid": uuid, "name": name, "bus": "00000000:0B:00.0", "capability": (8, 9)}
        for uuid, name in (("GPU-a1", "NVIDIA L4"), ("GPU-b2", "NVIDIA L40S"), ("GPU-b3", "NVIDIA L40S"))
    ]
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    seen = cards.find_cards({name: value for name, value in environment.items() if value is not None})
    assert [identity.uuid for identity in seen] == found


def test_numbers_for_cards_of_several_kinds_are_refused(pynvml: FakePynvml, cupy: FakeCupy) -> None:
    pynvml.cards.append({**pynvml.cards[0], "uuid": "GPU-2", "name": "NVIDIA L4"})
    with pytest.raises(CudaUnavailable, match="by UUID"):
        cards.find_cards({"CUDA_VISIBLE_DEVICES": "1"})


def test_a_missing_cupy_names_the_extra(pynvml: FakePynvml, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cupy" else find(name))
    with pytest.raises(CudaUnavailable, match=r"pip install .*\[cuda13\]"):
        discover("cuda")
    assert NVIDIA.extra_for("550.54.15") == "cuda12"
    assert [identity.backend for identity in discover("auto")] == [Backend.CPU]


def test_a_missing_driver_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(CudaUnavailable, match=r"pip install .*\[cuda13\]"):
        discover("cuda")
    assert [identity.backend for identity in discover("auto")] == [Backend.CPU]


def test_a_missing_driver_says_so(pynvml: FakePynvml) -> None:
    pynvml.failing["nvmlInit"] = 9
    with pytest.raises(CudaUnavailable, match="driver does not answer"):
        discover("cuda")
    assert [identity.backend for identity in discover("auto")] == [Backend.CPU]


def test_a_host_without_cards_has_no_cuda(pynvml: FakePynvml) -> None:
    pynvml.cards = []
    with pytest.raises(CudaUnavailable, match="no card"):
        discover("cuda")
    assert [identity.backend for identity in discover("auto")] == [Backend.CPU]


def test_what_a_card_does_not_support_is_none_and_asked_once(pynvml: FakePynvml) -> None:
    pynvml.failing = {"nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetTemperature": 3}
    with Nvml() as nvml:
        card = nvml.card("GPU-11111111-aaaa")
        for _ in range(3):
            assert card.total_energy_mj() is None
            assert card.telemetry().temperature_c is None
    assert pynvml.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 1


def test_only_a_card_at_rest_says_what_it_draws_at_rest(pynvml: FakePynvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with Nvml() as nvml:
        card = nvml.card("GPU-11111111-aaaa")
        pynvml.utilizations = [100, 1]
        assert [card.resting_power_w for _ in range(3)] == [None, None, 82.0]
        # The average of the last second still has in it what the card did before.
        monkeypatch.setattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", 186, raising=False)
        answer = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=131_000))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda handle, fields: [answer], raising=False)
        assert card.resting_power_w == 131.0
        pynvml.failing["nvmlDeviceGetUtilizationRates"] = 3
        assert card.resting_power_w is None


def test_a_lost_card_poisons_and_other_errors_fail(pynvml: FakePynvml) -> None:
    with Nvml() as nvml:
        card = nvml.card("GPU-11111111-aaaa")
        pynvml.failing["nvmlDeviceGetClockInfo"] = 15
        with pytest.raises(DevicePoisoned):
            card.telemetry()
        pynvml.failing["nvmlDeviceGetClockInfo"] = 999
        with pytest.raises(MeasurementFailed, match="nvmlDeviceGetClockInfo"):
            card.telemetry()


# --- measuring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("scalars", ["alpha=1 beta=0", "alpha=-1.5 beta=0.5"])
def test_types_layouts_and_scalars_reach_the_kernel(device: CudaDevice, types: str, layout: str, scalars: str) -> None:
    row = device.measure(Configuration.parse(f"tiled(tile=7) 33x45x21 {types} {layout} {scalars}"), QUICK)
    assert row.runtime_ms > 0
    assert row.verify_error is not None
    assert row.verify_error < 1e-5


def test_a_row_says_how_it_was_measured(device: CudaDevice, cupy: FakeCupy) -> None:
    configuration = Configuration.parse("tiled(tile=16) 96x80x64 f32")
    row = device.measure(configuration, QUICK)
    set_bytes = 4 * (96 * 64 + 64 * 80 + 96 * 80)
    sets = -(-2 * 2**20 // set_bytes)
    assert row.l2 == "cold"
    assert row.details["operand_sets"] == sets
    assert row.details["footprint_bytes"] == sets * set_bytes >= 2 * 2**20
    assert row.details["blocks_per_multiprocessor"] == 8
    assert row.details["occupancy"] == 1.0
    assert row.details["waves"] == pytest.approx(5 * 6 / (8 * 132))
    assert row.details["registers"] == 40
    assert len(set(cupy.launches)) == sets  # the graphs walk over all of them
    assert row.kernel_hash == TiledKernel.of(configuration).hash
    assert row.environment["driver"] == "580.159.04"
    assert (row.environment["cuda_runtime"], row.environment["nvrtc"]) == ("13.0", "13.0")
    assert (row.idle_power_w, row.power_limit_w) == (82.0, 700.0)
    assert (row.sm_clock_mhz, row.memory_clock_mhz, row.temperature_c) == (1980, 3201, 47)
    assert (row.throttle_reasons, row.clock_policy) == ("none", "default")
    assert (row.power_w, row.power_source, row.protocol) == (None, None, "farm")


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("text", ["a=normal*0.02 b=integers c=ones", "a=zeros b=normal c=uniform*3", "ones*0.3"])
def test_matrices_that_differ_are_filled_verified_and_named(device: CudaDevice, types: str, text: str) -> None:
    rules = QUICK.model_copy(update={"operands": operand_rules(text, seed=5)})
    configuration = Configuration.parse(f"tiled(tile=8) 300x270x310 {types} tn alpha=1 beta=1")
    row = device.measure(configuration, rules)
    assert (row.distribution, row.seed) == (text, 5)
    assert row.details["verified_by"] == "groups"
    operands = device._arena.buffers(SetLayout.of(configuration.problem, ALIGNMENT), 2, rules.operands)
    first, second = operands.views(0), operands.views(1)
    assert np.array_equal(first.a, second.a)
    assert np.array_equal(first.b, second.b)
    with device.replaying(configuration, OperandRules()):
        pass  # a process goes back to one stream of numbers
    assert device.measure(configuration, QUICK).distribution == "uniform"


def test_weights_of_a_file_are_filled_and_verified(device: CudaDevice, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(1).standard_normal((270, 310)).astype(np.float32))
    matrix = MatrixRules.model_validate_json(describe(tmp_path / "w.npy", None))
    rules = QUICK.model_copy(update={"operands": OperandRules(b=matrix)})
    row = device.measure(Configuration.parse("tiled(tile=8) 300x270x310 f32 nt"), rules)
    assert row.distribution == f"a=uniform b={matrix.text} c=uniform"
    with pytest.raises(InvalidOnDevice, match="is 270x310, and the problem needs 271x310"):
        device.measure(Configuration.parse("tiled(tile=8) 300x271x310 f32 nt"), rules)


def test_a_card_that_was_at_work_when_it_was_opened_is_asked_again(device: CudaDevice, pynvml: FakePynvml) -> None:
    device.close()
    pynvml.utilizations = [87, 100]
    device.open()
    configuration = Configuration.parse("tiled(tile=16) 96x80x64 f32")
    assert [device.measure(configuration, QUICK).idle_power_w for _ in range(3)] == [None, 82.0, 82.0]


def test_what_no_graph_captures_is_launched_behind_a_kernel_that_holds_the_card(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled._BoundTiled, "capturable", False)
    row = device.measure(Configuration.parse("tiled(tile=16) 96x80x64 f32"), QUICK)
    assert (row.details["timed_by"], row.details["launches_hidden"]) == ("launches", True)
    assert 1 <= row.details["launches_per_sample"] <= 500
    assert cupy.held_ms[:3] == [1, 2, 4]  # until the card was still held when the last launch was queued
    assert set(cupy.held_ms[3:]) == {4}


def test_launches_that_cannot_be_hidden_are_told(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled._BoundTiled, "capturable", False)
    monkeypatch.setattr(FakeKernel, "hold", lambda *_: None)
    row = device.measure(Configuration.parse("tiled(tile=16) 96x80x64 f32"), QUICK)
    assert row.details["launches_hidden"] is False


def test_opening_fills_in_what_needs_a_context(device: CudaDevice) -> None:
    assert device.identity.traits.multiprocessors == 132
    assert device.identity.traits.l2_bytes == 2**20


def test_power_comes_from_counter_and_samples(device: CudaDevice) -> None:
    rules = QUICK.model_copy(update={"power": "all", "power_seconds": 0.8, "power_rse": 0.001})  # never reached
    deadline = time.monotonic() + 60
    while True:  # a busy machine may see too few steps of the counter in one window
        row = device.measure(Configuration.parse("tiled(tile=16) 64x64x64 f32"), rules)
        if row.power_source == "nvml-counter+samples" or time.monotonic() > deadline:
            break
    assert row.power_source == "nvml-counter+samples"
    assert row.power_w == pytest.approx(600, rel=0.1)
    assert row.details["power_samples_w"] == 600.0
    assert row.runtime_settled_ms is not None
    assert row.runtime_settled_ms > 0


LIMITER_SECONDS = 0.05
"""After so long the limiter of these cards answers."""


def kernel_of(
    clock: VirtualTime, early_ms: float, later_ms: float, *, after_s: float = LIMITER_SECONDS
) -> Callable[[Any, Any], Any]:
    """A kernel that takes `early_ms` while it has run for less than `after_s` since a rest, and then `later_ms`."""
    launched_s: list[float] = []

    def gemm(a: Any, b: Any) -> Any:
        if launched_s and clock.now_s - launched_s[-1] > 0.8 * cuda_tiers.REST_SECONDS:
            launched_s.clear()
        launched_s.append(clock.now_s)
        clock.sleep((early_ms if clock.now_s - launched_s[0] < after_s else later_ms) / 1e3)
        return a @ b

    return gemm


@pytest.fixture
def waits(cupy: FakeCupy, virtual_time: VirtualTime) -> None:
    """A card that no limiter makes slower."""
    cupy.gemm = kernel_of(virtual_time, 1.0, 1.0)


CUBE = Configuration.parse("tiled(tile=16) 64x64x64 f32")


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("clock_events", "sm_clock_mhz", "sampled_mw", "why"),
    [
        (0x4, 1500, 300_000, None),  # the driver still speaks of the kernel before
        (0, 1980, 640_000, "it draws 640 W of 700 W"),
        (0, 1980, 600_000, None),
    ],
)
def test_a_kernel_that_draws_nearly_the_limit_is_watched_until_it_has_settled(
    device: CudaDevice, pynvml: FakePynvml, clock_events: int, sm_clock_mhz: int, sampled_mw: int, why: str | None
) -> None:
    pynvml.clock_events, pynvml.sm_clock_mhz, pynvml.sampled_mw = clock_events, sm_clock_mhz, sampled_mw
    explanation = Explanation()
    row = device.measure(CUBE, WARMED, explanation)
    assert [why for note in explanation.notes if "had not settled" in note and why and why in note] == [why] * bool(why)
    assert (row.window_s >= UNTOUCHED_SECONDS) is (why is not None)
    assert len(explanation.samples_ms) == row.samples
    assert (row.power_limited, row.throttle_reasons) == (False, "none")
    assert row.runtime_settled_ms == row.runtime_ms
    assert row.runtime_burst_ms == pytest.approx(row.runtime_ms, rel=0.01)


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize("faster_before", [True, False])
def test_of_a_card_without_power_samples_clocks_and_events_tell(
    device: CudaDevice, pynvml: FakePynvml, faster_before: bool
) -> None:
    pynvml.failing["nvmlDeviceGetSamples"] = 3
    device.close()
    device.open()
    if faster_before:
        assert device.measure(CUBE, WARMED).power_limited is False
    pynvml.clock_events, pynvml.sm_clock_mhz = 0x4, 1620
    explanation = Explanation()
    row = device.measure(CUBE, WARMED, explanation)
    assert any("the power limiter is at work" in note for note in explanation.notes)
    assert row.power_limited is faster_before  # otherwise it is not known what is fast
    assert row.throttle_reasons == ("sw_power_cap" if faster_before else "none")


@pytest.fixture
def held(pynvml: FakePynvml, cupy: FakeCupy, virtual_time: VirtualTime) -> None:
    """A limiter that makes kernels slower, and holds the card 10% above its limit for a while."""
    cupy.gemm = kernel_of(virtual_time, 1.0, 1.6)
    pynvml.sampled_mw = 770_000


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("power", ["none", "all"])
def test_a_held_kernel_has_the_time_at_the_limit_and_its_burst(device: CudaDevice, power: str) -> None:
    explanation = Explanation()
    row = device.measure(CUBE, WARMED.model_copy(update={"power": power}), explanation)
    assert row.power_limited is True
    assert row.runtime_burst_ms == pytest.approx(1.0, rel=0.01)
    assert row.runtime_settled_ms == row.runtime_ms == pytest.approx(1.6 * 1.1**POWER_EXPONENT, rel=0.01)
    assert row.settled_samples == row.samples == len(explanation.samples_ms)
    assert row.runtime_settled_rse is not None
    assert row.runtime_settled_rse >= LAW_RSE
    assert (row.power_w is None) is (power == "none")


@pytest.mark.parametrize("power", ["none", "all"])
@pytest.mark.parametrize("slowed", [True, False])
def test_a_kernel_that_becomes_slower_far_below_the_limit_has_two_times(
    device: CudaDevice, pynvml: FakePynvml, cupy: FakeCupy, virtual_time: VirtualTime, power: str, slowed: bool
) -> None:
    rules = WARMED.model_copy(update={"power": power})
    cupy.gemm = kernel_of(virtual_time, 1.0, 1.0)
    device.measure(CUBE, rules)  # the card has been seen at its full clocks
    virtual_time.sleep(1.0)
    cupy.gemm = kernel_of(virtual_time, 1.0, 1.14)
    pynvml.sampled_mw = 370_000
    if slowed:
        pynvml.clock_events, pynvml.sm_clock_mhz = 0x4, 1725
    explanation = Explanation()
    row = device.measure(CUBE, rules, explanation)
    assert row.runtime_burst_ms == pytest.approx(1.0, rel=0.01)
    assert row.runtime_settled_ms == row.runtime_ms == pytest.approx(1.14, rel=0.01)
    assert row.power_limited is slowed  # otherwise something else made it slower
    assert (row.throttle_reasons or "none") == ("sw_power_cap" if slowed else "none")
    assert (device.measure(CUBE, rules).details["rested_s"] > 0) is slowed
    if power == "none":
        assert any("14% longer than in its burst" in note for note in explanation.notes)


def test_a_burst_leaves_out_the_first_milliseconds(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime
) -> None:
    cupy.gemm = kernel_of(virtual_time, 1.3, 1.0, after_s=0.004)
    explanation = Explanation()
    row = device.measure(CUBE, WARMED, explanation)
    assert explanation.burst_ms == pytest.approx([row.runtime_ms] * len(explanation.burst_ms), rel=0.01)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("warm_l2", [False, True])
def test_the_card_rests_after_a_kernel_at_its_limit(
    device: CudaDevice, pynvml: FakePynvml, virtual_time: VirtualTime, warm_l2: bool
) -> None:
    timing = WARMED.timing.model_copy(update={"warm_l2": warm_l2})
    assert device.measure(CUBE, WARMED.model_copy(update={"timing": timing})).details["rested_s"] == 0
    ended_s = virtual_time.now_s
    pynvml.sampled_mw = 300_000
    explanation = Explanation()
    rested = device.measure(CUBE, WARMED, explanation)
    assert 0 < rested.details["rested_s"] <= cuda_tiers.REST_SECONDS
    assert virtual_time.now_s - ended_s - rested.window_s >= 0.9 * cuda_tiers.REST_SECONDS
    assert explanation.seconds["rest"] == pytest.approx(rested.details["rested_s"], abs=1e-3)
    assert device.measure(CUBE, WARMED).details["rested_s"] == 0  # it drew little


@pytest.mark.usefixtures("waits")
def test_a_kernel_runs_on_until_its_power_was_sampled(
    device: CudaDevice, pynvml: FakePynvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, asked = FakePynvml.nvmlDeviceGetSamples, []

    def late(self: FakePynvml, handle: Any, kind: int, since_us: int) -> Any:
        asked.append(since_us)
        return sample(self, handle, kind, since_us) if len(asked) > 3 else (1, [])

    monkeypatch.setattr(FakePynvml, "nvmlDeviceGetSamples", late)
    pynvml.sampled_mw = 690_000
    explanation = Explanation()
    device.measure(CUBE, WARMED, explanation)
    assert len(set(asked[:4])) == 1
    assert any("690 W of 700 W" in note for note in explanation.notes)
    pynvml.failing["nvmlDeviceGetSamples"] = 3
    other = open_device(device.identity)  # of a card that does not sample its power, which nothing waits for
    other.open()
    pynvml.calls.clear()
    other.measure(CUBE, WARMED)
    other.close()
    assert pynvml.calls.count("nvmlDeviceGetSamples") == 1


def test_clocks_that_a_user_set_are_in_the_row(device: CudaDevice, pynvml: FakePynvml) -> None:
    pynvml.application_clock_mhz = 1500
    row = device.measure(Configuration.parse("tiled(tile=16) 64x64x64 f32"), QUICK)
    assert row.clock_policy == "locked:1500"


@pytest.mark.usefixtures("waits")
def test_a_card_without_power_readings_has_none_and_is_timed_as_without(device: CudaDevice, pynvml: FakePynvml) -> None:
    pynvml.failing = {"nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetSamples": 3}
    device.close()
    device.open()
    rules = WARMED.model_copy(update={"power": "all"})
    assert device.measure(CUBE, rules).power_w is None
    pynvml.clock_events, pynvml.sm_clock_mhz = 0x4, 1620
    explanation = Explanation()
    row = device.measure(CUBE, rules, explanation)
    assert (row.power_w, row.power_source, row.power_limited) == (None, None, True)
    assert any("the power limiter is at work" in note for note in explanation.notes)


def test_a_wrong_kernel_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    configuration = Configuration.parse("tiled(tile=16) 64x64x64 f32")
    cupy.gemm = lambda a, b: a @ b.T
    with pytest.raises(WrongResult):
        device.measure(configuration, QUICK)
    cupy.gemm = lambda a, b: (a @ b)[:-1]
    with pytest.raises(ElementNotWritten, match=r"\(63, 0\)"):
        device.measure(configuration, QUICK)


LARGE = "300x330x202"  # more multiplications than are compared one by one


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", list(Layout))
def test_a_large_result_is_verified_on_the_card(
    device: CudaDevice, types: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_verify, "verify", None)  # what looks closer is not needed where all is right
    row = device.measure(Configuration.parse(f"tiled(tile=16) {LARGE} {types} {layout} alpha=2 beta=-1"), QUICK)
    assert row.details["verified_by"] == "groups"
    assert row.verify_error is not None
    assert 0 < row.verify_error < 1e-5


@pytest.mark.parametrize("room", [cuda_verify.MAX_WIDENED, 0])
def test_a_large_wrong_result_is_found_whatever_room_there_is(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", room)
    configuration = Configuration.parse(f"tiled(tile=16) {LARGE} f32")
    assert device.measure(configuration, QUICK).details["verified_by"] == "groups"

    def off_by_one(a: Any, b: Any) -> Any:
        d = a @ b
        d[17, 44] += 1
        return d

    cupy.gemm = off_by_one
    with pytest.raises(WrongResult, match=r"\(17, 44\)"):
        device.measure(configuration, QUICK)
    cupy.gemm = lambda a, b: (a @ b)[:-1]
    with pytest.raises(ElementNotWritten, match=r"\(299, 0\)"):
        device.measure(configuration, QUICK)
    cupy.gemm = lambda a, b: a @ b
    if room:
        monkeypatch.setattr(cuda_verify, "verify", None)  # what was wrong before is forgotten
    assert device.measure(configuration, QUICK).details["verified_by"] == "groups"


def test_without_the_memory_to_widen_operands_parts_are_verified(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration, empty = Configuration.parse(f"tiled(tile=16) {LARGE} f32"), cupy.empty
    device.measure(configuration, QUICK)

    def too_little(count: int, dtype: type) -> Any:
        if count == 300 * 202:
            raise OutOfMemoryError("Out of memory allocating 484,800 bytes")
        return empty(count, dtype)

    monkeypatch.setattr(cupy, "empty", too_little)
    assert device.measure(configuration, QUICK).details["verified_by"] == "groups"


def test_what_cannot_run_here_is_invalid(device: CudaDevice, cupy: FakeCupy) -> None:
    for text in ("blas(threads=1) 8x8x8 f32", "tiled(tile=8) 8x8x8 f16", "cutlass() 512 f8e4m3"):
        with pytest.raises(InvalidOnDevice):
            device.measure(Configuration.parse(text), QUICK)
    with pytest.raises(InvalidOnDevice, match=r"17,\d{3},\d{3},\d{3} bytes"):
        device.measure(Configuration.parse("tiled(tile=8) 38000x38000x38000 f32"), QUICK)


def test_a_full_card_fails_the_job_and_may_be_tried_again(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.free = 2**10
    with pytest.raises(MeasurementFailed, match="others leave"):
        device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f32"), QUICK)
    cupy.free = 2**33
    device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f32"), QUICK)


def test_running_out_of_memory_frees_what_was_held(device: CudaDevice, cupy: FakeCupy) -> None:
    device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f64"), QUICK)
    assert device._arena.bytes > 0
    configuration = Configuration.parse("tiled(tile=8) 64x64x64 f32")
    cupy.fault = OutOfMemoryError("Out of memory allocating 1,024 bytes")
    with pytest.raises(DeviceOutOfMemory):
        device.measure(configuration, QUICK)
    assert device._arena.bytes == 0
    cupy.fault = None
    assert device.measure(configuration, QUICK).runtime_ms > 0


def test_what_other_types_hold_gives_way(device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f64"), QUICK)
    held, empty = device._arena.bytes, cupy.empty

    def as_long_as_there_is_room(count: int, dtype: type) -> Any:
        if device._arena.bytes >= held:
            raise OutOfMemoryError("Out of memory allocating 1,024 bytes")
        return empty(count, dtype)

    monkeypatch.setattr(cupy, "empty", as_long_as_there_is_room)
    assert device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f32"), QUICK).runtime_ms > 0
    assert ElementType.F64 not in device._arena._arena._outputs


def test_a_kernel_that_breaks_the_context_poisons_the_device(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.fault = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
    with pytest.raises(DevicePoisoned, match="illegal memory access"):
        device.measure(Configuration.parse("tiled(tile=8) 64x64x64 f32"), QUICK)
    cupy.fault = None


@pytest.mark.parametrize(("count", "bus"), [(2, "0000:0B:00.0"), (1, "0000:0C:00.0")])
def test_a_process_where_cuda_started_on_another_card_is_refused(
    pynvml: FakePynvml, cupy: FakeCupy, count: int, bus: str
) -> None:
    cupy.cuda.runtime.getDeviceCount = lambda: count
    cupy.cuda.runtime.deviceGetPCIBusId = lambda _: bus
    device = open_device(discover("cuda")[0])
    with pytest.raises(CudaUnavailable, match="started"):
        device.open()


# --- errors, kernels, plans ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "cudaErrorIllegalAddress: an illegal memory access was encountered",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "cudaErrorLaunchFailure: unspecified launch failure",
        "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
        "CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address",
    ],
)
def test_errors_that_stick_poison_the_device(message: str) -> None:
    assert isinstance(translate(CUDARuntimeError(message)), DevicePoisoned)


def test_other_errors_of_cuda_fail_the_job_only() -> None:
    class CompileException(Exception):
        pass

    refused = translate(CUDARuntimeError("cudaErrorInvalidValue: invalid argument"))
    full = translate(CUDARuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"))
    broken = translate(CompileException("x.cu(3): error: expected a ;\nmore"))
    assert type(refused) is MeasurementFailed
    assert type(full) is DeviceOutOfMemory
    assert type(broken) is MeasurementFailed
    assert str(broken).endswith("x.cu(3): error: expected a ;")
    assert translate(ValueError("a defect")) is None
    assert cuda_name(RuntimeError("cudaErrorIllegalAddress: x")) == "illegaladdress"


def test_each_compilation_has_a_hash_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [
        TiledKernel(tile, element, a, b)
        for tile, element, a, b in itertools.product(range(1, 33), tiled.CUDA_TYPES, (False, True), (False, True))
    ]
    hashes = {kernel.hash for kernel in kernels}
    assert len(hashes) == len(kernels)
    text = tiled.source("tiled.cu")
    monkeypatch.setattr(tiled, "source", lambda _: text + " ")
    assert kernels[0].hash not in hashes


@pytest.mark.parametrize(
    ("shape", "tile", "grid"),
    [
        (Shape(1, 1, 1), 32, (1, 1)),
        (Shape(33, 64, 7), 32, (2, 2)),
        (Shape(65_536, 2, 1), 1, (2, 65_535)),
        (Shape(2**31 - 1, 1, 1), 1, (1, 65_535)),
        (Shape(1, 2**31 - 1, 1), 1, (2**31 - 1, 1)),
    ],
)
def test_grids_stay_within_the_limits_of_cuda(shape: Shape, tile: int, grid: tuple[int, int]) -> None:
    assert TiledKernel(tile, ElementType.F32, False, False).grid(shape) == grid
