"""Progress off a terminal: a line every ten seconds with the share that is done and the time that is left."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from screens import Terminal

from farm.cli.progress import LINE_SECONDS, LogLines, counting
from farm.cli.training import progress_text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_ten_seconds_and_the_first_not_at_once() -> None:
    clock, printed = Clock(), list[float]()
    with contextlib.redirect_stderr(io.StringIO()) as err:
        lines = LogLines(clock)
        for _ in range(50):
            clock.now += 1
            lines.print(lambda: printed.append(clock.now) or f"at {clock.now:g}")
    assert printed == [100 + LINE_SECONDS * n for n in range(1, 6)]
    assert err.getvalue().splitlines() == [f"at {at:g}" for at in printed]


def test_a_terminal_gets_no_lines() -> None:
    clock = Clock()
    with contextlib.redirect_stderr(Terminal()) as err:
        lines = LogLines(clock)
        clock.now += 2 * LINE_SECONDS
        lines.print(lambda: "a line")
    assert err.getvalue() == ""


def test_a_count_is_told_with_its_share_and_the_time_left() -> None:
    clock = Clock()
    with contextlib.redirect_stderr(io.StringIO()) as err, counting("rows.parquet", 5_000, clock=clock) as done:
        for count in (1_000, 2_000, 5_000):
            clock.now += 20
            done(count, "rows.parquet, storing" if count == 5_000 else None)
    assert err.getvalue().splitlines() == [
        "rows.parquet: 1,000 of 5,000, 20%, 1 min 20 s left",
        "rows.parquet: 2,000 of 5,000, 40%, 1 min 00 s left",
        "rows.parquet, storing: 5,000 of 5,000, 100%",
    ]


@pytest.mark.parametrize(
    ("training", "text"),
    [
        ({"state": "requested", "progress": None, "running_s": None}, "waiting for a trainer"),
        ({"state": "running", "progress": None, "running_s": 12.0}, "for 12 s so far"),
        ({"state": "running", "progress": 0.0, "running_s": 12.0}, "for 12 s so far"),
        ({"state": "running", "progress": 0.25, "running_s": 60.0}, "25%, 3 min 00 s left"),
        ({"state": "running", "progress": 1.0, "running_s": 60.0}, "every fold is learned, comparing and registering"),
    ],
)
def test_a_training_is_told_with_its_share_and_the_time_left(training: dict[str, Any], text: str) -> None:
    told = progress_text({"device_type": "nvidia-h200", **training})
    assert told == f"training a model for nvidia-h200: {text}"
