"""Formats of foreign measurements: what an importer declares, and the name of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.importers.landing import Table


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format of foreign measurements, and the command `farm import NAME`. The module of each `Format` declares one.

    Attributes:
        name: The name of the command.
        files: What its files are, for the help text.
        help: The help text of the command.
        look: Looks at the head of a file, whose path it takes. Raises `BadRecording` and `MissingColumns`.
        device: The default of the option `--device`, which `look` takes as `device`; without it there is no such option.
    """

    name: str
    files: str
    help: str
    look: Callable[..., Table]
    device: str | None = None


class Format(StrEnum):
    """Every format, by the name of its module in this package, in the order of the commands."""

    DATASET = "dataset"
    GPPERF = "gpperf"
    AICONFIGURATOR = "aiconfigurator"


def importer_of(file_format: Format) -> Importer:
    """What the module of a format declares."""
    found: Importer = import_module(f"farm.importers.{file_format}").IMPORTER
    return found
