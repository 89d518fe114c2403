"""How CUTLASS kernels are launched: what reaches the card, with a card, a compiler and kernels that are NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from farm.builds.record import Built
from farm.devices import traits_of_capability
from farm.errors import InvalidOnDevice, KernelMissing, MeasurementFailed, WrongResult
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH
from farm.measurement import MeasuringRules, TimingRules
from farm.settings import Settings
from support.fake_cuda import FakeCupy, FakePynvml, at_address
from support.quick import assert_wide_product
from support.toolkit import Toolkit, cubin
from workers.devices import discover, open_device
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.kernels.sources import own_kernels
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound, group_bound

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
SIMT = "tile_m=128,tile_n=128,tile_k=8,warp_m=32,warp_n=64,stages=2"
DOUBLES = "tile_m=64,tile_n=64,tile_k=16,warp_m=32,warp_n=32,stages=4"


class Counted:
    """This host's kernels, and how often they were asked for."""

    def __init__(self, folder: Path) -> None:
        self._own = own_kernels(Settings(home=folder, kernels=folder))
        self.asked: list[Binary] = []
        self.missing = False
        self.shared_bytes: int | None = None

    def get(self, binary: Binary) -> Built:
        self.asked.append(binary)
        if self.missing:
            raise KernelMissing(binary=binary)
        built = self._own.get(binary)
        if self.shared_bytes is None:
            return built
        return Built(built.code, built.record.model_copy(update={"shared_bytes": self.shared_bytes}))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    Toolkit(tmp_path / "toolkit")
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    return Counted(tmp_path / "kernels")


@pytest.fixture
def device(pynvml: FakePynvml, cupy: FakeCupy, kernels: Counted) -> Iterator[CudaDevice]:
    opened = open_device(discover("cuda")[0], kernels)
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()


def configuration(text: str) -> Configuration:
    return Configuration.parse(f"cutlass({text}")


@pytest.mark.parametrize("layout", [layout.value for layout in Layout])
@pytest.mark.parametrize("scalars", ["", " alpha=2 beta=0.5", " alpha=-1 beta=1"])
@pytest.mark.parametrize("kernel", [f"{SIMT}) 96x80x64 f32", f"{DOUBLES}) 48x56x64 f64"])
@pytest.mark.sampled(4)
def test_layouts_scalars_and_every_operand_set_reach_the_kernel(
    device: CudaDevice, cupy: FakeCupy, kernel: str, layout: str, scalars: str
) -> None:
    asked = configuration(f"{kernel} {layout}{scalars}")
    row = device.measure(asked, QUICK)
    assert row.verify_error is not None
    assert row.verify_error < 1e-5
    lies, types = SetLayout.of(asked.problem, ALIGNMENT), asked.problem.types
    for addresses, apart in (
        (cupy.launches, lies.inputs * types.ab.bytes),
        (cupy.written, lies.outputs * types.cd.bytes),
    ):
        sets = sorted(set(addresses))
        assert len(sets) == row.details["operand_sets"] > 2
        assert {b - a for a, b in pairwise(sets)} == {apart}


@pytest.mark.parametrize(
    "text", ["batch=3", "batch=2 fused=bias+gelu", "fused=bias", "beta=-1 batch=2 fused=relu", "fused=silu"]
)
def test_batches_and_fused_operations_reach_the_kernel(device: CudaDevice, text: str) -> None:
    for kernel in (f"{SIMT}) 96x80x64 f32 nt", f"{DOUBLES}) 48x56x64 f64 tn"):
        assert_wide_product(device, configuration(f"{kernel} alpha=2 {text}"), at_address)


def test_slices_of_k_are_added_up_before_an_activation(device: CudaDevice) -> None:
    assert_wide_product(device, configuration(f"{SIMT},split_k=4) 96x80x64 f32 fused=bias+relu"), at_address)


def test_a_row_says_what_was_launched(device: CudaDevice, kernels: Counted) -> None:
    asked = configuration(f"{SIMT}) 256x384x64 f32")
    row = device.measure(asked, QUICK)
    (binary,) = set(kernels.asked)
    assert row.kernel_hash == binary.hash(BUILT_WITH)
    expected = {
        "registers": 255, "static_shared_bytes": 1024, "dynamic_shared_bytes": 49152, "local_bytes": 96, "spill_bytes": 88,
        "blocks": 6, "blocks_per_multiprocessor": 16, "occupancy": 1.0, "waves": 6 / (16 * 132), "cutlass": "4.2.0",
        "nvcc": "13.0.88",
    }  # fmt: skip
    assert {name: row.details[name] for name in expected} == expected


