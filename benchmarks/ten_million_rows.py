"""What grows with the table of measurements? Landing, reading, removing and cleaning up, at 10⁵, 10⁶ and 10⁷ rows.

    python -m benchmarks.ten_million_rows [--rows 100000 1000000 10000000]

One farm of its own is filled, size after size, with campaigns of 10,000 jobs (`many_rows`), a thousand of them in a year. Rows have
the details of a measured row. At each size a campaign of 10,000 jobs is submitted by `farm submit` and landed through the farm's own
code, in batches of 100. Then what commands read is read, in this process: the median of three, or the first if it takes longer than
10 s. Some are also read with the `random_page_cost` that is the default of Postgres. Commands that read one campaign or one day read the same number of rows at each size. It
needs 15 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError

from benchmarks import many_rows
from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import announce, farm_home, run_submit
from benchmarks.made_up import record
from benchmarks.million_jobs import work_off
from farm.campaign import Campaign
from farm.compare.comparison import CompareQuery, compare
from farm.db import campaigns, filters, measurements, series
from farm.db.engine import make_engine
from farm.report.best import best
from farm.report.report_data import gather
from farm.retention.deleted import DeletedData
from farm.retention.rule import Place
from farm.services import ServiceUrls
from farm.settings import settings

STEP_SECONDS = 240.0
"""A step that takes longer is stopped."""

RANDOM_READS = (
    "farm results --campaign CAMPAIGN",
    "farm report CAMPAIGN",
    "farm best CAMPAIGN",
    "farm results --since 1d --limit 30",
)
"""What is also read with `random_page_cost` 4, the default of Postgres, and not that of the embedded database."""

LONG_SECONDS = 10.0
BATCH = 100
_SIZES = text("""
SELECT pg_table_size('measurements') AS rows, pg_indexes_size('measurements') AS indexes, pg_database_size(current_database()) AS database
""")


def reader(url: str, **session: str) -> Engine:
    """Connections as those of commands, without the coordinator's settings. `session` are settings of Postgres."""
    engine = make_engine(url, application="benchmark")

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        for name, value in {"statement_timeout": f"{STEP_SECONDS:.0f}s", **session}.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.commit()

    return engine


def median_s(run: Callable[[], Any]) -> float | None:
    """Median of three runs, or of one that takes long. None: it was stopped."""
    found = list[float]()
    while len(found) < 3 and (not found or found[-1] < LONG_SECONDS):
        began = time.perf_counter()
        try:
            run()
        except OperationalError:
            return None
        found.append(time.perf_counter() - began)
    return round(statistics.median(found), 4)


def questions(engine: Engine, last: int) -> dict[str, Callable[[], Any]]:
    """What commands read, by the command. Campaigns have the same size at each size of the table."""
    begin = last - 9  # ten campaigns share their configurations
    here = begin + -begin % len(many_rows.TYPES)
    one, other = f"made-up-{here}", f"made-up-{here + 1}"
    with engine.connect() as connection:
        campaign = campaigns.find(connection, one)
        until = campaigns.find(connection, f"made-up-{last}")["submitted_at"]
    document = Campaign.from_document(campaign["document"])

    def on(read: Callable[[Connection], Any]) -> Callable[[], Any]:
        def run() -> None:
            with engine.connect() as connection:
                read(connection)

        return run

    day = {"since": until - timedelta(days=1), "until": until, "count": 60, "max_devices": 100}
    of_campaign = {**day, "since": campaign["submitted_at"], "until": campaign["finished_at"]}
    types = many_rows.TYPES[:2]
    compared = (f"campaign={one}", f"campaign={other}")
    place = Place(engine, settings())
    return {
        "farm status": on(campaigns.overview),
        "farm results --campaign CAMPAIGN": on(lambda c: measurements.read(c, campaign_id=campaign["id"])),
        "farm report CAMPAIGN": lambda: gather(engine, one),
        "farm best CAMPAIGN": on(lambda c: best(c, campaign["id"], document)),
        "farm compare campaign=CAMPAIGN campaign=OTHER": lambda: compare(engine, CompareQuery(groups=compared)),
        "farm compare TYPE OTHER": lambda: compare(engine, CompareQuery(groups=types)),
        "farm series, one day": on(lambda c: series.steps(c, **day)),
        "farm series --campaign CAMPAIGN": on(lambda c: series.steps(c, **of_campaign, campaign_id=campaign["id"])),
        "farm results --since 1d --limit 30": on(lambda c: measurements.read(c, order_by="-tflops", limit=30, only=filters.chosen(since=day["since"], until=until))),
        "farm results --sort -tflops --limit 30": on(lambda c: measurements.read(c, order_by="-tflops", limit=30)),
        "farm prune deleted": lambda: DeletedData().find(place, timedelta(days=90)),
    }  # fmt: skip


