"""The tables, as SQLAlchemy models. Every time is the database's clock; every constraint has a name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, INTERVAL, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from farm.db.states import (
    BatchState,
    CampaignState,
    DeletionKind,
    DeviceState,
    FailureKind,
    GroupPurpose,
    JobRecord,
    KernelState,
    ProgramKind,
    Role,
    TrainingState,
    Way,
)
from farm.schema.column import ColumnType
from farm.schema.results import RESULTS


def _one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{s}'" for s in states)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text(),
        int: BigInteger(),
        float: DOUBLE_PRECISION(),
        datetime: TIMESTAMP(timezone=True),
        timedelta: INTERVAL(),
        uuid.UUID: Uuid(),
        dict[str, Any]: JSONB(),
        list[str]: ARRAY(Text()),
        list[int]: ARRAY(BigInteger()),
        bytes: LargeBinary(),
    }


_NOW = text("clock_timestamp()")
_id = Identity(always=False)


class HostRow(Base):
    __tablename__ = "hosts"

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    facts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    first_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class DeviceRow(Base):
    __tablename__ = "devices"
    __table_args__ = (_one_of("state", DeviceState),)

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    uuid: Mapped[str] = mapped_column(unique=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id"), index=True)
    type: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    backend: Mapped[str]
    traits: Mapped[dict[str, Any]]
    facts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    state: Mapped[str] = mapped_column(server_default=DeviceState.ACTIVE)
    state_reason: Mapped[str | None]
    state_changed_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    # Quarantined because it could not be opened, or failed its canary: gets another try when it is announced again.
    unopened: Mapped[bool] = mapped_column(server_default=text("false"))
    # Trials that it failed since it last worked for long, and when a device on probation gets its next one.
    failed_trials: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    next_trial_at: Mapped[datetime | None]
    # When its worker last said that it stops: it may start again.
    left_at: Mapped[datetime | None]
    # Since when its host, which is there, no longer shows it.
    vanished_at: Mapped[datetime | None]
    # Rows that landed from it, up to the last batch that was added to the counters.
    measured: Mapped[int] = mapped_column(server_default="0")
    # The version of the farm that its worker announced; None: that worker announced none.
    worker_version_id: Mapped[int | None] = mapped_column(ForeignKey("worker_versions.id"))
    # Why its worker could not claim a batch last time, and when.
    claim_error: Mapped[str | None]
    claim_error_at: Mapped[datetime | None]
    # Which farm-worker serves it: see `farm.db.device_sessions`. None: no worker opened a session yet.
    session_epoch: Mapped[int] = mapped_column(server_default="0")
    session_host: Mapped[str | None]
    session_pid: Mapped[int | None]
    session_lock: Mapped[str | None]
    session_began_at: Mapped[datetime | None]
    # When another one was refused last, and which.
    contended_at: Mapped[datetime | None]
    contended_by: Mapped[str | None]
    first_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class DeviceOverlapRow(Base):
    """A time in which two sessions of a device may have measured: see `farm.db.device_sessions`."""

    __tablename__ = "device_overlaps"

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), index=True)
    since: Mapped[datetime]
    until: Mapped[datetime]
    # When the batch landed that was in hand at the end of it.
    rows_until: Mapped[datetime]
    # Of the session that was lost.
    epoch: Mapped[int]


class WorkerVersionRow(Base):
    """A version of the farm that a worker announced: see `farm.db.worker_versions`."""

    __tablename__ = "worker_versions"
    __table_args__ = (UniqueConstraint("version", "revision", "vocabulary"),)

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    version: Mapped[str]
    # The last migration that it knows.
    revision: Mapped[str]
    # A digest of what it can read of a job.
    vocabulary: Mapped[str]
    first_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class ProgramRow(Base):
    """A running program of the farm, or one that ended without deregistering: see `farm.db.live_programs`."""

    __tablename__ = "programs"
    __table_args__ = (
        _one_of("program", ProgramKind),
        CheckConstraint("version ~ '^[A-Za-z0-9.+!_-]{1,64}$'", name="version_readable"),
        CheckConstraint("revision ~ '^[0-9]{4}$'", name="revision_readable"),
        CheckConstraint("build ~ '^[A-Za-z0-9./+_-]{1,128}$'", name="build_readable"),
    )

    # The program chooses it when it starts.
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    host: Mapped[str]
    program: Mapped[str]
    pid: Mapped[int]
    # The version of the package, and the last migration that it knows.
    version: Mapped[str]
    revision: Mapped[str]
    # What `git describe` prints for its code. None: it does not run from a checkout.
    build: Mapped[str | None]
    started_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_heartbeat_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class WorkerLoginRow(Base):
    """A database role under which workers log in, and the host for whose devices it acts. None: for those of every host."""

    __tablename__ = "worker_logins"

    login: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class CompatibleRevisionRow(Base):
    """From which revision on a program may work with this schema: written by `farm db upgrade` (`farm.db.migrate`)."""

    __tablename__ = "compatible_revisions"

    program: Mapped[str] = mapped_column(primary_key=True)
    oldest: Mapped[str]


class PoolRow(Base):
    """The devices that may take a job: one device, every device of a type, or any of several types."""

    __tablename__ = "pools"
    __table_args__ = (
        CheckConstraint("(device_uuid IS NULL) <> (device_types IS NULL)", name="device_or_types"),
        Index("ix_pools_device_types", "device_types", postgresql_using="gin"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    # type:nvidia-h200 | any:cpu-amd-epyc,nvidia-h200 | device:GPU-…
    name: Mapped[str] = mapped_column(unique=True)
    device_types: Mapped[list[str] | None]
    device_uuid: Mapped[str | None]


class CampaignRow(Base):
    __tablename__ = "campaigns"
    __table_args__ = (
        _one_of("state", CampaignState),
        Index("ix_campaigns_open", "id", postgresql_where=text("state IN ('active', 'paused')")),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    # Hash of what it asks for: the same file submitted twice is the same campaign.
    digest: Mapped[str] = mapped_column(unique=True)
    owner: Mapped[str]
    # Whose token or account submitted it; None for one from before this was kept.
    submitted_by: Mapped[str | None]
    # Upper estimate of the device time of all its jobs, in seconds; None where nobody estimated it.
    estimated_s: Mapped[float | None]
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    state: Mapped[str] = mapped_column(server_default=CampaignState.ACTIVE)
    # The file as it was read, and the measuring rules as workers use them.
    document: Mapped[dict[str, Any]]
    rules: Mapped[dict[str, Any]]
    submitted_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]


class ConfigurationRow(Base):
    __tablename__ = "configurations"

    # The hash of the canonical form.
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    ab: Mapped[str]
    cd: Mapped[str]
    acc: Mapped[str]
    layout: Mapped[str]
    alpha: Mapped[float]
    beta: Mapped[float]
    batch: Mapped[int] = mapped_column(server_default="1")
    scale: Mapped[str] = mapped_column(server_default="none")
    fused: Mapped[str] = mapped_column(server_default="none")
    groups: Mapped[str] = mapped_column(server_default="none")
    sparsity: Mapped[str] = mapped_column(server_default="none")
    family: Mapped[str]
    parameters: Mapped[dict[str, Any]]


class JobGroupRow(Base):
    """The jobs of one campaign for one pool in one round: where dispatch stands in them, and what became of them.

    A campaign has one round, unless it searches by halving. Then all rounds but the last have `rules`.

    Jobs are dispatched in the order of their configuration's hash, a fixed shuffle. `cursor` is the last one that went
    out that way; what came back since is in `returned_jobs`. The counters hold the batches that are `folded`.
    """

    __tablename__ = "lanes"
    __table_args__ = (_one_of("purpose", GroupPurpose), UniqueConstraint("campaign_id", "pool_id", "round"))

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    round: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # What its jobs are measured under; None: the campaign's rules.
    rules: Mapped[dict[str, Any] | None] = mapped_column(JSONB())
    # Of the strategy learn: the independent test set, or a round that a model learns from. None: any other job group.
    purpose: Mapped[str | None]
    # Jobs that the rounds after a short one will have at the most, as far as was known when it was stored.
    later: Mapped[int] = mapped_column(server_default="0")
    # How many of its jobs were done when it was last decided what goes on from a short round. Another number: it is open.
    decided: Mapped[int | None]
    cursor: Mapped[uuid.UUID | None]
    # Whether open jobs may be left behind the cursor.
    fresh: Mapped[bool] = mapped_column(server_default=text("true"))
    jobs: Mapped[int] = mapped_column(server_default="0")
    done: Mapped[int] = mapped_column(server_default="0")
    invalid: Mapped[int] = mapped_column(server_default="0")
    dead: Mapped[int] = mapped_column(server_default="0")


class BatchRow(Base):
    """The jobs sent in one message, and the lease of the worker that measures them."""

    __tablename__ = "batches"
    __table_args__ = (
        _one_of("state", BatchState),
        CheckConstraint(
            "(state = 'leased') = (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)", name="lease_held"
        ),
        Index("ix_batches_unfolded", "lane_id", postgresql_where=text("NOT folded")),
        Index("ix_batches_lane_id_finished_at", "lane_id", "finished_at"),
        # A device holds one lease at a time: see `farm.db.batches.claim`.
        Index(
            "uq_batches_device_id",
            "device_id",
            unique=True,
            postgresql_where=text("state = 'leased' AND NOT abandoned"),
        ),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    lane_id: Mapped[int] = mapped_column(ForeignKey("lanes.id"))
    queue: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=BatchState.QUEUED)
    job_ids: Mapped[list[int]]
    jobs: Mapped[int]
    # Floating-point operations of one GEMM of each of its jobs, summed.
    gflop: Mapped[float] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    sent_at: Mapped[datetime | None]
    sends: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    claimed_at: Mapped[datetime | None]
    lease_token: Mapped[uuid.UUID | None]
    lease_expires_at: Mapped[datetime | None]
    # A heartbeat renews the lease up to here and no further: the longest that the job in hand may take.
    busy_until: Mapped[datetime | None]
    # The job being measured now: the suspect if the worker dies.
    current_job_id: Mapped[int | None]
    # Its campaign was stopped while it was leased: none of its jobs is begun any more.
    stopped: Mapped[bool] = mapped_column(server_default=text("false"))
    # Leased, and its device goes on with another: the coordinator takes it back.
    abandoned: Mapped[bool] = mapped_column(server_default=text("false"))
    finished_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    # How many of its jobs became final in it.
    done: Mapped[int] = mapped_column(server_default="0")
    invalid: Mapped[int] = mapped_column(server_default="0")
    dead: Mapped[int] = mapped_column(server_default="0")
    # Over, and added to the counters of its job group and device.
    folded: Mapped[bool] = mapped_column(server_default=text("false"))


class JobRow(Base):
    """One configuration for one target of one campaign.

    Dispatch does not touch this table: a job's row is written when it is submitted and when it ends, and no index
    depends on what changes then.
    """

    __tablename__ = "jobs"
    __table_args__ = (_one_of("state", JobRecord), UniqueConstraint("lane_id", "configuration_id"))

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    lane_id: Mapped[int] = mapped_column(ForeignKey("lanes.id"))
    configuration_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("configurations.id"))
    # The target `any` is one job, though its pool widens when the farm gets a new type of device.
    any_device: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default=JobRecord.OPEN)
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # Suspected of killing its worker: measured alone from now on.
    solo: Mapped[bool] = mapped_column(server_default=text("false"))


class ReturnedJobRow(Base):
    """An open job that was dispatched, or passed by the cursor, and waits again."""

    __tablename__ = "returned_jobs"
    __table_args__ = (
        CheckConstraint("solo OR avoid_device_id IS NOT NULL OR refused_by = '{}'", name="only_retries_are_refused"),
        Index(
            "ix_returned_jobs_order", "lane_id", "solo", text("coalesce(avoid_device_id, 0)"), "refused_by", "job_id"
        ),
        Index(
            "ix_returned_jobs_unsupported",
            "lane_id",
            "refused_by",
            "job_id",
            postgresql_where=text("refused_by[1] < 0"),
        ),
        Index("ix_returned_jobs_exhausted", "job_id", postgresql_where=text("exhausted")),
    )

    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True, autoincrement=False)
    lane_id: Mapped[int] = mapped_column(ForeignKey("lanes.id"))
    solo: Mapped[bool]
    # The device on which it failed: tried elsewhere first.
    avoid_device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    # Of a job that failed or is suspected: who refused it, in ascending order. A device is named by its id; a version of
    # the worker that cannot read the job, by its id below zero.
    refused_by: Mapped[list[int]] = mapped_column(server_default=text("'{}'"))
    # It used up its attempts on one device alone, which is in `refused_by`, and waits for another.
    exhausted: Mapped[bool] = mapped_column(server_default=text("false"))
    # The pause after a failure; None: it may be dispatched.
    not_before: Mapped[datetime | None]


class FairShareRow(Base):
    """The virtual time of an owner, or of a campaign among those of its owner, on one resource: see `farm.coordinator.fairness`."""

    __tablename__ = "fair_shares"

    # The queue of a device type or of a device; `retry.TYPE` for failed jobs of a device type.
    resource: Mapped[str] = mapped_column(primary_key=True)
    priority: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    owner: Mapped[str] = mapped_column(primary_key=True)
    # 0: the owner among all owners. No foreign key: the row of a campaign that is gone is removed with the next turn.
    campaign_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # Device seconds, divided by the owner's weight.
    virtual_s: Mapped[float]


class KernelRow(Base):
    """A binary that configurations need, built once for the farm: what it is, and what became of it."""

    __tablename__ = "kernels"
    __table_args__ = (
        _one_of("state", KernelState),
        CheckConstraint("state <> 'built' OR signature IS NOT NULL", name="built_is_signed"),
        Index("ix_kernels_open", "id", postgresql_where=text("state IN ('wanted', 'building')")),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    # Of the template, its definitions and options, and the versions: see farm.kernels.binary.
    hash: Mapped[str] = mapped_column(unique=True)
    description: Mapped[dict[str, Any]]
    # The toolchain that builds it, by its version: cutlass 4.2.0, cuda 13.0.88.
    toolchain: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=KernelState.WANTED)
    wanted_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    sent_at: Mapped[datetime | None]
    # How often a builder began it, and the last heartbeat of its holder.
    starts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    started_at: Mapped[datetime | None]
    heard_of_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    builder: Mapped[str | None]
    # What is known of the code: farm.builds.record.
    record: Mapped[dict[str, Any] | None]
    # On the record, by who built it: farm.signing.
    signature: Mapped[str | None]
    error: Mapped[str | None]
    # It does not compile: building it again is no use.
    final: Mapped[bool] = mapped_column(server_default=text("false"))


class KernelCodeRow(Base):
    """The code of built kernels, where the farm's store is the database."""

    __tablename__ = "kernel_code"

    hash: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[bytes]


