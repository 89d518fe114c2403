"""Faults of coordinators."""

from __future__ import annotations

import logging
import signal
import time

from chaos.farm import Program
from chaos.faults.base import CLOCK_STEP_S, FaultsOfOneFarm, Mend, NotNow, does
from chaos.plan import Kind

log = logging.getLogger("chaos")

UNSENT_PATIENCE_S = 5.0
"""How long to wait for a batch that the coordinator has committed and cannot send."""


class FaultsOfCoordinators(FaultsOfOneFarm):
    """What happens to the coordinator that leads."""

    def _without_coordinator(self, leader: Program) -> Mend:
        self.farm.supervised = False
        leader.signal(signal.SIGKILL)

        def supervise() -> None:
            self.farm.supervised = True

        return supervise

    @does(Kind.KILL_COORDINATOR)
    def _kill_coordinator(self, _: int) -> Mend:
        return self._without_coordinator(self.leader())

    @does(Kind.SECOND_COORDINATOR)
    def _second_coordinator(self, _: int) -> Mend:
        self.leader()
        self.farm.start_coordinator()

        def kill_the_leader() -> None:
            if sum(program.process is not None for program in self.farm.coordinators) > 1:
                self.leader().signal(signal.SIGKILL)

        return kill_the_leader

    @does(Kind.KILL_BEFORE_SENDING)
    def _kill_before_sending(self, _: int) -> Mend:
        leader = self.leader()
        if not self.scalar("SELECT count(*) FROM leadership WHERE expires_at > clock_timestamp()"):
            raise NotNow("no coordinator leads")
        if not self.scalar("SELECT count(*) FROM batches WHERE finished_at > clock_timestamp() - interval '1 s'"):
            raise NotNow("no batch ends, and makes room for another")
        self.farm.end_service(self.farm.redis_pid(), signal.SIGKILL)
        unsent = "SELECT count(*) FROM batches WHERE NOT folded AND state = 'queued' AND sent_at IS NULL"
        end = time.monotonic() + UNSENT_PATIENCE_S
        try:
            while not (found := self.scalar(unsent)):
                if time.monotonic() > end:
                    raise NotNow("every batch was sent")
                time.sleep(0.02)
        except BaseException:
            self.farm.start_redis()
            raise
        supervise = self._without_coordinator(leader)
        log.info("  %d batches were committed and not sent", found)

        def mend() -> None:
            self.farm.start_redis()
            supervise()

        return mend

    @does(Kind.PAUSE_COORDINATOR, Kind.FREEZE_COORDINATOR)
    def _pause_coordinator(self, _: int) -> Mend:
        leader = self.leader()
        leader.signal(signal.SIGSTOP)

        def go_on() -> None:
            leader.signal(signal.SIGCONT)

        return go_on

    @does(Kind.STEP_LEADER_CLOCK)
    def _step_clock_of_leader(self, _: int) -> Mend:
        return self.step_clock(self.leader().host, -CLOCK_STEP_S)
