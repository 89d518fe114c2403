"""One fault at a time: how long until healthy devices measure again, and until another coordinator leads?"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from chaos.farm import Farm
from chaos.faults import Faults, Mend
from chaos.plan import TRAITS, Fault, Kind, Victim
from chaos.recovery import (
    BOUND_S,
    OUTAGE_S,
    TAKEOVER_BOUND_S,
    Struck,
    healthy_beside,
    read_landings,
    recovered_after,
)
from chaos.schedule import AGAIN_S, LATER, PATIENCE_S
from farm.db import leadership

log = logging.getLogger("chaos")

OBSERVED_S = 20.0
"""How long devices are watched after a fault that struck alone: what it took from them may be missed later."""

STEADY_S = 120.0
"""The longest that a farm may take after a fault until everything is as before."""

TARGETED = (Victim.DEVICE, Victim.HEALTHY_DEVICE, Victim.HOST)
"""Of these victims there are several."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Strike:
    """What came of a fault that struck alone."""

    kind: Kind
    # Until healthy devices measured again; None where they did not.
    seconds: float | None
    # Until another coordinator led, for a fault that takes the lead.
    takeover_seconds: float | None = None


def findings_of(strike: Strike) -> Iterator[str]:
    """What took too long, in words."""
    bounds = [("healthy devices measured again", strike.seconds, BOUND_S)]
    if TRAITS[strike.kind].takes_lead:
        bounds.append(("another coordinator led", strike.takeover_seconds, TAKEOVER_BOUND_S))
    for what, seconds, bound_s in bounds:
        if seconds is None or seconds > bound_s:
            took = "not at all" if seconds is None else f"after {seconds:.1f} s"
            yield f"after {strike.kind.value!r} {what} {took}, not within {bound_s:g} s"


class StandsStill(Exception):
    """A farm did not come back to what it was, so that no fault can strike alone any more."""


class Alone:
    """Lets faults strike one after the other."""

    def __init__(self, farm: Farm, faults: Faults, chance: random.Random) -> None:
        self._farm = farm
        self.faults = faults
        self._chance = chance

    def strike(self, kind: Kind) -> Strike:
        """Raises `StandsStill` where the fault cannot be done, or the farm is not as before in `STEADY_S`."""
        self._wait_until(
            self._is_steady, STEADY_S, f"all devices measure, and two coordinators run, before {kind.value!r}"
        )
        trait = TRAITS[kind]
        count = len(self._farm.devices_of) if trait.victim is Victim.HOST else len(self._farm.device_ids)
        target = self._chance.randrange(count) if trait.victim in TARGETED else 0
        term = self._term()
        at, mend = self._again(lambda: self._struck(Fault(0.0, kind, target, trait.strike_s)), kind)
        log.info("%s (%d)", kind, target)
        mended_at = None
        if mend is not None:
            self._wait(trait.strike_s)
            self._again(mend, kind)
            mended_at = time.time()
        struck = Struck(kind, target, at, mended_at)
        healthy = healthy_beside(kind, target, self._farm)
        self._wait(struck.since + OBSERVED_S - time.time())
        seconds, end = None, time.monotonic() + STEADY_S
        while seconds is None and time.monotonic() < end:
            self._wait(0.5)
            with contextlib.suppress(DBAPIError), self._farm.engine.connect() as connection:
                landings = read_landings(connection, self._farm.device_ids, since=at)
                seconds = recovered_after(landings, healthy, struck.since, time.time())
        later = self._term()
        takeover = later.since.timestamp() - at if trait.takes_lead and later.since and later.term > term.term else None
        log.info("  %s s, takeover %s s", seconds, takeover)
        return Strike(kind, seconds, takeover)

    def _struck(self, fault: Fault) -> tuple[float, Mend | None]:
        at = time.time()
        return at, self.faults.strike(fault)

    def _again(self, action: Callable[[], T], kind: Kind) -> T:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return action()
            except LATER as error:
                if time.monotonic() > end:
                    raise StandsStill(f"{kind.value!r} cannot be done or mended: {error}") from None
                self._wait(AGAIN_S)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            self._farm.tend()
            time.sleep(min(left_s, 0.25))

    def _wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise StandsStill(f"it did not come to be that {what}; {self._farm.last_words()}")
            self._wait(0.5)

    def _is_steady(self) -> bool:
        """Whether somebody leads, as many coordinators run as should, and every device landed something lately."""
        if sum(one.process is not None for one in self._farm.coordinators) < len(self._farm.hosts_of_coordinators):
            return False
        now = time.time()
        try:
            with self._farm.engine.connect() as connection:
                if not leadership.read(connection).leads:
                    return False
                landings = read_landings(connection, self._farm.device_ids, since=now - 3 * OUTAGE_S)
        except DBAPIError:
            return False
        return all(landed and now - landed[-1] < OUTAGE_S and len(landed) > 3 for landed in landings.landed)

    def _term(self) -> leadership.Leader:
        with self._farm.engine.connect() as connection:
            return leadership.read(connection)
