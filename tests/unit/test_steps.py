"""The steps of a coordinator's turn: what one that fails does to the others, and who hears of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from farm.coordinator.exported import STEP_ERRORS
from farm.coordinator.metrics import Watch
from farm.coordinator.steps import LOG_SECONDS, MAX_PAUSE_SECONDS, OneByOne, PartlyFailed, Steps, error_text
from farm.errors import NotLeading
from farm.metrics import Count, Metrics


class Noted(Metrics):
    def __init__(self) -> None:
        self.counted: list[tuple[Count, str | None]] = []

    def count(self, what: Count, amount: float = 1, *, value: str | None = None) -> None:
        self.counted.append((what, value))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def steps(clock: Clock) -> Steps:
    return Steps(Watch(Noted()), clock)


def raising(error: Exception) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


HELD = OperationalError("SELECT", {}, psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"))
AWAY = OperationalError("SELECT", {}, psycopg.OperationalError("the connection is lost"))


@pytest.mark.parametrize("error", [HELD, ValueError("a defect")], ids=["held", "defect"])
def test_a_step_that_fails_is_counted_and_named_and_the_next_one_runs(steps: Steps, error: Exception) -> None:
    ran: list[str] = []
    steps.run("fold", raising(error))
    steps.run("form", lambda: ran.append("form"))
    assert ran == ["form"]
    assert set(steps.watch.failing()) == {"fold"}
    assert isinstance(steps.watch.metrics, Noted)
    assert steps.watch.metrics.counted == [(STEP_ERRORS, "fold")]


@pytest.mark.parametrize("error", [AWAY, NotLeading(term=3)], ids=["away", "not leading"])
def test_what_concerns_all_steps_ends_the_turn(steps: Steps, error: Exception) -> None:
    with pytest.raises(type(error)):
        steps.run("fold", raising(error))
    assert steps.watch.failing() == {}


def test_a_step_that_waited_in_vain_is_left_out_for_a_while_and_then_tried_again(steps: Steps, clock: Clock) -> None:
    tries: list[float] = []

    def step() -> None:
        tries.append(clock.now)
        raise HELD

    for _ in range(600):
        steps.run("fold", step)
        clock.now += 0.1
    pauses = [round(later - earlier) for earlier, later in pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 2
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_a_step_that_failed_for_some_of_its_things_runs_in_the_next_turn(steps: Steps) -> None:
    tries: list[None] = []

    def step() -> None:
        tries.append(None)
        some = OneByOne()
        with some.each():
            raise HELD
        some.end()

    steps.run("form", step)
    steps.run("form", step)
    assert len(tries) == 2
    assert "lock timeout" in steps.watch.failing()["form"][0]


def test_it_is_logged_now_and_then_and_when_it_works_again(
    steps: Steps, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    while clock.now < 2.5 * LOG_SECONDS:
        steps.run("fold", raising(HELD))
        clock.now += 0.1
    assert len(caplog.records) == 3
    clock.now += MAX_PAUSE_SECONDS
    steps.run("fold", lambda: None)
    assert caplog.records[-1].getMessage() == "the step fold of the coordinator works again"
    assert steps.watch.failing() == {}


def test_of_several_things_each_is_done_and_the_first_error_is_raised_at_the_end() -> None:
    done: list[int] = []
    some = OneByOne()

    def act(n: int) -> int:
        if n % 2:
            raise ValueError(str(n))
        done.append(n)
        return n

    assert [some.attempt(act, n) for n in range(4)] == [0, None, 2, None]
    assert done == [0, 2]
    with pytest.raises(PartlyFailed) as failed:
        some.end()
    assert str(failed.value.__cause__) == "1"
    with pytest.raises(OperationalError), some.each():
        raise AWAY


def test_an_error_is_told_so_that_any_database_can_store_it() -> None:
    told = error_text(ValueError("zero \0 byte, broken \udcff byte " + "x" * 1000))
    assert told.startswith(r"ValueError: zero \0 byte, broken \udcff byte")
    assert len(told) == 300
