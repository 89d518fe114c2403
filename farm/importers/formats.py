"""Every format of foreign measurements, each with a module of this package."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module

from farm.importers.importer import Importer


class Format(StrEnum):
    """The names of the modules, in the order of the commands."""

    DATASET = "dataset"
    GPPERF = "gpperf"
    AICONFIGURATOR = "aiconfigurator"


def importer_of(file_format: Format) -> Importer:
    """What the module of a format declares."""
    found: Importer = import_module(f"farm.importers.{file_format}").IMPORTER
    return found