def land(engine: Engine, file: Path, device_id: int, queue: str, jobs: int) -> dict[str, Any]:
    """Submits a campaign and lands it: seconds, and microseconds per job."""
    submitted = run_submit(file)
    with engine.connect() as connection:
        campaign_id = campaigns.find(connection, file.stem)["id"]
    clock = work_off(engine, campaign_id, device_id, queue, jobs, BATCH)
    with engine.begin() as connection:
        campaigns.finish(connection)
    of = {stage: [1e6 * taken / BATCH for taken in clock[stage]] for stage in ("form", "claim", "land", "fold")}
    tenth = max(1, len(of["land"]) // 10)
    return {
        "submit_s": round(submitted["submit_s"], 2),
        **{f"{stage}_us": round(statistics.median(taken), 1) for stage, taken in of.items()},
        "land_last_tenth_us": round(statistics.median(of["land"][-tenth:]), 1),
        "status_queries_ms": round(1e3 * statistics.median(clock["status"]), 1),
    }


def maintenance(engine: Engine) -> dict[str, float]:
    found = {}
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET lock_timeout = 0"))  # autovacuum may work on it
        for name in ("ANALYZE", "VACUUM"):
            began = time.perf_counter()
            connection.execute(text(f"{name} measurements"))
            found[f"{name.lower()}_s"] = round(time.perf_counter() - began, 2)
        connection.execute(text("VACUUM ANALYZE"))
        connection.execute(text("RESET lock_timeout"))
    return found


def of_size(
    engine: Engine, urls: ServiceUrls, rows: int, filled: int, folder: Path, device: tuple[int, str]
) -> dict[str, Any]:
    print(f"{rows:,} rows, {time.strftime('%X')}", file=sys.stderr, flush=True)
    last = rows // many_rows.EACH - 1
    fill_s = many_rows.fill(engine, filled, last)
    print(f"  filled, {time.strftime('%X')}", file=sys.stderr, flush=True)
    cleaned = maintenance(engine)
    load = os.getloadavg()[0]
    landed = land(engine, many_rows.template(folder, f"landed-{rows}", many_rows.EACH), *device, many_rows.EACH)
    print(f"  landed, {time.strftime('%X')}", file=sys.stderr, flush=True)
    taken, before = dict[str, float | None](), dict[str, float | None]()
    for found, names, session in ((taken, None, {}), (before, RANDOM_READS, {"random_page_cost": "4"})):
        engine_of_commands = reader(str(urls.database_url), **session)
        for question, run in questions(engine_of_commands, last).items():
            if names is None or question in names:
                found[question] = median_s(run)
                print(f"  {question} {session}: {found[question]}", file=sys.stderr, flush=True)
        engine_of_commands.dispose()
    with engine.connect() as connection:
        size = connection.execute(_SIZES).mappings().one()
    gigabytes = {f"{name}_gb": round(number / 1e9, 3) for name, number in size.items()}
    return {"load_average": round(load, 1), "fill_s": round(fill_s, 1), **landed, **cleaned, **gigabytes, "commands_s": taken, "default_page_cost_s": before}  # fmt: skip


@contextmanager
def begun_farm(types: Sequence[str] = many_rows.TYPES) -> Iterator[tuple[ServiceUrls, Engine, Path, tuple[int, str]]]:
    """A farm of its own, ready for `many_rows.fill`: its services, a folder, and the id and the queue of a device."""
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        recording = folder / "recording.parquet"
        record(many_rows.template(folder, "template", many_rows.EACH), recording)
        with farm_home(recording) as (urls, engine):
            device_id, device = announce(engine)
            queue = f"gpu.{device.identity.type}"
            land(engine, many_rows.template(folder, "template", 1000), device_id, queue, 1000)
            many_rows.begin(engine, types)
            yield urls, engine, folder, (device_id, queue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [100_000, 1_000_000, 10_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="multiples of 100,000, ascending")
    asked = parser.parse_args()
    end_like_interrupted()
    found = dict[str, dict[str, Any]]()
    with begun_farm() as (urls, engine, folder, device):
        filled = 0
        for rows in asked.rows:
            found[str(rows)] = of_size(engine, urls, rows, filled, folder, device)
            filled = rows // many_rows.EACH
            save(found)


LABELS = {
    "`farm submit`, s": "submit_s", "form, µs per job": "form_us", "claim, µs per job": "claim_us",
    "land, µs per job": "land_us", "land, last tenth, µs per job": "land_last_tenth_us", "fold, µs per job": "fold_us",
    "queries of `farm status`, ms": "status_queries_ms", "measurements, GB": "rows_gb", "their indexes, GB": "indexes_gb",
    "database, GB": "database_gb", "ANALYZE measurements, s": "analyze_s", "VACUUM measurements, s": "vacuum_s",
}  # fmt: skip


def save(found: Mapping[str, Mapping[str, Any]]) -> None:
    def cell(value: float | None) -> float | str:
        return "stopped" if value is None else float(value)

    columns = [f"{int(rows):,}" for rows in found]
    questions = list(next(iter(found.values()))["commands_s"])
    tables = [
        markdown(["step, by rows", *columns], [[label, *(cell(of[key]) for of in found.values())] for label, key in LABELS.items()]),
        markdown(["seconds, by rows", *columns], [[f"`{q}`" if q.startswith("farm") else q, *(cell(of["commands_s"][q]) for of in found.values())] for q in questions]),
    ]  # fmt: skip
    tables.append(
        markdown(
            ["seconds with random_page_cost 4 (1.1), by rows", *columns],
            [
                [
                    f"`{q}`",
                    *(f"{of['default_page_cost_s'][q]:.3g} ({of['commands_s'][q]:.3g})" for of in found.values()),
                ]
                for q in RANDOM_READS
            ],
        )
    )
    write("ten_million_rows", {"sizes": found}, "\n\n".join(tables), repetitions=3, show=False)


if __name__ == "__main__":
    main()
