"""The state machine of jobs and batches. Each transition of docs/states.md is made by one function, and only there.

| module | transitions |
| --- | --- |
| `forming` | of the coordinator |
| `working` | of workers |
| `steering` | requested by people |
| `waiting` | of jobs that wait for a kernel or for another device |
| `ending` | of a batch that ends |

The caller owns the transaction. All times are Postgres's. A token from Postgres fences every write of a worker.
"""

from farm.db.batches.ending import Failure
from farm.db.batches.forming import (
    BatchesInFlight,
    BatchPlan,
    FinishedBatch,
    FormedBatches,
    JobCost,
    PendingJobs,
    candidates,
    flights,
    fold,
    form,
    form_many,
    lock,
    make_way,
    mark_sent,
    reap,
    recall,
    recently_finished,
    reserve,
    unsent,
)
from farm.db.batches.steering import cancel, in_hand, pause, resume, retry
from farm.db.batches.waiting import end_exhausted, give_up, release_waiting
from farm.db.batches.working import (
    ClaimedJob,
    Lease,
    abandon,
    claim,
    held_by,
    land,
    mark,
    refusals,
    release,
    release_all,
    renew,
    was_claimed,
)
