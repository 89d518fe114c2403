"""What only a card can show: the kernels compute, the graphs replay, the power is read. Skipped without CuPy and a GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.devices import traits_of_capability
from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.gemm import INPUT_TYPES, ElementType, Layout
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import MatrixRules, OperandRules, operand_rules
from farm.weights import describe
from support.quick import QUICK
from workers.devices.cuda import ALIGNMENT, CudaDevice
from workers.kernels import tiled
from workers.kernels.tiled import TILED_ENTRY, TiledKernel
from workers.measure import replay
from workers.measure.elements import STORAGE, decode
from workers.measure.explain import Explanation
from workers.measure.magnitudes import result_scale
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound


def computed(configuration: Configuration, *, grid: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """The kernel's result and NumPy's in a wider type, from operands of this test's own."""
    import cupy

    p, launch = configuration.problem, TiledKernel.of(configuration)
    s, dtype = p.shape, STORAGE[p.types.ab]
    random = np.random.default_rng(1)
    a, b, c = (random.uniform(-1, 1, extents).astype(dtype) for extents in ((s.m, s.k), (s.k, s.n), (s.m, s.n)))
    stored = [
        cupy.asarray(np.ascontiguousarray(x.T if transposed else x))
        for x, transposed in ((a, p.layout.a_transposed), (b, p.layout.b_transposed))
    ]
    d = cupy.full((s.m, s.n), np.nan, dtype)
    kernel = cupy.RawModule(code=launch.code, options=launch.options).get_function(TILED_ENTRY)
    # A kernel must not read C where beta is 0: it is given none.
    c_given = cupy.asarray(c) if p.beta else np.uint64(0)
    arguments = (*stored, c_given, d, s.m, s.n, s.k, dtype(p.alpha), dtype(p.beta))
    kernel(grid or launch.grid(s), launch.block, arguments)
    wide = np.float64 if p.types.ab is ElementType.F32 else np.longdouble
    expected = p.alpha * (a.astype(wide) @ b.astype(wide)) + (p.beta * c.astype(wide) if p.beta else 0)
    return d.get(), expected


def assert_right(configuration: Configuration, **more: Any) -> None:
    found, expected = computed(configuration, **more)
    error = np.abs(found - expected).max() / result_scale(configuration.problem)
    assert error <= error_bound(configuration.problem)  # False for NaN, which is an element not written


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("tile", range(1, 33))
def test_every_tile_computes_odd_sizes(device: CudaDevice, tile: int, types: str) -> None:
    assert_right(Configuration.parse(f"tiled(tile={tile}) 67x53x41 {types}"))
    assert_right(Configuration.parse(f"tiled(tile={tile}) {2 * tile}x{tile}x{3 * tile} {types} tt"))


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("tile", [1, 7, 16, 31, 32])
@pytest.mark.parametrize("scalars", ["alpha=1 beta=0", "alpha=-2.5 beta=0", "alpha=0.5 beta=1.5", "alpha=0 beta=1"])
def test_layouts_and_scalars(device: CudaDevice, scalars: str, tile: int, layout: str, types: str) -> None:
    assert_right(Configuration.parse(f"tiled(tile={tile}) 45x101x33 {types} {layout} {scalars}"))


@pytest.mark.parametrize("shape", ["1x1x1", "1x1x5000", "1x3000x1", "3000x1x1", "7x4096x3", "4096x7x3", "3x5x10000"])
@pytest.mark.parametrize("tile", [1, 16, 32])
@pytest.mark.parametrize("types", ["f32", "f64"])
def test_thin_shapes(device: CudaDevice, types: str, tile: int, shape: str) -> None:
    assert_right(Configuration.parse(f"tiled(tile={tile}) {shape} {types} nt"))


def test_more_rows_than_a_grid_has_blocks(device: CudaDevice) -> None:
    assert_right(Configuration.parse("tiled(tile=1) 200001x2x3 f32"))
    assert_right(Configuration.parse("tiled(tile=5) 203x17x19 f64 tn beta=2"), grid=(4, 3))


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", list(Layout))
def test_a_measurement_is_verified_and_complete(device: CudaDevice, layout: str, types: str) -> None:
    configuration = Configuration.parse(f"tiled(tile=16) 500x301x403 {types} {layout} alpha=2 beta=0.5")
    row = device.measure(configuration, QUICK)
    assert 0 < row.runtime_min_ms <= row.runtime_q1_ms <= row.runtime_ms <= row.runtime_q3_ms < 10
    assert row.l2 == "cold"
    assert row.verify_error is not None
    assert row.verify_error <= error_bound(configuration.problem)
    assert row.details["verified_by"] == "groups"
    assert row.details["registers"] > 0
    assert 0 < row.details["occupancy"] <= 1
    assert row.sm_clock_mhz
    assert row.environment["cupy"]


