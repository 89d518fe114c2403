"""The formula of a kernel's time, and how its constants are found again in times that it gave."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from farm.forest.columns import Floats
from farm.forest.physics import Tiling, Work
from farm.forest.timing import CONSTANTS, Loops, Timing, start, time_ms
from support.timing_tables import H200, seen, table
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
