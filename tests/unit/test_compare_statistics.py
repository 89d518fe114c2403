"""How far two sides are apart: intervals that hold what they claim, and verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.compare.statistics import (
    PairVerdict,
    median_interval,
    medians_by,
    ratio_of,
    ratio_of_sums,
    verdicts,
    verdicts_within,
)


def test_five_values_are_too_few_and_six_give_their_range():
    assert median_interval(np.arange(5.0)) is None
    assert median_interval(np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])) == (1.0, 6.0)


def test_the_interval_is_that_of_the_tables_of_the_sign_test():
    # Binomial(20, 1/2): P(at most 5) = 0.0207, P(at most 6) = 0.0577.
    assert median_interval(np.arange(20.0)) == (5.0, 14.0)
    low, high = median_interval(np.arange(100_000.0)) or (0, 0)
    assert (low, high) == pytest.approx((50_000 - 0.98 * math.sqrt(100_000), 50_000 + 0.98 * math.sqrt(100_000)), abs=3)


@pytest.mark.parametrize("n", [6, 15, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_hold_the_median_as_often_as_they_claim(n, confidence):
    rng = np.random.default_rng(n)
    found = [median_interval(rng.lognormal(0.1, 0.5, n), confidence) for _ in range(4000)]
    held = [low <= math.exp(0.1) <= high for low, high in (one for one in found if one is not None)]
    assert len(held) == 4000
    # Discrete ranks hold more than is claimed, up to the step to the next rank.
    assert confidence - 0.015 <= np.mean(held) <= confidence + 0.17


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-10, 10)), min_size=1, max_size=60))
def test_medians_are_by_group(pairs):
    groups, values = np.array([g for g, _ in pairs]), np.array([v for _, v in pairs])
    expected = [np.median(values[groups == group]) for group in sorted(set(groups.tolist()))]
    assert medians_by(values, groups) == pytest.approx(expected)


def test_a_shape_with_many_kernels_counts_as_much_as_one_with_one():
    log_ratios = np.log([2.0] * 50 + [1.0, 1.0])
    found = ratio_of(log_ratios, np.array([0] * 50 + [1, 2]))
    assert found is not None
    assert (found.ratio, found.shapes, found.pairs, found.low) == (1.0, 3, 52, None)
    assert ratio_of(np.zeros(0), np.zeros(0, int)) is None


def test_a_difference_counts_beyond_a_tie_and_beyond_its_noise():
    log_ratios = np.log([1.05, 0.95, 1.005, 1.05, 1.005])
    errors = np.array([0.01, 0.01, 0.002, 0.05, 0.05])
    assert verdicts(log_ratios, errors).tolist() == [
        PairVerdict.SLOWER, PairVerdict.FASTER, PairVerdict.TIE, PairVerdict.UNSURE, PairVerdict.UNSURE,
    ]  # fmt: skip


def test_totals_are_those_of_the_large_ones():
    above, below = np.array([100.0, 1.0, 1.0]), np.array([50.0, 1.0, 1.0])
    ratio, low, high = ratio_of_sums(above, below)
    assert ratio == pytest.approx(102 / 52)
    assert low == 1
    assert high == pytest.approx(2)
    assert ratio_of_sums(above, below) == (ratio, low, high)


@pytest.mark.parametrize(
    ("middle", "low", "high", "error", "expected"),
    [
        (-0.20, -0.25, -0.15, 0.003, PairVerdict.FASTER),
        (-0.20, -0.45, 0.05, 0.003, PairVerdict.UNSURE),  # the model may be off by more
        (0.20, 0.15, 0.60, 0.003, PairVerdict.SLOWER),
        (0.20, -0.05, 0.25, 0.003, PairVerdict.UNSURE),
        (0.20, 0.15, 0.25, 0.2, PairVerdict.UNSURE),  # what was measured may be
        (0.002, -0.005, 0.009, 0.001, PairVerdict.TIE),
        (0.002, -0.05, 0.05, 0.001, PairVerdict.UNSURE),
        (-0.008, -0.0085, -0.0075, 0.001, PairVerdict.TIE),  # leaves 0 out, and is no difference to know of
        (0.5, math.nan, math.nan, 0.001, PairVerdict.UNSURE),
    ],
)
def test_a_predicted_pair_is_judged_by_the_bounds_of_the_model(middle, low, high, error, expected):
    given_ = [np.array([value]) for value in (middle, low, high, error)]
    assert verdicts_within(*given_).tolist() == [expected]
    # The other way round it is the opposite.
    swapped = [np.array([value]) for value in (-middle, -high, -low, error)]
    opposite = {PairVerdict.FASTER: PairVerdict.SLOWER, PairVerdict.SLOWER: PairVerdict.FASTER}.get(expected, expected)
    assert verdicts_within(*swapped).tolist() == [opposite]


def test_the_interval_of_predicted_ratios_goes_from_bound_to_bound_however_many_shapes_there_are():
    for shapes in (20, 2000):
        middle = np.random.default_rng(shapes).normal(0.5, 0.05, shapes)
        found = ratio_of(middle, np.arange(shapes), bounds=(middle - 0.1, middle + 0.2))
        assert found is not None
        low, high = median_interval(middle) or (0, 0)
        assert low < high
        assert found.ratio == pytest.approx(math.exp(np.median(middle)))
        assert (found.low, found.high) == pytest.approx((math.exp(low - 0.1), math.exp(high + 0.2)))
    few = ratio_of(np.zeros(5), np.arange(5), bounds=(np.zeros(5), np.zeros(5)))
    assert few is not None
    assert (few.low, few.high) == (None, None)
    unknown = ratio_of(np.zeros(9), np.arange(9), bounds=(np.full(9, np.nan), np.full(9, np.nan)))
    assert unknown is not None
    assert (unknown.ratio, unknown.low, unknown.high) == (1, None, None)
