"""Two threads that want the same thing, or different ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from workers.kernels.once import Once


def test_a_thing_is_made_once_and_who_wants_it_meanwhile_waits() -> None:
    once, begun, go_on = Once[str, object](), threading.Event(), threading.Event()

    def slowly() -> object:
        begun.set()
        assert go_on.wait(120)
        return object()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(once.get, "a", slowly)
        assert begun.wait(120)
        second = threads.submit(once.get, "a", lambda: pytest.fail("made twice"))
        assert once.get("b", lambda: 1) == 1  # another one does not wait
        assert not first.done()
        assert not second.done()
        go_on.set()
        assert first.result(120) is second.result(120) is once.get("a", lambda: pytest.fail("made again"))


def test_what_could_not_be_made_is_tried_again() -> None:
    once = Once[str, int]()
    with pytest.raises(ZeroDivisionError):
        once.get("a", lambda: 1 // 0)
    assert "a" not in once
    assert once.get("a", lambda: 2) == 2


def test_what_was_made_can_be_forgotten() -> None:
    once = Once[str, int]()
    once.get("a", lambda: 1)
    once.clear()
    assert once.get("a", lambda: 2) == 2
