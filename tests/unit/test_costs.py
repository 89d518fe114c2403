"""What a job costs, learned from batches: the fit, and how long it is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.coordinator.job_costs import REFRESH_SECONDS, CostBook, fit
from farm.db.batches import FinishedBatch


def batch(jobs: int, gflop: float, *, fixed_s: float, gflop_s: float) -> FinishedBatch:
    return FinishedBatch(jobs, gflop, fixed_s * jobs + gflop_s * gflop)


@pytest.mark.parametrize(("fixed_s", "gflop_s"), [(0.1, 0.02), (0.1, 0.0), (0.0, 0.02)])
def test_what_made_the_batches_is_found_again(fixed_s: float, gflop_s: float) -> None:
    batches = [
        batch(jobs, gflop, fixed_s=fixed_s, gflop_s=gflop_s) for jobs, gflop in ((4, 10.0), (20, 3.0), (7, 900.0))
    ]
    cost = fit(batches)
    assert cost is not None
    assert cost.fixed_s == pytest.approx(fixed_s, abs=1e-9)
    assert cost.gflop_s == pytest.approx(gflop_s, abs=1e-9)


def test_nothing_is_known_without_batches() -> None:
    assert fit([]) is None


def test_batches_that_cannot_tell_the_two_apart_give_the_mean() -> None:
    cost = fit([FinishedBatch(4, 8.0, 2.0), FinishedBatch(8, 16.0, 6.0)])
    assert cost is not None
    assert (cost.fixed_s, cost.gflop_s) == (pytest.approx(8 / 12), 0.0)


@given(
    st.lists(
        st.builds(FinishedBatch, st.integers(1, 500), st.floats(0, 1e6), st.floats(1e-4, 1e3)), min_size=1, max_size=20
    )
)
def test_a_cost_is_never_negative_and_never_nothing(batches: list[FinishedBatch]) -> None:
    cost = fit(batches)
    assert cost is not None
    assert cost.fixed_s >= 0
    assert cost.gflop_s >= 0
    assert cost.fixed_s + cost.gflop_s > 0


def test_a_cost_is_read_again_after_a_while_and_forgotten_when_nobody_asks() -> None:
    now, asked = [0.0], []

    def read() -> list[FinishedBatch]:
        asked.append(now[0])
        return [FinishedBatch(2, 1.0, 1.0 + now[0])]

    book = CostBook(lambda: now[0])
    assert book.of(1, "nvidia-h200", read)[1] == 0.5
    assert book.of(1, "nvidia-h200", read)[1] == 0.5
    assert asked == [0.0]
    now[0] = REFRESH_SECONDS + 1
    assert book.of(1, "nvidia-h200", read)[1] == (1 + now[0]) / 2
    assert book.of(2, "nvidia-h200", lambda: []) == (None, None)
    now[0] = 1000 * REFRESH_SECONDS
    book.forget_old()
    assert not book._known
