"""Does it pay to partition the table of measurements by month?

    python -m benchmarks.partitions [--rows 1000000]

A farm of its own is filled as in `ten_million_rows`, with campaigns of 10,000 rows all over a year. Beside the table, the same database
gets a copy `partitioned.measurements` in partitions of a month, with the same columns, checks, foreign keys and indexes. The key of
the partitions must be part of each unique index, so the copy does not hold that a job has one row. Statements are those of the farm: a
connection finds one table or the other by its `search_path`. Milliseconds, medians, both tables in turn. 10⁷ rows need 25 GB of disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from benchmarks import many_rows
from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import announce, farm_home, run_submit
from benchmarks.made_up import RESULT, record
from benchmarks.many_rows import EACH, FOREIGN_KEYS, template
from farm.compare import row_query
from farm.compare.row_query import RowFilter
from farm.db import measurements, series
from farm.db.engine import make_engine

ARMS = {"plain": "public", "partitioned": "partitioned, public"}
BATCH, BATCHES, LOOKUPS = 100, 50, 200

_MONTHS = text("""
SELECT generate_series(date_trunc('month', min(measured_at)), now(), '1 month') AS month FROM public.measurements
""")
_INDEXES = (
    "CREATE UNIQUE INDEX ON partitioned.measurements (job_id, measured_at) WHERE job_id IS NOT NULL",
    "CREATE INDEX ON partitioned.measurements (configuration_id)",
    "CREATE INDEX ON partitioned.measurements (device_id, id)",
    "CREATE INDEX ON partitioned.measurements (campaign_id)",
    "CREATE INDEX ON partitioned.measurements USING brin (measured_at) WITH (autosummarize = true)",
    "CREATE INDEX ON partitioned.measurements (campaign_id, device_id, measured_at) WHERE source = 'sentinel'",
    "ALTER TABLE partitioned.measurements ADD PRIMARY KEY (id, measured_at)",
)
_LOOK_UP = {
    "rows of a configuration": "SELECT count(*), min(runtime_ms) FROM measurements WHERE configuration_id = :value",
    "row of a job": "SELECT count(*), min(runtime_ms) FROM measurements WHERE job_id = :value",
    "rows of a campaign": "SELECT count(*), min(runtime_ms) FROM measurements WHERE campaign_id = :value",
}
_VALUES = {
    "rows of a configuration": "SELECT configuration_id FROM public.measurements TABLESAMPLE SYSTEM (0.1) ORDER BY random() LIMIT :n",
    "row of a job": "SELECT job_id FROM public.measurements TABLESAMPLE SYSTEM (0.1) WHERE job_id IS NOT NULL ORDER BY random() LIMIT :n",
    "rows of a campaign": "SELECT id FROM campaigns WHERE name LIKE 'made-up-%' ORDER BY random() LIMIT :n / 5",
}


def copy(engine: Engine) -> float:
    """Makes the copy. Returns the seconds that it took."""
    began = time.perf_counter()
    with engine.begin() as connection:
        months = [row.month for row in connection.execute(_MONTHS)]
        connection.execute(text("CREATE SCHEMA partitioned"))
        connection.execute(
            text(
                "CREATE TABLE partitioned.measurements (LIKE public.measurements INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
                " INCLUDING IDENTITY) PARTITION BY RANGE (measured_at)"
            )
        )
        for month in months:
            following = (month + timedelta(days=32)).replace(day=1)
            connection.execute(
                text(
                    f"CREATE TABLE partitioned.measurements_{month:%Y_%m} PARTITION OF partitioned.measurements "
                    f"FOR VALUES FROM ('{month:%Y-%m-%d}') TO ('{following:%Y-%m-%d}')"
                )
            )
        connection.execute(text("INSERT INTO partitioned.measurements SELECT * FROM public.measurements"))
        connection.execute(
            text(
                "SELECT setval(pg_get_serial_sequence('partitioned.measurements', 'id'), max(id)) FROM public.measurements"
            )
        )
        for statement in _INDEXES:
            connection.execute(text(statement))
        # A foreign key of a partitioned table cannot be NOT VALID; triggers are made, and rows checked.
        for row in connection.execute(FOREIGN_KEYS, {"name": "public.measurements"}).all():
            definition = row.definition.removesuffix(" NOT VALID")
            connection.execute(text(f"ALTER TABLE partitioned.measurements ADD CONSTRAINT {row.name} {definition}"))
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET lock_timeout = 0"))  # autovacuum may work on it
        connection.execute(text("VACUUM ANALYZE partitioned.measurements"))
        connection.execute(text("VACUUM ANALYZE public.measurements"))
    return time.perf_counter() - began


def measured(engine: Engine, url: str, device_id: int) -> dict[str, Any]:
    """Both arms of each step, in milliseconds, alternately."""
    copy_s = copy(engine)
    engines = {name: _engine(url, path) for name, path in ARMS.items()}
    steps = dict[str, dict[str, float]]()
    try:
        steps["land 100 rows"] = _landed(engines, device_id)
        for question, statement in _LOOK_UP.items():
            steps[question] = _looked_up(engines, _VALUES[question], statement)
        steps["series of one day"] = _taken(engines, _series)
        steps["farm compare: count kinds of rows"] = _taken(engines, _kinds)
        steps["rows of a type with their times"] = _taken(engines, _type)
        steps["remove a month"] = _removed(engines)
    finally:
        for one in engines.values():
            one.dispose()
    return {"copy_s": round(copy_s, 1), "steps_ms": steps}


def _engine(url: str, path: str) -> Engine:
    made = make_engine(url, application="benchmark")

    @event.listens_for(made, "connect")
    def find(connection: Any, _: object) -> None:
        connection.execute(f"SET search_path = {path}")
        connection.commit()

    return made


def _landed(engines: Mapping[str, Engine], device_id: int) -> dict[str, float]:
    """The farm's insertion of rows of jobs that have none yet."""
    taken: dict[str, list[float]] = {name: [] for name in engines}
    with engines["plain"].begin() as connection:
        campaign_id = connection.execute(text("SELECT id FROM campaigns WHERE name = 'template'")).scalar_one()
        pool = "INSERT INTO pools (name, device_types) VALUES ('beside', '{beside}') RETURNING id"
        lane = "INSERT INTO lanes (campaign_id, pool_id) VALUES (:campaign, :pool) RETURNING id"
        pool_id = connection.execute(text(pool)).scalar_one()
        lane_id = connection.execute(text(lane), {"campaign": campaign_id, "pool": pool_id}).scalar_one()
        jobs = "INSERT INTO jobs (lane_id, configuration_id) SELECT :lane, id FROM configurations ORDER BY id LIMIT :n RETURNING id, configuration_id"
        made = connection.execute(text(jobs), {"lane": lane_id, "n": BATCH * BATCHES}).all()
    for number in range(0, len(made), BATCH):
        rows = [
            (job.id, campaign_id, job.configuration_id, device_id, replace(RESULT))
            for job in made[number : number + BATCH]
        ]
        for name, engine in engines.items():
            began = time.perf_counter()
            with engine.begin() as connection:
                measurements.insert(connection, rows)
            taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(of) for name, of in taken.items()}


