"""Reads the costs of operations that are no GEMMs from a file of the user."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.api.operation import checked
from farm.api.plans import OtherOfStep
from farm.errors import BadInput

MAX_BYTES = 2**20
"""The largest file, 1 MiB."""

COLUMNS = tuple(OtherOfStep.model_fields)


def read_others(path: Path) -> list[OtherOfStep]:
    """The rows of a CSV file, or of a JSON or YAML list of mappings. Raises `BadInput`, with the place."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(detail=f"{path} is larger than {MAX_BYTES:,} bytes.")
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark of the encoding
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(detail=f"{path} cannot be read: {error}") from None
    rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _listed(path, text)
    if not rows:
        raise BadInput(detail=f"{path} has no rows. Its columns are {', '.join(COLUMNS)}; name and ms are required.")
    return [_row(path, number, row) for number, row in enumerate(rows, 1)]


def _csv_rows(path: Path, text: str) -> list[Any]:
    """Each row with the cells that are not empty. Raises `BadInput`, also for a row with more cells than columns: `1,5` for 1.5."""
    try:
        rows = list(csv.DictReader(text.strip().splitlines()))
    except csv.Error as error:
        raise BadInput(detail=f"{path} cannot be read: {error}") from None
    for number, row in enumerate(rows, 1):
        if None in row:
            raise BadInput(
                detail=f"{path}, row {number}: there are more cells than columns. Write decimals with a point."
            )
    return [{name.strip(): value.strip() for name, value in row.items() if value and value.strip()} for row in rows]


def _listed(path: Path, text: str) -> list[Any]:
    import yaml

    try:
        found = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise BadInput(detail=f"{path} cannot be read: {error}") from None
    if not isinstance(found, list):
        raise BadInput(detail=f"{path}: write a list of mappings with {', '.join(COLUMNS)}.")
    return found


def _row(path: Path, number: int, row: object) -> OtherOfStep:
    if not isinstance(row, Mapping):
        raise BadInput(detail=f"{path}, row {number}: write a mapping with {', '.join(COLUMNS)}, not {row!r}.")
    if unknown := [str(name) for name in row if name not in COLUMNS]:
        raise BadInput(detail=f"{path}, row {number}: there is no column {unknown[0]!r}; use {', '.join(COLUMNS)}.")
    try:
        return checked(OtherOfStep, **row)
    except BadInput as error:
        raise BadInput(detail=f"{path}, row {number}: {error}") from None
