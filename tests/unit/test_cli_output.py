"""How numbers, times and configurations are written for people."""

from __future__ import annotations

import pytest

from farm.api.campaigns import FairShare
from farm.cli import status
from farm.cli.output import configuration_text
from farm.formatting import counts_text, percent_text, problem_text, rate_text, seconds_text, some_of


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(0, 12, "0%"), (1, 3, "33.3%"), (999_999, 1_000_000, "99.9%"), (12, 12, "100%"), (289, 1000, "28.9%"), (0, 0, "0%")],
)  # fmt: skip
def test_percent_is_rounded_down_so_that_100_means_all(part: int, whole: int, written: str) -> None:
    assert percent_text(part, whole) == written


@pytest.mark.parametrize(("rate", "written"), [(12_345.6, "12,346"), (10, "10"), (3.44, "3.4"), (0.05, "0.05")])
def test_a_rate_has_two_digits_where_it_is_small(rate: float, written: str) -> None:
    assert rate_text(rate) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.2, "0 s"), (59, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3600, "1 h 00 min"), (90_000, "25 h 00 min")],
)  # fmt: skip
def test_seconds_are_written_in_the_units_that_matter(seconds: float, written: str) -> None:
    assert seconds_text(seconds) == written


def test_long_lists_are_cut_with_what_is_left_out_counted() -> None:
    assert some_of(["a", "b"], limit=2) == "a, b"
    assert some_of(["a", "b", "c"], limit=2, separator="; ") == "a; b and 1 more"
    assert some_of([]) == ""


def test_counts_leave_out_what_is_zero() -> None:
    assert counts_text({"pending": 1200, "done": 0, "dead": 3}) == "1,200 pending, 3 dead"
    assert counts_text({"pending": 0}) == "none"


def test_a_configuration_is_short_where_it_is_plain() -> None:
    row = {
        "family": "tiled", "parameters": {"tile": 16}, "m": 64, "n": 32, "k": 8, "ab": "f16", "cd": "f16", "acc": "f32",
        "layout": "nt", "alpha": 1.0, "beta": 0.0,
    }  # fmt: skip
    assert configuration_text(row) == "tiled(tile=16) 64x32x8 f16:f16:f32 nt"
    assert configuration_text({**row, "acc": "f16", "beta": 0.5}) == "tiled(tile=16) 64x32x8 f16 nt alpha=1 beta=0.5"
    assert configuration_text({**row, "batch": 1}) == configuration_text(row)
    assert configuration_text({**row, "batch": 8}) == "tiled(tile=16) 64x32x8 f16:f16:f32 nt batch=8"
    assert problem_text({**row, "groups": "32*2"}) == "64x32x8 f16:f16:f32 nt groups=32*2"
    many = ",".join(["0,1"] * 20 + ["44"])
    assert problem_text({**row, "groups": many}) == "64x32x8 f16:f16:f32 nt groups=41 (21 with rows, 1 to 44, median 1)"
    both = {**row, "alpha": 0.1 + 0.2, "batch": 8}
    assert problem_text(both) == "64x32x8 f16:f16:f32 nt alpha=0.30000000000000004 beta=0 batch=8"


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((40, 12, 1, 0), "turn: gpu.h200 is shared by 40 owners; 12 used less and go first"),
        ((1, 0, 3, 2), "turn: gpu.h200 is shared by 3 campaigns of this owner; 2 used less and go first"),
        ((2, 0, 2, 1), "0 used less and go first, and shared by 2 campaigns"),
    ],
)
def test_status_says_with_whom_a_campaign_shares(counts: tuple[int, int, int, int], says: str) -> None:
    owners, owners_before, campaigns, campaigns_before = counts
    turn = FairShare(
        resource="gpu.h200", owners=owners, owners_before=owners_before, campaigns=campaigns,
        campaigns_before=campaigns_before,
    )  # fmt: skip
    assert says in status._turn_text(turn)
