"""Enumerations of the columns of the database.

They are separate from `farm.db.tables`, which imports SQLAlchemy's mapper and is only used by migrations.
"""

from __future__ import annotations

from enum import StrEnum


class CampaignState(StrEnum):
    """`active` is dispatched; the others are not. A campaign without open jobs is `done`."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"


class JobRecord(StrEnum):
    """State of a job in its table. The job group and the batch of an open job give its `JobState`."""

    OPEN = "open"
    WAITING = "waiting"  # for kernels to be built: see `WaitingJob`
    DONE = "done"
    INVALID = "invalid"
    DEAD = "dead"


class JobState(StrEnum):
    """State of a job as shown to people. See docs/states.md for the transitions."""

    PENDING = "pending"  # waits for a batch, or for kernels to be built
    QUEUED = "queued"  # open: in a batch that no worker has claimed
    RUNNING = "running"  # open: in a batch that a worker holds
    LATER = "later"  # expected of a later round of a search, and not stored yet
    DONE = "done"  # has its measurement
    INVALID = "invalid"  # cannot run on its devices; never retried
    DEAD = "dead"  # used up its attempts
    CANCELLED = "cancelled"  # open, and its campaign was cancelled


OPEN_JOB_STATES = (JobState.PENDING, JobState.QUEUED, JobState.RUNNING, JobState.LATER)


class FailureKind(StrEnum):
    """Why an attempt at a job gave no measurement."""

    INVALID = "invalid"  # the job cannot run there: final
    UNSUPPORTED = "unsupported"  # the worker's version cannot read the job: waits for a worker of another version
    FAILED = "failed"  # tried again, on another device where there is one
    KILLED = "killed"  # it was being measured when its process died: tried again, alone
    CORRUPTED = (
        "corrupted"  # its result changed from one launch to another: tried again, on another device where there is one
    )
    REFUSED = "refused"  # the referee of users' kernels found that it does not do what it is timed for: tried again


class BatchState(StrEnum):
    QUEUED = "queued"  # committed; sent, or to be sent again
    LEASED = "leased"  # a worker holds the lease
    DONE = "done"  # landed
    RELEASED = "released"  # handed back, expired or cancelled


class DeviceState(StrEnum):
    ACTIVE = "active"
    PROBATION = "probation"  # failed a trial: gets trials only, until it passes one (`farm.db.probation`)
    DRAINED = "drained"
    QUARANTINED = "quarantined"


class KernelState(StrEnum):
    WANTED = "wanted"  # sent to the builders, or to be sent
    BUILDING = "building"
    BUILT = "built"  # is in the farm's store
    FAILED = "failed"


class ProgramKind(StrEnum):
    """The programs of a farm that run for long."""

    COORDINATOR = "coordinator"
    WORKER = "farm-worker"
    BUILDER = "builder"
    TRAINER = "farm-trainer"
    SERVE = "farm serve"


class GroupPurpose(StrEnum):
    """Purpose of a job group in a campaign with the strategy learn."""

    TEST = "test"  # the independent test set: never learned from
    LEARN = "learn"


class TrainingState(StrEnum):
    REQUESTED = "requested"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class DeletionKind(StrEnum):
    """Kind of a deletion in the database. Deleted models are tagged in the registry instead."""

    CAMPAIGN = "campaign"
    IMPORT = "import"


class Role(StrEnum):
    """Rights of a token. Each role includes the earlier ones."""

    READ = "read"  # look at everything, ask models
    SUBMIT = "submit"  # and submit campaigns within a quota; pause, resume, cancel and retry its own
    OPERATE = (
        "operate"  # and steer campaigns of others, bring kernels, take devices out of work and back, delete and restore
    )
    ADMIN = "admin"  # and manage tokens, sessions and the logins of worker hosts, and trim the audit

    def may(self, needed: Role) -> bool:
        """Whether this role includes the needed one."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(needed)


class Way(StrEnum):
    """How a user reached the farm."""

    CLI = "cli"  # a command on the database itself
    API = "api"
    PAGE = "page"
