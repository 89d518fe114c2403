"""The report of a campaign: what was data, compared and predicted, put into sections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Engine

from farm.compare.comparison import CompareQuery, Comparison, compare
from farm.compare.groups import MAX_GROUPS
from farm.errors import FarmError, NotFound, NothingShared
from farm.registry import Trust
from farm.report.accuracy import accuracies
from farm.report.document import Report
from farm.report.report_data import CampaignData, gather
from farm.report.sections import SECTIONS
from farm.report.sections.measured import NO_ROW
from farm.report.sections.origins import warnings
from farm.settings import settings

Progress = Callable[[str], None]
"""Is called with the next step."""


def report(
    engine: Engine,
    name: str,
    *,
    device_type: str | None = None,
    tracking_uri: str,
    made_by: str,
    progress: Progress = lambda _: None,
) -> Report:
    """The report of a campaign, or of one device type of it, from the present rows.

    A comparison or a model that is not available is a reason in its section.

    Args:
        made_by: The command that makes the report again.

    Raises:
        NoSuchCampaign: there is no such campaign.
        NotFound: the device type has no row.
    """
    progress("reading the rows")
    data = gather(engine, name, device_type=device_type)
    if device_type is not None and not data.origins:
        everywhere = sorted({origin.device_type for origin in gather(engine, name).origins})
        raise NotFound(
            detail=f"{data.stored['name']} has no rows on the device type {device_type}. It has rows on: "
            f"{', '.join(everywhere) or 'none yet'}."
        )
    progress("comparing devices")
    comparisons, not_compared = _comparisons(engine, data)
    progress("predicting with the models")
    found = accuracies(tracking_uri, data.results, Trust(settings(), engine))
    data = replace(data, comparisons=comparisons, not_compared=not_compared, accuracies=found, made_by=made_by)
    progress("writing the sections")
    stored = data.stored
    return Report(
        campaign=stored["name"],
        digest=stored["digest"],
        description=stored["document"].get("description") or "",
        made_at=data.read_at,
        warnings=warnings(data),
        sections=[section for make in SECTIONS if (section := make(data)) is not None],
        head={"report_of": stored["name"], "digest": stored["digest"], "device_type": device_type},
    )


def _comparisons(engine: Engine, data: CampaignData) -> tuple[list[Comparison], list[str]]:
    """Comparisons of types, and of the devices of each type that has several; and why others are not compared."""
    devices = defaultdict[str, set[str]](set)
    for origin in data.origins:
        devices[origin.device_type].add(origin.device_uuid)
    digest = data.stored["digest"]
    queries = [("types", len(devices), CompareQuery(by="type", campaign=digest, any_source=True))]
    queries += [
        (
            f"devices of {kind}",
            len(uuids),
            CompareQuery(by="device", campaign=digest, device_type=kind, any_source=True),
        )
        for kind, uuids in sorted(devices.items())
    ]
    found, why = list[Comparison](), list[str]()
    for what, count, query in queries:
        if count < 2:
            continue
        if count > MAX_GROUPS:
            why.append(f"{count:,} {what} are more than the {MAX_GROUPS} that are compared at a time.")
            continue
        try:
            one = compare(engine, query)
        except NothingShared:
            why.append(f"The {count:,} {what} share no configuration: each was measured once, on one that was free.")
            continue
        except FarmError as error:
            why.append(f"The {what} are not compared: {error}")
            continue
        if one.groups:
            found.append(one)
        else:
            why.append(f"The {what} share no configuration.")
    if not found and not why:
        why.append("One device alone measured this campaign." if devices else NO_ROW)
    return found, why
