"""Prints the JSON schema of campaign files. An editor that has it completes keys and marks mistakes."""

from __future__ import annotations

import json
import sys

from farm.campaign.campaign import Campaign
from farm.campaign.values import JsonSchema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(Campaign.model_json_schema(schema_generator=JsonSchema), indent=1) + "\n")
