"""How much of the grid's best does a search find, and for what share of the device time?

    python -m benchmarks.search [--gpus 8] [--power none] [--strategies halving,random] [--seconds 900]
    python -m benchmarks.search --campaign FILE          another grid; what it says of its search is left aside
    python -m benchmarks.search --device recorded        a trial without a GPU: made-up times
    python -m benchmarks.search --device cpu             a trial without a GPU: real times of a small grid

The same problems and kernels through a farm of its own on this host, once as the full grid and then by each strategy. By
default every tile of the tiled kernel for 108 problems; `random` draws as many kernels as `halving` measures again after
its first round.

  share_of_best_pct         by problem: the grid's best time over that of the kernel found, both from the grid's own rows, so
                            that it says which kernel was found and not how it was timed the second time
  share_of_device_time_pct  device time of all rows of the search (`cost_s`: preparing, verifying, timing, power), over that of
                            the grid's; the baseline, measured once in each, is in neither

A grid's best time is the least of many, each off by its error, so shares are a little too small rather than too large. A
recording answers in the same time whatever the rules are: what short rounds save is not in a trial's device time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import cancel, check, choose_devices, farm_home, is_over, programs, store
from farm.campaign import Campaign, Search, load
from farm.campaign.strategies import STRATEGIES, Halving, Random
from farm.db import campaigns
from farm.devices import DeviceKind, DeviceTraits
from farm.kernels import Configuration
from farm.provenance import Provenance
from farm.report.best import BestKernel, best
from farm.services.stack import Stack
from workers.devices.recording import write_recording

TILES = """
name: tiles
problems: {m: [128, 192, 256, 384, 512, 768], n: [128, 192, 256, 384, 512, 768], k: [256, 512, 1024], types: f32}
kernels: {family: tiled, tile: 1..32}
"""
THREADS = """
name: threads
problems: {m: [32, 64, 96, 128, 192, 256], n: [32, 64, 96, 128, 192, 256], k: [64, 128, 256], types: f32}
kernels: {family: blas, threads: 1..%d}
measure: {timing: {max_seconds: 0.1}}
"""


LISTED = ("grid", "random", "halving")
"""The strategies that look for the fastest kernel of listed problems."""


def asked_for(campaign: Campaign, strategy: str, search: Search) -> Campaign:
    """The campaign by that strategy; `search` is what halving is asked for."""
    kernels = campaign.kernel_count
    chosen: Search
    if strategy == "random":
        chosen = Random(kernels=min(kernels, max(1, sum(search.rounds(kernels)[1:]))))
    else:
        chosen = search if strategy == search.strategy else STRATEGIES[strategy].model_validate({"strategy": strategy})
    return campaign.changed(name=f"{campaign.name}-{strategy}", search=chosen)


def made_up(campaign: Campaign, folder: Path, devices: int) -> list[str]:
    """Words for FARM_DEVICES: recordings that answer the campaign with times that are made up, and differ by kernel.

    A job takes 5 ms. A time is what the tiles waste at the edges, times a number between 1 and 2 that belongs to the configuration.
    """

    def row(configuration: Configuration) -> dict[str, Any]:
        shape = configuration.problem.shape
        tile = dict(configuration.kernel.parameters).get("tile", 16)
        padded = -(-shape.m // tile) * -(-shape.n // tile) * tile**2 * shape.k
        chance = hashlib.sha256(configuration.canonical.encode()).digest()[0] / 255
        return {
            "configuration": configuration,
            "runtime_ms": 2e-9 * padded * (1 + chance) + 1e-3,
            "runtime_rse": 0.001,
            "cost_s": 0.005,
        }

    words = []
    for number in range(devices):
        path = folder / f"made-up-{number}.parquet"
        origin = Provenance(
            device_type="made-up",
            device_name="Made up",
            traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36),
            provenance=f"made up for a trial, {number + 1} of {devices}",
        )
        write_recording(path, map(row, campaign.expand()), origin)
        words.append(f"recorded:{path}?scale=1")
    return words


# --- measuring ---------------------------------------------------------------------------------------


def measure(engine: Engine, stack: Stack, campaign: Campaign, until: float) -> tuple[int, float] | None:
    """The campaign to its end; its id and the seconds that took. None where it was cancelled as the time was over."""
    began = time.monotonic()
    campaign_id = store(engine, campaign)
    while not is_over(engine, campaign_id):
        check(engine, stack)
        if time.monotonic() > until:
            cancel(engine, [campaign_id])
            return None
        time.sleep(0.1)
    return campaign_id, time.monotonic() - began


def found_by(engine: Engine, campaign_id: int, campaign: Campaign) -> tuple[list[BestKernel], dict[str, int]]:
    """What a campaign found, and what became of its jobs."""
    with engine.connect() as connection:
        return best(connection, campaign_id, campaign), campaigns.counts(connection, campaign_id)


# --- figures -----------------------------------------------------------------------------------------


def compared(found: Sequence[BestKernel], grid: Sequence[BestKernel]) -> dict[str, Any]:
    """A search beside the grid: how good what it found is, and what it cost."""
    shares = [100 * one.share_of_best for one in found if one.share_of_best is not None]
    spent, in_all = (sum(one.device_s for one in of) for of in (found, grid))
    return {
        "problems": len(shares),
        "share_of_best_pct": {
            "median": round(statistics.median(shares), 3),
            "mean": round(statistics.fmean(shares), 3),
            "worst": round(min(shares), 3),
        }
        if shares
        else None,
        "found_the_best": sum(share == 100 for share in shares),
        "share_of_device_time_pct": round(100 * spent / in_all, 2) if in_all else None,
        "device_s": round(spent, 2),
        "kernels_tried": sum(one.tried for one in found),
    }


def baseline_of(found: Sequence[BestKernel]) -> dict[str, Any]:
    """The best kernels beside cuBLASLt's own choice, in the median."""
    speed_ups = [one.speed_up for one in found if one.speed_up is not None]
    return {
        "problems_with_baseline": len(speed_ups),
        "median_speed_up_over_baseline": round(statistics.median(speed_ups), 4) if speed_ups else None,
    }


