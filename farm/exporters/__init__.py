"""Exporters: one module per format of exported results, registered here."""

from __future__ import annotations

from farm.exporters.command_lines import Commands
from farm.exporters.csv_rows import CsvRows
from farm.exporters.exporter import Exporter, RowExporter
from farm.exporters.json_rows import JsonRows
from farm.exporters.parquet_rows import ParquetRows
from farm.exporters.t4_files import T4Files

EXPORTERS: dict[str, Exporter] = {
    exporter.format: exporter for exporter in (CsvRows(), ParquetRows(), JsonRows(), Commands(), T4Files())
}
"""By the name of the format."""