def _looked_up(engines: Mapping[str, Engine], values: str, statement: str) -> dict[str, float]:
    with engines["plain"].connect() as connection:
        chosen = list(connection.execute(text(values), {"n": LOOKUPS}).scalars())
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for name, engine in engines.items():
        with engine.connect() as connection:
            for value in chosen:
                began = time.perf_counter()
                connection.execute(text(statement), {"value": value}).all()
                taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(of) for name, of in taken.items()}


def _taken(engines: Mapping[str, Engine], run: Callable[[Connection], Any]) -> dict[str, float]:
    """Medians of three runs in turn."""
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(3):
        for name, engine in engines.items():
            with engine.connect() as connection:
                began = time.perf_counter()
                run(connection)
                taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(of) for name, of in taken.items()}


def _series(connection: Connection) -> None:
    until = connection.execute(text("SELECT max(submitted_at) FROM campaigns WHERE name LIKE 'made-up-%'")).scalar_one()
    series.steps(connection, since=until - timedelta(days=1), until=until, count=60, max_devices=100)


def _kinds(connection: Connection) -> None:
    known, contents = row_query.devices(connection), row_query.environments(connection)
    row_filter = RowFilter(campaigns=False, times=(), days=False, excluded=row_query.excluded_rows(connection))
    row_query.kinds(connection, known, contents, row_filter)


def _type(connection: Connection) -> None:
    connection.execute(
        text("""
            SELECT count(*), sum(runtime_ms) FROM measurements r JOIN devices d ON d.id = r.device_id
            WHERE d.type = 'nvidia-h200'
        """)
    ).all()


def _removed(engines: Mapping[str, Engine]) -> dict[str, float]:
    """A whole month in the middle of the year: DELETE and VACUUM, or DROP TABLE of the partition."""
    with engines["plain"].connect() as connection:
        months = [row.month for row in connection.execute(_MONTHS)]
    month = months[len(months) // 2]
    following = (month + timedelta(days=32)).replace(day=1)
    taken = {}
    began = time.perf_counter()
    with engines["plain"].begin() as connection:
        connection.execute(text("SET LOCAL farm.deleting = 'on'"))  # otherwise the table is append-only
        connection.execute(
            text("DELETE FROM measurements WHERE measured_at >= :since AND measured_at < :until"),
            {"since": month, "until": following},
        )
    with engines["plain"].execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("VACUUM measurements"))
    taken["plain"] = 1e3 * (time.perf_counter() - began)
    began = time.perf_counter()
    with engines["partitioned"].begin() as connection:
        connection.execute(text(f"DROP TABLE partitioned.measurements_{month:%Y_%m}"))
    taken["partitioned"] = 1e3 * (time.perf_counter() - began)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 100,000")
    asked = parser.parse_args()
    end_like_interrupted()
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        recording = folder / "recording.parquet"
        record(template(folder, "template", 1000), recording)
        with farm_home(recording) as (urls, engine):
            device_id, _ = announce(engine)
            run_submit(template(folder, "template", 1000))
            many_rows.begin(engine)
            many_rows.fill(engine, 0, asked.rows // EACH - 1, apart_days=360 * EACH / asked.rows)
            found = measured(engine, str(urls.database_url), device_id)
    table = markdown(
        [f"{asked.rows:,} rows, ms", "plain", "partitioned by month", "partitioned / plain"],
        [
            [step, *(float(of[name]) for name in ARMS), f"{of['partitioned'] / of['plain']:.3g}"]
            for step, of in found["steps_ms"].items()
        ],
    )
    write("partitions", {"rows": asked.rows, **found}, table, repetitions=3)


if __name__ == "__main__":
    main()
