"""How much of the time does the farm keep a card inside a measurement, and where does the rest go?

    python -m benchmarks.duty [--gpus 1,2,4] [--campaigns tiled,cublaslt] [--power none,all] [--repetitions 2] [--seconds 12]
    python -m benchmarks.duty --device recorded --gpus 1,2 --campaigns tiled      a trial without a GPU: made-up answers
    python -m benchmarks.duty --device cpu --gpus 1 --campaigns examples/campaigns/quickstart.yaml

A farm of its own on this host: Postgres, Redis, the coordinator, and a worker for each of the first so many cards. Each
campaign (`tiled` and `cublaslt` are examples/campaigns/*-sweep.yaml, anything else is a file) is measured for so many
seconds after every card has landed its first batch, then cancelled; it must have work for longer than that.

A card's time is counted from the end of its first batch to the end of its last but one: the first is small and pays for
opening the card, and the last is cut. Shares of that time, summed over cards:
  duty                the rows' `window_s`: the card runs the configuration to be timed or to have its power read
  rest                the card must run nothing, after a kernel at its power limit and before a burst
  prepare and verify  the rest of their `cost_s`: compiling, filling operands, comparing with the reference, capturing
  claim, mark, land   the rest of a batch, from its claim to its end; failed jobs and jobs without a row are in it too
  wait                between two batches
Rows of the sentinel GEMM are among these rows; how much of the time they take is told too.
Beside it the mean time of one claim, mark and landing, from the workers' metrics over the whole campaign.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import cancel, check, choose_devices, farm_home, is_over, programs, store
from farm.campaign import Campaign, load
from farm.metrics import PREFIX
from farm.monitoring.worker_metrics import CLAIM, LAND, MARK
from farm.services.stack import Stack

EXAMPLES = Path(__file__).parents[1] / "examples" / "campaigns"
KNOWN = {"tiled": EXAMPLES / "tiled-sweep.yaml", "cublaslt": EXAMPLES / "cublaslt-sweep.yaml"}
TIMED = {"claim": CLAIM, "mark": MARK, "land": LAND}

FEWEST_BATCHES = 3
"""Of a card: the first, the last, and one that counts."""

PATIENCE_SECONDS = 30.0
"""How much longer than `--seconds` a campaign may take in all, until every card has landed its first batch included."""

FEWEST_SECONDS = 5.0
"""Shorter runs say nothing: a batch aims at 4 s."""

START_SECONDS, AROUND_SECONDS = 12.0, 3.0
"""What starting the programs takes, and what a run takes beside its seconds: its first batches, and to be cancelled."""

MADE_UP_JOB_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A batch that landed. Times are seconds of the database's clock."""

    device: int
    claimed_s: float
    finished_s: float
    jobs: int
    rows: int
    # Summed over its rows and the sentinel's; the last is the cost of the sentinel's alone.
    cost_s: float
    window_s: float
    rest_s: float = 0.0
    sentinel_s: float = 0.0
    invalid: int = 0
    dead: int = 0


def counted(batches: Sequence[Done]) -> tuple[list[Done], float]:
    """The batches of one device that count, and the seconds from the end of the one before them to their end."""
    ordered = sorted(batches, key=lambda batch: batch.claimed_s)
    middle = ordered[1:-1]
    return middle, middle[-1].finished_s - ordered[0].finished_s if middle else 0.0


def shares(batches: Sequence[Done]) -> dict[str, Any]:
    """What the devices' time went into, in percent, and rows per second of all of them.

    A device with fewer than `FEWEST_BATCHES` batches does not count; without any that does, only that is said.
    """
    by_device = defaultdict[int, list[Done]](list)
    for batch in batches:
        by_device[batch.device].append(batch)
    kept = [counted(of_device) for of_device in by_device.values()]
    kept = [(middle, seconds) for middle, seconds in kept if middle]
    found: dict[str, Any] = {"devices_counted": len(kept), "batches_counted": sum(len(middle) for middle, _ in kept)}
    if not kept:
        return found
    middle = [batch for of_device, _ in kept for batch in of_device]
    device_s = sum(seconds for _, seconds in kept)
    window_s, cost_s, rest_s, sentinel_s = (
        sum(getattr(batch, name) for batch in middle) for name in ("window_s", "cost_s", "rest_s", "sentinel_s")
    )
    batch_s = sum(batch.finished_s - batch.claimed_s for batch in middle)
    parts = {
        "duty_pct": window_s,
        "rest_pct": rest_s,
        "prepare_verify_pct": cost_s - window_s - rest_s,
        "claim_mark_land_pct": batch_s - cost_s,
        "wait_pct": device_s - batch_s,
        "of_which_sentinels_pct": sentinel_s,
    }
    rows = sum(batch.rows for batch in middle)
    return {
        **{name: round(100 * seconds / device_s, 2) for name, seconds in parts.items()},
        "configurations_per_second": round(sum(sum(b.rows for b in of) / seconds for of, seconds in kept), 2),
        "seconds_per_configuration": round(device_s / rows, 4) if rows else None,
        "device_seconds": round(device_s, 1),
        "rows": rows,
        "invalid": sum(batch.invalid for batch in middle),
        "dead": sum(batch.dead for batch in middle),
        **found,
    }


