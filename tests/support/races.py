"""Actions of several threads at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine

from farm.errors import LeaseLost
from support.invariants import faults

T = TypeVar("T")


def at_once(*actions: Callable[[], T]) -> list[T | LeaseLost]:
    """Runs them at the same moment. Returns what each returned, or the `LeaseLost` that it raised; raises all else."""
    start = threading.Barrier(len(actions))
    found: dict[int, T | LeaseLost] = {}
    errors: list[BaseException] = []

    def run(n: int) -> None:
        start.wait()
        try:
            found[n] = actions[n]()
        except LeaseLost as lost:
            found[n] = lost
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return [found[n] for n in range(len(actions))]


def nothing_is_broken(engine: Engine) -> None:
    with engine.connect() as connection:
        assert faults(connection) == []
