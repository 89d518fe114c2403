"""What an exporter is: a format in which `farm results` writes measurements."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from farm.api import Farm
from farm.api.results import Results, pages

Done = Callable[[int], None]
"""Receives the number of rows that are written."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export: its name in a folder, and how many of what it has, such as `rows`."""

    name: str
    content: bytes
    count: int
    what: str

    def write(self, file: IO[bytes], done: Done) -> int:
        file.write(self.content)
        return self.count


@dataclass(frozen=True, slots=True)
class StreamedFile:
    """A file of an export that is written while its rows are read, so that memory never holds all of them.

    Attributes:
        write: Writes to a file, calls the function with the number of rows after each page, and returns how many there are.
    """

    name: str
    write: Callable[[IO[bytes], Done], int]
    what: str


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export, and what the user must know about them. A streamed file needs the farm until it is written."""

    files: Sequence[ExportedFile | StreamedFile]
    remarks: Sequence[str] = ()


def contents(export: Export) -> dict[str, bytes]:
    """The files of an export by name, in memory. A streamed file can be read once."""
    found = dict[str, bytes]()
    for one in export.files:
        file = io.BytesIO()
        one.write(file, lambda _: None)
        found[one.name] = file.getvalue()
    return found


class Exporter(ABC):
    """A format.

    Attributes:
        format: Its name for `--format`. A file whose name ends in it has the format.
        meaning: What it holds, for the help of `--format`, where the name alone does not say so.
        binary: Whether a terminal cannot show it.
        folder_suffix: For a format that has several files: the ending of `--output` that means one file and not a folder.
    """

    format: ClassVar[str]
    meaning: ClassVar[str] = ""
    binary: ClassVar[bool] = False
    folder_suffix: ClassVar[str | None] = None

    def one_file(self, output: Path | None) -> bool:
        """Whether that output takes one file; a folder takes several."""
        return (
            output is None
            or self.folder_suffix is None
            or (output.suffix == self.folder_suffix and not output.is_dir())
        )

    def check(self, query: Mapping[str, Any], limit: int | None) -> None:  # noqa: B027 - most formats hold any query
        """Raises `BadInput` for a query that the format cannot hold."""

    @abstractmethod
    def export(self, farm: Farm, query: Mapping[str, Any], limit: int | None, *, one_file: bool) -> Export:
        """The export.

        Args:
            query: The arguments of the operation `farm.api.results.rows` by name.
            limit: The most rows. None: all.
            one_file: Whether the export must be one file.
        """


class RowExporter(Exporter):
    """A format that has one file of rows."""

    with_commands: ClassVar[bool] = False

    @abstractmethod
    def write(self, pages: Iterable[Results], file: IO[bytes]) -> None:
        """Writes the rows of at least one page to a file, which may be a pipe. Memory should hold one page at a time."""

    def content(self, results: Results) -> bytes:
        """A file of these rows."""
        file = io.BytesIO()
        self.write([results], file)
        return file.getvalue()

    def export(self, farm: Farm, query: Mapping[str, Any], limit: int | None, *, one_file: bool) -> Export:
        def write(file: IO[bytes], done: Done) -> int:
            counted = CountedPages(pages(farm, limit, **query, commands=self.with_commands), done)
            self.write(counted, file)
            return counted.rows

        return Export([StreamedFile(f"results.{self.format}", write, "rows")])


class CountedPages:
    """Pages, and how many rows were taken of them."""

    def __init__(self, pages: Iterable[Results], done: Done) -> None:
        self._pages, self._done, self.rows = pages, done, 0

    def __iter__(self) -> Iterator[Results]:
        for page in self._pages:
            yield page
            self.rows += len(page.rows)
            self._done(self.rows)
