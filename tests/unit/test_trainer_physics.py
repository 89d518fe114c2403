"""Waves, occupancy and reference times, held against worked examples on an H200."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.forest.completed_rows import Configurations
from farm.forest.features import Seen, see
from farm.forest.physics import LIBRARY_TILES, Library, Tiling, Work, reference_ms
from farm.gemm import ADDED_COLUMNS
from farm.gpus import find_gpu
from support.training_tables import blas_table, tiled_table
from trainer.cards import card_of, card_of_gpu
from trainer.table import configurations, vocabulary_of

GPU = find_gpu("nvidia-h200")
assert GPU is not None
H200 = card_of_gpu("nvidia-h200", GPU)
_KERNELS = ("tile", "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "split_k", "swizzle", "align")


def table(**columns: Any) -> pd.DataFrame:
    """Rows as `configurations` gives them, of the shape 4096 x 4096 x 4096 in f32 unless they say otherwise."""
    usual: dict[str, Any] = {"m": 4096, "n": 4096, "k": 4096, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn"}
    usual |= {
        "alpha": 1.0,
        "beta": 0.0,
        **ADDED_COLUMNS,
        "family": "cutlass",
        "runtime_ms": 1.0,
        "power_w": np.nan,
        "energy_mj": np.nan,
    }
    given = usual | columns
    rows = max((len(value) for value in given.values() if isinstance(value, list)), default=1)
    frame = pd.DataFrame({name: value if isinstance(value, list) else [value] * rows for name, value in given.items()})
    return frame.reindex(columns=[*frame, *(name for name in (*_KERNELS, "threads", "algorithm") if name not in frame)])


def completed(frame: pd.DataFrame) -> Configurations:
    return vocabulary_of(frame).complete(frame)


def seen(frame: pd.DataFrame) -> Seen:
    vocabulary = vocabulary_of(frame)
    return see(vocabulary.complete(frame), vocabulary, H200)


def features(frame: pd.DataFrame) -> dict[str, Any]:
    """By name, of each row."""
    found = seen(frame)
    return dict(zip(found.plain, found.features(list(found.plain)), strict=True))


CUTLASS = {"tile_m": 128, "tile_n": 128, "tile_k": 8, "warp_m": 32, "warp_n": 64, "stages": 2}


def test_blocks_come_in_whole_waves() -> None:
    """32 x 32 blocks on 132 multiprocessors are 7.76 waves: the time of eight."""
    rows = completed(table(**CUTLASS))
    work = Work.of(rows, H200)
    tiling = Tiling.of(rows, work, H200)
    assert (tiling.blocks[0], tiling.steps[0], tiling.threads[0]) == (1024, 512, 256)
    assert tiling.compute_ms[0] / work.compute_ms[0] == pytest.approx(8 * 132 / 1024)
    assert work.compute_ms[0] == pytest.approx(2 * 4096**3 / 66.9e12 * 1e3)
    found = features(table(**CUTLASS))
    assert found["wave_efficiency"][0] == pytest.approx(1024 / 132 / 8)
    assert found["log2_waves"][0] == pytest.approx(np.log2(1024 / 132))


def test_padding_is_work_that_is_done_and_not_asked_for() -> None:
    found = features(table(**CUTLASS, m=4097, k=4100))
    assert found["padding_m"][0] == pytest.approx(33 * 128 / 4097)
    assert found["padding_n"][0] == 1.0
    assert found["padding_k"][0] == pytest.approx(4104 / 4100)


@pytest.mark.parametrize(
    ("kernel", "resident"),
    [
        # 1,024 threads in a block, 2,048 in a multiprocessor.
        ({"family": "tiled", "tile": 32}, 2),
        # 16 threads: as many blocks as a multiprocessor holds.
        ({"family": "tiled", "tile": 4}, 32),
        # 128 x 128 over 256 threads: 64 accumulators and 80 more registers: 65,536 hold one such block.
        ({"family": "cutlass", **CUTLASS}, 1),
        # 6 stages of 128 x 32 and 256 x 32 in f32 are 288 KiB, more than there is: one, as the kernel runs all the same.
        ({"family": "cutlass", **CUTLASS, "tile_n": 256, "tile_k": 32, "stages": 6}, 1),
    ],
)
def test_a_multiprocessor_holds_what_its_threads_registers_and_memory_allow(
    kernel: dict[str, Any], resident: int
) -> None:
    assert features(table(**kernel))["resident_blocks"][0] == resident


@pytest.mark.parametrize("warps", [1, 4, 16])
def test_a_block_has_the_warps_that_its_kernel_states(warps: int) -> None:
    kernel = {"family": "triton", "tile_m": 64, "tile_n": 64, "tile_k": 32, "stages": 2, "group_m": 8, "warps": warps}
    kernel |= {"tma": 0}
    found = features(table(**kernel, ab="f16"))
    assert 2 ** found["log2_block_threads"][0] == pytest.approx(32 * warps)
    assert 2 ** found["log2_outputs_per_thread"][0] == pytest.approx(64 * 64 / (32 * warps))


def test_slices_of_k_make_blocks_and_shorten_their_loops() -> None:
    whole, sliced = (features(table(**CUTLASS, split_k=slices)) for slices in (1, 4))
    assert sliced["log2_blocks"][0] - whole["log2_blocks"][0] == 2
    assert whole["log2_steps"][0] - sliced["log2_steps"][0] == 2


def test_a_library_is_thought_to_slice_where_few_tiles_are_and_to_fill_waves() -> None:
    rows = completed(table(family="cublaslt", ab="f16", cd="f16", m=[128, 8192], n=[128, 8192], k=[16384, 8192]))
    library = Library.of(rows, Work.of(rows, H200), H200)
    assert library.slices[0] > 1
    assert library.slices[1] == 1
    assert library.efficiency[LIBRARY_TILES.index((128, 128))][1] == pytest.approx(4096 / (32 * 132))


shapes = st.tuples(*[st.integers(1, 60_000)] * 3)


@given(shapes=st.lists(shapes, min_size=1, max_size=5), ab=st.sampled_from(["f16", "f64"]))
@settings(max_examples=60)
def test_a_library_takes_the_quickest_of_its_tiles_and_slices(shapes: list[tuple[int, int, int]], ab: str) -> None:
    m, n, k = (list(each) for each in zip(*shapes, strict=True))
    rows = completed(table(family="cublaslt", ab=ab, cd=ab, acc=ab, m=m, n=n, k=k))
    library = Library.of(rows, Work.of(rows, H200), H200)
    for row, (m, n, k) in enumerate(shapes):
        times = {}
        for tile, (tile_m, tile_n) in enumerate(LIBRARY_TILES):
            blocks, area = math.ceil(m / tile_m) * math.ceil(n / tile_n), tile_m * tile_n
            assert library.efficiency[tile, row] == pytest.approx(m * n / (math.ceil(blocks / 132) * 132 * area))
            wave_ms = (1 + 24 / tile_m + 24 / tile_n) * 2 * area * 132 * k / H200.flops_per_ms[ab]
            for slices in (1, 2, 4, 8, 16):
                adding_ms = 0.001 + slices * m * n * 8 / (3 * H200.bytes_per_ms) if slices > 1 else 0
                if slices == 1 or k >= 128 * slices:
                    times[tile, slices] = math.ceil(blocks * slices / 132) / slices * wave_ms + adding_ms
        assert library.compute_ms[row] == pytest.approx(min(times.values()))
        assert times[int(library.tile[row]), int(library.slices[row])] == pytest.approx(min(times.values()))


def test_sizes_are_seen_as_logarithms_and_shares_as_they_are() -> None:
    found = features(table(**CUTLASS, m=4096, n=1000, k=8))
    logarithms = {
        "m": 4096,
        "mk": 4096 * 8,
        "depth": 8 / np.sqrt(4096 * 1000),
        "flops": 2 * 4096 * 1000 * 8,
        "tile_k": 8,
    }
    assert {name: found[f"log2_{name}"][0] for name in logarithms} == pytest.approx(
        {name: np.log2(value) for name, value in logarithms.items()}
    )
    as_they_are = {
        "align_a": 3,
        "align_b": 3,
        "align_c": 3,
        "tile_k": 8,
        "is_cutlass": 1,
        "ab_bytes": 4,
        "b_transposed": 0,
    }
    assert {name: found[name][0] for name in as_they_are} == pytest.approx(as_they_are)


@given(shape=shapes, family=st.sampled_from(["cutlass", "tiled", "cublaslt"]), beta=st.sampled_from([0.0, 1.0]))
@settings(max_examples=60)
def test_no_reference_is_below_the_roofline_and_every_feature_is_finite(
    shape: tuple[int, int, int], family: str, beta: float
) -> None:
    kernel: dict[str, Any] = {"cutlass": CUTLASS, "tiled": {"tile": 16}}.get(family, {})
    m, n, k = shape
    rows = table(family=family, m=m, n=n, k=k, beta=beta, **kernel)
    complete = completed(rows)
    work = Work.of(complete, H200)
    library, tiling = Library.of(complete, work, H200), Tiling.of(complete, work, H200)
    reference = reference_ms(work, library, tiling, H200)[0]
    assert reference >= H200.floor_ms + max(work.compute_ms[0], work.memory_ms[0]) * (1 - 1e-9)
    found = seen(rows)
    assert np.isfinite(found.matrix(list(found.plain))).all()


def test_the_reference_is_the_floor_memory_or_computing_whichever_rules() -> None:
    rows = table(family="cublaslt", ab="f16", cd="f16", m=[16, 1, 16384], n=[16, 65536, 16384], k=[16, 16384, 16384])
    complete = completed(rows)
    work, found = Work.of(complete, H200), seen(rows).reference_ms
    assert found[0] == pytest.approx(H200.floor_ms, rel=0.3)
    assert found[1] == pytest.approx(work.memory_ms[1] + H200.floor_ms, rel=0.05)
    assert work.compute_ms[2] < found[2] < 1.5 * work.compute_ms[2]


def test_a_card_that_no_table_knows_has_the_best_rates_of_its_rows() -> None:
    configured = configurations(tiled_table())
    card = card_of("test-device", configured)
    work = 2.0 * configured["m"] * configured["n"] * configured["k"]
    assert card.flops_per_ms["f32"] == pytest.approx((work / configured["runtime_ms"]).max())
    assert card.flops_per_ms["f16"] == card.flops_per_ms["f32"]
    assert card.floor_ms == pytest.approx(configured["runtime_ms"].min() / 2)
    assert card_of("cpu-x", configurations(blas_table())).multiprocessors == 1


def test_a_card_of_the_table_has_its_makers_figures_whatever_was_measured() -> None:
    card = card_of("nvidia-h200", configurations(tiled_table()))
    assert card.flops_per_ms["f32"] == pytest.approx(66.9e9)
    assert (card.bytes_per_ms, card.multiprocessors) == (4.8e9, 132)
    assert card.flops_per_ms["f8e4m3e5m2"] == card.flops_per_ms["f8e4m3"] == pytest.approx(1978.9e9)
