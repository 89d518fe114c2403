"""Many faults at a time, by a plan, each made good when it is over."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import redis
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError

from chaos.farm import Farm
from chaos.faults import Faults, NotNow
from chaos.plan import Fault
from chaos.recovery import Struck
from farm.errors import EmbeddedServiceFailed

log = logging.getLogger("chaos")

AGAIN_S, PATIENCE_S = 0.5, 120.0
"""A fault that cannot strike now is tried again after this, and left out after that."""

LATER = (NotNow, DBAPIError, OperationalError, redis.RedisError, EmbeddedServiceFailed)
"""What a fault raises that must be tried again: Postgres does not come up while its disk is full."""


class Schedule:
    """Carries out a plan, one thing after another. What comes late shifts all that follows."""

    def __init__(self, farm: Farm, faults: Faults, plan: list[Fault]) -> None:
        self._farm = farm
        self._faults = faults
        self.struck: list[Struck] = []
        self._order = itertools.count()
        # When it is due, when it is left out, and what to do.
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._began = time.monotonic()
        self._late_s = 0.0
        self._longest_s = 10 * plan[-1].at_s + 300.0  # however slow the machine is
        for fault in plan:
            self._put(fault.at_s, lambda fault=fault: self._strike(fault), patience_s=PATIENCE_S)  # type: ignore[misc]

    def _put(self, at_s: float, action: Callable[[], None], *, patience_s: float = float("inf")) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), at_s + patience_s, action))

    def _now_s(self) -> float:
        """Seconds of the plan's clock, which stands while one thing takes longer than planned."""
        return time.monotonic() - self._began - self._late_s

    def carry_out(self) -> None:
        """Until all is made good again. `struck` is what was done."""
        while self._due:
            at_s, _, until_s, action = heapq.heappop(self._due)
            self._wait_until(at_s)
            self._late_s += max(0.0, self._now_s() - at_s - AGAIN_S)
            try:
                action()
            except LATER as error:
                again_s = self._now_s() + AGAIN_S  # after all that came due meanwhile
                if again_s < until_s:
                    heapq.heappush(self._due, (again_s, next(self._order), until_s, action))
                else:
                    log.info("left out: %s", error)
            if time.monotonic() - self._began > self._longest_s:
                raise AssertionError(
                    f"chaos does not come to its end: {len(self._due)} things are to be done or mended"
                )

    def _wait_until(self, at_s: float) -> None:
        self._farm.tend()
        while (left_s := at_s - self._now_s()) > 0:
            time.sleep(min(left_s, 0.25))
            self._farm.tend()

    def _strike(self, fault: Fault) -> None:
        at = time.time()
        mend = self._faults.strike(fault)
        at_s, place = self._now_s(), len(self.struck)
        self.struck.append(Struck(fault.kind, fault.target, at, None if mend is None else math.inf))
        log.info("%6.1f s  %s (%d)%s", at_s, fault.kind, fault.target, f" for {fault.lasts_s:g} s" if mend else "")
        if mend is not None:

            def make_good() -> None:
                mend()
                self.struck[place] = replace(self.struck[place], mended_at=time.time())

            self._put(at_s + fault.lasts_s, make_good)
