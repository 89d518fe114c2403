"""How Triton kernels are launched: what reaches the card, with a card, a Triton and kernels that are NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.builds.record import Built
from farm.devices import traits_of_capability
from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.gemm import Layout
from farm.groups import Groups
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from farm.settings import Settings
from support.fake_cuda import FakeCupy, FakePynvml, at_address
from support.own_kernels import ENTRY, TRITON_CODE, in_triton
from support.quick import assert_wide_product
from support.triton_toolkit import TritonToolkit
from support.virtual_time import VirtualTime
from workers.devices import discover, open_device
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.kernels.base import CardContext, Placement
from workers.kernels.group_tiles import group_tiles
from workers.kernels.sources import own_kernels
from workers.kernels.triton import family as triton_family
from workers.kernels.triton.family import TritonFamily
from workers.measure.operands import SetLayout

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))


class Own:
    """This host's kernels, whose records may be changed."""

    def __init__(self, folder: Path) -> None:
        self._own = own_kernels(Settings(home=folder, kernels=folder))
        self.changes: dict[str, Any] = {}

    def get(self, binary: Binary) -> Built:
        built = self._own.get(binary)
        return Built(built.code, built.record.model_copy(update=self.changes))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    toolkit = TritonToolkit(tmp_path / "toolkit")
    monkeypatch.setenv("PYTHONPATH", toolkit.variables["PYTHONPATH"])
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    return Own(tmp_path / "kernels")


@pytest.fixture
def device(pynvml: FakePynvml, cupy: FakeCupy, kernels: Own) -> Iterator[CudaDevice]:
    opened = open_device(discover("cuda")[0], kernels)
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()


@pytest.mark.parametrize("layout", [layout.value for layout in Layout])
@pytest.mark.parametrize("more", ["", " alpha=2 beta=0.5", " alpha=-1 beta=1 batch=5"])
def test_layouts_scalars_batches_and_every_operand_set_reach_the_kernel(
    device: CudaDevice, cupy: FakeCupy, layout: str, more: str
) -> None:
    asked = Configuration.parse(f"triton() 96x80x64 f32 {layout}{more}")
    row = device.measure(asked, QUICK)
    assert row.verify_error is not None
    assert row.verify_error < 1e-5
    p, lies = asked.problem, SetLayout.of(asked.problem, ALIGNMENT)
    for addresses, apart in ((cupy.launches, lies.inputs), (cupy.written, lies.outputs)):
        first_products = sorted(set(addresses[:: p.batch]))
        assert len(first_products) == row.details["operand_sets"] > 2
        assert {b - a for a, b in pairwise(first_products)} == {4 * apart}


SIZES = (0, 130, 1, 0, 64, 128, 3, 0)
GROUPED = f"triton() {sum(SIZES)}x80x64 f32 nt alpha=2 beta=-1 groups={Groups.of(SIZES)}"


def test_groups_are_found_by_a_table_of_tiles(device: CudaDevice) -> None:
    asked = Configuration.parse(GROUPED)
    row = device.measure(asked, QUICK)
    assert row.verify_error is not None
    assert row.verify_error < 1e-5
    assert (row.details["blocks"], row.details["useful_share"]) == (6, 326 / (6 * 128))
    assert_wide_product(device, asked, at_address)


@pytest.mark.parametrize(("column", "rows"), [(3, slice(2, 3)), (2, slice(-1, None)), (1, slice(1, None))])
def test_a_wrong_table_of_tiles_gives_no_row(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, column: int, rows: slice
) -> None:
    """Another matrix for a group, a row less at its end, and tiles that begin a row later."""

    def wrong(groups: Groups, tile: int) -> Any:
        table = group_tiles(groups, tile)
        table[rows, column] += 1 if column == 1 else -1
        return table

    monkeypatch.setattr(triton_family, "group_tiles", wrong)
    with pytest.raises((WrongResult, ElementNotWritten), match=r"of group \d"):
        device.measure(Configuration.parse(GROUPED), QUICK)


def test_every_block_has_scratch_memory_for_its_descriptors(device: CudaDevice) -> None:
    row = device.measure(Configuration.parse("triton(tma=1) 300x160x64 tf32 nt batch=2"), QUICK)
    assert row.verify_error is not None
    assert row.details["blocks"] == 3 * 2 * 2


def test_a_row_says_what_was_launched(device: CudaDevice) -> None:
    asked = Configuration.parse("triton() 256x384x64 f32 batch=3")
    row = device.measure(asked, QUICK)
    binary = asked.binary(device.identity.traits)
    assert binary is not None
    assert row.kernel_hash == binary.hash(BUILT_WITH)
    expected = {
        "registers": 168, "dynamic_shared_bytes": 98304, "local_bytes": 96, "spill_bytes": 88, "triton": "3.9.0",
        "blocks": 18, "blocks_per_multiprocessor": 8, "occupancy": 1.0, "waves": 18 / (8 * 132),
    }  # fmt: skip
    assert {name: row.details[name] for name in expected} == expected
    assert "nvcc" not in row.details