def test_small_problems_are_measured_too(device: CudaDevice) -> None:
    for text in ("tiled(tile=32) 1x1x1 f32", "tiled(tile=4) 17x16x15 f64 tt"):
        row = device.measure(Configuration.parse(text), QUICK)
        assert 0 < row.runtime_ms < 0.1
        assert row.l2 == "warm"  # too small for a rotation to leave the cache, and it says so


@pytest.mark.alone
def test_larger_tiles_are_faster_until_they_are_not(device: CudaDevice) -> None:
    times = {
        tile: device.measure(Configuration.parse(f"tiled(tile={tile}) 1024x1024x1024 f32"), QUICK).runtime_ms
        for tile in (1, 4, 16)
    }
    assert times[1] > 2 * times[4] > 4 * times[16]


@pytest.mark.parametrize("size", [64, 512])
def test_a_wrong_kernel_is_caught(device: CudaDevice, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiled.source("tiled.cu")
    sabotages = {
        WrongResult: ("for (int i = 0; i < TILE; ++i)", "for (int i = (row == 5 && column == 9); i < TILE; ++i)"),
        ElementNotWritten: (
            "if (row < m && column < columns) {",
            "if (row < m && column < columns && row + column != m + columns - 2) {",
        ),
    }
    # Another tile for each: a compiled kernel is kept by its options.
    for tile, (error, (right, wrong)) in zip((13, 14), sabotages.items(), strict=True):
        assert source.count(right) == 1
        device._families["tiled"].close()  # what is compiled already
        broken = source.replace(right, wrong)
        monkeypatch.setattr(tiled, "source", lambda _, text=broken: text)
        with pytest.raises(error):
            device.measure(Configuration.parse(f"tiled(tile={tile}) {size}x{size}x{size} f32"), QUICK)
    device._families["tiled"].close()


@pytest.mark.alone
def test_power_of_a_cube(device: CudaDevice) -> None:
    rules = MeasuringRules(power="all", power_seconds=1.0)
    configuration = Configuration.parse("tiled(tile=16) 1024x1024x1024 f32")
    row = device.measure(configuration, rules)
    assert row.runtime_rse < 0.05
    if row.power_w is None:
        pytest.skip("this card reports no power")
    assert row.power_source in {"nvml-counter+samples", "nvml-counter", "nvml-samples", "nvml-instant", "nvml-limit"}
    assert row.power_limit_w is None or 10 < row.power_w < 1.2 * row.power_limit_w
    assert row.idle_power_w is None or row.power_w > row.idle_power_w
    assert row.temperature_c is not None
    assert row.throttle_reasons is not None
    again = device.measure(configuration, rules)
    assert again.power_w == pytest.approx(row.power_w, rel=0.1)
    assert again.runtime_ms == pytest.approx(row.runtime_ms, rel=0.1)


def written(
    device: CudaDevice, kind: ElementType, count: int, text: str, seed: int = 3, stream: int = 0, first: int = 0
) -> Any:
    """Elements on the card, filled by operands.cu at an offset of a longer buffer."""
    import cupy

    with device._stream:
        buffer = cupy.zeros(first + count, STORAGE[kind])
        device._arena._write(buffer[first:], kind, MatrixRules.model_validate(text), seed, stream)
    device._stream.synchronize()
    return buffer[first:]


@pytest.mark.parametrize("kind", [kind for kind in INPUT_TYPES if kind.of_a is kind.of_b])
def test_operands_are_uniform_and_do_not_depend_on_length(device: CudaDevice, kind: ElementType) -> None:
    import cupy

    def filled(count: int, seed: int = 3, stream: int = 0) -> Any:
        return written(device, kind, count, "uniform", seed, stream)

    long = filled(10**6)
    assert long.dtype == STORAGE[kind]
    assert bool((filled(1000) == long[:1000]).all())
    assert bool((filled(1000, seed=4) != long[:1000]).any())
    assert bool((filled(1000, stream=1) != long[:1000]).any())
    numbers = decode(kind, long, cupy) / (127 if kind is ElementType.I8 else 1)
    assert -1 <= float(numbers.min()) < -0.99
    assert 0.99 < float(numbers.max()) <= 1
    assert abs(float(numbers.mean())) < 0.005
    assert float(numbers.var()) == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("text", "mean_square"),
    [
        ("normal", 1),
        ("zeros", 0),
        ("ones", 1),
        ("sparse", 1 / 6),
        ("integers", 2),
        ("normal*0.02", 0.0004),
        ("ones*3", 9),
    ],
)
def test_other_distributions_have_their_spread(device: CudaDevice, text: str, mean_square: float) -> None:
    numbers = written(device, ElementType.F32, 10**6, text)
    assert float((numbers.astype(np.float64) ** 2).mean()) == pytest.approx(mean_square, rel=0.01)
    assert bool((written(device, ElementType.F32, 1000, text, first=24) == numbers[:1000]).all())


