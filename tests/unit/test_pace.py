"""What is done at most once in so many seconds."""

from __future__ import annotations

from farm.coordinator.rate_limits import RateLimit


def test_it_is_due_at_once_even_where_the_clock_has_just_begun() -> None:
    assert RateLimit(30.0, clock=lambda: 0.0).due()
    assert RateLimit(30.0, clock=lambda: -5.0).due()


def test_then_it_is_due_when_so_many_seconds_have_passed_since_it_last_was() -> None:
    now = [100.0]
    pace = RateLimit(2.0, clock=lambda: now[0])
    due = []
    for now[0] in (100.0, 100.0, 101.9, 102.0, 103.0, 107.0, 108.0, 109.0):
        if pace.due():
            due.append(now[0])
    assert due == [100.0, 102.0, 107.0, 109.0]
