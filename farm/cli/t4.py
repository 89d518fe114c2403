"""`farm results --format t4`: a campaign's results for autotuners, a file for each kernel and device."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.api import Farm
from farm.api import t4 as operations
from farm.api.t4 import INDEX, Index
from farm.atomic_write import require_new, writable
from farm.cli.files import write
from farm.cli.output import remarks
from farm.errors import SeveralSpaces
from farm.formatting import some_of


def export(farm: Farm, query: Mapping[str, Any], *, output: Path | None, force: bool) -> None:
    """Writes the results of the campaign's jobs that have ended, failed ones too.

    An output that ends in .json, or none, takes one search space; any other is a folder, made where it is missing.

    Raises:
        NothingEnded: there would be nothing in it.
        SeveralSpaces: one file or stdout was asked for, and there are more.
        BadInput: a file cannot be written.
        FileThere: without `force`, one is there.
    """
    sent = farm.ask(operations.export, **query)
    try:
        with zipfile.ZipFile(sent.path) as archive:
            _write(archive, Index.model_validate_json(archive.read(INDEX)), output, force=force)
    finally:
        sent.path.unlink()


def _write(archive: zipfile.ZipFile, index: Index, output: Path | None, *, force: bool) -> None:
    if index.waiting:
        remarks.print(f"{index.waiting:,} jobs of {index.campaign} have not ended and are not in it.")
    one_file = output is None or (output.suffix == ".json" and not output.is_dir())
    if one_file and len(index.files) > 1:
        spaces = some_of([one.space for one in index.files])
        raise SeveralSpaces(name=index.campaign, count=len(index.files), spaces=spaces)
    # A server's names lead nowhere else than into the folder.
    paths = {one.name: output if one_file or output is None else output / Path(one.name).name for one in index.files}
    for path in paths.values():
        if path is not None and not one_file:
            require_new(path, force=force)
    for one in index.files:
        path = paths[one.name]
        if path is not None and not one_file:
            with writable(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
        write(archive.read(one.name).decode(), path, force=force)
        if path is not None:
            remarks.print(f"{one.results:,} results of {one.space} in {path}", markup=False)
