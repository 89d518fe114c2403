"""Exporters: one module per format of exported results, and per tool that reads tuned kernels, registered here."""

from __future__ import annotations

from farm.exporters.block_linears import Sglang, Vllm
from farm.exporters.command_lines import Commands
from farm.exporters.csv_rows import CsvRows
from farm.exporters.exporter import Exporter, RowExporter
from farm.exporters.inductor import Inductor
from farm.exporters.json_lines import JsonLines
from farm.exporters.json_rows import JsonRows
from farm.exporters.parquet_rows import ParquetRows
from farm.exporters.t4_files import T4Files
from farm.exporters.tuned import TunedFormat

EXPORTERS: dict[str, Exporter] = {
    exporter.format: exporter for exporter in (CsvRows(), ParquetRows(), JsonRows(), JsonLines(), Commands(), T4Files())
}
"""By the name of the format."""

TUNED: dict[str, TunedFormat] = {one.name: one for one in (Vllm(), Sglang(), Inductor())}
"""By the name of the tool."""
