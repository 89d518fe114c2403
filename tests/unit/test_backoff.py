"""How long a program that ended waits before it is started again."""

from __future__ import annotations

from farm.services.backoff import HEALTHY_AFTER_S, MAX_PAUSE_S, BackOff


def test_a_program_that_keeps_ending_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    back_off, now, pauses = BackOff(), 100.0, []
    back_off.started(now)
    for _ in range(9):
        now += 1.0
        assert back_off.ended(now)
        pauses.append(back_off.pause_s)
        assert not back_off.is_due(now + back_off.pause_s - 0.01)
        now += back_off.pause_s
        assert back_off.is_due(now)
        back_off.started(now)
        assert not back_off.is_due(now)
    assert pauses == [1, 2, 4, 8, 16, 32, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    assert back_off.restarts == 9


def test_one_that_ran_well_is_started_again_at_once_and_its_next_pauses_are_short() -> None:
    back_off, now = BackOff(pause_s=32.0), 5.0
    back_off.started(now)
    now += HEALTHY_AFTER_S
    assert back_off.ended(now)
    assert back_off.is_due(now)
    back_off.started(now)
    back_off.ended(now + HEALTHY_AFTER_S - 0.01)
    assert back_off.pause_s == 1.0


def test_an_end_is_noted_once() -> None:
    back_off = BackOff()
    back_off.started(0.0)
    assert back_off.ended(0.5)
    assert not back_off.ended(1.4)
    assert back_off.is_due(1.5)
    assert back_off.pause_s == 1.0


def test_the_first_start_is_no_restart_and_a_program_that_runs_is_not_due() -> None:
    back_off = BackOff()
    assert not back_off.is_due(0.0)
    back_off.started(0.0)
    assert not back_off.is_due(1e9)
    assert back_off.restarts == 0
