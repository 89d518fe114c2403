"""The paper's first experiment, tiles of a shared-memory kernel, on every card of this host.

    python -m benchmarks.paper_tiled [--seconds 150] [--recordings FOLDER]
    python -m benchmarks.paper_tiled --device recorded --gpus 2 --seconds 30      a trial without a GPU: made-up answers

Two campaigns through a farm of its own, with power: `paper-tiled`, the paper's 27 shapes with ten tiles, and
`paper-all-tiles`, every tile from 1 to 32 on three of these shapes. When the seconds are over the rest is cancelled, and
what was measured is reported. Seconds are from submitting to the last landed row, starting the workers not included.

The rows of each campaign are kept as `<device type>-<campaign>.parquet`: a recording, as `farm results` exports it, whose
metadata say which cards, which versions, under what clocks, when, and by what command. The figures are those of
`farm analyze tiles` over that file. Beside them stands what the paper's own measurements say: see farm/analysis/paper.py.
Its 15.5 seconds for a configuration are from its published run of 16,128 of the CUTLASS profiler in 69 hours.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from benchmarks.common import RESULTS, end_like_interrupted, markdown, write
from benchmarks.farms import choose_devices, farm_home, measure_for, programs, store
from benchmarks.recordings import export
from farm.analysis.paper import PAPER_SOURCE, compare_with_paper
from farm.analysis.tile_recording import read_recording
from farm.analysis.tiles import DeviceTiles, ProblemTiles, analyze
from farm.campaign import load
from farm.db import campaigns
from farm.services.stack import Stack

EXAMPLES = Path(__file__).parents[1] / "examples" / "campaigns"
FILES = {name: EXAMPLES / f"{name}.yaml" for name in ("paper-tiled", "paper-all-tiles")}

PAPER_SECONDS_PER_CONFIGURATION = 15.5

MADE_UP_JOB_SECONDS = 0.05

# --- measuring ---------------------------------------------------------------------------------------


def measure(engine: Engine, stack: Stack, seconds: float) -> tuple[dict[str, dict[str, int]], float]:
    """Both campaigns to their end, for so many seconds, or until interrupted.

    Returns by campaign what became of its jobs, and the seconds in all.
    """
    began = time.monotonic()
    ids = {name: store(engine, load(file, limit=10**5)) for name, file in FILES.items()}
    took = measure_for(engine, stack, list(ids.values()), seconds, began)
    with engine.connect() as connection:
        return {name: campaigns.counts(connection, i) for name, i in ids.items()}, took


# --- figures -----------------------------------------------------------------------------------------


def of_problem(problem: ProblemTiles) -> dict[str, Any]:
    """Best tiles of a problem, and what they change against the baseline, in percent and times."""
    fast, thrifty = problem.fastest, problem.thriftiest
    found: dict[str, Any] = {"problem": problem.label, "tiles": len(problem.points), "baseline": problem.baseline}
    for name, point in (("fastest", fast), ("thriftiest", thrifty)):
        if point is not None:
            found[name] = {
                **{key: getattr(point, key) for key in ("tile", "runtime_ms", "tflops", "power_w", "energy_mj")},
                "speed_up": problem.speed_up(point),
                "power_change_pct": problem.power_change_pct(point),
                "energy_change_pct": problem.energy_change_pct(point),
            }
    trade = problem.trade
    return {**found, "trade": None if trade is None else asdict(trade)}


def of_study(study: DeviceTiles) -> dict[str, Any]:
    """All problems of a device type, the summary over them by tile, and the paper's for the tiles that both have."""
    beside = [
        {
            "tile": b.here.tile,
            "speed_up": b.here.speed_up,
            "paper_speed_up": b.paper_speed_up,
            "energy_ratio": b.here.energy_ratio,
            "paper_energy_ratio": b.paper_energy_ratio,
            "fastest": f"{b.here.fastest} of {b.here.problems}",
            "paper_fastest": f"{b.paper.fastest} of {b.paper.problems}",
            "thriftiest": f"{b.here.thriftiest} of {b.here.problems}",
            "paper_thriftiest": f"{b.paper.thriftiest} of {b.paper.problems}",
        }
        for b in compare_with_paper(study.summary, study.baseline)
    ]
    return {
        "device_type": study.device_type,
        "devices": study.devices,
        "rows": study.rows,
        "baseline": study.baseline,
        "problems": [of_problem(problem) for problem in study.problems],
        "by_tile": [asdict(summary) for summary in study.summary],
        "beside_paper": beside,
    }


