"""`farm publish`: bands of this farm's cards as a signed folder of static files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm import signing_keys
from farm.api import farm_of
from farm.api import results as operations
from farm.cli.files import ForceOption, write_export
from farm.cli.options import takes
from farm.measurement import Source
from farm.settings import settings
from farm.signing import Purpose

_NOT_OF_BANDS = ("commands", "after", "limit", "sort", "short_rounds")


@takes(operations.rows, without=_NOT_OF_BANDS)
def publish(
    query: dict[str, Any],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder to write to. It is made.", show_default=False
        ),
    ],
    min_cards: Annotated[
        int, typer.Option("--min-cards", min=1, help="Leave out GEMMs that fewer cards of a type measured.")
    ] = 1,
    force: ForceOption = False,
) -> None:
    """Write what cards of each type take for the same GEMMs as a signed folder: percentiles of time and power, and digests.

    Others hold their cards against it with farm compare --against. Without --source, only rows that were measured here count.

    Examples:
        farm publish --campaign reference --output public/
        farm publish --type nvidia-h200 --min-cards 8 --output public/
    """
    from farm.exporters import publication  # it loads the farm's comparisons

    query["source"] = query.get("source") or [Source.MEASURED]
    with farm_of(settings()) as farm:
        rows = (row for page in operations.pages(farm, None, **query) for row in page.rows)
        export = publication.export(rows, signing_keys.signer(settings(), Purpose.PUBLICATION), min_cards=min_cards)
    write_export(export, output, folder=True, force=force)
