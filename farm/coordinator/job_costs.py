"""Cost of jobs: device seconds per job of a job group on a device type, fitted to landed batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farm.db.batches import FinishedBatch, JobCost

REFRESH_SECONDS = 2.0
"""How long a fitted cost is used."""


def fit(batches: Sequence[FinishedBatch]) -> JobCost | None:
    """Least squares of `seconds = fixed_s * jobs + gflop_s * gflop`, neither below 0; None without batches.

    Where the batches cannot tell the two apart, all of it is `fixed_s`, the mean of a job.
    """
    jobs_jobs = sum(b.jobs * b.jobs for b in batches)
    if not jobs_jobs:
        return None
    jobs_gflop = sum(b.jobs * b.gflop for b in batches)
    gflop_gflop = sum(b.gflop * b.gflop for b in batches)
    jobs_seconds = sum(b.jobs * b.seconds for b in batches)
    gflop_seconds = sum(b.gflop * b.seconds for b in batches)
    mean = JobCost(sum(b.seconds for b in batches) / sum(b.jobs for b in batches), 0.0)
    determinant = jobs_jobs * gflop_gflop - jobs_gflop**2
    if determinant <= 1e-9 * jobs_jobs * gflop_gflop:
        return mean
    fixed_s = (jobs_seconds * gflop_gflop - gflop_seconds * jobs_gflop) / determinant
    gflop_s = (gflop_seconds * jobs_jobs - jobs_seconds * jobs_gflop) / determinant
    if gflop_s < 0:
        return mean
    if fixed_s < 0:
        return JobCost(0.0, gflop_seconds / gflop_gflop)
    return JobCost(fixed_s, gflop_s)


class CostBook:
    """Costs known to the coordinator. Each is fitted again every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[int, str], tuple[float, JobCost | None, float | None]] = {}
        self._begun: dict[tuple[int, str], float] = {}

    def of(
        self, lane_id: int, device_type: str, read: Callable[[], Sequence[FinishedBatch]]
    ) -> tuple[JobCost | None, float | None]:
        """The cost of a job, and the mean device seconds per job. `read` returns the batches for the fit."""
        key = lane_id, device_type
        known = self._known.get(key)
        if known is None or self._clock() - known[0] > REFRESH_SECONDS:
            batches = read()
            jobs = sum(b.jobs for b in batches)
            known = self._clock(), fit(batches), sum(b.seconds for b in batches) / jobs if jobs else None
            self._known[key] = known
        return known[1], known[2]

    def is_first(self, lane_id: int, device_type: str) -> bool:
        """Whether this is the first call for that job group and type."""
        key = lane_id, device_type
        first = key not in self._begun
        self._begun[key] = self._clock()
        return first

    def forget_old(self) -> None:
        """Removes entries that were not used recently, so memory stays bounded."""
        oldest = self._clock() - 100 * REFRESH_SECONDS
        self._known = {key: known for key, known in self._known.items() if known[0] > oldest}
        self._begun = {key: used for key, used in self._begun.items() if used > oldest}