@pytest.mark.parametrize("kind", [kind for kind in INPUT_TYPES if kind.of_a is kind.of_b])
def test_integers_are_the_same_in_every_type(device: CudaDevice, kind: ElementType) -> None:
    import cupy

    numbers = decode(kind, written(device, kind, 10**5, "integers"), cupy)
    assert cupy.unique(numbers).tolist() == [-2, -1, 0, 1, 2]


MIXTURES = [
    "a=normal*0.02 b=uniform*30 c=ones",
    "a=ones*0.3 b=ones*0.7 c=normal",
    "a=zeros b=normal c=integers",
    "b=integers",
]


@pytest.mark.parametrize("text", MIXTURES)
@pytest.mark.parametrize(
    "line",
    [
        "tiled(tile=16) 512x320x256 f32 tn alpha=1 beta=1",
        "tiled(tile=16) 64x96x80 f64 nt",
        "cublaslt(algorithm=0) 512x320x256 bf16 nt alpha=1 beta=1",
        "cublaslt(algorithm=0) 512x320x256 f16 nn",
        "cublaslt(algorithm=0) 512x320x256 i8 nt",
        "cublaslt(algorithm=0) 512x320x256 f8e4m3e5m2 nt",
    ],
)
def test_matrices_that_differ_are_verified_and_recorded(device: CudaDevice, line: str, text: str) -> None:
    configuration = Configuration.parse(line)
    if (why := configuration.why_invalid(device.identity.traits)) is not None:
        pytest.skip(why)
    rules = QUICK.model_copy(update={"operands": operand_rules(text, seed=5)})
    row = device.measure(configuration, rules)
    assert (row.distribution, row.seed) == (rules.operands.text, 5)
    held = device._arena.bytes
    assert device.measure(configuration, rules).verify_error == row.verify_error
    assert device._arena.bytes == held


@pytest.mark.parametrize("kind", [ElementType.F32, ElementType.F16])
def test_weights_of_a_file_are_measured_in_every_set(device: CudaDevice, kind: ElementType, tmp_path: Path) -> None:
    weights = (np.random.default_rng(1).standard_normal((400, 512)) * 0.02).astype(STORAGE[kind])
    np.save(tmp_path / "w.npy", weights)
    matrix = MatrixRules.model_validate_json(describe(tmp_path / "w.npy", None))
    rules = QUICK.model_copy(update={"operands": OperandRules(a=MatrixRules(distribution="normal"), b=matrix)})
    family = "tiled(tile=16)" if kind is ElementType.F32 else "cublaslt(algorithm=0)"
    configuration = Configuration.parse(f"{family} 256x320x512 {kind} nt")
    row = device.measure(configuration, rules)
    assert row.distribution == f"a=normal b={matrix.text} c=uniform"
    with device.replaying(configuration, rules.operands) as work:
        layout = SetLayout.of(configuration.problem, ALIGNMENT)
        buffers = device._arena.buffers(layout, work.rotation.sets, rules.operands)
        for index in (0, work.rotation.sets - 1):
            assert np.array_equal(buffers.views(index).b.get(), weights[:320].T)
    with pytest.raises(InvalidOnDevice, match="is 400x512, and the problem needs 320x513"):
        device.measure(Configuration.parse(f"{family} 256x320x513 {kind} nt"), rules)


@pytest.mark.parametrize("distribution", ["uniform", "normal", "zeros", "ones", "sparse", "integers"])
def test_every_distribution_is_measured_and_recorded(device: CudaDevice, distribution: Any) -> None:
    rules = QUICK.model_copy(update={"operands": OperandRules(distribution=distribution, seed=5)})
    row = device.measure(Configuration.parse("tiled(tile=16) 300x200x100 f32 nn alpha=1 beta=1"), rules)
    assert (row.distribution, row.seed) == (distribution, 5)


def test_what_does_not_fit_is_invalid(device: CudaDevice) -> None:
    extent = int((device.identity.traits.memory_bytes / 4) ** 0.5)
    with pytest.raises(InvalidOnDevice, match="bytes"):
        device.measure(Configuration.parse(f"tiled(tile=16) {extent}x{extent}x{extent} f32"), QUICK)


def test_opening_reads_what_nvml_does_not_tell(device: CudaDevice) -> None:
    traits = device.identity.traits
    assert traits.multiprocessors
    assert traits.l2_bytes
    # The table that is used before a device is opened must not promise more than the device has.
    promised = traits_of_capability(traits.compute_capability).shared_memory_per_block_bytes
    assert traits.shared_memory_per_block_bytes is not None
    assert promised <= traits.shared_memory_per_block_bytes


