"""How long do a backup and its restore take, does it wait for rows that land meanwhile, and is the restored farm equal?

    python -m benchmarks.backup [--rows 1000000]

A farm of its own is filled with made-up rows as in `views_speed`. One session lands 100 rows in a transaction, and counts them at
their device, again and again: for 5 s alone, then while `farm backup create` runs. `farm backup verify` checks the backup, a second
backup is taken with `--since`, and `farm backup restore` restores the first into an embedded database elsewhere. The audit compares the
restored database with the first: the same rows up to the snapshot, every other table equal, and each device counts its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from benchmarks.made_up import fill, vacuum
from farm.backup import database
from farm.db.engine import make_engine
from farm.services import services
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from farm.settings import Settings

LANDED = 100
"""Rows of one transaction."""

ALONE_S = 5.0

_FIELDS = (
    "campaign_id, configuration_id, device_id, environment_id, measured_at, source, runtime_ms, runtime_q1_ms, "
    "runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details"
)
_LAND = text(f"""
INSERT INTO measurements ({_FIELDS})
SELECT {_FIELDS} FROM measurements WHERE device_id = 1 AND source = 'measured' ORDER BY id LIMIT {LANDED}
""")
_COUNT = text(f"UPDATE devices SET measured = measured + {LANDED} WHERE id = 1")
_RECOUNT = text("""
UPDATE devices d SET measured = (SELECT count(*) FROM measurements WHERE device_id = d.id AND source <> 'sentinel')
""")
_MISCOUNTED = text("""
SELECT count(*) FROM devices d
WHERE measured <> (SELECT count(*) FROM measurements WHERE device_id = d.id AND source <> 'sentinel')
""")


class Lander(threading.Thread):
    """Lands rows until it is stopped, and notes when each transaction was committed and how long it took."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._stop_it = threading.Event()
        self.commits: list[tuple[float, float]] = []

    def run(self) -> None:
        engine = make_engine(self._url, application="lander", pool_size=1)
        while not self._stop_it.is_set():
            began = time.monotonic()
            with engine.begin() as connection:
                connection.execute(_LAND)
                connection.execute(_COUNT)
            self.commits.append((time.monotonic(), time.monotonic() - began))
        engine.dispose()

    def stop(self) -> None:
        self._stop_it.set()
        self.join()

    def rows_per_s(self, since: float, until: float) -> float:
        return sum(LANDED for at, _ in self.commits if since <= at < until) / (until - since)

    def max_ms(self, since: float, until: float) -> float:
        return 1000 * max(taken for at, taken in self.commits if since <= at < until)


def run(*words: str, **variables: str) -> tuple[dict[str, Any], float, float]:
    """What a command prints as JSON, the seconds it took, and its largest resident memory in MB."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "farm", *words, "--json"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"farm {' '.join(words)} ended with {process.returncode}")
    return json.loads(printed), time.monotonic() - began, usage.ru_maxrss / 1024


def audit(source: Engine, restored: Engine) -> int:
    """Compares two farms as of the snapshot of the backup. Returns the number of rows that were compared."""
    tables = [name for name in database.kept_tables() if name not in ("measurements", "devices", "audit")]
    with database.snapshot(source) as one, database.snapshot(restored) as other:
        last = other.execute(text("SELECT max(id) FROM measurements")).scalar_one()
        compared = 0
        for name in [*tables, "measurements"]:
            condition = f"id <= {last}" if name == "measurements" else "true"
            here, there = database.Tally(), database.Tally()
            here.add(database.rows_of(one, database.layout_of(one, name), condition))
            there.add(database.rows_of(other, database.layout_of(other, name)))
            if (here.rows, here.sha256) != (there.rows, there.sha256):
                raise SystemExit(f"{name} differs: {here.rows} and {there.rows} rows")
            compared += there.rows
        if other.execute(_MISCOUNTED).scalar_one():
            raise SystemExit("a device does not count its rows: the backup is not of one time")
    return compared


def measured(rows: int, folder: Path) -> dict[str, Any]:
    with farm_home(FARM_DEVICES="cpu") as (urls, engine):
        fill(engine, rows)
        with engine.begin() as connection:
            connection.execute(_RECOUNT)
        vacuum(engine)
        lander = Lander(urls.database_url)
        lander.start()
        began = time.monotonic()
        time.sleep(ALONE_S)
        start = time.monotonic()
        first, create_s, create_mb = run("backup", "create", str(folder / "first"))
        end = time.monotonic()
        lander.stop()
        _, verify_s, _ = run("backup", "verify", str(folder / "first"))
        second, again_s, _ = run("backup", "create", str(folder / "second"), "--since", str(folder / "first"))
        new = Settings(home=folder / "home")
        _, restore_s, restore_mb = run("backup", "restore", str(folder / "first"), FARM_HOME=str(new.home))
        try:
            with services(new) as elsewhere:
                restored = make_engine(elsewhere.database_url, application="benchmark")
                source = make_engine(urls.database_url, application="benchmark")
                compared = audit(source, restored)
                for one in (source, restored):
                    one.dispose()
        finally:
            remove_cluster(Home.of(new))
        return {
            "rows": rows,
            "backup_rows": first["rows"],
            "backup_mb": first["bytes"] / 1e6,
            "create_s": create_s,
            "create_peak_mb": create_mb,
            "landing_alone_rows_per_s": lander.rows_per_s(began, start),
            "landing_during_backup_rows_per_s": lander.rows_per_s(start, end),
            "landed_during_backup": round(lander.rows_per_s(start, end) * (end - start)),
            "longest_commit_ms": lander.max_ms(start, end),
            "verify_s": verify_s,
            "since_s": again_s,
            "since_new_mb": (second["bytes"] - second["reused_bytes"]) / 1e6,
            "restore_s": restore_s,
            "restore_peak_mb": restore_mb,
            "audited_rows": compared,
            "audit_equal": True,
        }


COLUMNS = {
    "rows of the backup, all tables": "backup_rows",
    "size of the backup, MB": "backup_mb",
    "farm backup create, s": "create_s",
    "its memory, MB": "create_peak_mb",
    "rows landed per s without a backup": "landing_alone_rows_per_s",
    "rows landed per s during it": "landing_during_backup_rows_per_s",
    "longest commit during it, ms": "longest_commit_ms",
    "farm backup verify, s": "verify_s",
    "create --since, s": "since_s",
    "new files of it, MB": "since_new_mb",
    "farm backup restore, s": "restore_s",
    "memory of the restore, MB": "restore_peak_mb",
    "rows compared afterwards, all equal": "audited_rows",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="measurements, a multiple of 1000")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farm-bench-backup-") as made:
        Path(made).chmod(0o755)
        found = measured(asked.rows, Path(made))
    table = markdown(
        ["backup under load", f"{asked.rows:,} measurements"], [[label, found[key]] for label, key in COLUMNS.items()]
    )
    write("backup", found, table, repetitions=1)


if __name__ == "__main__":
    main()
