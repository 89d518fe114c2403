"""Database roles of workers and readers, with the minimum of rights.

Workers claim and land by functions that know the host of a login. Readers can read the documented views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import errors, sql
from sqlalchemy import Connection, text

from farm.db.measurements import cursor_of
from farm.errors import BadRole, RoleRefused, first_line

WORKER_ROLE = "farm_worker"
READER_ROLE = "farm_reader"

MAX_NAME_BYTES = 63
"""Postgres cuts longer names off (NAMEDATALEN)."""

_OF_DEVICES = (
    "id", "host_id", "uuid", "type", "name", "backend", "traits", "facts", "state", "vanished_at", "last_seen_at",
    "session_epoch", "session_host", "session_pid",
)  # fmt: skip
"""Columns of devices that every worker may read. Errors, reasons and locks are not for other hosts."""

RIGHTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "alembic_version": {"SELECT": ("version_num",)},
    "compatible_revisions": {"SELECT": ("program", "oldest")},
    "hosts": {"SELECT": ("id", "name")},
    "devices": {"SELECT": _OF_DEVICES},
    "configurations": {"SELECT": ()},
    "jobs": {"SELECT": ("id", "configuration_id", "state")},
    "batches": {"SELECT": ("id", "device_id", "state", "abandoned")},  # and not the tokens of leases
    # What another device measured, for a trial: which jobs, not the results.
    "measurements": {"SELECT": ("id", "device_id", "job_id", "configuration_id", "measured_at", "source")},
    "failures": {"SELECT": ("device_id", "kind", "at")},
    "kernels": {"SELECT": ("id", "hash", "state", "record", "signature", "error", "final")},
    "kernel_code": {"SELECT": ()},
    "kernel_definitions": {"SELECT": ("id", "definition")},
}
"""Rights of workers by table: these columns, or all if none is named. All changes go through `FUNCTIONS`."""

FUNCTIONS = (
    "worker_host", "worker_claim", "worker_mark", "worker_renew", "worker_abandon", "worker_release", "worker_release_all",
    "worker_land", "worker_land_sentinel", "worker_register", "worker_begin_session", "worker_announce_version",
    "worker_heartbeat", "worker_leave", "worker_unfit", "worker_note_claim_error", "worker_vanish", "worker_note_overlap",
    "worker_begin_probation", "worker_fail_trial", "worker_pass_trial",
    "program_announce", "program_leave",
)  # fmt: skip
"""Functions that a worker may call. They run with the owner's rights, and only act for devices of the login's host."""

VIEWS = (
    "v_measurements", "v_all_measurements", "v_sentinels", "v_best_kernels", "v_device_health", "v_campaign_progress",
)  # fmt: skip
"""The views that docs/sql.md describes: all that a reader may read."""

READER_RIGHTS: Mapping[str, Mapping[str, Sequence[str]]] = {view: {"SELECT": ()} for view in VIEWS}


@dataclass(frozen=True, slots=True)
class RolePurpose:
    """The users of a role, and its rights."""

    whom: str
    rights: Mapping[str, Mapping[str, Sequence[str]]]
    # What PUBLIC must not have on any table or view, but for those of `rights`.
    no_others: Sequence[str]
    # Sequences from which it may take numbers.
    sequences: Sequence[str] = ()
    # Functions that it may call, beside those that everybody may.
    functions: Sequence[str] = ()
    # Whether it may make temporary tables.
    temporary: bool = False
    # Postgres' own roles that it is a member of.
    memberships: Sequence[str] = ()
    # How many sessions it may have at a time. Then it also has the limits of `SESSION_LIMITS`. None: any number, without limits.
    sessions: int | None = None


CHANGING = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "TRIGGER")

SESSIONS_OF_HOST = 100
"""Sessions that a worker host may have at a time: two for each of its devices, and some."""

SESSION_LIMITS: Mapping[str, str] = {"statement_timeout": "60s", "idle_in_transaction_session_timeout": "10s"}
"""With what a session of a worker's login begins. A login can change that for itself: the coordinator ends transactions that go on
for longer than `farm.db.worker_logins.TRANSACTION_SECONDS`."""

TEMP_FILE_LIMIT = "64MB"
"""Of each session of a worker's login, which cannot change it. Workers' statements need no temporary files."""

_WORKERS = RolePurpose("workers", RIGHTS, (*CHANGING, "SELECT"), functions=FUNCTIONS, sessions=SESSIONS_OF_HOST)
_READERS = RolePurpose("readers", READER_RIGHTS, (*CHANGING, "SELECT"))

_FOUND = text("""
SELECT r.rolsuper, r.rolcreaterole, r.rolcreatedb, r.rolreplication, r.rolbypassrls,
    r.rolname IN (current_user, session_user) AS own,
    EXISTS (
        SELECT 1 FROM pg_shdepend
        WHERE refclassid = 'pg_authid'::regclass AND refobjid = r.oid AND deptype = 'o'
    ) AS owner,
    (SELECT min(g.rolname) FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
     WHERE m.member = r.oid AND g.rolname <> ALL(CAST(:memberships AS text[]))) AS member_of,
    CASE
        WHEN has_any_column_privilege(r.oid, 'lanes', 'INSERT') THEN 'services'
        WHEN EXISTS (
            SELECT FROM pg_proc f
            WHERE f.pronamespace = 'public'::regnamespace AND f.proname = 'worker_land' AND has_function_privilege(r.oid, f.oid, 'EXECUTE')
        ) THEN 'workers'
        WHEN has_table_privilege(r.oid, 'v_best_kernels', 'SELECT') THEN 'readers'
    END AS serves
