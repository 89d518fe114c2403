"""Storing campaigns within the quota of their owner, with an entry in the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from farm.builds import versions_of
from farm.db import campaigns, quotas
from farm.db.audit import Actor, Change
from farm.db.campaigns import Stored
from farm.db.farm_key import farm_key
from farm.db.quotas import OwnerLimits
from farm.db.states import Role
from farm.errors import DefinitionsNeedRole
from farm.settings import Settings
from farm.tracing import Span, current, ids_of_campaign, new_ids, tracing
from farm.tracing.span import PREFIX

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from farm.campaign import Campaign, Plan, PlannedJob
    from farm.campaign.summary import Meter


def store(change: Change, made: Plan, settings: Settings) -> Stored:
    """Stores a campaign.

    Raises `DefinitionsNeedRole` for own kernels without the role operate, and `QuotaExceeded` if the owner would exceed their quota.
    """
    from farm.campaign.summary import Meter

    campaign, connection = made.campaign, change.connection
    if campaign.definitions and not change.actor.role.may(Role.OPERATE):
        files = ", ".join(sorted({definition.file for definition in campaign.definitions.values()}))
        raise DefinitionsNeedRole(where=campaign.where, files=files, name=change.actor.name, role=change.actor.role)
    limits = limits_of(connection, change.actor, campaign.owner, settings)
    if limits is not None:
        quotas.check_priority(limits, campaign.owner, campaign.priority)
    meter = Meter(made)
    jobs = meter.passing()
    if limits is not None and limits.open_jobs is not None:
        # Jobs that the campaign has already are not added again.
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


def record_submission(engine: Engine, campaign: Campaign, stored: Stored, began_ns: int) -> None:
    """Records the spans of a stored campaign: the first one of its own trace, and one of the request, which name each other."""
    if not tracing().on or (farm := farm_key(engine)) is None:  # the campaign is stored all the same
        return
    first = ids_of_campaign(farm, stored.campaign_id)
    ended_ns, caller = time.time_ns(), current()
    of_request = new_ids(caller)
    attributes: dict[str, str | int | float | bool] = {
        f"{PREFIX}campaign.id": stored.campaign_id,
        f"{PREFIX}campaign.name": campaign.name,
        f"{PREFIX}campaign.new_jobs": stored.jobs,
    }
    if stored.new:
        made = Span(
            name="submit campaign",
            ids=first,
            links=(of_request,),
            began_ns=began_ns,
            ended_ns=ended_ns,
            attributes=attributes,
        )
        tracing().record(made)
    made = Span(
        name="store campaign", ids=of_request, parent=caller, links=(first,), began_ns=began_ns, ended_ns=ended_ns,
        attributes=attributes,
    )  # fmt: skip
    tracing().record(made)


def _up_to(jobs: Iterator[PlannedJob], meter: Meter, allowed: int, known: int, owner: str) -> Iterator[PlannedJob]:
    """Ends a submission that is too large before all of it is sent to the database."""
    for job in jobs:
        if meter.jobs > allowed + known:
            raise quotas.too_many_jobs(owner, allowed, allowed, at_least=True)
        yield job


def limits_of(connection: Connection, actor: Actor, owner: str, settings: Settings) -> OwnerLimits | None:
    """The limits of that owner; None if there are none, or for the role operate."""
    if actor.role.may(Role.OPERATE):
        return None
    return quotas.of_owner(connection, owner) or quotas.defaults(settings)


def check_quota(change: Change, owner: str, settings: Settings) -> None:
    """Checks the quota of the owner after a change that opened jobs. Raises `QuotaExceeded`."""
    limits = limits_of(change.connection, change.actor, owner, settings)
    if limits is not None:
        quotas.check(change.connection, owner, limits)
