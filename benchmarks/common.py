"""What every benchmark shares: the machine it ran on, and its figures as JSON beside a readable table."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from farm.errors import FarmError
from workers.devices import open_device
from workers.devices.cards import find_cards

RESULTS = Path(__file__).parent / "results"


def cards() -> list[str]:
    """The cards of this host, as `4 x NVIDIA H200, driver 580.159.04`; none where CUDA cannot be used."""
    try:
        found = Counter((card.name, card.facts["driver"]) for card in find_cards())
    except FarmError:
        return []
    return [f"{count} x {name}, driver {driver}" for (name, driver), count in found.items()]


@contextmanager
def first_card() -> Iterator[Any]:
    """The first card of this host, open inside the block."""
    device = open_device(find_cards()[0])
    device.open()
    try:
        yield device
    finally:
        device.close()


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
        **({"gpus": found} if (found := cards()) else {}),
    }


def command() -> str:
    """How this benchmark was called, less what says only where recordings go."""
    words = ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
    if "--recordings" in words:
        at = words.index("--recordings")
        del words[at : at + 2]
    return shlex.join(words)


def end_like_interrupted() -> None:
    """SIGTERM ends this process as Ctrl-C does, so that what it started is stopped and what it has is written."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def heading(about: Mapping[str, Any]) -> str:
    """What was called, on which machine and when, as a result says it: the beginning of its first line."""
    machine = about["machine"]
    on = ", ".join([*machine.get("gpus", []), f"{machine['cpus']} x {machine['cpu']}"])
    return f"`{about['command']}` on {on}, {about['date']}"


def write(name: str, figures: Mapping[str, Any], table: str, *, repetitions: int, show: bool = True) -> None:
    """Writes `results/<name>.json` and `results/<name>.md`, and prints the table unless `show` is false."""
    RESULTS.mkdir(exist_ok=True)
    about: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(),
        "repetitions": repetitions,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **figures}, indent=1) + "\n")
    head = f"{heading(about)}, {repetitions} repetitions, medians\n\n"
    (RESULTS / f"{name}.md").write_text(head + table + "\n")
    if show:
        print(head + table)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; numbers with three significant digits."""

    def cell(value: Any) -> str:
        return f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else (
            f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)
        )  # fmt: skip

    lines = [columns, ["---"] * len(columns), *([cell(v) for v in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def at_sizes(about: str, name: str, of_size: Callable[[int, int], dict[str, Any]], columns: Mapping[str, str]) -> None:
    """A benchmark at several numbers of measurements: `of_size` takes one and how often to repeat. Columns name its figures.

    The figures in seconds of the largest size are the headline.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="measurements")
    parser.add_argument("--repetitions", type=int, default=5)
    asked = parser.parse_args()
    sizes = {rows: of_size(rows, asked.repetitions) for rows in asked.rows}
    table = markdown(
        ["measurements", *columns], [[rows, *(of[key] for key in columns.values())] for rows, of in sizes.items()]
    )
    headline = {key: value for key, value in sizes[max(sizes)].items() if key.endswith("_s")}
    write(name, {**headline, "sizes": {str(n): of for n, of in sizes.items()}}, table, repetitions=asked.repetitions)