# A batch's rows land at its end, the sentinel's right after it, and a device has one batch at a time.
_BATCHES = text("""
WITH held AS (
    SELECT b.*, lead(b.claimed_at) OVER (PARTITION BY b.device_id ORDER BY b.claimed_at) AS next_claimed_at
    FROM batches b JOIN lanes l ON l.id = b.lane_id
    WHERE l.campaign_id = :campaign_id AND b.claimed_at IS NOT NULL
)
SELECT b.device_id AS device, b.jobs, b.invalid, b.dead, extract(epoch FROM b.claimed_at)::float8 AS claimed_s,
    extract(epoch FROM b.finished_at)::float8 AS finished_s, r.rows, r.cost_s, r.window_s, r.rest_s, r.sentinel_s
FROM held b
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE m.source <> 'sentinel') AS rows, coalesce(sum(m.cost_s), 0) AS cost_s,
        coalesce(sum(m.window_s), 0) AS window_s,
        coalesce(sum((m.details->>'rested_s')::float8), 0) AS rest_s,
        coalesce(sum(m.cost_s) FILTER (WHERE m.source = 'sentinel'), 0) AS sentinel_s
    FROM measurements m
    WHERE m.campaign_id = :campaign_id AND m.device_id = b.device_id AND m.measured_at > b.claimed_at
      AND (b.next_claimed_at IS NULL OR m.measured_at < b.next_claimed_at)
) r
WHERE b.state = 'done'
""")


def batches_of(engine: Engine, campaign_id: int) -> list[Done]:
    with engine.connect() as connection:
        return [Done(**row) for row in connection.execute(_BATCHES, {"campaign_id": campaign_id}).mappings()]


def devices_done(engine: Engine, campaign_id: int) -> int:
    """How many devices have landed a batch."""
    statement = text("""
        SELECT count(DISTINCT b.device_id) FROM batches b JOIN lanes l ON l.id = b.lane_id
        WHERE l.campaign_id = :campaign_id AND b.state = 'done'
    """)
    with engine.connect() as connection:
        count: int = connection.execute(statement, {"campaign_id": campaign_id}).scalar_one()
    return count


# --- the workers' metrics ----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def timed(exposition: str) -> dict[str, tuple[float, float]]:
    """For claim, mark and land: seconds and times that are counted in Prometheus's text, over all devices."""
    from prometheus_client.parser import text_string_to_metric_families

    totals = defaultdict[str, float](float)
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            totals[sample.name] += sample.value
    names = {short: f"{PREFIX}{duration.name}_seconds" for short, duration in TIMED.items()}
    return {short: (totals[f"{name}_sum"], totals[f"{name}_count"]) for short, name in names.items()}


def scrape(port: int) -> dict[str, tuple[float, float]]:
    """Empty where the workers do not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return timed(answer.read().decode())
    except OSError:
        return {}


def means_ms(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """Milliseconds of one claim, mark and landing between two scrapes; None where nothing was counted."""
    found: dict[str, float | None] = {}
    for name in TIMED:
        (seconds, times), (was_s, was) = after.get(name, (0.0, 0.0)), before.get(name, (0.0, 0.0))
        found[f"{name}_ms"] = round(1e3 * (seconds - was_s) / (times - was), 3) if times > was else None
    return found


# --- running -----------------------------------------------------------------------------------------


def variant(campaign: Campaign, power: str, devices: int, repetition: int) -> Campaign:
    """The same wishes with or without power, under a name of its own: a farm measures a campaign only once."""
    rules = campaign.measure.model_copy(update={"power": power})
    return campaign.changed(name=f"{campaign.name}-{power}-{devices}-{repetition}", measure=rules)


def run(engine: Engine, stack: Stack, campaign: Campaign, devices: int, seconds: float, port: int) -> dict[str, Any]:
    """Measures the campaign for some seconds after every device's first batch, and says where the time went."""
    before = scrape(port)
    campaign_id = store(engine, campaign)
    began = time.monotonic()
    latest, until = began + seconds + PATIENCE_SECONDS, None
    try:
        while time.monotonic() < (until or latest) and not is_over(engine, campaign_id):
            check(engine, stack)
            if until is None and devices_done(engine, campaign_id) == devices:
                until = min(time.monotonic() + seconds, latest)
            time.sleep(0.1)
        ran_out = is_over(engine, campaign_id)
    finally:
        cancel(engine, [campaign_id])
    return {
        **shares(batches_of(engine, campaign_id)),
        **means_ms(before, scrape(port)),
        "ran_out": ran_out,
        "seconds": round(time.monotonic() - began, 1),
    }


