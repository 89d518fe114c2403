"""A worker host that somebody took over: rows that its login cannot forge, and tables that it cannot change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.db import batches, measurements, sentinels
from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.roles import FUNCTIONS
from farm.db.states import FailureKind
from farm.gemm import Shape
from farm.kernels import Configuration
from farm.measurement import Source
from support.samples import row
from support.worker_hosts import MINE, Hosts, denied, is_denied, state_of_the_farm, value


def test_a_host_changes_no_table_but_by_its_functions(
    engine: Engine, hosts: Hosts, my_device: int, campaign: int, my_lease: Lease
) -> None:
    with engine.connect() as connection:
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
    attacks = [
        attack
        for table in tables
        for attack in (
            f"INSERT INTO {table} DEFAULT VALUES",
            f"DELETE FROM {table}",
            f"TRUNCATE {table} CASCADE",
            f"DO $$ BEGIN LOCK TABLE {table} IN ROW EXCLUSIVE MODE; END $$",
            f"SELECT 1 FROM {table} FOR UPDATE",
        )
    ]
    attacks += [
        "UPDATE devices SET type = 'nvidia-h200', facts = '{}'",
        "UPDATE devices SET state = 'quarantined'",
        "UPDATE batches SET lease_token = gen_random_uuid()",
        "UPDATE jobs SET state = 'done'",
        "UPDATE hosts SET facts = '{}'",
        "UPDATE worker_logins SET host = NULL",
        "SELECT * FROM worker_logins",
        f"INSERT INTO measurements (device_id, configuration_id) SELECT {my_device}, id FROM configurations",
        "INSERT INTO configurations SELECT * FROM configurations",
    ]
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


def test_rows_without_a_job_and_rows_of_jobs_of_other_batches_do_not_land(
    engine: Engine, hosts: Hosts, my_lease: Lease, their_lease: Lease
) -> None:
    before = state_of_the_farm(engine)
    configuration = my_lease.jobs[0].configuration
    own = [(job, row()) for job in my_lease.jobs]
    for forged in (
        (their_lease.jobs[0], row()),
        (ClaimedJob(10**9, configuration), row()),
        (ClaimedJob(my_lease.jobs[0].id, my_lease.jobs[1].configuration), row()),
        (my_lease.jobs[0], row(source=Source.IMPORTED)),
        (my_lease.jobs[0], row(source=Source.SENTINEL)),
    ):
        results = [one for one in own if one[0].id != forged[0].id] + [forged]
        denied(hosts[MINE], lambda connection, results=results: batches.land(connection, my_lease, results, {}))
    rows = measurements.parameters_of([(None, my_lease.campaign_id, configuration.id, my_lease.device_id, row())])
    assert state_of_the_farm(engine) == before
    with hosts[MINE].begin() as connection:  # a row names no job, campaign or device of its own choice
        batches.land(connection, my_lease, own, {their_lease.jobs[0].id: Failure(FailureKind.INVALID, "mine")})
    assert value(engine, "SELECT count(*) FROM failures") == 0
    assert value(engine, "SELECT count(*) FROM measurements WHERE job_id IS NULL") == 0
    assert rows["contents"]


def test_the_environment_of_a_row_is_named_by_its_content(engine: Engine, hosts: Hosts, my_lease: Lease) -> None:
    parameters = batches.working._landing(my_lease, [(my_lease.jobs[0], row())], {}, {}, batches.working.BUILT_WITH)
    forged = {**parameters, "contents": ['{"library": "another"}']}
    denied(hosts[MINE], lambda connection: connection.execute(batches.working._LAND, forged))
    assert value(engine, "SELECT count(*) FROM environments") == 0


def small_under_the_id_of_a_large_one(engine: Engine) -> tuple[Configuration, Configuration]:
    large, small = (Configuration.parse(f"blas(threads=1) {n}x{n}x{n} f32") for n in (4096, 1))
    assert large.problem.shape == Shape(4096, 4096, 4096)
    return large, small


def test_a_configuration_is_stored_under_no_other_id_than_its_own(
    engine: Engine, hosts: Hosts, my_lease: Lease, campaign: int
) -> None:
    large, small = small_under_the_id_of_a_large_one(engine)
    columns = {**small.columns(), "parameters": json.dumps(small.columns()["parameters"])}
    sentinel = row(source=Source.SENTINEL)
    rows = measurements.parameters_of([(None, campaign, large.id, my_lease.device_id, sentinel)])
    forged = {**columns, **rows, "id": large.id, "batch_id": my_lease.batch_id, "token": my_lease.token}

    def land(connection: Any) -> None:
        batches.land(connection, my_lease, [], {})
        connection.execute(sentinels._LAND, forged)

    denied(hosts[MINE], land)
    assert value(engine, f"SELECT count(*) FROM configurations WHERE id = '{large.id}'") == 0
    with hosts[MINE].begin() as connection:
        batches.land(connection, my_lease, [], {})
        sentinels.land(connection, my_lease, large, sentinel)
    assert value(engine, f"SELECT m FROM configurations WHERE id = '{large.id}'") == 4096
    assert value(engine, "SELECT count(*) FROM measurements WHERE source = 'sentinel'") == 1
    # Later, and for a batch that another device landed, there is no sentinel.
    denied(
        hosts[MINE],
        lambda connection: connection.execute(
            sentinels._LAND, {**forged, **large.columns(), "parameters": columns["parameters"]}
        ),
    )


@pytest.mark.parametrize(
    "alpha", [1.0, 0.5, 1e-5, 1e-4, 0.1 + 0.2, 1e15, 1234567890123456.8, 1e16, 1e22, -2.0, 5e-324, 123456789.0]
)
def test_the_database_and_the_farm_name_a_configuration_alike(engine: Engine, alpha: float) -> None:
    for written in ("blas(threads=2) 64x32x16 f32", "cutlass(stages=3) 64x64x32 f16", "tiled(tile=16) 4096x1x7 f32 tn"):
        one = Configuration.parse(
            f"{written} alpha={alpha!r} beta={alpha!r}"
            if "tn" in written
            else f"{written} nn alpha={alpha!r} beta={alpha!r}"
        )
        columns = {**one.columns(), "parameters": json.dumps(one.columns()["parameters"])}
        statement = text("""
            SELECT configuration_id(:m, :n, :k, :ab, :cd, :acc, :layout, :alpha, :beta, :family, CAST(:parameters AS jsonb))
        """)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL extra_float_digits = 0"))
            assert connection.execute(statement, columns).scalar_one() == one.id


def test_leadership_cannot_be_taken(hosts: Hosts) -> None:
    attacks = (
        "SELECT * FROM leadership",
        "SELECT term FROM leadership FOR UPDATE",
        "UPDATE leadership SET expires_at = 'infinity'",
        "UPDATE leadership SET term = term + 1",
        "DO $$ BEGIN LOCK TABLE leadership IN ACCESS SHARE MODE; END $$",
    )
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


def test_the_functions_are_for_workers_alone(engine: Engine, hosts: Hosts) -> None:
    statement = text("""
        SELECT proname FROM pg_proc
        WHERE prosecdef AND pronamespace = 'public'::regnamespace AND has_function_privilege(:role, oid, 'EXECUTE') ORDER BY 1
    """)
    with engine.connect() as connection:
        mine = connection.execute(statement, {"role": hosts[MINE].url.username}).scalars().all()
        everybody = connection.execute(statement, {"role": "mlflow"}).scalars().all()
        unsafe = value(
            engine,
            "SELECT count(*) FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
            " AND NOT proconfig @> ARRAY['search_path=pg_catalog, public, pg_temp']",
        )
    assert (mine, everybody, unsafe) == (sorted(FUNCTIONS), [], 0)
