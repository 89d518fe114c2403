"""How CUTLASS 3.x kernels are launched: libraries that are loaded and called as the real ones, for a card that is NumPy's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.builds.record import Built
from farm.devices import traits_of_capability
from farm.errors import DevicePoisoned, FarmError, InvalidOnDevice, MeasurementFailed, WrongResult
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH
from farm.measurement import MeasuringRules, TimingRules
from farm.settings import Settings
from support.fake_cuda import FakeCupy, FakePynvml, at_address
from support.quick import assert_wide_product
from support.toolkit import Toolkit
from workers.devices import discover, open_device
from workers.devices.cuda import CudaDevice
from workers.kernels.cutlass3x.library import Library
from workers.kernels.sources import own_kernels

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc) to make libraries with")

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))


class Counted:
    """This host's kernels, and how often they were asked for."""

    def __init__(self, folder: Path) -> None:
        self._own = own_kernels(Settings(home=folder, kernels=folder))
        self.asked: list[Binary] = []
        self.code: bytes | None = None  # in place of what is built

    def get(self, binary: Binary) -> Built:
        self.asked.append(binary)
        built = self._own.get(binary)
        return built if self.code is None else Built(self.code, built.record)


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


def configuration(parameters: str = "", problem: str = "96x80x64 tf32 nt") -> Configuration:
    return Configuration.parse(f"cutlass3x(tile_k=32,{parameters}) {problem}")


@pytest.mark.parametrize(("layout", "swap"), [("nn", 1), ("nt", 0), ("nt", 1), ("tn", 0), ("tt", 0)])
@pytest.mark.parametrize("scalars", ["", " alpha=2 beta=0.5", " alpha=-1 beta=1"])
@pytest.mark.sampled(3)
def test_layouts_scalars_and_every_operand_set_reach_the_kernel(
    device: CudaDevice, cupy: FakeCupy, layout: str, swap: int, scalars: str
) -> None:
    row = device.measure(configuration(f"swap={swap}", f"96x80x64 tf32 {layout}{scalars}"), QUICK)
    assert row.verify_error is not None
    assert row.verify_error < 1e-5
    assert len(set(cupy.launches)) == row.details["operand_sets"] > 2  # each set has an A of its own


KINDS = [
    "96x80x64 tf32 nt batch=3 alpha=1.5 beta=0.5",
    "96x80x64 tf32 tn batch=5 fused=bias+gelu scale=row",
    "96x80x64 tf32 nt scale=tensor fused=silu batch=2 beta=1",
    "100x80x64 tf32 nt groups=40,0*2,1,59 alpha=1.5 beta=0.5",
    "100x80x64 tf32 nt groups=0,40,1,59 fused=bias+relu scale=row",
    "100x80x64 tf32 nt groups=100 scale=tensor fused=bias",
]


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("problem", KINDS)
@pytest.mark.sampled(3)
def test_batches_groups_factors_and_biases_reach_the_kernel(device: CudaDevice, problem: str, swap: int) -> None:
    assert_wide_product(device, configuration(f"swap={swap}", problem), at_address)


def test_tiles_of_a_row_are_those_of_every_product_and_group(device: CudaDevice) -> None:
    def tiles(problem: str) -> object:
        return device.measure(configuration("tile_m=64,tile_n=128,schedule=1", problem), QUICK).details["tiles"]

    assert tiles("200x300x64 tf32 nt batch=5") == 5 * 4 * 3
    assert tiles("200x300x64 tf32 nt groups=64,0,65,71") == (1 + 2 + 2) * 3


def test_a_row_says_what_was_launched(device: CudaDevice, kernels: Counted) -> None:
    asked = configuration("cluster_m=2,tile_n=64", "512x320x64 tf32 nt")
    row = device.measure(asked, QUICK)
    (binary,) = set(kernels.asked)
    assert row.kernel_hash == binary.hash(BUILT_WITH)
    expected = {
        "registers": 255, "static_shared_bytes": 1024, "dynamic_shared_bytes": 200704, "local_bytes": 96, "spill_bytes": 88,
        "blocks": 20, "blocks_per_multiprocessor": 2, "occupancy": 2 * 384 / 2048, "tiles": 20, "waves": 20 / 120,
        "pipeline_stages": 5, "workspace_bytes": 0, "cutlass": "4.2.0", "nvcc": "13.0.88",
    }  # fmt: skip
    assert {name: row.details[name] for name in expected} == expected


