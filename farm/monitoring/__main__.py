"""Prints the metrics as the Markdown table of docs/watching.md."""

from __future__ import annotations

import sys

from farm.metrics import PREFIX
from farm.monitoring.catalogue import metrics


def markdown() -> str:
    """A table of every metric: name without its prefix, type, unit, labels, program and meaning."""
    lines = ["| metric | type | unit | labels | program | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for one in metrics():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        name = one.name.removeprefix(PREFIX)
        lines.append(f"| `{name}` | {one.type} | {one.unit} | {labels} | {one.program} | {one.meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
