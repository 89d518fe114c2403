"""What an exporter is: a format in which `farm results` writes measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from farm.api import Farm
from farm.api.results import Results, all_rows


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export: its name in a folder, and how many of what it has, such as `rows`."""

    name: str
    content: bytes
    count: int
    what: str


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export, and what the user must know about them."""

    files: Sequence[ExportedFile]
    remarks: Sequence[str] = ()


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
    def content(self, results: Results) -> bytes: ...

    def export(self, farm: Farm, query: Mapping[str, Any], limit: int | None, *, one_file: bool) -> Export:
        results = all_rows(farm, limit, **query, commands=self.with_commands)
        return Export([ExportedFile(f"results.{self.format}", self.content(results), len(results.rows), "rows")])
