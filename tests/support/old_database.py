"""A database as the last version before the first revision left it, for tests of the upgrade: `revision_0025.sql.gz`.

It was made in a checkout of that version (`farm.db.migrate.LAST_BEFORE_FIRST`), with this file beside its tests:

    PYTHONPATH=tests python -m support.old_database revision_0025.sql.gz
"""

from __future__ import annotations

from support import environment  # noqa: F401 - first: others read the environment when they are imported

# isort: split
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from farm.campaign import Campaign, plan
from farm.db import audit, batches, campaigns, devices, migrate, worker_logins
from farm.db.batches import Failure
from farm.db.engine import make_engine
from farm.db.states import FailureKind, Role, Way
from farm.services.server_binaries import postgres_of_wheel
from support.samples import cpu, document, row
from support.shared_server import server_of_the_owner

FILE = Path(__file__).parent / "revision_0025.sql.gz"
LOGIN = "farm_host_here"
"""Of the host `here`, with its rights. Roles belong to the server: whoever loads the database makes it."""


def load(engine: Engine) -> None:
    """Fills an empty database: a campaign of 12 jobs, 6 measured and 1 failed in the first batch, 4 queued in a second."""
    statements = gzip.decompress(FILE.read_bytes()).decode()
    with engine.begin() as connection:
        connection.exec_driver_sql(statements, execution_options={"no_parameters": True})
    engine.dispose()  # connections with the settings of pg_dump


def dump(database_url: str, *options: str) -> str:
    """What pg_dump writes of a database, without what differs each time."""
    at = make_url(database_url)
    variables = {
        **os.environ,
        "PGHOST": str(at.query["host"]),
        "PGPORT": str(at.query.get("port", at.port)),
        "PGUSER": str(at.username),
        "PGPASSWORD": str(at.password or ""),
    }
    command = [postgres_of_wheel().postgres.parent / "pg_dump", "--no-owner", *options, str(at.database)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    # \restrict has a random key, and whoever loads the dump keeps the search path.
    return "\n".join(
        line for line in done.stdout.splitlines() if not line.startswith(("\\", "SELECT pg_catalog.set_config"))
    )


def _fill(engine: Engine) -> None:
    migrate.upgrade(engine)
    with engine.begin() as connection:
        device_id = devices.register(connection, host="here", host_facts={}, device=cpu())
        campaign = Campaign.from_document(document())
        stored = campaigns.store(
            connection, campaign, plan(campaign, campaigns.known_devices(connection), allow_missing=False).jobs()
        )
        worker_logins.add(connection, "here", password="made again where it is loaded")
        for size in (7, 4):
            (work,) = batches.candidates(connection)
            assert batches.lock(connection, work.lane_id)
            batch_id = batches.form(connection, work, queue="gpu.cpu-test", jobs=size)
            assert batch_id is not None
            if size == 7:
                lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
                assert lease is not None
                failed, *measured = lease.jobs
                results = [(job, row()) for job in measured]
                batches.land(connection, lease, results, {failed.id: Failure(FailureKind.FAILED, "a hiccup")})
    assert stored.campaign_id == 1


def main() -> None:
    ann = audit.Actor(name="ann", role=Role.OPERATE, way=Way.CLI, origin="ann@here")
    with server_of_the_owner() as urls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "local_actor", lambda: ann)
        owner = make_engine(urls.database_url, application="tests", pool_size=1)
        with owner.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE before TEMPLATE template0")
        made = owner.url.set(database="before").render_as_string(hide_password=False)
        engine = make_engine(made, application="tests", pool_size=1)
        _fill(engine)
        for each in (engine, owner):
            each.dispose()
        Path(sys.argv[1]).write_bytes(gzip.compress(dump(made, "--inserts").encode(), mtime=0))


if __name__ == "__main__":
    main()
