"""How soon Celery's parent of a device sees that its measuring process ended."""

from __future__ import annotations

from celery import concurrency
from celery.concurrency.asynpool import AsynPool

from workers.child_pool import LOOK_SECONDS, ChildPool
from workers.parent import CHILD_POOL


def test_an_ended_process_is_looked_for_several_times_a_second() -> None:
    assert concurrency.get_implementation(CHILD_POOL) is ChildPool
    pool = object.__new__(ChildPool.Pool)
    # Celery's own time, which is long, is under the same key.
    assert AsynPool.timers.fget(pool) == {pool.maintain_pool: 5.0}
    assert pool.timers == {pool.maintain_pool: LOOK_SECONDS}
    assert LOOK_SECONDS <= 0.5
