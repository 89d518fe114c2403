"""The formula of a kernel's time, and how its constants are found again in times that it gave."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from farm.forest.loads import Loads
from farm.forest.numeric import Floats
from farm.forest.physics import Tiling, Work
from farm.forest.timing import CONSTANTS, Loops, Timing, start, time_ms
from support.timing_tables import H200, seen, table, triton_table
from trainer.normal_equations import NormalEquations
from trainer.table import vocabulary_of
from trainer.timing import MIN_PROBLEMS, fit_timing

SHAPES = list(itertools.product((1, 7, 20, 64, 180, 500, 1400, 4096), (33, 200, 512, 3000), (16, 120, 700, 4096)))


def loops_of(frame: pd.DataFrame) -> Loops:
    vocabulary = vocabulary_of(frame)
    rows = vocabulary.complete(frame)
    work = Work.of(rows, H200)
    return Loops.of(rows, vocabulary, work, Tiling.of(rows, work, H200), H200)


def truth(frame: pd.DataFrame) -> Floats:
    """Times by the formula of a card whose steps are thrice as slow as supposed, most of all with tiles of 8."""
    logs = start(len(frame))
    names = list(CONSTANTS)
    logs[names.index("step_ms")] += np.log(3.0)
    logs[names.index("issue")] += np.where(frame["tile"] == 8, np.log(4.0), np.log(1.5))
    return time_ms(logs, loops_of(frame), H200)["time"]


def test_what_a_formula_gave_is_foretold_of_shapes_that_were_not_measured() -> None:
    measured, asked = table(SHAPES), table([(100, 1000, 2000), (2000, 2000, 300), (9, 20000, 1000)])
    timing = fit_timing(loops_of(measured), truth(measured), H200)
    off = np.abs(seen(asked, timing).reference_ms / truth(asked) - 1)
    assert off.max() < 0.1
    assert np.abs(seen(asked, Timing.none()).reference_ms / truth(asked) - 1).max() > 0.3


def test_a_kernel_in_an_unknown_layout_and_an_unknown_kernel_have_their_familys_time() -> None:
    measured = table(SHAPES, tiles=(8, 16))
    timing = fit_timing(loops_of(measured), truth(measured), H200)
    for asked in (table(SHAPES, tiles=(24,)), table(SHAPES, tiles=(16,), layout="tt")):
        fitted = seen(asked, timing)
        assert np.isfinite(fitted.plain["log2_timed"]).all()
        assert np.median(np.abs(np.log(fitted.reference_ms / truth(asked)))) < 0.5


def test_few_rows_and_processors_without_blocks_keep_the_roofline() -> None:
    few = table(SHAPES[: MIN_PROBLEMS - 1])
    assert len(fit_timing(loops_of(few), truth(few), H200).keys) == 0
    assert np.isnan(seen(few, Timing.none()).plain["log2_timed"]).all()


def test_constants_are_stored_as_they_are(tmp_path: Path) -> None:
    measured = table(SHAPES)
    timing = fit_timing(loops_of(measured), truth(measured), H200)
    timing.save(tmp_path / "timing.npz")
    again = Timing.read((tmp_path / "timing.npz").read_bytes(), "timing.npz")
    assert np.array_equal(again.keys, timing.keys)
    assert np.array_equal(again.logs, timing.logs)


def loads_of(frame: pd.DataFrame) -> Loads:
    rows = vocabulary_of(frame).complete(frame)
    return Loads.of(rows, Tiling.of(rows, Work.of(rows, H200), H200))


def test_steps_of_triton_wait_for_operands_and_factors_that_are_not_copied_ahead() -> None:
    lines = {
        "16x256x256 f16 nt": 0,
        "16x256x100 f16 nt": 1,
        "16x100x256 f16 nt": 0,
        "16x100x256 f16 nn": 1,
        "16x256x256 f16i4 nt scale=none:row": 0,
        # One factor for a tile along k; four of 64 columns, of 128 threads; and of 32 columns.
        "16x256x256 f16i4 nt scale=none:1x128": 1,
        "16x256x256 f16i8 nt scale=none:1x32 tile_n=64,tile_k=128": 0,
        "16x256x256 f16i8 nt scale=none:1x32 tile_n=32,tile_k=128": 1,
        "16x256x100 f16i4 nt scale=none:1x32 tile_n=32,tile_k=128": 2,
        "16x256x100 f16 nt tma=1": 0,
    }
    loads = {line: loads_of(triton_table([line])) for line in lines}
    assert {line: found.waits.item() for line, found in loads.items()} == lines
    assert loads["16x256x256 f16 nt"].single == 0
    assert loads["16x256x100 f16 nt"].single == (16 + 64) * 64 / 128
    assert loads["16x256x256 f16 nt"].converted == 0
    assert loads["16x256x256 f16i4 nt scale=none:row"].converted == 64 * 64 / 128
    assert not loads_of(table([(16, 100, 100)])).waits.any()


def test_constants_from_before_waits_give_the_times_of_before(tmp_path: Path) -> None:
    frame = triton_table(["16x256x100 f16 nt", "16x4096x4096 f16i4 nt scale=none:1x128"])
    loops = loops_of(frame)
    keys = np.unique(loops.keys[0])
    np.savez(tmp_path / "timing.npz", keys=keys, logs=np.zeros((len(keys), len(CONSTANTS) - 3)))
    content = (tmp_path / "timing.npz").read_bytes()
    logs, known = Timing.read(content, "timing.npz", waits=False).constants(loops)
    none = Loops(loops.columns | dict.fromkeys(("waits", "single", "converted"), np.zeros(2)), loops.keys, loops.usable)
    assert known.all()
    assert np.array_equal(time_ms(logs, loops, H200)["time"], time_ms(start(2), none, H200)["time"])
    assert np.all(time_ms(start(2), loops, H200)["time"] > time_ms(start(2), none, H200)["time"])


KERNELS = [f"tile_n={n},tile_k={k},stages={s}" for n in (16, 32, 64, 128) for k in (32, 64, 128) for s in range(2, 7)]


def of_three_problems_each(kernels: list[str]) -> pd.DataFrame:
    sizes = np.random.default_rng(0).integers(8, 256, size=(3 * len(kernels), 2)) * 16
    lines = [f"16x{n}x{k} f16 nt {kernel}" for (n, k), kernel in zip(sizes, 3 * kernels, strict=True)]
    return triton_table(lines)


def test_errors_of_the_few_rows_of_a_kernel_do_not_become_its_constants() -> None:
    loops = loops_of(of_three_problems_each(KERNELS))
    true = time_ms(start(len(loops.usable)), loops, H200)["time"]
    measured = true * np.exp(np.random.default_rng(1).normal(scale=0.2, size=len(true)))
    logs, _ = fit_timing(loops, measured, H200).constants(loops)
    assert np.median(np.abs(np.log(time_ms(logs, loops, H200)["time"] / true))) < 0.07


def test_a_triton_kernel_that_was_not_measured_has_the_constants_of_its_tiles() -> None:
    """A step takes longer with more columns, which the formula does not know."""
    frame = of_three_problems_each(KERNELS)
    loops, logs = loops_of(frame), start(len(frame))
    logs[list(CONSTANTS).index("step_ms")] += np.log(frame["tile_n"] / 32)
    measured = time_ms(logs, loops, H200)["time"]
    new = (frame["stages"] == 2 + (frame["tile_k"] // 64) + (frame["tile_n"] == 16)).to_numpy()
    timing = fit_timing(loops.part(np.flatnonzero(~new)), measured[~new], H200)
    asked = loops.part(np.flatnonzero(new))
    off = np.abs(np.log(time_ms(timing.constants(asked)[0], asked, H200)["time"] / measured[new]))
    assert len(off) >= 20
    assert np.median(off) < 0.05


def test_alignment_is_of_leading_dimensions() -> None:
    """A lies along k in nn, and along m in tt, where B lies along k."""
    frame = table([(12, 40, 6)], tiles=(8,))
    assert vocabulary_of(frame).complete(frame).alignments[:, 0].tolist() == [2, 8, 8]
    frame = table([(12, 40, 6)], tiles=(8,), layout="tt")
    assert vocabulary_of(frame).complete(frame).alignments[:, 0].tolist() == [4, 2, 8]


def test_eliminating_kernels_gives_the_step_of_the_whole_normal_equations() -> None:
    """Keys 0 and 1 are kernels, 2 to 4 these in layouts, and 5 to 8 shared: 5 by all rows, the others by some."""
    draw = np.random.default_rng(0)
    kernels = np.repeat([0, 1], [7, 5])
    within = np.array([2, 3, 2, 3, 2, 2, 3, 4, 4, 4, 4, 4])
    shared = [np.full(12, 5), draw.integers(6, 9, 12)]
    few, priors, damping = np.array([0, 2]), draw.uniform(1, 2, 9), 0.3
    slopes, downhill = draw.normal(size=(12, 3)), draw.normal(size=(9, 3))
    equations = NormalEquations(kernels, within, shared, few, priors)
    equations.weigh(slopes)
    found = equations.step(damping, downhill)

    jacobian = np.zeros((12, 9, 3))
    for keys in (kernels, within, *shared):
        jacobian[np.arange(12), keys] = slopes
    free = np.full((9, 3), True)
    free[2:5, 1] = False
    flat = jacobian[:, free]
    curvature = flat.T @ flat
    damped = curvature + np.diag(np.repeat(priors, 3)[free.ravel()] + damping * (0.05 * curvature.diagonal() + 1.0))
    expected = np.zeros((9, 3))
    expected[free] = np.linalg.solve(damped, downhill[free])
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)
