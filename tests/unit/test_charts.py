"""Numbers as text: what a reader sees of a bar, a histogram and a curve is what the numbers say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.cli.charts import Paper, quantile

UNICODE, ASCII = Paper(78), Paper(78, ascii_only=True)
PAPERS = st.builds(Paper, st.integers(50, 120), ascii_only=st.booleans())
numbers = st.floats(1e-6, 1e6)


def counts(lines: list[str]) -> list[tuple[str, int]]:
    """The name and the count of each line of a histogram."""
    parts = [line.strip().split("  ") for line in lines]
    return [(part[0], int(part[1].strip() or part[2])) for part in parts]


def test_a_bar_is_as_long_as_its_share_to_an_eighth_of_a_character() -> None:
    assert [UNICODE.bar(share, 8) for share in (0, 0.5, 0.5 + 3 / 64, 1)] == ["", "████", "████▍", "████████"]
    assert [ASCII.bar(share, 8) for share in (0, 0.5, 1)] == ["", "####", "########"]


def test_a_share_above_nothing_is_seen() -> None:
    assert (UNICODE.bar(1e-9, 8), ASCII.bar(1e-9, 8)) == ("▏", "#")


@given(st.lists(numbers, min_size=1, max_size=300), PAPERS)
def test_a_histogram_counts_every_value_and_fits_the_paper(values: list[float], paper: Paper) -> None:
    lines = paper.histogram(values)
    assert sum(n for _, n in counts(lines)) == len(values)
    assert len(lines) <= 14
    assert max(map(len, lines)) <= paper.width


def test_a_value_far_off_is_counted_and_leaves_the_rest_its_shape() -> None:
    values = [1.0 + 0.01 * i for i in range(30)]
    found = counts(UNICODE.histogram([*values, 50.0]))
    assert found[-1] == ("above 1.290", 1)
    assert max(n for _, n in found) < 15


def test_equal_values_are_one_line() -> None:
    assert counts(UNICODE.histogram([2.5] * 7)) == [("2.5 to 2.5", 7)]


def test_bounds_have_the_digits_that_tell_them_apart() -> None:
    names = [name for name, _ in counts(UNICODE.histogram([1000.0001, 1000.0002, 1000.0003, 1000.0004]))]
    assert len(set(names)) == len(names) == 2


def test_a_line_goes_from_the_lowest_to_the_highest_and_a_flat_one_is_not_drawn() -> None:
    assert UNICODE.line([1, 2, 3, 4, 5, 6, 7, 8], 20) == "▁▂▃▄▅▆▇█"
    assert ASCII.line([8, 1, 8], 20) == "#.#"
    assert len(UNICODE.line(range(1000), 60)) <= 60
    assert UNICODE.line([7, 7, 7], 20) == ""


def test_a_curve_has_its_ends_in_numbers_and_marks_what_is_left_out() -> None:
    lines = Paper(40).curve([100.0, 690.0], [680.0, 690.0, 700.0], unit="W", height=2)
    assert lines == [
        "700 W │    █",
        "680 W │▁█▁██",  # what is left out and lower than the rest is cut off at the foot
        "      └××───",
    ]


@given(st.lists(numbers, min_size=1, max_size=40), st.lists(numbers, max_size=400), PAPERS)
def test_a_curve_fits_the_paper(left_out: list[float], values: list[float], paper: Paper) -> None:
    lines = paper.curve(left_out, values, unit="W")
    assert max(map(len, lines)) <= paper.width


@given(st.lists(numbers, min_size=1), st.floats(0, 1))
def test_a_quantile_is_that_of_numpy(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(np.quantile(values, share))


def test_text_for_a_terminal_without_unicode_is_ascii() -> None:
    assert ASCII.fitting("694 W ± 1% at 40 °C … ∑") == "694 W +- 1% at 40 C ... ?"
    assert UNICODE.fitting("694 W ± 1%") == "694 W ± 1%"
