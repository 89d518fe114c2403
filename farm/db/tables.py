"""The tables, as SQLAlchemy models. Every time is the database's clock; every constraint has a name."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    SmallInteger,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class CampaignState(StrEnum):
    """`active` is dispatched; the others are not. A campaign without open jobs is `done`."""

    ACTIVE = "active"
    DONE = "done"
    CANCELLED = "cancelled"


class JobState(StrEnum):
    """See docs/states.md for the transitions."""

    PENDING = "pending"  # waits for a batch
    QUEUED = "queued"  # in a batch that no worker has claimed
    RUNNING = "running"  # in a batch that a worker holds
    DONE = "done"  # has its measurement
    INVALID = "invalid"  # cannot run on its devices; never retried
    DEAD = "dead"  # used up its attempts
    CANCELLED = "cancelled"  # its campaign was cancelled first


OPEN_JOB_STATES = (JobState.PENDING, JobState.QUEUED, JobState.RUNNING)


class BatchState(StrEnum):
    QUEUED = "queued"  # committed; sent, or to be sent again
    LEASED = "leased"  # a worker holds the lease
    DONE = "done"  # landed
    RELEASED = "released"  # handed back, expired or cancelled


class DeviceState(StrEnum):
    ACTIVE = "active"
    DRAINED = "drained"
    QUARANTINED = "quarantined"


class TrainingState(StrEnum):
    REQUESTED = "requested"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


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
        uuid.UUID: Uuid(),
        dict[str, Any]: JSONB(),
        list[str]: ARRAY(Text()),
    }


_NOW = text("clock_timestamp()")
_id = Identity(always=False)


class Host(Base):
    __tablename__ = "hosts"

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    facts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    first_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Device(Base):
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
    # Quarantined because its worker could not open it.
    unopened: Mapped[bool] = mapped_column(server_default=text("false"))
    first_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_seen_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Pool(Base):
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


class Campaign(Base):
    __tablename__ = "campaigns"
    __table_args__ = (_one_of("state", CampaignState),)

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    # Hash of what it asks for: the same file submitted twice is the same campaign.
    digest: Mapped[str] = mapped_column(unique=True)
    owner: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    state: Mapped[str] = mapped_column(server_default=CampaignState.ACTIVE)
    # The file as it was read, and the measuring rules as workers use them.
    document: Mapped[dict[str, Any]]
    rules: Mapped[dict[str, Any]]
    submitted_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]


class Configuration(Base):
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
    family: Mapped[str]
    parameters: Mapped[dict[str, Any]]


class Batch(Base):
    """The jobs sent in one message, and the lease of the worker that measures them."""

    __tablename__ = "batches"
    __table_args__ = (
        _one_of("state", BatchState),
        CheckConstraint(
            "(state = 'leased') = (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)", name="lease_held"
        ),
        Index("ix_batches_open", "queue", "state", postgresql_where=text("state IN ('queued', 'leased')")),
        Index("ix_batches_campaign_id_finished_at", "campaign_id", "finished_at"),
        Index("ix_batches_campaign_id_id", "campaign_id", "id"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    queue: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=BatchState.QUEUED)
    jobs: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    sent_at: Mapped[datetime | None]
    sends: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    claimed_at: Mapped[datetime | None]
    lease_token: Mapped[uuid.UUID | None]
    lease_expires_at: Mapped[datetime | None]
    # The job being measured now: the suspect if the worker dies.
    current_job_id: Mapped[int | None]
    finished_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("state", JobState),
        UniqueConstraint("campaign_id", "configuration_id", "pool_id"),
        # The target `any` is one job, though its pool widens when the farm gets a new type of device.
        Index(
            "uq_jobs_any_device", "campaign_id", "configuration_id", unique=True, postgresql_where=text("any_device")
        ),
        # Configuration ids are hashes, so taking them in order takes configurations in a fixed shuffled order.
        Index(
            "ix_jobs_pending",
            "campaign_id",
            "pool_id",
            "solo",
            "configuration_id",
            postgresql_where=text("state = 'pending'"),
        ),
        Index("ix_jobs_batch_id", "batch_id", postgresql_where=text("batch_id IS NOT NULL")),
        Index("ix_jobs_campaign_id_state", "campaign_id", "state"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    configuration_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("configurations.id"))
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    any_device: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default=JobState.PENDING)
    # The batch it is in now; none while it waits or once it is final.
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("batches.id"))
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # Suspected of killing its worker: measured alone from now on.
    solo: Mapped[bool] = mapped_column(server_default=text("false"))
    # invalid | failed | killed, and the message of the last attempt.
    error_class: Mapped[str | None]
    error: Mapped[str | None]


class Environment(Base):
    """Versions of what computed and measured, stored once for the many rows that share them."""

    __tablename__ = "environments"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    content: Mapped[dict[str, Any]]


class Measurement(Base):
    """Append-only results. The columns from `source` on are those of `farm.measurement.Measurement`."""

    __tablename__ = "measurements"
    __table_args__ = (
        # A job has one result.
        Index("uq_measurements_job_id", "job_id", unique=True, postgresql_where=text("job_id IS NOT NULL")),
        CheckConstraint("runtime_ms > 0", name="runtime_positive"),
        CheckConstraint("power_w > 0", name="power_positive"),
        CheckConstraint("samples > 0", name="samples_positive"),
        CheckConstraint("source IN ('measured', 'recorded', 'imported')", name="source_known"),
        Index("ix_measurements_configuration_id", "configuration_id"),
        Index("ix_measurements_device_id", "device_id"),
        Index("ix_measurements_campaign_id", "campaign_id"),
    )

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    campaign_id: Mapped[int | None] = mapped_column(ForeignKey("campaigns.id"))
    configuration_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("configurations.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id"))
    measured_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    source: Mapped[str]
    runtime_ms: Mapped[float]
    runtime_q1_ms: Mapped[float]
    runtime_q3_ms: Mapped[float]
    runtime_min_ms: Mapped[float]
    runtime_rse: Mapped[float]
    samples: Mapped[int]
    stop_reason: Mapped[str]
    l2: Mapped[str]
    power_w: Mapped[float | None]
    power_source: Mapped[str | None]
    idle_power_w: Mapped[float | None]
    power_limit_w: Mapped[float | None]
    sm_clock_mhz: Mapped[int | None]
    memory_clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    throttle_reasons: Mapped[str | None]
    verify_error: Mapped[float | None]
    distribution: Mapped[str]
    seed: Mapped[int]
    clock_policy: Mapped[str | None]
    kernel_hash: Mapped[str | None]
    cost_s: Mapped[float]
    details: Mapped[dict[str, Any]]


class Training(Base):
    """One request to train a model for a device type, and what became of it."""

    __tablename__ = "trainings"
    __table_args__ = (_one_of("state", TrainingState),)

    id: Mapped[int] = mapped_column(_id, primary_key=True)
    device_type: Mapped[str] = mapped_column(index=True)
    state: Mapped[str] = mapped_column(server_default=TrainingState.REQUESTED)
    # Train on recorded or imported rows too; the model says so.
    any_source: Mapped[bool] = mapped_column(server_default=text("false"))
    requested_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # What the trainer reports: metrics by fold and target, rows, shapes, run id, model name and version.
    outcome: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
