"""Answers that pages share: one reading for all who ask at the same moment, and none that an event has made old."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from farm.errors import NotFound
from farm.web.shared_answers import SHARED_SECONDS, SharedAnswers

DEADLINE = 30.0


class Place:
    """Shared answers with a clock and events of their own. Each reading returns the next number."""

    def __init__(self) -> None:
        self.now, self.event, self.readings = 100.0, 1, count(1)
        self.listened = True
        self.shared = SharedAnswers(lambda: self.event if self.listened else None, lambda: self.now)

    def ask(self, key: str = "page") -> int:
        return self.shared.answer(key, lambda: next(self.readings))


def test_an_answer_is_shared_until_its_time_is_over() -> None:
    place = Place()
    assert [place.ask(), place.ask()] == [1, 1]
    place.now += 0.9 * SHARED_SECONDS
    assert place.ask() == 1
    place.now += 0.2 * SHARED_SECONDS
    assert [place.ask(), place.ask()] == [2, 2], "the time counts from the reading, and not from the last request"


def test_other_questions_have_other_answers() -> None:
    place = Place()
    assert [place.ask("one"), place.ask("other"), place.ask("one")] == [1, 2, 1]


def test_an_event_and_a_change_end_what_is_shared() -> None:
    place = Place()
    assert place.ask() == 1
    place.event += 1
    assert [place.ask(), place.ask()] == [2, 2]
    place.shared.clear()
    assert place.ask() == 3


def test_nothing_is_shared_while_nobody_listens() -> None:
    place = Place()
    place.listened = False
    assert [place.ask(), place.ask()] == [1, 2]
    place.listened = True
    assert [place.ask(), place.ask()] == [3, 3]
    place.listened = False
    assert place.ask() == 4


def test_requests_at_the_same_moment_wait_for_one_reading_and_later_ones_after_an_event_do_not() -> None:
    place, reading, go_on = Place(), threading.Event(), threading.Event()

    def slow() -> int:
        reading.set()
        assert go_on.wait(DEADLINE)
        return next(place.readings)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(place.shared.answer, "page", slow)
        assert reading.wait(DEADLINE)
        others = [threads.submit(place.ask) for _ in range(2)]
        place_after_event = None
        try:
            place.event += 1
            place_after_event = threads.submit(place.ask).result(DEADLINE)
        finally:
            go_on.set()
        assert place_after_event == 1, "it does not wait for an answer that may be older than the event"
        assert first.result(DEADLINE) == 2
        assert {other.result(DEADLINE) for other in others} <= {1, 2}


def test_an_error_is_raised_for_all_who_wait_and_is_not_kept() -> None:
    place, reading, go_on = Place(), threading.Event(), threading.Event()

    def fails() -> int:
        reading.set()
        assert go_on.wait(DEADLINE)
        raise NotFound(detail="gone")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(place.shared.answer, "page", fails)
        assert reading.wait(DEADLINE)
        assert place.shared._shared, "others find the reading that is in progress"
        (in_progress,) = place.shared._shared.values()
        go_on.set()
        with pytest.raises(NotFound):
            first.result(DEADLINE)
        with pytest.raises(NotFound):
            in_progress.answer.result(DEADLINE)
    assert place.ask() == 1
