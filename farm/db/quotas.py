"""Quotas of owners: open jobs, estimated device time, and a range of priorities.

Quotas apply to submissions with the role submit, and not to the role operate. The settings have the defaults. A row of `quotas`
replaces them for one owner.

`check` runs after the change, in its transaction and under a lock per owner. So the second of two concurrent submissions waits until
the first is committed, and counts it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, text

from farm.db import campaigns
from farm.errors import QuotaExceeded
from farm.settings import Settings

MIN_PRIORITY, MAX_PRIORITY = -100, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """Limits of an owner. None: no limit."""

    open_jobs: int | None
    # Upper estimate.
    device_seconds: float | None
    min_priority: int = MIN_PRIORITY
    max_priority: int = MAX_PRIORITY


def defaults(settings: Settings) -> OwnerLimits:
    """Limits of owners without limits of their own."""
    return OwnerLimits(
        open_jobs=settings.quota_open_jobs or None,
        device_seconds=settings.quota_device_seconds or None,
        max_priority=settings.quota_max_priority,
    )


_FIND = text("SELECT open_jobs, device_seconds, min_priority, max_priority FROM quotas WHERE owner = :owner")
_OWNERS = text("SELECT owner FROM quotas ORDER BY owner")
_SET = text("""
INSERT INTO quotas (owner, open_jobs, device_seconds, min_priority, max_priority)
VALUES (:owner, :open_jobs, :device_seconds, :min_priority, :max_priority)
ON CONFLICT (owner) DO UPDATE SET open_jobs = excluded.open_jobs, device_seconds = excluded.device_seconds,
    min_priority = excluded.min_priority, max_priority = excluded.max_priority
""")
_RESET = text("DELETE FROM quotas WHERE owner = :owner")
# One key for each owner, apart from other advisory locks by its first half.
_LOCK = text("SELECT pg_advisory_xact_lock(CAST(x'71756f74' AS int), hashtext(:owner))")  # "quot"


def of_owner(connection: Connection, owner: str) -> OwnerLimits | None:
    """The own limits of an owner, or None."""
    row = connection.execute(_FIND, {"owner": owner}).mappings().one_or_none()
    return None if row is None else OwnerLimits(**row)


def owners(connection: Connection) -> list[str]:
    """Owners with limits of their own."""
    return list(connection.execute(_OWNERS).scalars())


def lock(connection: Connection, owner: str) -> None:
    """Locks the quota of an owner until this transaction ends."""
    connection.execute(_LOCK, {"owner": owner})


def set_(connection: Connection, owner: str, limits: OwnerLimits) -> None:
    """Sets the own limits of an owner."""
    connection.execute(_SET, {"owner": owner, **asdict(limits)})


def reset(connection: Connection, owner: str) -> bool:
    """Removes the own limits of an owner. Returns whether there were any."""
    return connection.execute(_RESET, {"owner": owner}).rowcount > 0


def check_priority(limits: OwnerLimits, owner: str, priority: int) -> None:
    """Raises `QuotaExceeded`."""
    if not limits.min_priority <= priority <= limits.max_priority:
        raise QuotaExceeded(
            owner=owner,
            what=f"the campaign has priority {priority}, and priorities from {limits.min_priority} to "
            f"{limits.max_priority} are allowed",
            remedy="Change `priority` in the campaign file.",
            option="--max-priority N",
        )


def check(connection: Connection, owner: str, limits: OwnerLimits) -> None:
    """Checks everything that the owner has in progress, with the changes of this transaction. Raises `QuotaExceeded`."""
    lock(connection, owner)
    used = campaigns.underway(connection, owner)
    if limits.open_jobs is not None and used.open_jobs > limits.open_jobs:
        raise too_many_jobs(owner, used.open_jobs, limits.open_jobs)
    if limits.device_seconds is not None and used.device_seconds > limits.device_seconds:
        raise QuotaExceeded(
            owner=owner,
            what=f"with this campaign {used.device_seconds / 3600:,.1f} device hours would be in progress, by an upper estimate, "
            f"and {limits.device_seconds / 3600:,.1f} are allowed",
            remedy=_REMEDY,
            option="--device-hours N",
        )


def too_many_jobs(owner: str, jobs: int, allowed: int, *, at_least: bool = False) -> QuotaExceeded:
    """The error for more open jobs than are allowed."""
    return QuotaExceeded(
        owner=owner,
        what=f"with this campaign {'more than ' if at_least else ''}{jobs:,} jobs would be open, and {allowed:,} are allowed",
        remedy=_REMEDY,
        option="--open-jobs N",
    )


_REMEDY = "Submit less, wait until more of your campaigns is measured, or cancel one."
