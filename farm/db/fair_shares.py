"""Stored virtual times of owners and campaigns. They survive a change of the coordinator: see `farm.coordinator.fairness`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, text


class ShareKey(NamedTuple):
    """Key of a virtual time. `campaign_id` is 0 for an owner among all owners."""

    resource: str
    priority: int
    owner: str
    campaign_id: int = 0


_STORED = text("SELECT resource, priority, owner, campaign_id, virtual_s FROM fair_shares")


def stored(connection: Connection) -> dict[ShareKey, float]:
    """The virtual times, in device seconds divided by the owner's weight."""
    return {ShareKey(*row[:4]): row.virtual_s for row in connection.execute(_STORED)}


@dataclass(frozen=True, slots=True)
class ShareTurn:
    """How many owners and campaigns share a resource with a campaign, and how many of them come before it."""

    resource: str
    owners: int
    owners_before: int
    # Campaigns of its owner with the same priority, itself among them.
    campaigns: int
    campaigns_before: int


_TURNS = text("""
SELECT c.resource,
    count(*) FILTER (WHERE o.campaign_id = 0) AS owners,
    count(*) FILTER (WHERE o.campaign_id = 0 AND o.virtual_s < mine.virtual_s) AS owners_before,
    count(*) FILTER (WHERE o.campaign_id > 0) AS campaigns,
    count(*) FILTER (WHERE o.campaign_id > 0 AND o.virtual_s < c.virtual_s) AS campaigns_before
FROM fair_shares c
JOIN fair_shares mine USING (resource, priority, owner)
JOIN fair_shares o ON (o.resource, o.priority) = (c.resource, c.priority) AND (o.campaign_id = 0 OR o.owner = c.owner)
WHERE c.campaign_id = :campaign_id AND c.campaign_id > 0 AND mine.campaign_id = 0
GROUP BY c.resource ORDER BY c.resource
""")


def turns(connection: Connection, campaign_id: int) -> list[ShareTurn]:
    """The shares of a campaign on each resource that it waits for."""
    return [ShareTurn(*row) for row in connection.execute(_TURNS, {"campaign_id": campaign_id})]


_KEYS = """
SELECT * FROM unnest(
    CAST(:resources AS text[]), CAST(:priorities AS smallint[]), CAST(:owners AS text[]), CAST(:campaigns AS bigint[])
"""
_ADD = text(f"""
INSERT INTO fair_shares (resource, priority, owner, campaign_id, virtual_s)
{_KEYS}, CAST(:virtual AS float8[])) AS s(resource, priority, owner, campaign_id, virtual_s) ORDER BY 1, 2, 3, 4
ON CONFLICT DO NOTHING
""")
_REMOVE = text(f"""
WITH these AS MATERIALIZED (
    SELECT f.resource, f.priority, f.owner, f.campaign_id
    FROM fair_shares f JOIN ({_KEYS}) AS s(resource, priority, owner, campaign_id)) s
        USING (resource, priority, owner, campaign_id)
    ORDER BY 1, 2, 3, 4 FOR UPDATE OF f SKIP LOCKED
)
DELETE FROM fair_shares f USING these t
WHERE (f.resource, f.priority, f.owner, f.campaign_id) = (t.resource, t.priority, t.owner, t.campaign_id)
""")


def _columns(keys: Iterable[ShareKey]) -> dict[str, list[object]]:
    names = ("resources", "priorities", "owners", "campaigns")
    columns = list(zip(*keys, strict=True)) or [(), (), (), ()]
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def add(connection: Connection, started: Mapping[ShareKey, float]) -> None:
    """Stores virtual times for keys that have none."""
    connection.execute(_ADD, {**_columns(started), "virtual": list(started.values())})


def remove(connection: Connection, idle: Iterable[ShareKey]) -> None:
    """Removes virtual times."""
    connection.execute(_REMOVE, _columns(idle))
