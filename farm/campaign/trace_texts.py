"""The text of a trace, which travels with a campaign file: its GEMMs, and not what the program recorded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.errors import BadTrace
from farm.kernels import problem_line

GEMMS_SUFFIX = "#gemms"
"""Follows the name of a trace among the names of files."""


def trace_text(path: Path) -> str:
    """The GEMMs of a trace with their counts, and what people should know of them, as JSON. Raises `ValueError`."""
    from farm.traces.formats import read_trace  # few campaigns need the readers

    try:
        trace = read_trace(path)
    except BadTrace as error:
        raise ValueError(str(error)) from None
    counts = defaultdict[str, float](float)
    for gemm in trace.gemms:
        counts[problem_line(gemm.problem, scalars=False)] += gemm.count
    return json.dumps({"gemms": counts, "notes": [f"{path}, {trace.format}: {note}" for note in trace.notes()]})


def gemms_in(text: str, name: str) -> Mapping[str, Any]:
    """The counts by problem of such a text. Raises `ValueError`."""
    try:
        gemms = json.loads(text)["gemms"]
    except (ValueError, RecursionError, KeyError, TypeError):
        gemms = None
    if not isinstance(gemms, dict):
        raise ValueError(f"{name} was not sent as farm submit sends a trace")  # noqa: TRY004
    return gemms


def notes_of(texts: Mapping[str, str]) -> Iterator[str]:
    """What people should know of the traces among the texts of files, by name."""
    for name, text in texts.items():
        if name.endswith(GEMMS_SUFFIX):
            yield from json.loads(text)["notes"]
