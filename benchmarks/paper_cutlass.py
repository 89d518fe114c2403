"""The paper's second experiment, 16,128 CUTLASS GEMMs, on every card of this host, through a farm of its own.

    farm kernels build examples/campaigns/paper-cutlass.yaml --arch sm_90a -o kernels     anywhere; then here:
    python -m benchmarks.paper_cutlass --kernels kernels [--seconds 540] [--earlier FOLDER]
    python -m benchmarks.paper_cutlass --device recorded --gpus 2 --seconds 30            a trial without a GPU: made-up answers

Postgres, Redis, Celery, and a worker for each card. Each configuration is verified and timed; the campaign's rules say for
which share of them power is read, chosen by their hash. When the seconds are over the rest is cancelled, and what was
measured is reported and kept as `<device type>-paper-cutlass.parquet`, a recording. With `--earlier`, a folder that has such
files of earlier runs, what those measured is left out, and files and figures are of all runs together.

Seconds are from submitting to the last landed row; starting the workers, and building the kernels, are not in them. Duty is
the share of time between the first claim and the last landing in which cards were inside measurements.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import Engine

from benchmarks.common import RESULTS, end_like_interrupted, markdown, write
from benchmarks.farms import measured
from benchmarks.recordings import configuration_of, export, together
from farm.builds.cache import KernelCache
from farm.builds.stores import DatabaseStore
from farm.campaign import Campaign, load, plan
from farm.db import campaigns, duty, jobs, kernels

CAMPAIGN = Path(__file__).parents[1] / "examples" / "campaigns" / "paper-cutlass.yaml"
PAPER_HOURS, PAPER_CONFIGURATIONS = 69, 16_128
MADE_UP_JOB_SECONDS = 0.05


def add_kernels(engine: Engine, folder: Path | None) -> None:
    """Puts every kernel of a folder, where one is given, into the farm's store, as `farm kernels add` does.

    Ends the benchmark where none is there.
    """
    if folder is None:
        return
    cache, store = KernelCache(folder), DatabaseStore(engine)
    count = 0
    for record in list(cache.records()):
        built = cache.get(record.hash)
        if built is not None:
            store.put(record.hash, built.code)
            with engine.begin() as connection:
                kernels.add(
                    connection,
                    record.binary,
                    record.versions,
                    record=record.model_dump(),
                    signature=built.signature,
                    builder="elsewhere",
                )
            count += 1
    if not count:
        sys.exit(f"{folder} has no kernels: farm kernels build CAMPAIGN --arch sm_90a -o {folder} puts them there.")
    print(f"{count} kernels were added.", file=sys.stderr)


def measured_before(recording: Path | None) -> set[str]:
    """The configurations of an earlier recording, by their canonical form."""
    if recording is None or not recording.exists():
        return set()
    return {configuration_of(row).canonical for row in pq.read_table(recording).to_pylist()}


def submit(engine: Engine, campaign: Campaign, without: set[str]) -> int:
    """The campaign without what is measured already; its id."""
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        planned = plan(campaign, known, allow_missing=False).jobs()
        left = (job for job in planned if job.configuration.canonical not in without)
        return campaigns.store(connection, campaign, left).campaign_id


def run_of(engine: Engine, campaign_id: int, seconds: float, devices: int) -> dict[str, Any]:
    """What one run came to."""
    with engine.connect() as connection:
        counts = campaigns.counts(connection, campaign_id)
        shares = duty.of_campaign(connection, campaign_id)
        failures = jobs.failures_by_kind(connection, campaign_id)
    known = [one.share for one in shares if one.share is not None]
    return {
        "wall_s": round(seconds, 1),
        "gpus": devices,
        "configurations": counts["done"],
        "failed": counts["invalid"] + counts["dead"],
        "failures_by_class": failures,
        "duty_pct": round(100 * sum(known) / len(known), 2) if known else None,
        "not_measured": counts["cancelled"],
    }


def figures(runs: Sequence[Mapping[str, Any]], with_power: int) -> dict[str, Any]:
    """All runs together."""
    done, wall = sum(run["configurations"] for run in runs), sum(run["wall_s"] for run in runs)
    gpu_seconds = sum(run["wall_s"] * run["gpus"] for run in runs)
    weighted = [(run["duty_pct"], run["configurations"]) for run in runs if run["duty_pct"] is not None]
    weight = sum(count for _, count in weighted)
    return {
        "configurations": done,
        "failed": sum(run["failed"] for run in runs),
        "not_measured": runs[-1]["not_measured"],
        "wall_s": round(wall, 1),
        "gpus": max(run["gpus"] for run in runs),
        "gpu_seconds": round(gpu_seconds, 1),
        "configurations_per_second_per_gpu": round(done / gpu_seconds, 3) if gpu_seconds else None,
        "duty_pct": round(sum(share * count for share, count in weighted) / weight, 2) if weight else None,
        "with_power": with_power,
        "paper_hours": PAPER_HOURS,
        "paper_configurations": PAPER_CONFIGURATIONS,
        "runs": [dict(run) for run in runs],
    }


def table(found: Mapping[str, Any]) -> str:
    keys = ("wall_s", "gpus", "configurations", "failed", "not_measured", "duty_pct")
    rows = [
        [number, *("-" if run[key] is None else run[key] for key in keys)]
        for number, run in enumerate(found["runs"], 1)
    ]
    return (
        f"{found['configurations']:,} of {found['configurations'] + found['failed'] + found['not_measured']:,} configurations, "
        f"{found['with_power']:,} of them with power, in {found['wall_s'] / 60:.1f} minutes: "
        f"{found['configurations_per_second_per_gpu']} per second and card. "
        f"The paper took {PAPER_HOURS} hours for {PAPER_CONFIGURATIONS:,}, on one card.\n\n"
        + markdown(["run", *(key.replace("_", " ") for key in keys)], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, help="folder of the built kernels")
    parser.add_argument("--seconds", type=float, default=540.0, help="of measuring at the most")
    parser.add_argument("--gpus", type=int, default=64, help="cards to use at the most")
    parser.add_argument("--recordings", type=Path, default=RESULTS, help="folder of the recording")
    parser.add_argument("--earlier", type=Path, help="folder of the files of earlier runs")
    parser.add_argument("--device", choices=("cuda", "recorded"), default="cuda")
    parser.add_argument("--result", default="paper_cutlass", help="name of the files in results/")
    asked = parser.parse_args()
    end_like_interrupted()
    campaign = load(CAMPAIGN, limit=10**5)
    most = asked.gpus if asked.device == "cuda" else min(asked.gpus, 2)
    earlier = (
        None if asked.earlier is None else next(iter(sorted(asked.earlier.glob(f"*-{campaign.name}.parquet"))), None)
    )
    runs = [] if asked.earlier is None else json.loads((asked.earlier / f"{asked.result}.json").read_text())["runs"]
    on = {
        "kind": asked.device,
        "most": most,
        "seconds": asked.seconds,
        "files": [CAMPAIGN],
        "job_seconds": MADE_UP_JOB_SECONDS,
    }
    with measured(
        lambda engine: submit(engine, campaign, measured_before(earlier)),
        prepare=lambda engine: add_kernels(engine, asked.kernels),
        **on,
    ) as done:
        runs.append(run_of(done.engine, done.campaign_id, done.seconds, done.devices))
        recording = export(campaign.name, done.folder / "now")
        if recording is not None:
            if earlier is not None:
                together(earlier, recording)
            asked.recordings.mkdir(parents=True, exist_ok=True)
            recording = Path(shutil.move(recording, asked.recordings / recording.name))
    power = (
        0 if recording is None else sum(watts is not None for watts in pq.read_table(recording)["power_w"].to_pylist())
    )
    found = figures(runs, power)
    write(asked.result, found, table(found), repetitions=len(runs))


if __name__ == "__main__":
    main()
