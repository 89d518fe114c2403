"""Results whose bits change from one launch to another: what is a failure, what a row says, and what is left alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from farm.errors import ResultCorrupted
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules, TimingRules
from farm.operands import OperandRules
from support.fake_cuda import FakeCupy, OutOfMemoryError
from workers.devices import cpu, cuda_tiers
from workers.devices.cuda import CudaDevice
from workers.kernels import tiled
from workers.kernels.base import CpuKernel
from workers.kernels.blas import BlasFamily
from workers.measure import exactness
from workers.measure.digest import BITS, digest, text
from workers.measure.exactness import Result, batch_sizes

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
ASKED = QUICK.model_copy(update={"determinism": True})

TILED = Configuration.parse("tiled(tile=16) 40x33x64 f32")
BLAS = Configuration.parse("blas(threads=1) 40x33x64 f32")


def flip(d: Any, row: int, column: int) -> None:
    """Changes the lowest bit of an element: no tolerance finds that."""
    d.view(BITS[d.itemsize])[row, column] ^= 1


def rowwise(a: Any, b: Any) -> Any:
    """A product in which rows do not depend on each other."""
    return np.array([np.einsum("k,kj->j", row, b) for row in np.ascontiguousarray(a)])


# --- a result alone -----------------------------------------------------------------------------------


class Launches:
    """A kernel whose launches write what is given, one after the other, then the first again."""

    def __init__(self, *results: Any, declared: bool = True) -> None:
        self.d = results[0].copy()
        self._results = itertools.chain(results[1:], itertools.repeat(results[0]))
        self.count = 1
        self.result = Result(self.d, self.launch, self._begin, poison=np.nan, deterministic=declared)

    def launch(self) -> None:
        self.count += 1
        self.d[...] = next(self._results)

    @staticmethod
    def _begin(d: Any) -> Callable[[], int]:
        found = digest(d)
        return lambda: found


def right() -> Any:
    return np.random.default_rng(7).standard_normal((5, 6)).astype(np.float32)


def wrong(row: int = 2, column: int = 4) -> Any:
    d = right()
    flip(d, row, column)
    return d


def test_equal_bits_give_a_digest_without_another_launch() -> None:
    kernel = Launches(right(), right())
    kernel.launch()
    found = kernel.result.check()
    assert found.columns() == {
        "result_digest": text(digest(right())),
        "deterministic": None,
        "batch_invariant": None,
    }
    assert kernel.count == 2


def test_a_corrupted_last_launch_names_the_elements() -> None:
    d = wrong()
    flip(d, 4, 0)
    kernel = Launches(right(), d)
    kernel.launch()
    with pytest.raises(ResultCorrupted, match=r"after the last launch under load.*2 of 30 elements.*\(2, 4\)") as error:
        kernel.result.check()
    before, after = (int(x.view(np.uint32)[2, 4]) for x in (right(), wrong()))
    assert f"{before:#010x} became {after:#010x}" in str(error.value)


def test_a_corrupted_first_launch_is_told_from_a_last_one() -> None:
    kernel = Launches(wrong(), *(right() for _ in range(5)))
    kernel.launch()
    with pytest.raises(ResultCorrupted, match="after the first launch"):
        kernel.result.check()


def test_a_corrupted_further_launch_is_found() -> None:
    kernel = Launches(right(), right(), right(), wrong())
    kernel.launch()
    with pytest.raises(ResultCorrupted, match=r"one of 3 launches after the load.*1 of 30 elements"):
        kernel.result.check(further=3)


def test_a_kernel_whose_launches_all_differ_is_not_deterministic_and_no_failure() -> None:
    kernel = Launches(*(wrong(row, 0) for row in range(5)))
    kernel.launch()
    found = kernel.result.check()
    assert (found.digest, found.deterministic) == (None, False)


@pytest.mark.parametrize(("further", "deterministic"), [(0, None), (3, False)])
def test_a_kernel_with_atomics_may_differ(further: int, deterministic: bool | None) -> None:
    kernel = Launches(right(), wrong(), wrong(1), declared=False)
    kernel.launch()
    found = kernel.result.check(further=further)
    assert (found.digest, found.deterministic) == (None, deterministic)


def test_a_kernel_with_atomics_may_be_deterministic_all_the_same() -> None:
    found = Launches(right(), declared=False).result.check(further=3)
    assert (found.digest, found.deterministic) == (None, True)


def test_an_element_that_a_further_launch_does_not_write_is_a_difference() -> None:
    kernel = Launches(right())
    kernel.result._launch = lambda: None
    assert kernel.result.again() != kernel.result.first


def test_without_memory_for_a_copy_the_failure_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Launches(right(), wrong())
    kernel.launch()
    monkeypatch.setattr(exactness, "_on_host", lambda _: None)
    with pytest.raises(ResultCorrupted, match="no memory to compare"):
        kernel.result.check()


@pytest.mark.parametrize(("m", "sizes"), [(1, []), (2, [1]), (3, [1]), (8, [1, 4]), (9, [1, 4])])
def test_fewer_rows_are_one_and_half_of_them(m: int, sizes: list[int]) -> None:
    assert batch_sizes(m) == sizes


# --- on devices ---------------------------------------------------------------------------------------


def digest_columns(row: Measurement) -> tuple[str | None, bool | None, bool | None]:
    return row.result_digest, row.deterministic, row.batch_invariant


def test_rows_of_one_configuration_have_one_digest(device: CudaDevice, processor: cpu.CpuDevice) -> None:
    for opened, configuration in ((device, TILED), (processor, BLAS)):
        rows = [opened.measure(configuration, QUICK) for _ in range(2)]
        assert rows[0].result_digest == rows[1].result_digest is not None
        assert len(rows[0].result_digest) == 16
        assert digest_columns(rows[0])[1:] == (None, None)
        other = opened.measure(configuration, QUICK.model_copy(update={"operands": OperandRules(seed=9)}))
        assert other.result_digest != rows[0].result_digest


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("scalars", ["alpha=1 beta=0", "alpha=-1.5 beta=0.5"])
def test_where_rows_do_not_depend_on_each_other_a_card_s_row_says_so(
    device: CudaDevice, cupy: FakeCupy, types: str, layout: str, scalars: str
) -> None:
    cupy.gemm = rowwise
    row = device.measure(Configuration.parse(f"tiled(tile=16) 40x33x64 {types} {layout} {scalars}"), ASKED)
    assert digest_columns(row)[1:] == (True, True)
    assert row.result_digest is not None


def test_where_a_single_row_is_computed_otherwise_a_row_says_so(device: CudaDevice, cupy: FakeCupy) -> None:
    def by_size(a: Any, b: Any) -> Any:
        d = rowwise(a, b)
        if len(a) == 1:
            flip(d, 0, 3)
        return d

    cupy.gemm = by_size
    assert digest_columns(device.measure(TILED, ASKED))[1:] == (True, False)
    one_row = device.measure(Configuration.parse("tiled(tile=16) 1x33x64 f32"), ASKED)
    assert digest_columns(one_row)[1:] == (True, None)


def test_without_the_memory_for_fewer_rows_nothing_is_said(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.measure(TILED, QUICK)
    empty = cupy.empty

    def too_little(count: int, dtype: type) -> Any:
        if count > 1:
            raise OutOfMemoryError("Out of memory allocating 1,024 bytes")
        return empty(count, dtype)

    monkeypatch.setattr(cupy, "empty", too_little)
    assert digest_columns(device.measure(TILED, ASKED))[1:] == (True, None)


def test_a_processor_says_it_too(processor: cpu.CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply(a: Any, b: Any, d: Any) -> None:
        d[...] = rowwise(a, b)

    monkeypatch.setattr(BlasFamily, "bind", lambda *_: nullcontext(CpuKernel(multiply=multiply, details={})))
    assert digest_columns(processor.measure(BLAS, ASKED))[1:] == (True, True)

    def otherwise(a: Any, b: Any, d: Any) -> None:
        multiply(a, b, d)
        if len(a) < 40:
            flip(d, 0, 0)

    monkeypatch.setattr(BlasFamily, "bind", lambda *_: nullcontext(CpuKernel(multiply=otherwise, details={})))
    assert digest_columns(processor.measure(BLAS, ASKED))[1:] == (True, False)


def test_a_card_that_corrupts_a_bit_under_load_gives_no_row(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = cuda_tiers.Tiers.measure

    def corrupts(self: Any, work: Any, *rest: Any, **named: Any) -> Any:
        times = measure(self, work, *rest, **named)
        flip(work.operands.d, 17, 5)
        return times

    monkeypatch.setattr(cuda_tiers.Tiers, "measure", corrupts)
    with pytest.raises(ResultCorrupted, match=r"1 of 1,320 elements differ, the first at \(17, 5\)"):
        device.measure(TILED, QUICK)
    monkeypatch.setattr(tiled._BoundTiled, "deterministic", False)
    assert digest_columns(device.measure(TILED, QUICK)) == (None, None, None)


def test_a_processor_that_corrupts_a_bit_under_load_gives_no_row(
    processor: cpu.CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = cpu._timed

    def corrupts(gemms: Any, *rest: Any) -> Any:
        found = timed(gemms, *rest)
        flip(operands[0].d, 17, 5)
        return found

    operands: list[Any] = []
    run = cpu._run_and_verify

    def keeps(configuration: Any, kernel: Any, first: Any, rules: Any) -> Any:
        operands[:] = [first]
        return run(configuration, kernel, first, rules)

    monkeypatch.setattr(cpu, "_timed", corrupts)
    monkeypatch.setattr(cpu, "_run_and_verify", keeps)
    with pytest.raises(ResultCorrupted, match=r"1 of 1,320 elements differ, the first at \(17, 5\)"):
        processor.measure(BLAS, QUICK)


def test_a_first_launch_that_is_off_by_a_bit_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    launches = itertools.count()

    def off_at_first(a: Any, b: Any) -> Any:
        d = a @ b
        if next(launches) == 0:
            flip(d, 3, 3)
        return d

    cupy.gemm = off_at_first
    with pytest.raises(ResultCorrupted, match="after the first launch"):
        device.measure(TILED, QUICK)


def test_a_kernel_that_is_not_deterministic_gives_a_row_without_a_digest(device: CudaDevice, cupy: FakeCupy) -> None:
    launches = itertools.count()

    def in_any_order(a: Any, b: Any) -> Any:
        d = a @ b
        count = next(launches)
        d.view(np.uint32)[0] ^= np.array([count >> bit & 1 for bit in range(d.shape[1])], np.uint32)
        return d

    cupy.gemm = in_any_order
    assert digest_columns(device.measure(TILED, QUICK)) == (None, False, None)
    assert digest_columns(device.measure(TILED, ASKED)) == (None, False, None)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_openblas_do_not_change_bits(processor: cpu.CpuDevice, threads: int) -> None:
    configuration = Configuration.parse(f"blas(threads={threads}) 513x129x257 f32 nt")
    if (why := configuration.why_invalid(processor.identity.traits)) is not None:
        pytest.skip(why)
    row = processor.measure(configuration, ASKED)
    assert row.deterministic is True
    assert row.result_digest is not None


def test_a_library_whose_order_of_sums_is_unknown_has_no_digest_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    family = BlasFamily()
    info = [{**library, "internal_api": "mkl", "num_threads": 2} for library in family._blas.info()]
    monkeypatch.setattr(type(family._blas), "info", lambda _: info)
    with family.bind(Configuration.parse("blas(threads=2) 8x8x8 f32")) as kernel:
        assert kernel.deterministic is False
