"""How long do deleting, restoring and vacuuming a campaign take, by its rows, and how large is it meanwhile?

    python -m benchmarks.deleting_speed [--rows 10000 100000 1000000]

For each size a farm of its own is filled with made-up rows as in `views_speed`: one campaign with a job and a row for each
configuration, and a sentinel for each batch. It is deleted, restored, deleted again and vacuumed, once each. The sentinels
and the number of rows are checked after each step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from benchmarks.made_up import BATCH, fill, vacuum
from farm.db import archive, deletions
from farm.db.engine import make_engine
from farm.db.states import DeletionKind


def of_size(rows: int) -> dict[str, float]:
    found = {}
    with farm_home(FARM_DEVICES="cpu") as (urls, _):
        engine = make_engine(urls.database_url, application="benchmark")
        fill(engine, rows)
        with engine.begin() as connection:
            connection.execute(text("UPDATE campaigns SET state = 'done', digest = repeat('d', 64)"))
        vacuum(engine)

        def seconds(step: Callable[[Connection], object], *, left: int) -> float:
            began = time.perf_counter()
            with engine.begin() as connection:
                step(connection)
            taken = time.perf_counter() - began
            with engine.connect() as connection:
                assert connection.execute(text("SELECT count(*) FROM v_measurements")).scalar_one() == left
                assert connection.execute(text("SELECT count(*) FROM v_sentinels")).scalar_one() == rows // BATCH
            return taken

        def delete(connection: Connection) -> None:
            deletions.delete_campaign(connection, "made-up", by="bench")

        found["preview_s"] = seconds(lambda c: deletions.dependents_of_campaign(c, "made-up"), left=rows)
        found["delete_s"] = seconds(delete, left=0)
        with engine.connect() as connection:
            (kept,) = archive.listed(connection)
        found["deleted_mb"] = kept.bytes / 1e6
        found["restore_s"] = seconds(lambda c: archive.restore(c, DeletionKind.CAMPAIGN, "made-up"), left=rows)
        seconds(delete, left=0)
        found["vacuum_s"] = seconds(lambda c: deletions.vacuum(c, older_than=timedelta()), left=0)
        engine.dispose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="multiples of 1000")
    sizes = {rows: of_size(rows) for rows in parser.parse_args().rows}
    steps = {"preview": "preview_s", "delete": "delete_s", "restore": "restore_s", "vacuum": "vacuum_s"}
    table = "Seconds, by rows of the campaign:\n\n" + markdown(
        ["step", *(f"{rows:,}" for rows in sizes)],
        [
            *([name, *(of[step] for of in sizes.values())] for name, step in steps.items()),
            ["size while deleted, MB", *(of["deleted_mb"] for of in sizes.values())],
        ],
    )
    write("deleting_speed", {"sizes": {str(rows): of for rows, of in sizes.items()}}, table, repetitions=1)


if __name__ == "__main__":
    main()
