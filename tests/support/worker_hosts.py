"""Worker hosts that have a login of their own in the database, and what the attacks of one of them come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import errors
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from farm.broker.queues import queue_of_type
from farm.db import batches, device_sessions
from farm.db.batches import Lease
from farm.db.device_sessions import DeviceSession, Server
from farm.db.engine import make_engine
from support.samples import cpu

PASSWORD = "of a/host%'s"

MINE, THEIRS = "mine", "theirs"


def under(engine: Engine, login: str, password: str = PASSWORD) -> Engine:
    url = engine.url.set(username=login, password=password).render_as_string(hide_password=False)
    return make_engine(url, application="test", pool_size=1)


Hosts = dict[str, Engine]


def begun(under_host: Engine, number: int, *, claims_to_be: str = "anything") -> DeviceSession:
    with under_host.begin() as connection:
        server = Server(host=claims_to_be, pid=number, lock=f"lock {number}")
        return device_sessions.begin(connection, cpu(number), server, host_facts={}, silent_after=20)


def announced(under_host: Engine, number: int, *, claims_to_be: str = "anything") -> int:
    return begun(under_host, number, claims_to_be=claims_to_be).device_id


def formed(engine: Engine, jobs: int) -> int:
    with engine.begin() as connection:
        work = batches.candidates(connection)[0]
        assert batches.lock(connection, work.lane_id)
        batch_id = batches.form(connection, work, queue=queue_of_type("cpu-test"), jobs=jobs)
    assert batch_id is not None
    return batch_id


def leased(owner: Engine, under_host: Engine, device_id: int, *, jobs: int = 3, lease_seconds: float = 60) -> Lease:
    batch_id = formed(owner, jobs)
    with under_host.begin() as connection:
        lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=lease_seconds)
    assert lease is not None
    return lease


def is_denied(attacker: Engine, statement: str) -> bool:
    try:
        with attacker.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    except ProgrammingError as error:
        return isinstance(error.orig, errors.InsufficientPrivilege)
    return False


def denied(attacker: Engine, attack: Callable[[Any], object]) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), attacker.begin() as connection:
        attack(connection)


def value(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one()


def state_of_the_farm(engine: Engine) -> list[Any]:
    tables = (
        "batches",
        "configurations",
        "devices",
        "environments",
        "failures",
        "hosts",
        "jobs",
        "measurements",
        "returned_jobs",
    )
    with engine.connect() as connection:
        return [
            connection.execute(
                text(f"SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)), '[]') FROM {table} t")
            ).scalar_one()
            for table in tables
        ]
