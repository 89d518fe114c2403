"""The JSON Schema of campaign files, made of the declarations that read them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from farm.campaign.campaign import Campaign
from farm.campaign.values import JsonSchema

PATH = "/schema/campaign.json"
"""Where a server publishes it."""


def campaign_schema() -> dict[str, Any]:
    """The schema of a campaign file. An editor that has it completes keys, shows what they mean, and marks mistakes."""
    return {
        "$schema": JsonSchema.schema_dialect,
        "title": "GEMM Farm campaign file",
        **{key: value for key, value in _of_campaign().items() if key != "title"},
        # `Campaign.validated` asks for these.
        "anyOf": [{"required": ["problems", "kernels"]}, {"required": ["configurations"]}],
    }


def campaign_schema_text() -> str:
    """The schema as indented JSON."""
    return json.dumps(campaign_schema(), indent=1) + "\n"


@cache
def _of_campaign() -> dict[str, Any]:
    return Campaign.model_json_schema(schema_generator=JsonSchema)
