"""When a child that measures is taken to stand still."""

from __future__ import annotations

import pytest

from workers.watchdog import Watchdog


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(overdue_s=4, unleased_s=150)


def test_a_child_without_a_task_is_left_alone(watchdog: Watchdog) -> None:
    assert not any(watchdog.should_kill(now, task=None, left_s=None) for now in range(0, 10_000, 100))
    assert not watchdog.should_kill(10_000, task=None, left_s=1)


def test_a_lease_that_can_hardly_be_renewed_any_more_ends_the_child(watchdog: Watchdog) -> None:
    assert not watchdog.should_kill(0, task="a", left_s=4.5)
    assert watchdog.should_kill(1, task="a", left_s=3.5)


def test_a_task_without_a_lease_ends_the_child_in_the_end(watchdog: Watchdog) -> None:
    assert not watchdog.should_kill(0, task="a", left_s=None)
    assert not watchdog.should_kill(150, task="a", left_s=None)
    assert watchdog.should_kill(151, task="a", left_s=None)


def test_a_child_that_does_not_end_is_not_ended_at_every_heartbeat(watchdog: Watchdog) -> None:
    watchdog.should_kill(0, task="a", left_s=None)
    assert [now for now in range(0, 500, 10) if watchdog.should_kill(now, task="a", left_s=None)] == [160, 320, 480]


def test_the_time_without_a_lease_is_counted_anew_for_each_task_and_after_each_lease(watchdog: Watchdog) -> None:
    watchdog.should_kill(0, task="a", left_s=None)
    assert not watchdog.should_kill(151, task="b", left_s=None)
    assert not watchdog.should_kill(300, task="b", left_s=100)
    assert not watchdog.should_kill(440, task="b", left_s=None)
    assert watchdog.should_kill(451, task="b", left_s=None)
    assert not watchdog.should_kill(452, task=None, left_s=None)
    assert not watchdog.should_kill(453, task="b", left_s=None)
