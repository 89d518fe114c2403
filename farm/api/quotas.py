"""Quotas: what owners may have underway, and what they have."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pydantic import Field, model_validator
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.operation import LARGEST_ID, Document, operation
from farm.db import campaigns, quotas
from farm.db.quotas import MAX_PRIORITY, MIN_PRIORITY, Limits
from farm.db.states import Role
from farm.settings import Settings

Owner = Annotated[str, Field(min_length=1, max_length=100, description="an owner of campaigns: a token's name")]

MAX_SECONDS = 1e12


class QuotaLimits(Document):
    """What an owner may have underway; none: no limit."""

    open_jobs: int | None = Field(strict=True, ge=0, le=LARGEST_ID)
    device_seconds: float | None = Field(strict=True, ge=0, le=MAX_SECONDS, description="an upper estimate")
    min_priority: int = Field(default=MIN_PRIORITY, strict=True, ge=MIN_PRIORITY, le=MAX_PRIORITY)
    max_priority: int = Field(default=MAX_PRIORITY, strict=True, ge=MIN_PRIORITY, le=MAX_PRIORITY)

    @model_validator(mode="after")
    def _in_order(self) -> QuotaLimits:
        if self.min_priority > self.max_priority:
            raise ValueError(f"min_priority {self.min_priority} is above max_priority {self.max_priority}")
        return self


class QuotaNow(QuotaLimits):
    """An owner's limits, and what it has underway. They hold for the role submit; the role operate has no limits."""

    owner: str
    own: bool = Field(description="whether somebody set them for this owner; else they are the defaults")
    jobs_underway: int = Field(description="open jobs of its active and paused campaigns")
    device_seconds_underway: float = Field(description="an upper estimate of the device time that they take")


@operation("GET", "/quotas")
def list_(access: Access) -> list[QuotaNow]:
    """What owners may have underway, and what they have. Owners without limits of their own and without work are left out."""
    with access.connect() as connection:
        owners = sorted({*quotas.owners(connection), *campaigns.owners(connection)})
        return [_now(connection, owner, access.settings) for owner in owners]


@operation("GET", "/quotas/{owner}")
def show(access: Access, owner: Owner) -> QuotaNow:
    """What one owner may have underway, and what it has."""
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
    """Give an owner limits of its own. What it has underway stays."""
    with access.change(set_) as change:
        connection = change.connection
        quotas.lock(connection, owner)
        before = quotas.of_owner(connection, owner)
        quotas.set_(connection, owner, Limits(**quota.model_dump(include=set(QuotaLimits.model_fields))))
        now = _now(connection, owner, access.settings)
        change.record("quota", owner, before=None if before is None else asdict(before), after=_limits(now))
    return now


@operation("POST", "/quotas/{owner}/reset", role=Role.OPERATE)
def reset(access: Access, owner: Owner) -> QuotaNow:
    """Take an owner's own limits away, so that the defaults hold."""
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