def figures(
    studies: Mapping[str, DeviceTiles], counts: Mapping[str, Mapping[str, int]], seconds: float, devices: int
) -> dict[str, Any]:
    """Everything. `counts` and `seconds` are of the campaigns, `studies` of those that have rows."""
    done = sum(count["done"] for count in counts.values())
    return {
        "seconds": round(seconds, 1),
        "devices": devices,
        "configurations": done,
        "device_seconds_per_configuration": round(seconds * devices / done, 3) if done else None,
        "seconds_per_configuration": round(seconds / done, 3) if done else None,
        "paper_seconds_per_configuration": PAPER_SECONDS_PER_CONFIGURATION,
        "jobs": {name: dict(count) for name, count in counts.items()},
        "paper_source": PAPER_SOURCE,
        "studies": {name: of_study(study) for name, study in studies.items()},
    }


def _cells(values: Sequence[Any]) -> list[Any]:
    return ["-" if value is None else value for value in values]


def table(found: Mapping[str, Any]) -> str:
    left = sum(sum(count.values()) - count["done"] for count in found["jobs"].values())
    said = (
        f"{found['configurations']:,} configurations with power in {found['seconds']:g} s on {found['devices']} devices"
        + (f" ({left:,} more were not measured)" if left else "")
        + f": {found['device_seconds_per_configuration']} device seconds for each. The paper took "
        f"{PAPER_SECONDS_PER_CONFIGURATION} s for each of its own."
    )
    for name, study in found["studies"].items():
        rows = []
        for one in study["problems"]:
            fast, thrifty = one.get("fastest") or {}, one.get("thriftiest") or {}
            mine = ("tile", "runtime_ms", "power_w", "energy_mj", "speed_up", "power_change_pct", "energy_change_pct")
            rows.append(_cells([one["problem"], *(fast.get(key) for key in mine), thrifty.get("tile")]))
        names = ["problem", "fastest tile", "ms", "W", "mJ", "speed-up", "power %", "energy %", "least energy: tile"]
        said += f"\n\n{name} on {study['device_type']}, against tile {study['baseline']}:\n\n" + markdown(names, rows)
        if study["beside_paper"]:
            keys = list(study["beside_paper"][0])
            said += f"\n\nBeside the paper ({PAPER_SOURCE}):\n\n"
            said += markdown(
                [key.replace("_", " ") for key in keys], [_cells(list(b.values())) for b in study["beside_paper"]]
            )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0, help="of measuring at the most")
    parser.add_argument("--gpus", type=int, default=64, help="cards to use at the most")
    parser.add_argument("--recordings", type=Path, default=RESULTS, help="folder of the recordings")
    parser.add_argument("--device", choices=("cuda", "recorded"), default="cuda")
    parser.add_argument("--result", default="paper_tiled", help="name of the files in results/")
    asked = parser.parse_args()
    end_like_interrupted()
    most = asked.gpus if asked.device == "cuda" else min(asked.gpus, 2)
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        words = choose_devices(asked.device, most, list(FILES.values()), Path(folder), MADE_UP_JOB_SECONDS)
        with farm_home(FARM_DEVICES=",".join(words)) as (urls, engine):
            with programs(urls, engine, words) as stack:
                counts, seconds = measure(engine, stack, asked.seconds)
            recordings = {name: export(name, asked.recordings) for name, count in counts.items() if count["done"]}
    studies = {name: analyze(read_recording(file)[0])[0] for name, file in recordings.items() if file is not None}
    found = figures(studies, counts, seconds, len(words))
    write(asked.result, found, table(found), repetitions=1)


if __name__ == "__main__":
    main()