def test_the_shared_memory_of_a_kernel_is_allowed_or_too_much(device: CudaDevice, cupy: FakeCupy, kernels: Own) -> None:
    device.prepare(Configuration.parse("triton() 96x80x64 f32"))
    assert cupy.attributes == [(8, 98304)]
    kernels.changes = {"shared_bytes": 232_449}
    with pytest.raises(InvalidOnDevice, match="its kernel needs 232449 bytes of shared memory, the device has 232448"):
        device.measure(Configuration.parse("triton(stages=4) 96x80x64 f32"), QUICK)


def test_scale_factors_and_the_bias_reach_the_kernel(cupy: FakeCupy, kernels: Own) -> None:
    traits = replace(traits_of_capability((9, 0)), multiprocessors=132)
    family = TritonFamily(CardContext(cp=cupy, traits=traits, threads_per_multiprocessor=2048, kernels=kernels))
    asked = Configuration.parse("triton() 96x80x300 f32 nt batch=2 scale=1x128:128x128 fused=bias+gelu")
    buffers = DeviceArena(cupy, 2**10, 132).buffers(SetLayout.of(asked.problem, ALIGNMENT), 3, OperandRules())
    placement = Placement.of(buffers, 3)
    bound = family.bind(asked, placement)
    given: list[tuple[Any, ...]] = []
    cupy.gemm = lambda a, b: given.append((a, b)) or np.zeros((len(a), b.shape[1]))
    for index in range(3):
        bound.launch(index)  # the kernel compares the addresses with what it is compiled for
    arguments = [bound._arguments[index] for index in range(3)]  # type: ignore[attr-defined]
    assert [each[4:7] for each in arguments] == [placement.added(index) for index in range(3)]
    assert len({address for each in arguments for address in (each[0], each[1], *each[3:7])}) == 18
    assert len(given) == 6


@pytest.mark.parametrize(
    ("params", "scratch"), [(76, 0), (88, 1), (96, 2)], ids=["Triton 3.2", "Triton 3.3", "since 3.4"]
)
def test_scratch_pointers_are_those_that_the_kernel_has(
    cupy: FakeCupy, kernels: Own, params: int, scratch: int
) -> None:
    traits = traits_of_capability((9, 0))
    family = TritonFamily(CardContext(cp=cupy, traits=traits, threads_per_multiprocessor=2048, kernels=kernels))
    asked = Configuration.parse("triton() 8 f32")
    buffers = DeviceArena(cupy, 2**10, 132).buffers(SetLayout.of(asked.problem, ALIGNMENT), 1, OperandRules())
    kernels.changes = {"params_bytes": params}
    bound = family.bind(asked, Placement.of(buffers, 1))
    assert bound._arguments[0][12:] == (0,) * scratch  # type: ignore[attr-defined]


def test_a_wrong_kernel_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.gemm = lambda a, b: 1.01 * (a @ b)
    with pytest.raises(WrongResult):
        device.measure(Configuration.parse("triton() 96x80x64 f32"), QUICK)
    cupy.gemm = lambda a, b: (a @ b)[:-1]
    with pytest.raises(ElementNotWritten):
        device.measure(Configuration.parse("triton() 96x80x64 f32"), QUICK)


# --- own kernels -------------------------------------------------------------------------------------


def test_an_own_kernel_gets_its_arguments_but_for_those_that_are_compiled_in(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime
) -> None:
    launches = list[Any]()

    def kernel(grid: Any, block: Any, shared: int, a: int, b: int, d: int, *rest: Any) -> None:
        m, n, k, alpha, *scratch = rest
        launches.append((grid, block, shared, tuple(scratch), [type(one) for one in rest[:4]]))
        left, right = at_address(a, m * k, np.float32).reshape(m, k), at_address(b, k * n, np.float32).reshape(k, n)
        at_address(d, m * n, np.float32).reshape(m, n)[:] = alpha * (left @ right)
        virtual_time.sleep(1e-3)

    cupy.own[ENTRY] = kernel
    definition = in_triton(arguments=("a", "b", "d", "m", "n", "k", "stride_ak", "alpha"))
    asked = Configuration.parse(f"source(definition={definition.id},BM=32,BN=16) 64x48x32 f32 nn alpha=1.5")
    row = device.measure(asked, QUICK)
    binary = asked.binary(device.identity.traits)
    assert binary is not None
    assert row.kernel_hash == binary.hash(BUILT_WITH)
    # Two pointers to scratch memory follow, as Triton's kernels take them.
    numbers = [np.int32, np.int32, np.int32, np.float32]
    assert launches[0] == ((3, 2, 1), (128, 1, 1), 98304, (0, 0), numbers)
    assert {
        "triton": "3.9.0",
        "source_file": "my_gemm.py",
        "dynamic_shared_bytes": 98304,
    }.items() <= row.details.items()
    assert row.details["referee_verified"] > 9


def test_an_own_kernel_that_does_not_compile_is_invalid_with_the_reason(device: CudaDevice) -> None:
    definition = in_triton(code=TRITON_CODE.replace("tl.arange", "tl.secret"))
    with pytest.raises(InvalidOnDevice, match=r"does not compile: .*triton.language has no public secret"):
        device.measure(Configuration.parse(f"source(definition={definition.id},BM=32,BN=16) 64x48x32 f32"), QUICK)
