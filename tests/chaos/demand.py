"""Work for a farm that must never run out of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from chaos.farm import Farm
from chaos.workload import more

WAITING_JOBS = 60
"""Jobs that wait for each device: six seconds of its work."""

_WAITING = text("""
SELECT c.owner, sum(l.jobs - l.done - l.invalid - l.dead) FROM campaigns c JOIN lanes l ON l.campaign_id = c.id
WHERE c.state = 'active' AND starts_with(c.name, 'more-') GROUP BY 1
""")


@contextmanager
def demand(farm: Farm, owners: int) -> Iterator[None]:
    """Inside the block, a thread keeps jobs of each of some owners waiting, together enough for several seconds."""
    names = [f"owner-{number}" for number in range(owners)]
    over, numbers = threading.Event(), itertools.count(1)
    enough = len(farm.device_ids) * WAITING_JOBS / owners

    def submit() -> None:
        while not over.wait(0.5):
            # Where Postgres is away or read-only, there is another look soon.
            with contextlib.suppress(DBAPIError):
                with farm.engine.connect() as connection:
                    waiting = {owner: int(jobs) for owner, jobs in connection.execute(_WAITING)}
                for owner in names:
                    if waiting.get(owner, 0) < enough:
                        farm.submit(more(f"more-{next(numbers)}", owner, rows=2))

    thread = threading.Thread(target=submit, name="demand", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
