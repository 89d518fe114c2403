"""Logins of worker hosts: made, shared, refused and revoked."""

from __future__ import annotations

import json
import shlex
import subprocess
import uuid
from pathlib import Path

import pytest
from psycopg import sql
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError

from farm.db import batches, devices, measurements, roles, worker_logins
from farm.db.batches import Lease
from farm.db.engine import make_engine
from farm.db.roles import set_up_worker_role
from farm.errors import BadHostName, BadRole, NoSuchHost
from support.commands import called
from support.homes import environment
from support.samples import cpu, row
from support.worker_hosts import MINE, PASSWORD, THEIRS, Hosts, announced, denied, is_denied, leased, under

KEY = "A" * 43 + "="


def test_a_login_that_no_host_has_does_nothing(engine: Engine, hosts: Hosts, my_device: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM worker_logins"))
    denied(hosts[MINE], lambda connection: devices.heartbeat(connection, my_device))
    denied(hosts[MINE], lambda connection: devices.register(connection, host=MINE, host_facts={}, device=cpu(1)))


def test_a_revoked_host_is_out_at_once_and_its_batch_goes_back(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int, their_lease: Lease
) -> None:
    mine = leased(engine, hosts[MINE], my_device, lease_seconds=1e6)
    login = str(hosts[MINE].url.username)
    with hosts[MINE].connect() as connected:
        connected.execute(text("SELECT 1"))
        connected.commit()
        with engine.begin() as connection:
            logins = worker_logins.shut_out(connection, MINE)
        with engine.begin() as connection:
            assert batches.reap(connection) == [mine.batch_id]
        with pytest.raises(DBAPIError, match="permission denied"):
            devices.heartbeat(connected, my_device)
        connected.rollback()
        with engine.begin() as connection:
            worker_logins.remove(connection, MINE, logins)
        with pytest.raises(DBAPIError):
            connected.execute(text("SELECT 1"))
    with engine.begin() as connection:
        assert not roles.exists(connection, login)
        assert [one.host for one in worker_logins.list_logins(connection)] == [THEIRS]
        with pytest.raises(NoSuchHost):
            worker_logins.shut_out(connection, MINE)
    again = under(engine, login)
    with pytest.raises(OperationalError, match="authentication failed"), again.connect():
        pass
    again.dispose()
    assert announced(hosts[THEIRS], 1) == my_device  # the operator gave it away


def test_a_host_that_locks_its_batch_and_device_does_not_delay_its_revocation(
    engine: Engine, hosts: Hosts, my_device: int, my_lease: Lease
) -> None:
    with hosts[MINE].connect() as connected:
        assert batches.mark(connected, my_lease, my_lease.jobs[0], lease_seconds=60)
        devices.heartbeat(connected, my_device)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            logins = worker_logins.shut_out(connection, MINE)
        with engine.begin() as connection:
            assert batches.reap(connection) == []
            worker_logins.remove(connection, MINE, logins)
        with engine.begin() as connection:
            assert batches.reap(connection) == [my_lease.batch_id]
        connected.invalidate()
    assert announced(hosts[THEIRS], 1) == my_device


def test_a_login_of_every_host_acts_for_all_and_keeps_its_limits(engine: Engine, hosts: Hosts, my_lease: Lease) -> None:
    name = f"shared_{uuid.uuid4().hex[:6]}"
    with engine.begin() as connection:
        set_up_worker_role(connection, name, password=PASSWORD)
    shared = under(engine, name)
    with shared.begin() as connection:
        batches.land(connection, my_lease, [(job, row()) for job in my_lease.jobs], {})
    assert is_denied(shared, "SELECT lease_token FROM batches")
    assert is_denied(shared, "CREATE TEMPORARY TABLE mine (id int)")
    shared.dispose()
    with engine.begin() as connection:
        worker_logins.remove(connection, None, [name])


def test_a_name_that_no_host_has_is_refused(engine: Engine) -> None:
    for name in ("", "a b", "-x", "x" * 60, "a';--"):
        with pytest.raises(BadHostName), engine.begin() as connection:
            worker_logins.add(connection, name, password=PASSWORD)


def test_a_role_of_somebody_else_is_not_taken_for_a_hosts(engine: Engine) -> None:
    name = worker_logins.login_of(f"other-{uuid.uuid4().hex[:6]}")
    with engine.begin() as connection:
        with measurements.cursor_of(connection) as cursor:
            cursor.execute(sql.SQL("CREATE ROLE {} CREATEDB").format(sql.Identifier(name)))
        with pytest.raises(BadRole):
            worker_logins.add(connection, name.removeprefix("farm_host_"), password=PASSWORD)
        connection.rollback()


def test_the_command_makes_lists_and_ends_a_login(engine: Engine, database_url: str, tmp_path: Path) -> None:
    host = f"gpu-{uuid.uuid4().hex[:6]}"

    def farm_hosts(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = environment(tmp_path / ".farm", **{"FARM_DATABASE_URL": database_url, **variables})
        return called(("hosts", *words), tmp_path, given)

    assert farm_hosts("add", host, FARM_BROKER_URL="amqp://x").returncode == 2  # and no login is made
    added = farm_hosts("add", host, FARM_WORKER_PASSWORD="of every host", FARM_REDIS_WORKER_PASSWORD="of workers")
    assert added.returncode == 0, added.stderr
    assert "temporary files" not in added.stderr
    assert "of every host" not in added.stdout + added.stderr
    lines = dict(line.split("=", 1) for line in shlex.split(added.stdout))
    assert list(lines) == ["FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_KERNEL_KEYS"]
    assert lines["FARM_BROKER_URL"] == "redis://farm_worker:of%20workers@HOST:6379/0"
    url = make_url(lines["FARM_DATABASE_URL"])
    assert url.username == f"farm_host_{host}"
    assert url.password not in ("of every host", make_url(database_url).password)
    login = make_engine(lines["FARM_DATABASE_URL"].replace("://", "+psycopg://"), application="test", pool_size=1)
    announced(login, 7)
    login.dispose()
    (listed,) = json.loads(farm_hosts("--json").stdout)
    assert (listed["host"], listed["devices"]) == (host, 1)
    again = json.loads(farm_hosts("add", host, "--json", FARM_KERNEL_KEYS=KEY).stdout)
    settings = {one["variable"]: one for one in again.pop("settings")}
    assert again == {"host": host, "login": f"farm_host_{host}", "new": False, "password": None, "warning": None}
    assert make_url(settings["FARM_DATABASE_URL"]["value"]).password == "PASSWORD"
    assert settings["FARM_KERNEL_KEYS"] == {"variable": "FARM_KERNEL_KEYS", "value": KEY, "notes": []}
    assert farm_hosts("revoke", host).returncode == 0
    assert farm_hosts("revoke", host).returncode == 4
    assert farm_hosts("add", "a b").returncode == 2
    embedded = farm_hosts("add", host, FARM_DATABASE_URL="")
    assert embedded.returncode == 2
    assert "Set FARM_DATABASE_URL to a Postgres that worker hosts reach" in " ".join(embedded.stderr.split())
