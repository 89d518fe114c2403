"""The results of a campaign for autotuners, in the T4 format."""

from __future__ import annotations

import json
import zipfile

from farm.api.access import Access
from farm.api.campaigns import Name
from farm.api.operation import Document, Download, made_file, operation
from farm.api.results import (
    OfFamily,
    OfSources,
    OnDevices,
    OnHosts,
    OnType,
    Since,
    Until,
    Where,
    conditions,
    uuids_of,
)
from farm.db import campaigns, devices, filters, outcomes
from farm.db.states import JobState
from farm.errors import NothingEnded
from farm.measurement import MeasuringRules
from farm.report.t4_format import Origin, documents

ENDED = (JobState.DONE, JobState.INVALID, JobState.DEAD)

INDEX = "index.json"
"""The file of the ZIP file that lists the others: `Index`."""


class SpaceFile(Document):
    """A T4 file of the results of one search space."""

    name: str
    space: str
    results: int


class Index(Document):
    """The files of an export, and the number of jobs that have not ended and are in none of them."""

    campaign: str
    waiting: int
    files: list[SpaceFile]


@operation("GET", "/campaigns/{campaign}/t4", sends="application/zip", seconds=120)
def export(
    access: Access,
    campaign: Name,
    *,
    type: OnType = None,  # noqa: A002
    family: OfFamily = None,
    where: Where = None,
    host: OnHosts = None,
    device: OnDevices = None,
    source: OfSources = None,
    since: Since = None,
    until: Until = None,
) -> Download:
    """The campaign's jobs that have ended, failed ones too, as T4 files: one for each kernel and device type, in a ZIP file.

    `index.json` in it lists them.
    """
    given = conditions(where=where, source=source, since=since, until=until)
    with access.connect() as connection:
        found = campaigns.find(connection, campaign)
        only = filters.chosen(**given, device_uuids=uuids_of(access, connection, host, device))
        without = outcomes.without_result(connection, found["id"], device_type=type, family=family, only=only)
        rows = outcomes.measured(connection, found["id"], device_type=type, family=family, only=only)
        known = devices.overview(connection, silent_after=access.silent_after)
        counts = campaigns.counts(connection, found["id"])
    origin = Origin(
        campaign=found["name"],
        digest=found["digest"],
        rules=MeasuringRules.model_validate(found["rules"]),
        devices={one["uuid"]: one for one in known},
    )
    made = documents(rows, without, origin)
    if not made:
        raise NothingEnded(name=found["name"])
    index = Index(
        campaign=found["name"],
        waiting=sum(counts[state] for state in JobState if state not in ENDED),
        files=[
            SpaceFile(name=space.file_name, space=str(space), results=len(document["results"]))
            for space, document in made.items()
        ],
    )
    with made_file("t4.zip") as path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, index.model_dump_json())
        for space, document in made.items():
            archive.writestr(space.file_name, json.dumps(document, allow_nan=False) + "\n")
    rows_in = sum(one.results for one in index.files)
    return Download(path=path, media_type="application/zip", name=f"{found['name']}-t4.zip", rows=rows_in)
