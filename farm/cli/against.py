"""`farm compare --against`: cards of this farm against a published folder."""

from __future__ import annotations

from rich.text import Text

from farm import signing_keys
from farm.api import farm_of
from farm.api import results as operations
from farm.api.comparing import Comparing
from farm.cli.output import emit_json
from farm.cli.tables import Column, Table
from farm.compare.bands import Band, CardStanding, Standing, standings
from farm.errors import BadInput, FarmError, NotFound
from farm.exporters import publication
from farm.formatting import some_of
from farm.masking import masked
from farm.measurement import Source
from farm.settings import settings
from farm.signing import Purpose

_CONDITIONS = ("campaign", "type", "family")
"""Fields of a comparison that choose rows here too."""


class CardsOutside(FarmError):
    """Of {cards}, {count} outside the published bands: {which}."""

    exit_code = 7


class NothingPublished(NotFound):
    """No GEMM of {where} was measured here under the same conditions. It has GEMMs of {types}. `farm compare` counts protocol, distribution of operands and clock policy as conditions."""


_CARDS = Table(
    "published bands",
    Column("device"),
    Column("type", folds=True, priority=2),
    Column("host", folds=True, priority=4),
    Column("GEMMs", number=True, priority=1),
    Column("published cards", number=True, priority=5),
    Column("time", "%", number=True),
    Column("slower GEMMs", number=True, priority=1),
    Column("power", "%", number=True, priority=3),
    Column("other bits", priority=3),
    Column("standing"),
)


def compare(query: Comparing, where: str, *, others: bool, as_json: bool) -> None:
    """Prints where each card lies. Raises `CardsOutside`, and what `publication.read` raises."""
    unknown = [
        name
        for name in query.model_fields_set - {*_CONDITIONS, "any_source"}
        if getattr(query, name) != Comparing.model_fields[name].get_default()
    ]
    if unknown or others:
        why = "only --campaign, --type, --family and --any-source choose among this farm's rows there"
        raise BadInput(detail=f"--against holds cards against a published folder: {why}.")
    bands = publication.read(where, signing_keys.trusted(settings(), Purpose.PUBLICATION))
    chosen = {name: getattr(query, name) for name in _CONDITIONS}
    sources = None if query.any_source else [Source.MEASURED]
    types = [one for one in _types(bands) if query.type in (None, one)]
    with farm_of(settings()) as farm:
        rows = (
            row
            for one in types
            for page in operations.pages(farm, None, source=sources, **chosen | {"type": one})
            for row in page.rows
        )
        found = standings(bands, rows)
    if not found:
        raise NothingPublished(where=where, types=some_of(_types(bands)) or "no type")
    if as_json:
        emit_json({"against": masked(where), "cards": [one.model_dump() for one in found]})
    else:
        _CARDS.print(_line(one) for one in found)
    outside = [one for one in found if one.standing is not Standing.WITHIN]
    if outside:
        which = some_of([f"{one.device_uuid} on {one.host} ({one.standing})" for one in outside], limit=4)
        cards = "1 card" if len(found) == 1 else f"{len(found)} cards"
        raise CardsOutside(cards=cards, count=f"{len(outside)} {'is' if len(outside) == 1 else 'are'}", which=which)


def _types(bands: list[Band]) -> list[str]:
    return sorted({band.device_type for band in bands})


def _line(one: CardStanding) -> tuple[object, ...]:
    power = None if one.power_change_pct is None else f"{one.power_change_pct:+.2f}"
    style = "" if one.standing is Standing.WITHIN else "red"
    return (
        one.device_uuid, one.device_type, one.host, f"{one.gemms:,}", f"{one.published_cards:,}", f"{one.time_change_pct:+.2f}",
        f"{one.slower_gemms:,}", power, f"{one.other_digests:,} of {one.digests:,}", Text(str(one.standing), style=style),
    )  # fmt: skip
