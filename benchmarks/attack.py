"""Runs every attack of tests/security against farms that it starts, and counts those that held. `make attack` calls it.

Each test there is one attack or more; the file's name is its subject. An attack counts as held where its test passes. One
that could not be tried (a skipped test) does not: it is listed by itself, and the run fails as with one that got through.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.common import end_like_interrupted, write

ROOT = Path(__file__).parent.parent
ATTACKS = "tests/security"


@dataclass(frozen=True, slots=True)
class Attack:
    """One test of an attack, and what came of it."""

    subject: str
    name: str
    outcome: str  # held, got through, not tried


def attacks_of(report: Path) -> list[Attack]:
    """The attacks of a report in JUnit's form, as pytest writes it."""
    return [
        Attack(_subject(case.get("classname", "")), case.get("name", ""), _outcome(case))
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]


def _subject(module: str) -> str:
    return module.rpartition(".")[2].removeprefix("test_").replace("_", " ")


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "got through"
    return "not tried" if "skipped" in kinds else "held"


def figures_of(attacks: Sequence[Attack]) -> dict[str, object]:
    """`tried` and `held` in all and by subject, and the names of those that did not hold."""
    return {
        **_counts(attacks),
        "subjects": {
            subject: _counts([one for one in attacks if one.subject == subject])
            for subject in sorted({one.subject for one in attacks})
        },
        "got_through": [f"{one.subject}: {one.name}" for one in attacks if one.outcome == "got through"],
        "not_tried": [f"{one.subject}: {one.name}" for one in attacks if one.outcome == "not tried"],
    }


def _counts(attacks: Sequence[Attack]) -> dict[str, int]:
    outcomes = Counter(one.outcome for one in attacks)
    return {"tried": len(attacks) - outcomes["not tried"], "held": outcomes["held"]}


def table_of(subjects: Mapping[str, Mapping[str, int]]) -> str:
    """The figures by subject as a Markdown table."""
    lines = ["| attacks on | tried | held |", "| --- | ---: | ---: |"]
    lines += [f"| {subject} | {counts['tried']} | {counts['held']} |" for subject, counts in subjects.items()]
    every = {name: sum(counts[name] for counts in subjects.values()) for name in ("tried", "held")}
    return "\n".join([*lines, f"| all | {every['tried']} | {every['held']} |"])


def main() -> None:
    end_like_interrupted()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *sys.argv[1:], ATTACKS]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "CI": "1"}, check=False)
        if not report.exists():
            raise SystemExit(done.returncode or 1)
        attacks = attacks_of(report)
    figures = figures_of(attacks)
    write("attack", figures, table_of(figures["subjects"]), repetitions=1)  # type: ignore[arg-type]
    if figures["tried"] != figures["held"] or figures["not_tried"] or not attacks or done.returncode:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