def table(figures: Mapping[str, Any]) -> str:
    """The strategies, one in each line; the grid is what the shares are of."""
    rows = [["grid", figures["grid"]["kernels_tried"], "100", "100", "-", figures["grid"]["device_s"], "100"]]
    for name, one in figures["strategies"].items():
        share = one["share_of_best_pct"] or {"median": "-", "worst": "-"}
        rows.append(
            [
                name, one["kernels_tried"], f"{share['median']}", f"{share['worst']}",
                f"{one['found_the_best']} of {one['problems']}", one["device_s"], f"{one['share_of_device_time_pct']}",
            ]
        )  # fmt: skip
    columns = [
        "strategy", "kernels tried", "share of best %, median", "worst", "best found", "device s", "share of device time %",
    ]  # fmt: skip
    said = f"{figures['grid']['problems']} problems, {figures['kernels']} kernels each, power {figures['power']}"
    return f"{figures['trial'] + chr(10) + chr(10) if figures['trial'] else ''}{said}:\n\n" + markdown(columns, rows)


TRIALS = {
    "cuda": None,
    "recorded": "A trial: the times are made up, and a recording answers short rounds no faster.",
    "cpu": "A trial on a CPU: real times of a small grid of threads.",
}


def read(asked: argparse.Namespace, folder: Path) -> Campaign:
    """The campaign to be searched, with the power that is asked for."""
    file = asked.campaign
    if file is None:
        file = folder / "grid.yaml"
        file.write_text(THREADS % max(2, os.cpu_count() or 2) if asked.device == "cpu" else TILES)
    campaign = load(file, limit=10**6)
    return campaign.changed(measure=campaign.measure.model_copy(update={"power": asked.power}), search=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaign", type=Path, help="a file whose problems and kernels are searched")
    parser.add_argument("--strategies", default="halving,random")
    parser.add_argument("--keep", type=float, default=Halving.model_fields["keep"].default)
    parser.add_argument("--finalists", type=int, help="4, or 1 on a CPU")
    parser.add_argument("--power", choices=("none", "all"), default="none")
    parser.add_argument("--seconds", type=float, default=900.0, help="of measuring at the most")
    parser.add_argument("--gpus", type=int, default=64, help="cards to use at the most")
    parser.add_argument("--device", choices=tuple(TRIALS), default="cuda")
    parser.add_argument("--result", help="name of the files in results/: search, or search_trial where it is one")
    asked = parser.parse_args()
    end_like_interrupted()
    finalists = asked.finalists or (1 if asked.device == "cpu" else Halving.model_fields["finalists"].default)
    halving = Halving(keep=asked.keep, finalists=finalists)
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        campaign = read(asked, folder)
        recorded = asked.device == "recorded"
        words = (
            made_up(campaign, folder, min(asked.gpus, 2))
            if recorded
            else choose_devices(asked.device, asked.gpus, [], folder, 0)
        )
        strategies = ["grid", *asked.strategies.split(",")]
        done: dict[str, tuple[list[BestKernel], dict[str, int], float]] = {}
        with farm_home(FARM_DEVICES=",".join(words)) as (urls, engine), programs(urls, engine, words) as stack:
            until = time.monotonic() + asked.seconds
            for strategy in strategies:
                wanted = asked_for(campaign, strategy, halving)
                ended = measure(engine, stack, wanted, until)
                if ended is None:
                    print(f"{strategy} was cancelled: the time is over.", file=sys.stderr)
                    break
                done[strategy] = (*found_by(engine, ended[0], wanted), ended[1])
    if "grid" not in done:
        sys.exit("The grid was not measured in that time: nothing to compare with.")
    grid, counts, seconds = done.pop("grid")
    figures = {
        "trial": TRIALS[asked.device],
        "devices": len(words),
        "device_types": sorted({one.device_type for one in grid}),
        "kernels": campaign.kernel_count,
        "power": asked.power,
        "halving": halving.to_document(),
        "grid": {
            "problems": len(grid),
            "kernels_tried": sum(one.tried for one in grid),
            "device_s": round(sum(one.device_s for one in grid), 2),
            "seconds": round(seconds, 1),
            "jobs": counts,
            **baseline_of(grid),
        },
        "strategies": {
            name: {**compared(found, grid), "seconds": round(took, 1), "jobs": jobs, **baseline_of(found)}
            for name, (found, jobs, took) in done.items()
        },
    }
    result = asked.result or ("search" if asked.device == "cuda" else "search_trial")
    write(result, figures, table(figures), repetitions=1)


if __name__ == "__main__":
    main()
