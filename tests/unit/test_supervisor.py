"""When a program that ended is started again."""

from __future__ import annotations

from farm.services.supervisor import HEALTHY_AFTER_S, LONGEST_PAUSE_S, BackOff


def test_a_program_that_keeps_ending_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    back_off, now, pauses = BackOff(), 0.0, []
    for _ in range(9):
        back_off.ended(now, ran_s=1.0)
        pauses.append(back_off.pause_s)
        assert not back_off.is_due(now)
        now += back_off.pause_s
        assert back_off.is_due(now)
        back_off.restarted()
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert back_off.restarts == 9


def test_one_that_ran_well_is_started_again_at_once() -> None:
    back_off = BackOff(pause_s=32.0)
    back_off.ended(5.0, ran_s=HEALTHY_AFTER_S + 1)
    assert back_off.is_due(5.0)


def test_an_end_is_noted_once() -> None:
    back_off = BackOff()
    back_off.ended(0.0, ran_s=1.0)
    back_off.ended(0.9, ran_s=1.0)
    assert back_off.is_due(1.0)
