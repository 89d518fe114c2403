"""Version of a campaign's report: a few values that determine its content, read in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from farm.db import campaigns


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Two reports of the same version have the same content."""

    digest: str
    jobs: tuple[tuple[str, int], ...]  # by state
    rows: int
    last_measurement_id: int | None


_ROWS = text(
    "SELECT count(*) AS rows, max(id) AS last_measurement_id FROM measurements WHERE campaign_id = :campaign_id"
)


def version(connection: Connection, stored: Mapping[str, Any]) -> Version | None:
    """Version of a campaign's report; None for a search, because its report also reads other campaigns."""
    if stored["document"].get("search") is not None:
        return None
    counts = campaigns.counts(connection, stored["id"])
    rows = connection.execute(_ROWS, {"campaign_id": stored["id"]}).mappings().one()
    return Version(digest=stored["digest"], jobs=tuple(counts.items()), **rows)
