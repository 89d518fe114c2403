"""The benchmark of recovery: its classes of faults."""

from __future__ import annotations

from typing import Any

from benchmarks import recovery
from chaos.plan import ALONE


def test_every_fault_that_strikes_alone_is_in_one_class() -> None:
    listed = [name for names in recovery.CLASSES.values() for name in names]
    assert sorted(listed) == sorted(kind.name.lower() for kind in ALONE)


def test_a_class_shows_its_worst_fault_and_one_that_was_not_made_good_before_all() -> None:
    def fault(*seconds: float | None) -> dict[str, Any]:
        summary: dict[str, Any] = recovery.summary(seconds, 30.0)
        return summary

    found = {
        "faults": {
            "lose_messages": fault(1.0, 2.5),
            "junk_messages": fault(7.0),
            "stop_redis": fault(1.0),
            "kill_redis": fault(3.0, None),
        },
        "leader_takeover": recovery.summary([9.0, 8.0], 15.0),
    }
    assert recovery.classes(found).splitlines()[2:] == [
        "| messages: lost, repeated or meaningless | 3 | 30 | 7.0 |",
        "| Redis: empty, away, frozen, full or read-only | 3 | 30 | not within 120 |",
        "| *another coordinator leads* | 2 | 15 | 9.0 |",
    ]
