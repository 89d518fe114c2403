"""Write the output of a command to a file or to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.atomic_write import require_new, writable, write_bytes, write_text
from farm.cli.output import remarks
from farm.control_characters import neutralised

if TYPE_CHECKING:
    from farm.exporters.exporter import Export

ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing files.", show_default=False)]


def write(text: str, output: Path | None, *, force: bool) -> None:
    """Writes a file completely or not at all, or writes to stdout. Raises `BadInput` and, without `force`, `FileThere`."""
    if output is None:
        sys.stdout.write(neutralised(text) if sys.stdout.isatty() else text)
    else:
        write_text(output, text, force=force)


def write_export(export: Export, output: Path | None, *, folder: bool, force: bool) -> None:
    """Writes the files to stdout, a file or a folder, which is made. Raises `BadInput`, and `FileThere` without `force`."""
    paths = [] if output is None else [output / file.name if folder else output for file in export.files]
    for path in paths:
        require_new(path, force=force)
    for remark in export.remarks:
        remarks.print(remark, markup=False)
    if output is None:
        for file in export.files:
            write(file.content.decode(), None, force=force)
        return
    for path, file in zip(paths, export.files, strict=True):
        if folder:
            with writable(output):
                path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, file.content, force=force)
        remarks.print(f"{file.count:,} {file.what} in {path}", markup=False)
