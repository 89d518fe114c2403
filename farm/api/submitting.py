"""Storing campaigns on somebody's behalf: within their quota, with who submitted them, and on the record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from farm.builds import versions_of
from farm.db import campaigns, quotas
from farm.db.audit import Actor, Change
from farm.db.campaigns import Stored
from farm.db.quotas import OwnerLimits
from farm.db.states import Role
from farm.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from farm.campaign import Plan, PlannedJob
    from farm.campaign.summary import Meter


def store(change: Change, made: Plan, settings: Settings) -> Stored:
    """Stores a campaign. Raises `QuotaExceeded` where its owner would have more underway than allowed."""
    from farm.campaign.summary import Meter

    campaign, connection = made.campaign, change.connection
    limits = limits_of(connection, change.actor, campaign.owner, settings)
    if limits is not None:
        quotas.check_priority(limits, campaign.owner, campaign.priority)
    meter = Meter(made)
    jobs = meter.passing()
    if limits is not None and limits.open_jobs is not None:
        # What it has already is not added again.
        jobs = _up_to(jobs, meter, limits.open_jobs, campaigns.size_of(connection, campaign.digest), campaign.owner)
    stored = campaigns.store(connection, campaign, jobs, versions=versions_of(settings), submitted_by=change.actor.name)
    campaigns.set_estimate(connection, stored.campaign_id, meter.seconds())
    change.record(
        "campaign",
        campaign.name,
        key=campaign.digest,
        after={
            "owner": campaign.owner,
            "priority": campaign.priority,
            "new": stored.new,
            "restored": stored.restored,
            "new_jobs": stored.jobs,
        },
    )
    check_quota(change, campaign.owner, settings)
    return stored


def _up_to(jobs: Iterator[PlannedJob], meter: Meter, allowed: int, known: int, owner: str) -> Iterator[PlannedJob]:
    """Ends a submission that is far too large long before all of it was sent to the database."""
    for job in jobs:
        if meter.jobs > allowed + known:
            raise quotas.too_many_jobs(owner, allowed, allowed, at_least=True)
        yield job


def limits_of(connection: Connection, actor: Actor, owner: str, settings: Settings) -> OwnerLimits | None:
    """What limits who acts for that owner; None where nothing does, as the role operate."""
    if actor.role.may(Role.OPERATE):
        return None
    return quotas.of_owner(connection, owner) or quotas.defaults(settings)


def check_quota(change: Change, owner: str, settings: Settings) -> None:
    """Looks at what the owner has underway after a change that opened jobs. Raises `QuotaExceeded`."""
    limits = limits_of(change.connection, change.actor, owner, settings)
    if limits is not None:
        quotas.check(change.connection, owner, limits)
