"""What people do: steering campaigns, and submitting."""

from __future__ import annotations

import logging
import signal
import sys
import time

from chaos.farm import Farm
from chaos.faults.base import Closed, FaultsOfOneFarm, Mend, NotNow, does
from chaos.plan import Kind
from chaos.workload import TYPE, more
from farm.db import batches
from farm.db.states import JobState

log = logging.getLogger("chaos")

SUBMISSION_PATIENCE_S = 20.0
"""How long `farm submit` may take until it sends jobs."""

LARGE_CAMPAIGN = f"""
name: large
owner: zoe
targets: [{{type: {TYPE}}}]
problems: {{m: 1..1000, n: 1..200, k: 64, types: f32}}
kernels: [{{family: blas, threads: 1}}]
"""
"""200,000 jobs, whose submission is never committed."""


class FaultsOfPeople(FaultsOfOneFarm):
    """What people do to campaigns."""

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        self._crowds = 0

    @does(Kind.PAUSE_CAMPAIGN)
    def _pause_campaign(self, _: int) -> Mend:
        steered_id = self.steered()
        with self.farm.engine.begin() as connection:
            if not batches.pause(connection, steered_id):
                raise NotNow("the campaign is not active")
        since = self.now()

        def resume() -> None:
            until = self.now()
            with self.farm.engine.begin() as connection:
                batches.resume(connection, steered_id)
            self.closed.append(Closed(since=since, until=until, campaign_id=steered_id))

        return resume

    @does(Kind.CANCEL_CAMPAIGN)
    def _cancel_campaign(self, _: int) -> Mend:
        steered_id = self.steered()
        with self.farm.engine.begin() as connection:
            if not batches.cancel(connection, steered_id):
                raise NotNow("the campaign is not active")
        since = self.now()

        def submit_again() -> None:
            until = self.now()
            self.farm.submit(self.farm.submitted[steered_id])
            self.closed.append(Closed(since=since, until=until, campaign_id=steered_id))

        return submit_again

    @does(Kind.RETRY_DEAD)
    def _retry_dead(self, _: int) -> None:
        steady_id = next(iter(self.farm.submitted))
        with self.farm.engine.begin() as connection:
            count = batches.retry(connection, steady_id, states=(JobState.DEAD, JobState.INVALID))
        if not count:
            raise NotNow("no job is dead yet")
        log.info("  %d jobs", count)

    @does(Kind.STOP_SUBMISSION)
    def _stop_submission(self, _: int) -> Mend:
        file = self.farm.folder / "large.yaml"
        file.write_text(LARGE_CAMPAIGN)
        host = self.farm.hosts_of_coordinators[0]
        submission = self.farm.start("submit", (sys.executable, "-m", "farm", "submit", str(file)), host)
        self.farm.others.append(submission)
        copying = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'farm' AND query LIKE 'COPY%'"

        def kill() -> None:
            submission.signal(signal.SIGKILL)
            submission.wait()
            self.farm.others.remove(submission)

        end = time.monotonic() + SUBMISSION_PATIENCE_S
        try:
            while not self.scalar(copying):
                if time.monotonic() > end or not submission.running:
                    raise NotNow("the submission did not come to its jobs")
                time.sleep(0.02)
            submission.signal(signal.SIGSTOP)
        except BaseException:
            kill()
            raise
        return kill

    @does(Kind.FIFTY_OWNERS)
    def _fifty_owners(self, _: int) -> None:
        self._crowds += 1
        for number in range(50):
            self.farm.submit(more(f"crowd-{self._crowds}", f"owner-{number}", columns=2))
