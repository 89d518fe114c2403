"""`farm results --format t4`: a campaign's results for autotuners, a file for each kernel and device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from farm.atomic_write import require_new, writable
from farm.cli.files import write
from farm.cli.output import remarks
from farm.db import campaigns, devices, outcomes
from farm.db.filters import EVERYTHING, Filter
from farm.db.states import JobState
from farm.errors import NothingEnded, SeveralSpaces
from farm.measurement import MeasuringRules
from farm.report.t4 import Origin, Space, documents
from farm.services.session import Session
from farm.texts import some_of

ENDED = (JobState.DONE, JobState.INVALID, JobState.DEAD)


def export(
    opened: Session,
    campaign: str,
    *,
    device_type: str | None,
    family: str | None,
    only: Filter = EVERYTHING,
    output: Path | None,
    force: bool,
) -> None:
    """Writes the results of the campaign's jobs that have ended, failed ones too.

    An output that ends in .json, or none, takes one search space; any other is a folder, made where it is missing.

    Raises:
        NothingEnded: there would be nothing in it.
        SeveralSpaces: one file or stdout was asked for, and there are more.
        BadInput: a file cannot be written.
        FileThere: without `force`, one is there.
    """
    with opened.engine.connect() as connection:
        found = campaigns.find(connection, campaign)
        without = outcomes.without_result(connection, found["id"], device_type=device_type, family=family, only=only)
        rows = outcomes.measured(connection, found["id"], device_type=device_type, family=family, only=only)
        known = devices.overview(connection, silent_after=opened.settings.silent_after_seconds)
        counts = campaigns.counts(connection, found["id"])
    origin = Origin(
        campaign=found["name"],
        digest=found["digest"],
        rules=MeasuringRules.model_validate(found["rules"]),
        devices={device["uuid"]: device for device in known},
    )
    made = documents(rows, without, origin)
    if not made:
        raise NothingEnded(name=found["name"])
    waiting = sum(counts[state] for state in JobState if state not in ENDED)
    if waiting:
        remarks.print(f"{waiting:,} jobs of {found['name']} have not ended and are not in it.")
    _write(made, found["name"], output, force=force)


def _write(made: dict[Space, dict[str, Any]], campaign: str, output: Path | None, *, force: bool) -> None:
    one_file = output is None or (output.suffix == ".json" and not output.is_dir())
    if one_file and len(made) > 1:
        raise SeveralSpaces(name=campaign, count=len(made), spaces=some_of([str(space) for space in made]))
    if output is not None and not one_file:
        for space in made:
            require_new(output / space.file_name, force=force)
    for space, document in made.items():
        text = json.dumps(document, allow_nan=False) + "\n"
        if output is None or one_file:
            path = output
        else:
            with writable(output):
                output.mkdir(parents=True, exist_ok=True)
            path = output / space.file_name
        write(text, path, force=force)
        if path is not None:
            remarks.print(f"{len(document['results']):,} results of {space} in {path}", markup=False)