class KernelDefinitionRow(Base):
    """A kernel that a user wrote, under its number: see `farm.kernels.definition`. Rows never change."""

    __tablename__ = "kernel_definitions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # The name of its file.
    file: Mapped[str]
    definition: Mapped[dict[str, Any]]
    submitted_by: Mapped[str | None]
    submitted_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class WaitingJobRow(Base):
    """A job and one of the kernels that it waits for: one for each architecture in its pool."""

    __tablename__ = "waiting_jobs"
    __table_args__ = (Index("ix_waiting_jobs_by_lane", "lane_id", "kernel_id", "job_id"),)

    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernels.id"), primary_key=True, autoincrement=False)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True, autoincrement=False, index=True)
    lane_id: Mapped[int] = mapped_column(ForeignKey("lanes.id"))


class BuilderRow(Base):
    """A process that builds kernels, and what it builds them with."""

    __tablename__ = "builders"

    name: Mapped[str] = mapped_column(primary_key=True)
    # It takes the kernels of these.
    toolchains: Mapped[list[str]]
    # How many kernels it builds at a time.
    slots: Mapped[int]
    last_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class FailureRow(Base):
    """One attempt at a job that gave no measurement, append-only. Without a device: refused when it was submitted."""

    __tablename__ = "failures"
    __table_args__ = (
        _one_of("kind", FailureKind),
        Index("ix_failures_lane_id_kind", "lane_id", "kind"),
        Index("ix_failures_batch_id", "batch_id"),
        Index("ix_failures_device_id_at", "device_id", "at"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    lane_id: Mapped[int] = mapped_column(ForeignKey("lanes.id"))
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("batches.id"))
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    # What the device's worker ran then.
    worker_version_id: Mapped[int | None] = mapped_column(ForeignKey("worker_versions.id"))
    kind: Mapped[str]
    message: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=_NOW)


