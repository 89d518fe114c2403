"""T4: a campaign's jobs that have ended, for autotuners. A file for each kernel family and device."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.api import Farm, t4
from farm.errors import BadInput, SeveralSpaces
from farm.exporters.exporter import Export, ExportedFile, Exporter
from farm.formatting import some_of


class T4Files(Exporter):
    """Failed jobs are in it too. `farm.report.t4_format` describes the format."""

    format = "t4"
    meaning = "for autotuners, a campaign's jobs with those that failed"
    folder_suffix = ".json"

    def check(self, query: Mapping[str, Any], limit: int | None) -> None:
        if "campaign" not in query or limit is not None or query["sort"] != "measurement_id":
            raise BadInput(
                detail="T4 is the jobs of one campaign, all of them that match: --campaign NAME, no --sort or --limit"
            )

    def export(self, farm: Farm, query: Mapping[str, Any], limit: int | None, *, one_file: bool) -> Export:
        """Raises `NothingEnded`, and `SeveralSpaces` where one file cannot hold the search spaces."""
        arguments = {name: value for name, value in query.items() if name not in ("sort", "short_rounds")}
        sent = farm.ask(t4.export, **arguments)
        try:
            with zipfile.ZipFile(sent.path) as archive:
                index = t4.Index.model_validate_json(archive.read(t4.INDEX))
                if one_file and len(index.files) > 1:
                    spaces = some_of([one.space for one in index.files])
                    raise SeveralSpaces(name=index.campaign, count=len(index.files), spaces=spaces)
                # A name that a server sends cannot lead out of the folder.
                files = [
                    ExportedFile(Path(one.name).name, archive.read(one.name), one.results, f"results of {one.space}")
                    for one in index.files
                ]
        finally:
            sent.path.unlink()
        waiting = f"{index.waiting:,} jobs of {index.campaign} have not ended and are not in it."
        return Export(files, [waiting] if index.waiting else [])
