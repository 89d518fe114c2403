"""Measuring rules of stored rows."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from farm.measurement import MeasuringRules

_GROUP_OF = text("""
SELECT r.id, r.campaign_id, j.lane_id FROM measurements r LEFT JOIN jobs j ON j.id = r.job_id
WHERE r.id = ANY(:ids) AND r.campaign_id IS NOT NULL
""")
_RULES_OF_CAMPAIGN = text("SELECT id, rules FROM campaigns WHERE id = ANY(:ids)")
_RULES_OF_GROUP = text("SELECT id, rules FROM lanes WHERE id = ANY(:ids) AND rules IS NOT NULL")


def of_rows(connection: Connection, measurement_ids: Iterable[int]) -> dict[int, MeasuringRules]:
    """Returns the rules of each measurement, by id. Rows without a campaign are left out.

    A round of a search may have its own rules.
    """
    rows = list(connection.execute(_GROUP_OF, {"ids": list(measurement_ids)}))
    campaigns = connection.execute(_RULES_OF_CAMPAIGN, {"ids": sorted({row.campaign_id for row in rows})})
    of_campaign = {row.id: MeasuringRules.model_validate(row.rules) for row in campaigns}
    groups = connection.execute(_RULES_OF_GROUP, {"ids": sorted({row.lane_id for row in rows} - {None})})
    of_group = {row.id: MeasuringRules.model_validate(row.rules) for row in groups}
    return {row.id: of_group.get(row.lane_id, of_campaign[row.campaign_id]) for row in rows}
