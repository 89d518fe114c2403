"""The leader: which coordinator leads, and what blocks it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from pydantic import Field
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.operation import Document, operation
from farm.db import leadership, locks, obstacles


class FailingStep(Document):
    """A step of the leader that fails, or that has run for long. The other steps run."""

    step: str
    error: str
    for_s: float = Field(description="for how many seconds, as of a few seconds ago")
    text: str = Field(description="the same in words")


class LockHolder(Document):
    """A Postgres session that has held locks on tables of the farm for more than a few seconds."""

    pid: int = Field(description="of its server process")
    program: str = Field(description="as it calls itself (`application_name`)")
    user: str | None
    host: str | None = Field(description="its address; none: it is on the database's own host")
    since: datetime | None = Field(description="when its transaction began; none: the farm's role may not know")
    held_s: float | None
    idle: bool = Field(description="whether it is idle in a transaction")
    tables: list[str]
    how_to_end: str = Field(description="the SQL that ends the session, and with it its locks")
    text: str = Field(description="the same in words")


class Leader(Document):
    """The coordinator that leads or, if none does, the last one."""

    leads: bool
    term: int = Field(description="each leader has a higher one; 0: no coordinator ever led")
    host: str | None
    pid: int | None
    since: datetime | None = Field(description="when its term began")
    expires_at: datetime = Field(description="when its term ends, or ended, unless it is renewed")
    failing: list[FailingStep] = Field(default=[], description="steps of its turns that fail")
    lock_holders: list[LockHolder] = Field(
        default=[], description="sessions that have held locks on tables of the farm for long"
    )
    read_only: str | None = Field(
        default=None, description="why the database takes no writes, and what to do; none: it takes them"
    )
    obstacle: str | None = Field(
        default=None, description="what keeps every coordinator from leading, and what to do; none: nothing is known to"
    )
    text: str = Field(description="which coordinator leads, as text")


def leader_of(connection: Connection) -> Leader:
    """The present leader, with what may block it."""
    leader, holders, read_only = leadership.read(connection), locks.holders(connection), obstacles.read_only(connection)
    obstacle = obstacles.of_leading(read_only=read_only, holders=holders)
    return Leader(
        **{**asdict(leader), "failing": [FailingStep(**asdict(one), text=one.text) for one in leader.failing]},
        lock_holders=[LockHolder.model_validate(one) for one in holders],
        read_only=None if read_only is None else str(read_only),
        obstacle=obstacle,
        text=leader.text(obstacle),
    )


@operation("GET", "/leader")
def show(access: Access) -> Leader:
    """Which coordinator leads, since when and in which term, which steps of its turns fail, who holds locks for long, and whether
    the database takes writes."""
    with access.connect() as connection:
        return leader_of(connection)
