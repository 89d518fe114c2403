"""Quotas: limits on the work that owners have in progress, and their use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pydantic import Field, model_validator
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.operation import MAX_ID, Cli, Document, InTable, operation
from farm.db import campaigns, quotas
from farm.db.quotas import MAX_PRIORITY, MIN_PRIORITY, OwnerLimits
from farm.db.states import Role
from farm.settings import Settings

Owner = Annotated[
    str,
    Field(min_length=1, max_length=100, description="An owner of campaigns: a token's name."),
    Cli(argument=True),
]

MAX_SECONDS = 1e12

NO_LIMIT = "none"


def _limit_text(limit: float | None) -> object:
    return NO_LIMIT if limit is None else limit


def hours_text(seconds: float | None) -> str:
    """`1,234.5`, or `none` where there is no limit."""
    return NO_LIMIT if seconds is None else f"{seconds / 3600:,.1f}"


class QuotaLimits(Document):
    """The work that an owner may have in progress; null: no limit."""

    open_jobs: Annotated[int | None, InTable("open jobs, limit", text=_limit_text)] = Field(
        strict=True, ge=0, le=MAX_ID, description="Jobs that wait or run; none: no limit."
    )
    device_seconds: Annotated[float | None, InTable("device time, limit", "h", text=hours_text)] = Field(
        strict=True, ge=0, le=MAX_SECONDS, description="Estimated device time in progress, an upper estimate."
    )
    min_priority: Annotated[int, InTable("lowest priority", priority=1)] = Field(
        default=MIN_PRIORITY,
        strict=True,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description="Lowest priority of a campaign.",
    )
    max_priority: Annotated[int, InTable("highest priority", priority=1)] = Field(
        default=MAX_PRIORITY,
        strict=True,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description="Highest priority of a campaign.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> QuotaLimits:
        if self.min_priority > self.max_priority:
            raise ValueError(f"min_priority {self.min_priority} is above max_priority {self.max_priority}")
        return self


class QuotaNow(QuotaLimits):
    """An owner's limits and their use. They hold for the role submit; the role operate has no limits."""

    owner: Annotated[str, InTable(folds=True)]
    own: Annotated[bool, InTable("set for it", priority=2, text=lambda own: "yes" if own else "no, the defaults")] = (
        Field(description="whether they were set for this owner; otherwise they are the defaults")
    )
    jobs_underway: Annotated[int, InTable("open jobs")] = Field(
        description="open jobs of its active and paused campaigns"
    )
    device_seconds_underway: Annotated[float, InTable("device time", "h", text=hours_text)] = Field(
        description="an upper estimate of the device time that they take"
    )


@operation("GET", "/quotas")
def list_(access: Access) -> list[QuotaNow]:
    """The limits of owners and their use. Owners without limits of their own and without work are left out."""
    with access.connect() as connection:
        owners = sorted({*quotas.owners(connection), *campaigns.owners(connection)})
        return [_now(connection, owner, access.settings) for owner in owners]


@operation("GET", "/quotas/{owner}")
def show(access: Access, owner: Owner) -> QuotaNow:
    """The limits of one owner and their use."""
    with access.connect() as connection:
        return _now(connection, owner, access.settings)


def _now(connection: Connection, owner: str, settings: Settings) -> QuotaNow:
    own, used = quotas.of_owner(connection, owner), campaigns.underway(connection, owner)
    return QuotaNow(
        owner=owner,
        own=own is not None,
        jobs_underway=used.open_jobs,
        device_seconds_underway=used.device_seconds,
        **asdict(own or quotas.defaults(settings)),
    )


@operation("POST", "/quotas/{owner}", role=Role.OPERATE)
def set_(access: Access, owner: Owner, quota: QuotaLimits) -> QuotaNow:
    """Set limits for an owner. Work in progress does not change."""
    with access.change(set_) as change:
        connection = change.connection
        quotas.lock(connection, owner)
        before = quotas.of_owner(connection, owner)
        quotas.set_(connection, owner, OwnerLimits(**quota.model_dump(include=set(QuotaLimits.model_fields))))
        now = _now(connection, owner, access.settings)
        change.record("quota", owner, before=None if before is None else asdict(before), after=_limits(now))
    return now


@operation("POST", "/quotas/{owner}/reset", role=Role.OPERATE)
def reset(access: Access, owner: Owner) -> QuotaNow:
    """Remove the limits of an owner. The defaults apply again."""
    with access.change(reset) as change:
        connection = change.connection
        quotas.lock(connection, owner)
        before = quotas.of_owner(connection, owner)
        quotas.reset(connection, owner)
        now = _now(connection, owner, access.settings)
        change.record("quota", owner, before=None if before is None else asdict(before), after=_limits(now))
    return now


def _limits(now: QuotaNow) -> dict[str, float | None]:
    return now.model_dump(include=set(QuotaLimits.model_fields))
