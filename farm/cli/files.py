"""Write the output of a command to a file or to stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from farm.atomic_write import replacing, require_new, writable, write_text
from farm.cli.output import remarks
from farm.cli.streams import reader_left
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


class _ReaderLeft(Exception):
    """The reader of stdout has gone away."""


class _Stdout:
    """Takes UTF-8 for stdout, a text at a time. Raises `_ReaderLeft`."""

    def write(self, text: bytes) -> int:
        write(text.decode(), None, force=False)
        if reader_left():
            raise _ReaderLeft
        return len(text)


@contextmanager
def stdout() -> Iterator[IO[bytes]]:
    """A file that writes UTF-8 to stdout, a text at a time. The block ends when the reader of stdout has gone away."""
    with suppress(_ReaderLeft):
        yield cast(IO[bytes], _Stdout())


def write_export(export: Export, output: Path | None, *, folder: bool, force: bool) -> None:
    """Writes the files to stdout, a file or a folder, which is made. No file has its name before all of them are complete.

    Call it while the farm of the export is open. Raises `BadInput`, `FileThere` without `force`, and errors of the farm.
    """
    from farm.cli.progress import counting  # it imports the farm's API

    paths = [] if output is None else [output / file.name if folder else output for file in export.files]
    for path in paths:
        require_new(path, force=force)
    for remark in export.remarks:
        remarks.print(remark, markup=False)
    if output is None:
        with stdout() as written:
            for file in export.files:
                file.write(written, lambda _: None)
        return
    lines = list[str]()
    with ExitStack() as drafts:
        for path, file in zip(paths, export.files, strict=True):
            if folder:
                drafts.enter_context(_folder(path.parent, output))
            draft = drafts.enter_context(replacing(path, force=force))
            with draft.open("wb") as written, counting(file.what, None) as done:
                count = file.write(written, done)
            lines.append(f"{count:,} {file.what} in {path}")
    for line in lines:
        remarks.print(line, markup=False)


@contextmanager
def _folder(path: Path, output: Path) -> Iterator[None]:
    """Makes a folder and those above it, and removes what it made of them if the block fails. Raises `BadInput`."""
    made = [one for one in (path, *path.parents) if not one.exists()]
    with writable(output):
        path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for one in made:
            with suppress(OSError):
                one.rmdir()
        raise