class EnvironmentRow(Base):
    """Versions of what computed and measured, stored once for the many rows that share them."""

    __tablename__ = "environments"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    content: Mapped[dict[str, Any]]


_TYPES: Mapping[ColumnType, TypeEngine[Any]] = {
    ColumnType.BIGINT: BigInteger(),
    ColumnType.DOUBLE: DOUBLE_PRECISION(),
    ColumnType.TEXT: Text(),
    ColumnType.BOOLEAN: Boolean(),
    ColumnType.JSONB: JSONB(),
}


def _result_columns() -> Iterator[SchemaItem]:
    """The columns of results, and the constraints of those that must be above 0."""
    for column in RESULTS.values():
        default = None if column.server_default is None else text(column.server_default)
        yield Column(column.name, _TYPES[column.type], nullable=column.nullable, server_default=default)
        if column.positive:
            yield CheckConstraint(
                f"{column.name} > 0", name=f"{column.name.removesuffix(f'_{column.unit.lower()}')}_positive"
            )


class MeasurementRow(Base):
    """Append-only results. In addition to its keys a row has the columns of `farm.schema.results.RESULTS`."""

    __tablename__ = "measurements"
    __table_args__ = (
        # A job has one result.
        Index("uq_measurements_job_id", "job_id", unique=True, postgresql_where=text("job_id IS NOT NULL")),
        CheckConstraint("source IN ('measured', 'recorded', 'imported', 'sentinel')", name="source_known"),
        Index("ix_measurements_configuration_id", "configuration_id"),
        Index("ix_measurements_device_id_id", "device_id", "id"),
        Index("ix_measurements_campaign_id", "campaign_id"),
        Index(
            "ix_measurements_measured_at",
            "measured_at",
            postgresql_using="brin",
            postgresql_with={"autosummarize": True},
        ),
        Index(
            "ix_measurements_sentinels",
            "campaign_id",
            "device_id",
            "measured_at",
            postgresql_where=text("source = 'sentinel'"),
        ),
        *_result_columns(),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    campaign_id: Mapped[int | None] = mapped_column(ForeignKey("campaigns.id"))
    configuration_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("configurations.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id"))
    measured_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class TrainingRow(Base):
    """One request to train a model for a device type, and what became of it."""

    __tablename__ = "trainings"
    __table_args__ = (_one_of("state", TrainingState), UniqueConstraint("lane_id"))

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    device_type: Mapped[str] = mapped_column(index=True)
    # The learning round after which it decides what is measured next; None: it makes a model and registers it.
    lane_id: Mapped[int | None]
    state: Mapped[str] = mapped_column(server_default=TrainingState.REQUESTED)
    # Train on recorded or imported rows too; the model says so.
    any_source: Mapped[bool] = mapped_column(server_default=text("false"))
    # Train on rows of this protocol; None: the farm's, or the most frequent one where there are none of it.
    protocol: Mapped[str | None]
    requested_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    sent_at: Mapped[datetime | None]
    # How often a trainer began it, and the last heartbeat of its holder.
    starts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    heard_of_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # The share of its work that the trainer has done, from 0 to 1.
    progress: Mapped[float | None]
    # What the trainer reports: metrics by fold and target, rows, shapes, run id, model name and version.
    outcome: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]