def test_slices_of_k_have_semaphores_and_the_errors_of_their_roundings(device: CudaDevice) -> None:
    assert device.measure(configuration(f"{SIMT},split_k=4) 256x384x64 f32"), QUICK).verify_error is not None
    problem = Problem(Shape(512, 512, 512), ElementTypes.parse("f16"), Layout.NN, 1, 0)
    assert error_bound(problem, roundings=16) > 2 * error_bound(problem) > error_bound(problem, roundings=1)
    assert group_bound(problem, roundings=16) > 2 * group_bound(problem)


def test_a_binary_is_loaded_once_for_all_its_configurations(
    device: CudaDevice, cupy: FakeCupy, kernels: Counted
) -> None:
    for shape in ("96x80x64", "64x64x128", "96x80x64"):
        device.prepare(configuration(f"{SIMT}) {shape} f32"))
        device.measure(configuration(f"{SIMT}) {shape} f32"), QUICK)
    assert len(cupy.loaded) == 1
    assert cupy.loaded[0].startswith(cubin())


def test_more_shared_memory_than_usual_is_asked_for(device: CudaDevice, cupy: FakeCupy, kernels: Counted) -> None:
    device.prepare(configuration(f"{SIMT}) 96x80x64 f32"))
    assert cupy.attributes == []
    kernels.shared_bytes = 100_000
    device.prepare(configuration(f"{SIMT},swizzle=2) 96x80x64 f32"))
    assert cupy.attributes == [(8, 100_000)]


def test_a_kernel_that_is_not_built_is_missing_and_found_the_next_time(device: CudaDevice, kernels: Counted) -> None:
    asked = configuration(f"{SIMT}) 96x80x64 f32")
    kernels.missing = True
    device.prepare(asked)  # raises nothing
    with pytest.raises(KernelMissing) as missing:
        device.measure(asked, QUICK)
    assert missing.value.binary == asked.binary(device.identity.traits)
    kernels.missing = False
    device.measure(asked, QUICK)


def test_a_wrong_kernel_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.gemm = lambda a, b: 1.01 * (a @ b)
    with pytest.raises(WrongResult):
        device.measure(configuration(f"{SIMT}) 96x80x64 f32"), QUICK)


def test_a_card_that_does_not_say_what_it_is_runs_nothing_that_is_built_for_it(device: CudaDevice) -> None:
    device.identity = replace(device.identity, traits=replace(device.identity.traits, compute_capability=None))
    device.close()
    device.open()
    with pytest.raises(InvalidOnDevice, match="does not say its compute capability"):
        device.measure(configuration(f"{SIMT}) 96x80x64 f32"), QUICK)


# --- without a farm ------------------------------------------------------------------------------------


def test_alone_a_host_compiles_what_it_lacks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit = Toolkit(tmp_path / "toolkit")
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    binary = binary_of(f"{SIMT}) 96x80x64 f32")
    own = own_kernels(Settings(home=tmp_path, kernels=tmp_path / "kernels"))
    assert own.get(binary) == own.get(binary)
    assert len(toolkit.compiled()) == 1


def binary_of(text: str) -> Binary:
    binary = configuration(text).binary(traits_of_capability((9, 0)))
    assert binary is not None
    return binary


@pytest.mark.parametrize(("version", "why"), [("12.9.86", "This host has cutlass 4.2.0, cuda 12.9.86")])
def test_alone_a_host_with_another_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, why: str
) -> None:
    Toolkit(tmp_path / "toolkit", version=version)
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    with pytest.raises(MeasurementFailed, match=why):
        own_kernels(Settings(home=tmp_path, kernels=tmp_path / "kernels")).get(binary_of(f"{SIMT}) 96x80x64 f32"))


def test_alone_what_does_not_compile_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit = Toolkit(tmp_path / "toolkit")
    toolkit.refuse("-DSTAGES=2")
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    with pytest.raises(InvalidOnDevice, match="it is refused"):
        own_kernels(Settings(home=tmp_path, kernels=tmp_path / "kernels")).get(binary_of(f"{SIMT}) 96x80x64 f32"))
