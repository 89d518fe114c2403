"""The measuring rules that stored rows were taken under."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from farm.measurement import MeasuringRules

_CAMPAIGN_OF = text("SELECT id, campaign_id FROM measurements WHERE id = ANY(:ids) AND campaign_id IS NOT NULL")
_RULES_OF = text("SELECT id, rules FROM campaigns WHERE id = ANY(:ids)")


def of_rows(connection: Connection, measurement_ids: Iterable[int]) -> dict[int, MeasuringRules]:
    """By the id of the measurement, the rules of the very campaign that it was taken for: names of campaigns repeat.

    A row that is of no campaign has none.
    """
    campaigns = {row.id: row.campaign_id for row in connection.execute(_CAMPAIGN_OF, {"ids": list(measurement_ids)})}
    found = connection.execute(_RULES_OF, {"ids": sorted(set(campaigns.values()))})
    rules = {row.id: MeasuringRules.model_validate(row.rules) for row in found}
    return {measurement_id: rules[campaign_id] for measurement_id, campaign_id in campaigns.items()}