FROM pg_roles r WHERE r.rolname = :name
""")
# What everybody has, this role has too, and it cannot be taken from it alone.
_TOO_MUCH = text("""
SELECT 'CREATE on the schema public' WHERE has_schema_privilege(:name, 'public', 'CREATE')
UNION ALL
SELECT 'CREATE on the database' WHERE has_database_privilege(:name, current_database(), 'CREATE')
UNION ALL
SELECT 'TEMPORARY on the database' WHERE :limited AND has_database_privilege(:name, current_database(), 'TEMPORARY')
UNION ALL
SELECT format('%s on %s', p.privilege, c.relname)
FROM pg_class c CROSS JOIN unnest(CAST(:privileges AS text[])) AS p(privilege)
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
  AND has_table_privilege(:name, c.oid, p.privilege)
  AND p.privilege || ' ' || c.relname <> ALL(CAST(:granted AS text[]))
LIMIT 1
""")
_LACKS = text("""
SELECT NOT has_database_privilege(:name, current_database(), 'CONNECT') AS database,
    NOT has_schema_privilege(:name, 'public', 'USAGE') AS schema, current_database() AS database_name
""")


NO_FILE_LIMIT = (
    "Sessions of {name} have no limit of their own on temporary files: only a superuser may let the owner of the tables set "
    "temp_file_limit. Run deploy/postgres-roles.sh on the Postgres host, then this command again."
)
"""What the commands that make these logins print where `limits_temporary_files` is false."""

_MAY_LIMIT_FILES = text("SELECT has_parameter_privilege('temp_file_limit', 'SET')")
_LIMITS_FILES = text("""
SELECT EXISTS (SELECT FROM pg_roles, unnest(rolconfig) AS setting WHERE rolname = :name AND setting LIKE 'temp_file_limit=%')
""")


def limits_temporary_files(connection: Connection, name: str) -> bool:
    """Whether the role has a `temp_file_limit` of its own. The owner of the tables needs a right for that.

    `deploy/postgres-roles.sh` grants it.
    """
    found: bool = connection.execute(_LIMITS_FILES, {"name": name}).scalar_one()
    return found


_MEMBER = text("SELECT pg_has_role(:name, :group, 'MEMBER')")
_EXISTS = text("SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = :name)")


def exists(connection: Connection, name: str) -> bool:
    """Whether the role exists."""
    found: bool = connection.execute(_EXISTS, {"name": name}).scalar_one()
    return found


def set_up_worker_role(connection: Connection, name: str, *, password: str | None) -> None:
    """Makes the role, or changes one that is there, so that it has the `RIGHTS` and no other in this database.

    In the caller's transaction: workers that are connected notice nothing. A password of None leaves the role's as it
    is. The server gets only what it keeps of a password (SCRAM-SHA-256), so that no log of it can hold the password.

    Raises `BadRole` for a role that is more than a worker's, or a reader's, and `RoleRefused` where Postgres refuses.
    """
    set_up_worker_login(connection, name, None, password=password)


_BELONGS = text("""
INSERT INTO worker_logins (login, host) VALUES (:login, :host)
ON CONFLICT (login) DO UPDATE SET host = coalesce(worker_logins.host, excluded.host)
""")


def set_up_worker_login(connection: Connection, name: str, host: str | None, *, password: str | None) -> None:
    """As `set_up_worker_role`, a role that acts for the devices of that host alone; None: for those of every host."""
    set_up(connection, name, _WORKERS, password)
    connection.execute(_BELONGS, {"login": name, "host": host})


def set_up_reader_role(connection: Connection, name: str, *, password: str | None) -> None:
    """As `set_up_worker_role`, a role that may read the `VIEWS` and nothing else."""
    set_up(connection, name, _READERS, password)


def set_up(connection: Connection, name: str, purpose: RolePurpose, password: str | None) -> None:
    """As `set_up_worker_role`, a role for that purpose."""
    _check(connection, name, purpose)
    try:
        with cursor_of(connection) as cursor:
            for statement in _statements(connection, name, password, purpose):
                cursor.execute(statement)
    except (errors.InsufficientPrivilege, errors.ReservedName) as error:
        raise RoleRefused(name=name, why=first_line(error)) from None
    granted = [
        f"{privilege} {table}" for table, named in purpose.rights.items() for privilege in named if not named[privilege]
    ]
    parameters = {
        "name": name,
        "privileges": list(purpose.no_others),
        "granted": granted,
        "limited": purpose.sessions is not None,
    }
    if (too_much := connection.execute(_TOO_MUCH, parameters).scalar_one_or_none()) is not None:
        why = f"it would have {too_much}, which PUBLIC has; revoke that from PUBLIC first"
        raise BadRole(name=name, whom=purpose.whom, why=why)


def _statements(
    connection: Connection, name: str, password: str | None, purpose: RolePurpose
) -> Iterator[sql.Composed]:
    role = sql.Identifier(name)
    if not exists(connection, name):
        yield sql.SQL("CREATE ROLE {} LOGIN").format(role)
    if password is not None:
        kept = sql.Literal(_as_kept(connection, name, password))
        yield sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(role, kept)
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        yield sql.SQL("REVOKE ALL ON ALL {} IN SCHEMA public FROM {}").format(sql.SQL(kind), role)
    lacks = connection.execute(_LACKS, {"name": name}).one()
    if lacks.database:
        yield sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(lacks.database_name), role)
    if lacks.schema:
        yield sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role)
    database = sql.Identifier(lacks.database_name)
    if purpose.temporary:
        yield sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(database, role)
    if purpose.sessions is not None:
        yield from _limits(role, database, purpose.sessions)
        if connection.execute(_MAY_LIMIT_FILES).scalar_one():
            yield sql.SQL("ALTER ROLE {} SET temp_file_limit = {}").format(role, sql.Literal(TEMP_FILE_LIMIT))
    yield from _granted(connection, name, purpose)


def _granted(connection: Connection, name: str, purpose: RolePurpose) -> Iterator[sql.Composed]:
    role = sql.Identifier(name)
    for group in purpose.memberships:
        if not connection.execute(_MEMBER, {"name": name, "group": group}).scalar_one():
            yield sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), role)
    for sequence in purpose.sequences:
        yield sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sql.Identifier(sequence), role)
    for function in purpose.functions:
        yield sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(sql.Identifier(function), role)
    for table, privileges in purpose.rights.items():
        for privilege, columns in privileges.items():
            named = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
            on = sql.Identifier(table)
            yield sql.SQL("GRANT {} {} ON {} TO {}").format(sql.SQL(privilege), named, on, role)


def _limits(role: sql.Identifier, database: sql.Identifier, sessions: int) -> Iterator[sql.Composed]:
    yield sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(database)
    yield sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(role, sql.Literal(sessions))
    for limit, value in SESSION_LIMITS.items():
        yield sql.SQL("ALTER ROLE {} SET {} = {}").format(role, sql.Identifier(limit), sql.Literal(value))
    # So that its sessions can be ended.
    yield sql.SQL("GRANT {} TO CURRENT_USER WITH INHERIT TRUE, SET FALSE").format(role)


def _check(connection: Connection, name: str, purpose: RolePurpose) -> None:
    """Raises `BadRole` for a role that must not be changed, such as the farm's own."""
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or "\0" in name:
        raise BadRole(name=repr(name), whom=purpose.whom, why=f"a name has from 1 to {MAX_NAME_BYTES} bytes")
    parameters = {"name": name, "memberships": list(purpose.memberships)}
    found = connection.execute(_FOUND, parameters).one_or_none()
    if found is None:
        return
    why = None
    if found.own:
        why = "it is the role that FARM_DATABASE_URL names"
    elif found.rolsuper or found.rolcreaterole or found.rolcreatedb or found.rolreplication or found.rolbypassrls:
        why = "there is such a role, and it may do more than log in"
    elif found.owner:
        why = "there is such a role, and it owns a database or something in one"
    elif found.member_of is not None:
        why = f"there is such a role, and it is a member of {found.member_of}"
    elif found.serves not in (None, purpose.whom):
        why = f"there is such a role, and it is that of {found.serves}"
    if why is not None:
        raise BadRole(name=name, whom=purpose.whom, why=why)


def _as_kept(connection: Connection, name: str, password: str) -> str:
    driver: Any = connection.connection.driver_connection
    kept: bytes = driver.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    return kept.decode()
