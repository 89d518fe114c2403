"""The metrics of `farm-worker`: each is declared here once, and counted in `workers`."""

from __future__ import annotations

from farm.broker.task_messages import Reason
from farm.db.states import FailureKind
from farm.metrics import Count, Duration

LABELS = ("device", "device_type")
"""Every metric has them."""

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

JOBS = Count(
    "worker_jobs",
    "Attempts at jobs that ended here, by outcome; killed: the process died or had to be replaced; corrupted: its result "
    "changed between launches.",
    "outcome",
    ("measured", *FailureKind),
)
LEASES_LOST = Count("worker_leases_lost", "Batches given up because their lease was no longer held.")
CANARY_FAILURES = Count("worker_canary_failures", "Times that the device failed its canary.")
DATABASE_ERRORS = Count("worker_database_errors", "Times that the database did not answer, each try counted.")
CHILD_DEATHS = Count(
    "worker_child_deaths",
    "Measuring processes that died while they had a batch or claimed one, by cause: hung, poisoned, sentinel, a signal's "
    "name, or exit for any other status.",
    "cause",
    ("hung", "poisoned", "sentinel", "SIGKILL", "SIGSEGV", "exit"),
)
REFUSED = Count(
    "worker_messages_refused",
    "Messages that are none of the farm's and were dropped, by reason; key: a queue that was no list, and was deleted.",
    "reason",
    tuple(Reason),
)
WINDOW = Count(
    "worker_window_seconds", "Seconds in which the device was inside a measurement window; their rate is its duty."
)
MEASURING = Duration("worker_measuring", "Time of one job on the device, without claiming, marking and landing.", _LONG)
BATCH = Duration("worker_batch", "Time of one batch, from its claim to the end of its landing.", _LONG)
CLAIM = Duration("worker_claim", "Time to claim a batch, or to find that there is nothing to claim.", _SHORT)
MARK = Duration("worker_mark", "Time to renew the lease and name the next job, before each job.", _SHORT)
LAND = Duration("worker_land", "Time to land the rows of a batch.", _SHORT)

COUNTS = (JOBS, WINDOW, LEASES_LOST, CANARY_FAILURES, DATABASE_ERRORS, CHILD_DEATHS, REFUSED)
DURATIONS = (MEASURING, BATCH, CLAIM, MARK, LAND)
