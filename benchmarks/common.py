"""What every benchmark shares: the machine it ran on, and its figures as JSON beside a readable table."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The machine, as far as figures depend on it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "cpu": model,
        "cpus": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def write(name: str, figures: Mapping[str, Any], table: str, *, repetitions: int) -> None:
    """Writes `results/<name>.json` and `results/<name>.md`, and prints the table."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "repetitions": repetitions,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **figures}, indent=1) + "\n")
    m = about["machine"]
    head = f"`{about['command']}` on {m['cpus']} x {m['cpu']}, {about['date']}, {repetitions} repetitions, medians\n\n"
    (RESULTS / f"{name}.md").write_text(head + table + "\n")
    print(head + table)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; numbers with three significant digits."""

    def cell(value: Any) -> str:
        return f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else (
            f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)
        )  # fmt: skip

    lines = [columns, ["---"] * len(columns), *([cell(v) for v in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