def test_waves_count_tiles_and_not_blocks_that_compute_several(device: CudaDevice) -> None:
    details = device.measure(configuration("", "2560x1280x64 tf32 nt"), QUICK).details
    assert (details["tiles"], details["blocks"], details["waves"]) == (200, 132, 200 / 132)
    details = device.measure(configuration("schedule=0", "2560x1280x64 tf32 nt"), QUICK).details
    assert (details["tiles"], details["blocks"], details["waves"]) == (200, 200, 200 / 264)


def test_stream_k_works_in_memory_of_the_card_that_all_sets_share(device: CudaDevice, cupy: FakeCupy) -> None:
    assert device.measure(configuration(), QUICK).details["workspace_bytes"] == 0
    assert set(cupy.workspaces) == {0}
    cupy.workspaces.clear()
    assert device.measure(configuration("stream_k=1"), QUICK).details["workspace_bytes"] == 4096
    assert len(set(cupy.workspaces)) == 1
    assert cupy.workspaces[0] != 0


def test_a_library_is_loaded_once_for_all_that_it_launches(
    device: CudaDevice, kernels: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    class Noted(Library):
        def __init__(self, cp: object, name: str, code: bytes) -> None:
            loaded.append(name)
            super().__init__(cp, name, code)

    monkeypatch.setattr("workers.kernels.cutlass3x.family.Library", Noted)
    for parameters, shape in (("", "96x80x64"), ("raster=2", "64x64x128"), ("swizzle=8", "96x80x64")):
        device.prepare(configuration(parameters, f"{shape} tf32 nt"))
        device.measure(configuration(parameters, f"{shape} tf32 nt"), QUICK)
    assert len(loaded) == 1
    assert len(set(kernels.asked)) == 1


def test_libraries_that_are_loaded_one_after_the_other_do_not_take_each_others_place(
    cupy: FakeCupy, kernels: Counted
) -> None:
    """Files that are closed leave their number, and so their path, to the next."""

    def clusters(cluster_m: int) -> int:
        binary = configuration(f"cluster_m={cluster_m}").binary(traits_of_capability((9, 0)))
        assert binary is not None
        built = kernels.get(binary)
        library = Library(cupy, built.record.hash, built.code)
        library.open()
        return library.clusters

    assert [clusters(size) for size in (1, 2, 4)] == [264, 60, 30]


@pytest.mark.parametrize(
    ("parameters", "error", "why"),
    [
        ("swizzle=2", InvalidOnDevice, "CUTLASS refuses the problem: its extents"),
        ("swizzle=4", InvalidOnDevice, "CUTLASS refuses the problem: it is not supported"),
        ("raster=1", MeasurementFailed, "the driver made no TMA descriptor"),
        ("tile_m=256,tile_n=64", MeasurementFailed, "cudaErrorInsufficientDriver"),
    ],
)
def test_what_the_library_returns_is_the_farm_s_error(
    device: CudaDevice, parameters: str, error: type[FarmError], why: str
) -> None:
    with pytest.raises(error, match=why):
        device.measure(configuration(parameters), QUICK)


def test_a_launch_that_breaks_the_context_says_so(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.launch_status = 700
    with pytest.raises(DevicePoisoned, match="IllegalAddress"):
        device.measure(configuration(), QUICK)


@pytest.mark.parametrize("code", [b"\x7fELF but no library", b""])
def test_a_library_for_another_kind_of_host_says_so(device: CudaDevice, kernels: Counted, code: bytes) -> None:
    kernels.code = code
    with pytest.raises(MeasurementFailed, match="its kernel cannot be loaded on this host"):
        device.measure(configuration(), QUICK)


def test_a_wrong_kernel_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.gemm = lambda a, b: 1.01 * (a @ b)
    with pytest.raises(WrongResult):
        device.measure(configuration(), QUICK)
