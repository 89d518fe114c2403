"""Compare two commits by the results of one benchmark that both ran in turn on one machine.

    python -m benchmarks.compare_commits landing --now NOW.json... --before BEFORE.json... --commit 521d314

Takes the JSON files that the runs wrote, and writes `results/<name>_beside.json` and `.md`: the median of each figure of the present
commit, and under `before` that of the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, heading, markdown

ABOUT = ("machine", "date", "command", "repetitions")


def leaves(figures: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """(path, figure) of each number."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, name))
        elif isinstance(value, (int, float)):
            yield (*path, name), value


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the runs, in the shape of one."""
    found: dict[str, Any] = {}
    for path, _ in leaves({name: value for name, value in runs[0].items() if name not in ABOUT}):
        values, into = list[float](), found
        for run in runs:
            at: Any = run
            for name in path:
                at = at[name]
            values.append(at)
        for name in path[:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = round(statistics.median(values), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the files in results/")
    parser.add_argument("--now", type=Path, nargs="+", required=True, help="results of the present commit")
    parser.add_argument("--before", type=Path, nargs="+", required=True, help="results of the other commit")
    parser.add_argument("--commit", required=True, help="the other commit")
    asked = parser.parse_args()
    now, before = ([json.loads(file.read_text()) for file in files] for files in (asked.now, asked.before))
    about = {**{name: now[0][name] for name in ABOUT}, "repetitions": len(now)}
    figures, others = medians(now), medians(before)
    result = {**about, **figures, "before": {"commit": asked.commit, "repetitions": len(before), **others}}
    (RESULTS / f"{asked.name}_beside.json").write_text(json.dumps(result, indent=1) + "\n")
    old = dict(leaves(others))
    lines = [
        [" ".join(path), float(value), float(old[path]), value / old[path] if old[path] else "-"]
        for path, value in leaves(figures)
        if path in old
    ]
    table = markdown(["figure", "now", f"at {asked.commit}", "now / before"], lines)
    runs = f"medians of {len(now)} runs and of {len(before)} at {asked.commit}, in turn or side by side"
    (RESULTS / f"{asked.name}_beside.md").write_text(f"{heading(about)}, {runs}\n\n{table}\n")
    print(table)


if __name__ == "__main__":
    main()
