"""The report of a campaign: what was data, compared and predicted, put into sections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from sqlalchemy import Engine

from farm.compare.comparison import CompareQuery, Comparison, compare
from farm.compare.groups import MAX_GROUPS
from farm.errors import FarmError, NotFound, NothingShared
from farm.registry import Trust
from farm.report.accuracy import accuracies
from farm.report.document import Report
from farm.report.figures.labelled import LabelledResults
from farm.report.loading import CampaignData, gather
from farm.report.sections import campaign, comparison, learning, measured, origins
from farm.settings import settings

Progress = Callable[[str], None]
"""LabelledResults what is done next."""


def report(
    engine: Engine,
    name: str,
    *,
    device_type: str | None = None,
    tracking_uri: str,
    made_by: str,
    progress: Progress = lambda _: None,
) -> Report:
    """Reports on a campaign, or on one device type of it, as it is now. `made_by` is the command that repeats it.

    What cannot be had (a comparison, a model) is a reason in its section. Raises `NoSuchCampaign`, and `NotFound` for a device
    type that has no row.
    """
    progress("reading the rows")
    data = gather(engine, name, device_type=device_type)
    if device_type is not None and not data.origins:
        everywhere = sorted({origin.device_type for origin in gather(engine, name).origins})
        raise NotFound(
            detail=f"{data.stored['name']} has no rows on the device type {device_type}. It has rows on: "
            f"{', '.join(everywhere) or 'none yet'}."
        )
    labelled = LabelledResults(data.results)
    progress("comparing devices")
    comparisons, why = _comparisons(engine, data)
    progress("asking the model")
    found = accuracies(tracking_uri, data.results, Trust(settings(), engine))
    progress("finding what it says")
    stored = data.stored
    return Report(
        campaign=stored["name"],
        digest=stored["digest"],
        description=stored["document"].get("description") or "",
        made_at=data.read_at,
        warnings=origins.warnings(data),
        sections=[
            campaign.findings(data, labelled),
            campaign.about(data),
            *learning.curve(data),
            measured.roofline(labelled),
            measured.size(labelled),
            measured.parameters(labelled),
            measured.pareto(labelled),
            measured.best(data, labelled),
            measured.tiles(data, labelled),
            comparison.comparison(comparisons, why),
            comparison.accuracy(labelled, found),
            origins.provenance(data, made_by=made_by),
        ],
        head={"report_of": stored["name"], "digest": stored["digest"], "device_type": device_type},
    )


def _comparisons(engine: Engine, data: CampaignData) -> tuple[list[Comparison], list[str]]:
    """Types beside each other, and the devices of each type that has several; and why others are not."""
    devices = defaultdict[str, set[str]](set)
    for origin in data.origins:
        devices[origin.device_type].add(origin.device_uuid)
    digest = data.stored["digest"]
    asked = [("types", len(devices), CompareQuery(by="type", campaign=digest, any_source=True))]
    asked += [
        (
            f"devices of {kind}",
            len(uuids),
            CompareQuery(by="device", campaign=digest, device_type=kind, any_source=True),
        )
        for kind, uuids in sorted(devices.items())
    ]
    found, why = list[Comparison](), list[str]()
    for words, count, question in asked:
        if count < 2:
            continue
        if count > MAX_GROUPS:
            why.append(f"{count:,} {words} are more than the {MAX_GROUPS} that are compared at a time.")
            continue
        try:
            one = compare(engine, question)
        except NothingShared:
            why.append(f"The {count:,} {words} share no configuration: each was measured once, on one that was free.")
            continue
        except FarmError as error:
            why.append(f"The {words} are not compared: {error}")
            continue
        if one.groups:
            found.append(one)
        else:
            why.append(f"The {words} share no configuration.")
    if not found and not why:
        why.append("One device alone measured this campaign." if devices else measured.NO_ROW)
    return found, why
