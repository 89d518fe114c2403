"""What faults have in common: each is a method that says which kinds it does, and returns how to make it good again."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import psutil
from sqlalchemy import text

from chaos.farm import Farm, Program
from chaos.plan import Fault, Kind

CLOCK_STEP_S = 3600.0

Mend = Callable[[], None]
"""Makes a fault good again."""

Method = TypeVar("Method", bound=Callable[..., Mend | None])


def does(*kinds: Kind) -> Callable[[Method], Method]:
    """Marks a method that does faults of these kinds. Its argument is the number of the device or host."""

    def mark(method: Method) -> Method:
        method.kinds_done = kinds  # type: ignore[attr-defined]
        return method

    return mark


class NotNow(Exception):
    """The fault needs something that another fault has taken away for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A time, on the database's clock, in which nothing may be claimed: of a campaign, or by a device."""

    since: datetime
    until: datetime
    campaign_id: int | None = None
    device_id: int | None = None


class FaultsOfOneFarm:
    """Does the kinds of faults that methods of a subclass are marked with."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.closed: list[Closed] = []
        self.stop_codes: list[int] = []
        """Exit codes of `farm-worker` after it was asked to stop."""
        self.lasts_s = 0.0
        """Until the fault that strikes is made good."""
        methods = inspect.getmembers(type(self), inspect.isfunction)
        self._strikes: dict[Kind, Callable[[int], Mend | None]] = {
            kind: getattr(self, name) for name, method in methods for kind in getattr(method, "kinds_done", ())
        }

    @property
    def kinds(self) -> Collection[Kind]:
        """What it can do."""
        return self._strikes.keys()

    def strike(self, fault: Fault) -> Mend | None:
        """Does it. What makes it good again is returned, and may be called more than once.

        Either raises `NotNow`, or an error of Postgres or Redis, where it must be tried again later.
        """
        self.lasts_s = fault.lasts_s
        mend = self._strikes[fault.kind](fault.target)
        return None if fault.lasts_s == math.inf else mend

    def leader(self) -> Program:
        found = self.farm.leader()
        if found is None:
            raise NotNow("no coordinator leads")
        return found

    def resume_after_the_lease(self, processes: Sequence[psutil.Process]) -> Mend:
        until = time.monotonic() + self.farm.lease_s + 1.0

        def go_on() -> None:
            if time.monotonic() < until:
                raise NotNow("the lease has not passed yet")
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.resume()

        return go_on

    def step_clock(self, host: str, by_s: float) -> Mend:
        before_s = self.farm.clock_ahead_s(host)
        self.farm.set_clock(host, before_s + by_s)
        return lambda: self.farm.set_clock(host, before_s)

    def steered(self) -> int:
        """The campaign that people steer: the second, or where there is none, the one with the most jobs that wait."""
        known = self.farm.workload.campaigns
        if known:
            return next(i for i, campaign in self.farm.submitted.items() if campaign is known[1])
        found = """
            SELECT c.id FROM campaigns c JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'active'
            ORDER BY l.jobs - l.done DESC LIMIT 1
        """
        return int(self.scalar(found))

    def scalar(self, statement: str) -> Any:
        with self.farm.engine.connect() as connection:
            return connection.execute(text(statement)).scalar_one()

    def now(self) -> datetime:
        found: datetime = self.scalar("SELECT clock_timestamp()")
        return found
