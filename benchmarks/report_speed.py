"""How long does the report of a campaign of 16,128 configurations take, and how large is it?

    python -m benchmarks.report_speed [--repetitions 5]

A farm of its own gets the campaign `paper-cutlass` with the rows that eight H200s measured of it, from `examples/datasets/`, as if
recorded devices had answered each of its jobs. Then `farm report --png` is run as a process of its own: seconds from start to end,
and the size of what it writes. Postgres works on the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from farm.campaign import load, plan
from farm.db import campaigns, devices, measurements
from farm.importers import dataset
from farm.measurement import Source

EXAMPLES = Path(__file__).parent.parent / "examples"
CAMPAIGN = EXAMPLES / "campaigns" / "paper-cutlass.yaml"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-cutlass.parquet"
MOST_SECONDS, MOST_MB = 20, 15

_JOBS = text("""
SELECT j.id, j.configuration_id, p.device_uuid FROM lanes l JOIN pools p ON p.id = l.pool_id JOIN jobs j ON j.lane_id = l.id
WHERE l.campaign_id = :id
""")
_DONE = (
    "UPDATE jobs SET state = 'done' WHERE id IN (SELECT job_id FROM measurements)",
    "UPDATE lanes l SET done = (SELECT count(*) FROM jobs WHERE lane_id = l.id AND state = 'done')",
)


def land(engine: Engine, campaign_file: Path, recording: Path) -> int:
    """Stores a campaign with the rows that a recording has of its jobs; returns how many those are."""
    campaign, reader = load(campaign_file, limit=10**6), dataset.look(recording).reader()
    rows = list(reader.rows(lambda _: None))
    with engine.begin() as connection:
        ids = {
            one.key: devices.register(
                connection,
                host=one.host.removeprefix("imported:"),
                host_facts={},
                device=replace(one.identity, uuid=one.key),
            )
            for one in reader.devices()
        }
        known = campaigns.known_devices(connection)
        jobs = plan(campaign, known, allow_missing=True).jobs()
        campaign_id = campaigns.store(connection, campaign, jobs).campaign_id
        found = connection.execute(_JOBS, {"id": campaign_id})
        job_of = {(row.configuration_id, row.device_uuid): row.id for row in found}
        landed = list[measurements.Row]()
        for row in rows:
            i, recorded = row.configuration.id, replace(row.measurement, source=Source.RECORDED)
            job = job_of.pop((i, row.device), None) or job_of.pop((i, None), None)
            if job is not None:
                landed.append((job, campaign_id, i, ids[row.device], recorded))
        measurements.insert(connection, landed)
        for statement in _DONE:
            connection.execute(text(statement))
        campaigns.finish(connection)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
    return len(landed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    asked = parser.parse_args()
    with farm_home() as (_, engine), tempfile.TemporaryDirectory(prefix="report-") as folder:
        rows = land(engine, CAMPAIGN, RECORDING)
        page, pictures = Path(folder) / "report.html", Path(folder) / "pictures"
        command = [sys.executable, "-m", "farm", "report", "paper-cutlass", "--output", str(page), "--force", "--json"]
        alone, with_pictures = list[float](), list[float]()
        for seconds, more in ((alone, []), (with_pictures, ["--png", str(pictures)])):
            for _ in range(asked.repetitions):
                began = time.perf_counter()
                done = subprocess.run([*command, *more], check=True, capture_output=True, text=True)
                seconds.append(time.perf_counter() - began)
        measured = sum(device["rows"] for device in json.loads(done.stdout)["provenance"]["devices"])
        assert measured == rows, (measured, rows)
        figures = {
            "configurations": rows,
            "report_s": round(statistics.median(alone), 2),
            "report_slowest_s": round(max(alone), 2),
            "with_png_s": round(statistics.median(with_pictures), 2),
            "html_mb": round(page.stat().st_size / 1e6, 2),
            "pictures": len(list(pictures.glob("*.png"))),
            "pictures_mb": round(sum(path.stat().st_size for path in pictures.glob("*.png")) / 1e6, 2),
            "goal": {"report_s": MOST_SECONDS, "html_mb": MOST_MB},
        }
    table = markdown(
        ["configurations", "`farm report` s", "slowest s", "with --png s", "HTML MB", "pictures", "their MB"],
        [[value for key, value in figures.items() if key != "goal"]],
    )
    write("report_speed", figures, table, repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
