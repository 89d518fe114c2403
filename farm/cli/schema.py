"""`farm schema`: the JSON Schema of files that people write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from farm.campaign.schema import campaign_schema_text


class Kind(StrEnum):
    """Files that have a schema."""

    CAMPAIGN = "campaign"


def schema(
    kind: Annotated[Kind, typer.Argument(help="The kind of file: campaign.", show_default=False)],
) -> None:
    """Print the JSON Schema of campaign files, with which an editor completes keys and marks mistakes.

    Save it, and name it on the first line of a campaign file: # yaml-language-server: $schema=campaign.schema.json. A farm
    serve publishes the same schema at /schema/campaign.json.

    Examples:
        farm schema campaign
    """
    assert kind is Kind.CAMPAIGN
    typer.echo(campaign_schema_text(), nl=False)