def test_a_warm_cache_is_faster_where_the_memory_is_what_a_kernel_waits_for(device: CudaDevice) -> None:
    rules = QUICK.model_copy(update={"timing": TimingRules(max_seconds=0.1, warm_l2=True)})
    row = device.measure(Configuration.parse("tiled(tile=32) 32x4096x512 f32"), rules)
    assert row.runtime_warm_ms is not None
    assert row.runtime_warm_ms < 0.97 * row.runtime_ms
    assert device.measure(Configuration.parse("tiled(tile=32) 32x4096x512 f32"), QUICK).runtime_warm_ms is None


def test_what_was_prepared_is_not_compiled_again(device: CudaDevice) -> None:
    configuration = Configuration.parse("tiled(tile=29) 64x64x64 f64 tn")
    thread = threading.Thread(target=device.prepare, args=(configuration,))
    thread.start()
    thread.join()
    family = device._families["tiled"]
    assert isinstance(family, tiled.TiledFamily)
    assert TiledKernel.of(configuration) in family._compiled
    compiled = family._function(TiledKernel.of(configuration))
    assert device.measure(configuration, QUICK).verify_error is not None
    assert family._function(TiledKernel.of(configuration)) is compiled
    device.prepare(Configuration.parse("blas() 64x64x64 f32"))  # raises nothing


def test_an_explanation_has_every_sample(device: CudaDevice) -> None:
    explanation = Explanation()
    rules = QUICK.model_copy(update={"power": "all"})
    row = device.measure(Configuration.parse("tiled(tile=16) 512x512x512 f32"), rules, explanation)
    assert len(explanation.samples_ms) == row.samples
    assert float(np.median(explanation.samples_ms)) == row.runtime_ms
    assert explanation.notes
    assert explanation.telemetry
    assert 0 < row.window_s < row.cost_s
    if row.power_w is not None:
        assert explanation.power_samples or explanation.energy_steps


@pytest.mark.alone
def test_without_graphs_the_time_is_the_same(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that the gap between two launches, about a microsecond, is not what is compared.
    configuration = Configuration.parse("tiled(tile=16) 512x512x512 f32")
    rules = MeasuringRules(timing=TimingRules(max_seconds=0.3))
    captured = device.measure(configuration, rules)
    monkeypatch.setattr(tiled._BoundTiled, "capturable", False)
    launched = device.measure(configuration, rules)
    assert (captured.details["timed_by"], launched.details["timed_by"]) == ("graph", "launches")
    assert launched.details["launches_hidden"]
    assert launched.runtime_ms == pytest.approx(captured.runtime_ms, rel=0.1)


@pytest.mark.alone
@pytest.mark.parametrize("shape", ["1x31x1024", "16x64x256", "64x64x64"])
def test_short_graphs_in_turn_take_the_time_of_one_graph_over_all_sets(
    device: CudaDevice, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = Configuration.parse(f"tiled(tile=16) {shape} f32")
    rules = MeasuringRules(timing=TimingRules(max_seconds=0.3))
    device.measure(configuration, rules)  # compiled and loaded
    short = device.measure(configuration, rules)
    monkeypatch.setattr(replay, "plan_replays", lambda sets, _: replay.ReplayPlan(launches=(sets,)))
    whole = device.measure(configuration, rules)
    assert short.details["operand_sets"] == whole.details["operand_sets"] == whole.details["launches_per_sample"]
    assert short.details["graphs"] > whole.details["graphs"] == 1
    assert short.runtime_ms == pytest.approx(whole.runtime_ms, rel=0.03)
    # Long enough that the gaps between graphs do not count, and much shorter than the walk.
    assert 0.5 < short.details["launches_per_sample"] * short.runtime_ms < 3


@pytest.mark.alone
def test_power_and_time_agree_where_graphs_differ_in_length(device: CudaDevice) -> None:
    rules = MeasuringRules(timing=TimingRules(max_seconds=0.3), power="all")
    row = device.measure(Configuration.parse("tiled(tile=16) 1x31x1024 f32"), rules)
    assert row.details["graphs"] > 1
    if row.power_w is None:
        pytest.skip("this card reports no power")
    assert row.runtime_settled_ms == pytest.approx(row.runtime_ms, rel=0.05)


@pytest.mark.alone
def test_a_short_warm_up_tells_the_same_time(device: CudaDevice) -> None:
    configuration = Configuration.parse("tiled(tile=16) 64x512x512 f32")
    rules = MeasuringRules(timing=TimingRules(max_seconds=0.3))
    brief = MeasuringRules(timing=TimingRules(max_seconds=0.3, warmup_seconds=0.005))
    device.measure(configuration, rules)  # compiled and loaded
    usual, quick = device.measure(configuration, rules), device.measure(configuration, brief)
    assert quick.runtime_ms == pytest.approx(usual.runtime_ms, rel=0.03)
