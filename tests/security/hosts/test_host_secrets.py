"""A worker host that somebody took over: what its login cannot read."""

from __future__ import annotations

import uuid

from psycopg import errors
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from farm.db.batches import Lease
from support.worker_hosts import MINE, THEIRS, Hosts, is_denied, value


def test_no_lease_token_can_be_read(hosts: Hosts, their_lease: Lease) -> None:
    attacks = (
        "SELECT lease_token FROM batches",
        "SELECT * FROM batches",
        "SELECT b FROM batches b",
        "SELECT to_jsonb(b) FROM batches b",
        f"SELECT id FROM batches WHERE lease_token = '{their_lease.token}'",
        "SELECT id FROM batches ORDER BY lease_token",
        "COPY batches (lease_token) TO STDOUT",
        "SELECT token FROM leadership",
        "SELECT sha256 FROM tokens",
        "SELECT most_common_vals FROM pg_stats WHERE attname = 'lease_token' AND 1 / (SELECT count(*) FROM batches WHERE lease_token IS NOT NULL) >= 0",
    )
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []


_CATALOG = text("""
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) AND c.relkind IN ('r', 'v')
  AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1
""")

_STATISTICS = "SELECT histogram_bounds::text FROM pg_stats WHERE tablename = 'batches' AND attname = 'lease_token'"


def readable(connection: Connection) -> dict[str, str]:
    """The content of each catalog and view of the server that the login can read."""
    relations = connection.execute(_CATALOG).scalars().all()
    functions = ("pg_stat_get_activity(NULL)", *(f"pg_stat_get_backend_activity({n})" for n in range(1, 21)))
    content = {}
    for relation in (*relations, *functions):
        try:
            with connection.begin_nested():
                found = connection.exec_driver_sql(f"SELECT t::text FROM {relation} t").scalars()
                content[relation] = "\n".join(line for line in found if line is not None)
        except ProgrammingError as error:
            if not isinstance(error.orig, errors.InsufficientPrivilege):
                raise
    return content


def test_no_catalog_shows_lease_tokens_and_statements_of_others(
    engine: Engine, hosts: Hosts, coordinator: Engine, my_lease: Lease, their_lease: Lease
) -> None:
    token, statement = str(their_lease.token), f"SELECT 'a statement of theirs {uuid.uuid4()}'"
    with engine.begin() as connection:
        connection.execute(text("ANALYZE batches"))
    with hosts[THEIRS].connect() as theirs:
        theirs.exec_driver_sql(statement)
        with coordinator.connect() as connection:
            assert statement in readable(connection)["pg_stat_activity"]
        assert token in value(engine, _STATISTICS)
        with hosts[MINE].begin() as connection:
            content = readable(connection)
    assert {"pg_stat_activity", "pg_stats", "pg_stat_get_activity(NULL)", "pg_locks"} <= set(content)
    assert str(hosts[THEIRS].url.username) in content["pg_stat_activity"]
    assert [name for name, shown in content.items() if token in shown or statement in shown] == []


def test_errors_and_reasons_of_other_hosts_are_not_read(hosts: Hosts, their_device: int) -> None:
    columns = ("state_reason", "claim_error", "session_lock", "contended_by", "measured")
    attacks = [f"SELECT {column} FROM devices" for column in columns]
    attacks += [
        "SELECT * FROM devices",
        "SELECT facts FROM hosts",
        "SELECT message FROM failures",
        "SELECT lane_id FROM jobs",
    ]
    assert [attack for attack in attacks if not is_denied(hosts[MINE], attack)] == []
