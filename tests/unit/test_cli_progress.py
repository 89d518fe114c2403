"""Progress off a terminal: a line every ten seconds with the share that is done and the time that is left."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from farm.api.campaigns import Progress
from farm.api.trainings import TrainingNow
from farm.cli import progress
from farm.cli.progress import LINE_SECONDS, LogLines, counting, follow
from farm.cli.training import progress_text
from farm.db.states import JobState
from support.learning_curves import point
from support.screens import Terminal


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


def test_a_count_without_a_total_is_told_alone() -> None:
    clock = Clock()
    with contextlib.redirect_stderr(io.StringIO()) as err, counting("rows", None, clock=clock) as done:
        clock.now += 20
        done(1_000)
    assert err.getvalue() == "rows: 1,000\n"


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


class Watched:
    """A farm whose campaign `learning` goes on as far as each of these."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self._found = list(found)

    def ask(self, operation: object, campaign: str) -> Progress:
        given: dict[str, Any] = {
            **{"percent": 0.0, "jobs_per_minute": 90.0, "seconds_left": 60.0, "stuck_jobs": 0, "name": campaign},
            **{"digest": "0" * 64, "owner": "ann", "state": "active", "stuck": [], "devices_live": 1},
            "kernels_awaited": {"kernels": 0, "building": 0, "jobs": 0},
        }
        found = self._found.pop(0)
        counts = {state: found["counts"].get(state.value, 0) for state in JobState}
        return Progress(**given | found | {"counts": counts})


def test_watching_a_learning_campaign_prints_its_error_on_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    learned = {"pool": "any", "round": 2, "error": None, **point(2, all=10.0, blas=12.0)}
    watched: Any = Watched(
        {"counts": {"done": 40, "pending": 20}},
        {"counts": {"done": 60, "pending": 20}, "learned": learned},
        {"counts": {"done": 80}, "learned": learned},
    )
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert follow(watched, "learning")["done"] == 80
    assert err.getvalue().splitlines() == [
        "learning: 40 of 60 jobs, 66.6%, 90 jobs/min, 1 min 00 s left",
        "learning: 60 of 80 jobs, 75%, 90 jobs/min, 1 min 00 s left, 10.0% mean error on the test set after 200 device s",
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
    told = progress_text(TrainingNow(id=1, device_type="nvidia-h200", outcome=None, error=None, **training))
    assert told == f"training a model for nvidia-h200: {text}"
