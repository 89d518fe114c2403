"""The leader: which coordinator leads."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from pydantic import Field, computed_field

from farm.api.access import Access
from farm.api.operation import Document, operation
from farm.db import leadership
from farm.texts import leader_text


class Leader(Document):
    """The coordinator that leads. Where none does: the one that led last."""

    leads: bool
    term: int = Field(description="each leader has a higher one; 0: no coordinator ever led")
    host: str | None
    pid: int | None
    since: datetime | None = Field(description="when its term began")
    expires_at: datetime = Field(description="when its term ends, or ended, unless it is renewed")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Who leads, or that none does, in words."""
        return leader_text(**self.model_dump(exclude={"text"}))


def leader_of(found: leadership.Leader) -> Leader:
    """The document of that row."""
    return Leader(**asdict(found))


@operation("GET", "/leader")
def show(access: Access) -> Leader:
    """Which coordinator leads, since when and in which term."""
    with access.connect() as connection:
        return leader_of(leadership.read(connection))