COLUMNS = {
    "devices": "devices", "campaign": "campaign", "power": "power", "run": "repetition", "duty %": "duty_pct",
    "configurations/s": "configurations_per_second", "device s each": "seconds_per_configuration",
    "rest %": "rest_pct", "prepare and verify %": "prepare_verify_pct", "claim, mark, land %": "claim_mark_land_pct", "wait %": "wait_pct",
    "of which sentinels %": "of_which_sentinels_pct",
    "claim ms": "claim_ms", "mark ms": "mark_ms", "land ms": "land_ms", "rows": "rows",
}  # fmt: skip


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = [["-" if (v := one.get(key)) is None else v for key in COLUMNS.values()] for one in runs]
    said = markdown(list(COLUMNS), rows)
    said += (
        "\n\nOf each device the first and the last batch are left out. Shares are of the devices' time between them."
    )
    uncounted = [one for one in runs if one["devices_counted"] < one["devices"]]
    if uncounted:
        said += f" In {len(uncounted)} runs a device had fewer than {FEWEST_BATCHES} batches and does not count."
    if any(one["ran_out"] for one in runs):
        said += " Where all was measured before the end, the tail is in the last batches."
    return said


def figures(runs: Sequence[Mapping[str, Any]], device: str) -> dict[str, Any]:
    """The duty of the run with the most devices for each campaign, and all runs."""
    best: dict[str, Any] = {}
    for one in sorted(runs, key=lambda one: one["devices"]):
        if "duty_pct" in one:
            which = f"{one['campaign']}, power {one['power']}" + (", again" if one["repetition"] > 1 else "")
            best[which] = one["duty_pct"]
    return {"device": device, "duty_pct": best, "runs": list(runs)}


def measure(asked: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Every run, each appended to `runs` and written at once. Where the limit is near, the seconds of each are fewer."""
    end = time.monotonic() + asked.limit
    files = {Path(name).stem: KNOWN.get(name, Path(name)) for name in asked.campaigns.split(",")}
    loaded = {name: load(file, limit=10**6) for name, file in files.items()}
    counts = [int(count) for count in asked.gpus.split(",")]
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        made_s = MADE_UP_JOB_SECONDS
        words = choose_devices(asked.device, max(counts), list(files.values()), Path(folder), made_s)
        for count in [count for count in counts if count > len(words)]:
            print(f"{count} devices are left out: this host has {len(words)}.", file=sys.stderr)
        kinds = [
            (power, name, repetition)
            for power in asked.power.split(",")
            for name in loaded
            for repetition in range(1, asked.repetitions + 1)
        ]
        waiting = [(count, *kind) for count in counts if count <= len(words) for kind in kinds]
        port = free_port()
        with farm_home(FARM_DEVICES=",".join(words), FARM_WORKER_METRICS=str(port)) as (urls, engine):
            while waiting and end - time.monotonic() > START_SECONDS + FEWEST_SECONDS:
                count = waiting[0][0]
                with programs(urls, engine, words[:count]) as stack:
                    while waiting and waiting[0][0] == count and (left := end - time.monotonic()) > FEWEST_SECONDS:
                        seconds = seconds_each(left, [c for c, *_ in waiting], asked.seconds)
                        _, power, name, repetition = waiting.pop(0)
                        campaign = variant(loaded[name], power, count, repetition)
                        found = run(engine, stack, campaign, count, seconds, port)
                        about = {"devices": count, "campaign": name, "power": power, "repetition": repetition}
                        runs.append({**about, **found})
                        print(f"{name} on {count}, power {power}: duty {found.get('duty_pct')}%", file=sys.stderr)
                        write(asked.result, figures(runs, asked.device), table(runs), repetitions=1, show=False)
    for count, power, name, _ in waiting:
        print(f"There was no time for {name} on {count} devices with power {power}.", file=sys.stderr)


def seconds_each(left: float, waiting: Sequence[int], wished: float) -> float:
    """Seconds for the next of the runs that wait, by their numbers of devices, where so many are left for all."""
    starts = len(set(waiting)) - 1  # the programs of the first of them are up
    share = (left - START_SECONDS * starts) / len(waiting) - AROUND_SECONDS
    return max(FEWEST_SECONDS, min(wished, share))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4", help="numbers of devices, in the order in which they are tried")
    parser.add_argument("--campaigns", default="tiled,cublaslt")
    parser.add_argument("--power", default="none,all", help="rules for power: none, all, fraction")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each campaign, from its first landed batches")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=1,
        help="of each campaign; from the second on, its kernels are compiled and loaded",
    )
    parser.add_argument("--limit", type=float, default=190.0, help="seconds for all, shared out where they are few")
    parser.add_argument("--device", choices=("cuda", "cpu", "recorded"), default="cuda")
    parser.add_argument("--result", default="duty", help="name of the files in results/")
    asked = parser.parse_args()
    end_like_interrupted()
    runs: list[dict[str, Any]] = []
    try:
        measure(asked, runs)
    except KeyboardInterrupt:
        print("Interrupted: reporting the runs that ended.", file=sys.stderr)
    finally:
        if runs:
            write(asked.result, figures(runs, asked.device), table(runs), repetitions=1)


if __name__ == "__main__":
    main()
