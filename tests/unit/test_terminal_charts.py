"""Numbers as text: what a reader sees of a bar, a histogram and a curve is what the numbers say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farm.charts.bars import bar_chart, histogram
from farm.charts.chart import Axis, Chart, Dashes, Scale, Series
from farm.charts.terminal_renderer import Terminal
from farm.cli.streams import ascii_text

UNICODE, ASCII = Terminal(78), Terminal(78, ascii_only=True)
TERMINALS = st.builds(Terminal, st.integers(50, 120), ascii_only=st.booleans())
numbers = st.floats(1e-6, 1e6)


def histogram_lines(values: list[float], terminal: Terminal = UNICODE) -> list[str]:
    return terminal.lines(histogram("samples", values))


def curve(left_out: list[float], values: list[float]) -> Chart:
    """Values in W at equal times; those left out come first."""
    times = np.arange(len(left_out) + len(values), dtype=np.float64)
    return Chart(
        name="power",
        title="Power",
        message="",
        x=Axis(label="time", unit="s"),
        y=Axis(label="power", unit="W"),
        series=(
            Series(name="left out", x=times[: len(left_out)], y=np.array(left_out), faint=True),
            Series(name="counted", x=times[len(left_out) :], y=np.array(values)),
        ),
    )


def lines_chart(*series: tuple[str, list[float], list[float]]) -> Chart:
    """Lines over two logarithmic axes."""
    return Chart(
        name="plan",
        title="Plan",
        message="",
        x=Axis(label="time", unit="ms", scale=Scale.LOG),
        y=Axis(label="cost", scale=Scale.LOG),
        series=tuple(Series(name=name, x=np.array(x), y=np.array(y), line=Dashes.SOLID) for name, x, y in series),
    )


def test_lines_are_letters_at_their_points_on_both_axes() -> None:
    chart = lines_chart(("fast", [1.0, 10.0, 100.0], [100.0, 10.0, 1.0]), ("slow", [10.0], [10.0]))
    for terminal in (UNICODE, ASCII):
        title, *grid, axis, ends, first, second = terminal.lines(chart)
        assert title == "cost"
        bar = "|" if terminal.ascii_only else "│"
        cells = [line.split(bar)[1] for line in grid]
        assert cells[0] == "A"  # the least time has the largest cost
        assert cells[-1].rstrip().rindex("A") == 78 - 5 - 1
        middle = next(line for line in cells if "*" in line)  # both are there
        assert middle.index("*") in (36, 37)
        assert (first, second) == ("A  fast", "B  slow")
        assert ends.split() == ["1", "time", "(ms)", "100"]
        assert max(map(len, (*grid, axis, ends))) <= 78


def counts(lines: list[str]) -> list[tuple[str, int]]:
    """The name and the count of each line of a histogram."""
    parts = [line.strip().split("  ") for line in lines]
    return [(part[0], int(part[1].strip() or part[2])) for part in parts]


def test_a_bar_is_as_long_as_its_share_to_an_eighth_of_a_character() -> None:
    assert [UNICODE.bar(share, 8) for share in (0, 0.5, 0.5 + 3 / 64, 1)] == ["", "████", "████▍", "████████"]
    assert [ASCII.bar(share, 8) for share in (0, 0.5, 1)] == ["", "####", "########"]


def test_a_share_above_nothing_is_seen() -> None:
    assert (UNICODE.bar(1e-9, 8), ASCII.bar(1e-9, 8)) == ("▏", "#")


@given(st.lists(numbers, min_size=1, max_size=300), TERMINALS)
def test_a_histogram_counts_every_value_and_fits_the_terminal(values: list[float], terminal: Terminal) -> None:
    lines = histogram_lines(values, terminal)
    assert sum(n for _, n in counts(lines)) == len(values)
    assert len(lines) <= 14
    assert max(map(len, lines)) <= terminal.width


def test_a_value_far_off_is_counted_and_leaves_the_rest_its_shape() -> None:
    values = [1.0 + 0.01 * i for i in range(30)]
    found = counts(histogram_lines([*values, 50.0]))
    assert found[-1] == ("above 1.290", 1)
    assert max(n for _, n in found) < 15


def test_equal_values_are_one_line() -> None:
    assert counts(histogram_lines([2.5] * 7)) == [("2.5 to 2.5", 7)]


def test_bounds_have_the_digits_that_tell_them_apart() -> None:
    names = [name for name, _ in counts(histogram_lines([1000.0001, 1000.0002, 1000.0003, 1000.0004]))]
    assert len(set(names)) == len(names) == 2


def test_a_line_goes_from_the_lowest_to_the_highest_and_a_flat_one_is_not_drawn() -> None:
    assert UNICODE.sparkline([1, 2, 3, 4, 5, 6, 7, 8], 20) == "▁▂▃▄▅▆▇█"
    assert ASCII.sparkline([8, 1, 8], 20) == "#.#"
    assert len(UNICODE.sparkline(range(1000), 60)) <= 60
    assert UNICODE.sparkline([7, 7, 7], 20) == ""


def test_bars_have_the_names_and_values_of_the_chart() -> None:
    chart = bar_chart("time", [("warm up", 0.5), ("samples", 1.0)], Axis(label="time", unit="s", decimals=3))
    assert Terminal(27).lines(chart) == ["warm up  0.500  █████▌", "samples  1.000  ███████████"]


def test_a_curve_has_its_ends_in_numbers_and_marks_what_is_left_out() -> None:
    lines = Terminal(40).lines(curve([100.0, 690.0], [680.0, 690.0, 700.0]))
    assert lines == [
        "700 W │    █",
        "      │    █",
        "      │    █",
        "      │ █ ██",
        "      │ █ ██",
        "680 W │▁█▁██",  # a value that is left out and lower than the rest is cut off at the foot
        "      └××───",
    ]


@given(st.lists(numbers, min_size=1, max_size=40), st.lists(numbers, max_size=400), TERMINALS)
def test_a_curve_fits_the_terminal(left_out: list[float], values: list[float], terminal: Terminal) -> None:
    lines = terminal.lines(curve(left_out, values))
    assert max(map(len, lines)) <= terminal.width


def test_text_for_a_terminal_without_unicode_is_ascii() -> None:
    assert ascii_text("694 W ± 1% at 40 °C … ∑") == "694 W +- 1% at 40 C ... ?"