class ModelSignatureRow(Base):
    """A model version whose files were signed: those of its manifest, and no others."""

    __tablename__ = "model_signatures"

    model: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # SHA-256 of the manifest.
    manifest: Mapped[str]
    public_key: Mapped[str]
    signature: Mapped[str]
    signed_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class TokenRow(Base):
    """Who may do what over HTTP. Of the token itself only its SHA-256 is kept."""

    __tablename__ = "tokens"
    __table_args__ = (
        _one_of("role", Role),
        # A name is free again once its token was revoked.
        Index("uq_tokens_name", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    name: Mapped[str]
    role: Mapped[str]
    sha256: Mapped[bytes] = mapped_column(unique=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class WebSessionRow(Base):
    """A browser that is signed in: with a token, with a link that a `farm serve` gave to the login that runs it, or through an OpenID provider."""

    __tablename__ = "web_sessions"
    __table_args__ = (
        CheckConstraint("(token_id IS NULL) = (login IS NOT NULL)", name="one_holder"),
        CheckConstraint("(login IS NULL) = (issuer IS NULL)", name="issuer_of_login"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    sha256: Mapped[bytes] = mapped_column(unique=True)
    token_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"))
    login: Mapped[str | None]
    issuer: Mapped[str | None]
    # Of an OpenID provider: the person's id there, and the role that its groups gave at the sign-in.
    subject: Mapped[str | None]
    role: Mapped[str | None]
    origin: Mapped[str]
    address: Mapped[str]
    browser: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_used_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    idle_limit: Mapped[timedelta]
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class OidcUserRow(Base):
    """A person whom an OpenID provider signed in, and the name in this farm."""

    __tablename__ = "oidc_users"

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class DeletionRow(Base):
    """A campaign or import that was deleted, until it is restored or vacuumed."""

    __tablename__ = "deletions"
    __table_args__ = (_one_of("kind", DeletionKind),)

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]
    # The digest of a campaign; the first digits of an import's SHA-256, as in the UUIDs of its devices.
    key: Mapped[str] = mapped_column(index=True)
    deleted_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    deleted_by: Mapped[str]
    jobs: Mapped[int]
    # Measurements.
    rows: Mapped[int]
    # Size of its rows in `deleted_rows`.
    bytes: Mapped[int]
    # Hashes of the kernels that it used or waited for.
    kernels: Mapped[list[str]]


class DeletedRowsPart(Base):
    """Rows of a deletion, as JSON: an array of up to `farm.db.deletions.PART_ROWS` rows of one table."""

    __tablename__ = "deleted_rows"

    deletion_id: Mapped[int] = mapped_column(
        ForeignKey("deletions.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    source_table: Mapped[str] = mapped_column(primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[list[Any]] = mapped_column(JSONB())


class LeadershipRow(Base):
    """The leader of a kind of program that has one. The row stays when a leader ends, so that its term only ever grows."""

    __tablename__ = "leadership"

    # coordinator
    name: Mapped[str] = mapped_column(primary_key=True)
    term: Mapped[int] = mapped_column(server_default="0")
    # Of the present term: with it the leader renews, and fences what it writes.
    token: Mapped[uuid.UUID | None]
    host: Mapped[str | None]
    pid: Mapped[int | None]
    since: Mapped[datetime | None]
    expires_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    # Steps of the leader's turns that fail: step, error, since.
    failing: Mapped[list[Any]] = mapped_column(JSONB, server_default="[]")


class AuditRow(Base):
    """A change by a user. Triggers refuse to change or delete one: see `farm.db.audit`."""

    __tablename__ = "audit"
    __table_args__ = (_one_of("role", Role), _one_of("way", Way))

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=_NOW, index=True)
    # The token's name, or the account of the machine.
    who: Mapped[str]
    role: Mapped[str]
    way: Mapped[str]
    # The address of the client, or account@host.
    origin: Mapped[str]
    # Of the API, as campaigns_cancel; or of the command line, as tokens_create.
    operation: Mapped[str]
    # What was changed: campaign, device, model, token, ...
    kind: Mapped[str]
    name: Mapped[str]
    # What tells it from others of the name: a digest, a UUID.
    key: Mapped[str | None]
    before: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    after: Mapped[dict[str, Any] | None] = mapped_column(JSONB)


class QuotaRow(Base):
    """What one owner may have in progress, instead of the defaults of the settings. None: no limit."""

    __tablename__ = "quotas"

    owner: Mapped[str] = mapped_column(primary_key=True)
    open_jobs: Mapped[int | None]
    device_seconds: Mapped[float | None]
    min_priority: Mapped[int] = mapped_column(SmallInteger)
    max_priority: Mapped[int] = mapped_column(SmallInteger)
