"""The database roles of the farm's services: what each may do with each table, declared once, and how they are made.

| role | who logs in with it |
| --- | --- |
| `farm_application` | coordinator, builders, and people who use `farm` with the database's URL |
| `farm_web` | `farm serve` |
| `farm_trainer` | `farm-trainer` |
| `farm_reader` | dashboards and notebooks (`farm.db.roles`) |

None of them owns a table, changes one, or creates roles: that is for the owner, who runs `farm db`, `farm tokens` and
nothing that listens. docs/security.md shows the table of rights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from psycopg import errors, sql
from sqlalchemy import Connection, text

from farm.db import roles
from farm.db.measurements import cursor_of
from farm.db.roles import CHANGING, RolePurpose
from farm.errors import RoleRefused, first_line

Privileges = Mapping[str, Sequence[str]]
"""By privilege: these columns, or the whole table where none is named."""

DEFAULT_PREFIX = "farm"
"""How the names of the roles begin."""


class Service(StrEnum):
    """Whose role it is; the role's name is a prefix and this."""

    APPLICATION = "application"
    WEB = "web"
    TRAINER = "trainer"


_LETTERS = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}


def _may(letters: str, **columns: Sequence[str]) -> Privileges:
    """SELECT, INSERT, UPDATE and DELETE by their first letters; `update=` and `insert=` name the only columns for that."""
    named = {privilege.upper(): columns_ for privilege, columns_ in columns.items()}
    return {**{_LETTERS[letter]: () for letter in letters}, **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What each service may do with one table. No service may TRUNCATE, REFERENCE or put a trigger on any."""

    application: Privileges = field(default_factory=dict)
    web: Privileges = field(default_factory=dict)
    trainer: Privileges = field(default_factory=dict)

    def of(self, service: Service) -> Privileges:
        found: Privileges = getattr(self, service.value)
        return found


# Whoever adds jobs, changes these. The web and trainers add them too: campaigns are submitted, and rounds decided.
_JOBS = Rights(application=_may("SIUD"), web=_may("SIUD"), trainer=_may("SIU"))
_READ = _may("S")

TABLES: Mapping[str, Rights] = {
    "alembic_version": Rights(application=_READ, web=_READ, trainer=_READ),
    "audit": Rights(application=_may("SI"), web=_may("SI")),
    "batches": Rights(application=_may("SIUD"), web=_may("SIUD"), trainer=_READ),
    "builders": Rights(application=_may("SIUD"), web=_READ),
    "campaigns": Rights(application=_may("SIUD"), web=_may("SIUD"), trainer=_may("S", update=("state", "finished_at"))),
    "compatible_revisions": Rights(application=_READ, web=_READ, trainer=_READ),
    "configurations": Rights(application=_may("SI"), web=_may("SI"), trainer=_may("SI")),
    "deleted_rows": Rights(application=_may("SID"), web=_may("SID")),
    "deletions": Rights(application=_may("SIUD"), web=_may("SIUD")),
    "device_overlaps": Rights(application=_may("SIUD"), web=_READ, trainer=_READ),
    "devices": Rights(application=_may("SIUD"), web=_may("SIUD"), trainer=_READ),
    "environments": Rights(application=_may("SI"), web=_may("SI"), trainer=_READ),
    "failures": Rights(application=_may("SID"), web=_may("SID"), trainer=_may("SI")),
    "fair_shares": Rights(application=_may("SIUD"), web=_READ),
    "hosts": Rights(application=_may("SIU"), web=_may("SI"), trainer=_READ),
    "jobs": _JOBS,
    "kernel_code": Rights(application=_may("SID"), web=_may("SD")),
    "kernel_definitions": Rights(application=_may("SI"), web=_may("SI"), trainer=_READ),
    "kernels": Rights(
        application=_may("SIUD"),
        # Only builders say that one is built, and by whom.
        web=_may(
            "SD",
            insert=("hash", "description", "toolchain"),
            update=("state", "starts", "sent_at", "finished_at", "wanted_at"),
        ),
        trainer=_may(
            "S",
            insert=("hash", "description", "toolchain"),
            update=("state", "starts", "sent_at", "finished_at", "wanted_at"),
        ),
    ),
    "lanes": _JOBS,
    "leadership": Rights(application=_may("SIU"), web=_READ, trainer=_READ),
    "measurements": Rights(application=_may("SIUD"), web=_may("SID", update=("campaign_id",)), trainer=_READ),
    "model_signatures": Rights(application=_may("SIU"), web=_READ, trainer=_may("SIU")),
    # A name stays with its person: nobody but the owner changes it.
    "oidc_users": Rights(web=_may("SI")),
    "pools": Rights(application=_may("SI"), web=_may("SI"), trainer=_may("SI")),
    # They announce themselves by functions.
    "programs": Rights(application=_READ, web=_READ, trainer=_READ),
    "quotas": Rights(application=_may("SIUD"), web=_may("SIUD")),
    "returned_jobs": _JOBS,
    # A token lets somebody into the web. Only the owner makes and revokes them.
    "tokens": Rights(web=_may("S", update=("last_used_at",))),
    "trainings": Rights(
        application=_may("SIU"),
        web=_may("SI"),
        trainer=_may(
            "S", update=("state", "starts", "started_at", "heard_of_at", "progress", "finished_at", "outcome", "error")
        ),
    ),
    "waiting_jobs": _JOBS,
    "web_sessions": Rights(web=_may("SIUD")),
    # Only the owner makes and revokes them.
    "worker_logins": Rights(application=_READ),
    "worker_versions": Rights(application=_may("SI"), web=_READ, trainer=_READ),
    **dict.fromkeys(roles.VIEWS, Rights(application=_READ, web=_READ, trainer=_READ)),
}
"""What services may do: a line for each table and view of the database. tests/security/test_roles_table.py fails for one that is missing."""

_SEQUENCES: Mapping[Service, Sequence[str]] = {Service.APPLICATION: ("batches_id_seq",)}
# Those that run with the rights of the owner.
_ANNOUNCING = ("program_announce", "program_leave")
_FUNCTIONS: Mapping[Service, Sequence[str]] = {
    Service.APPLICATION: ("end_long_worker_transactions", *_ANNOUNCING),
    Service.WEB: _ANNOUNCING,
    Service.TRAINER: _ANNOUNCING,
}
# To see who holds locks that the coordinator and workers wait for: see `farm.db.locks`.
_MEMBERSHIPS: Mapping[Service, Sequence[str]] = {
    Service.APPLICATION: ("pg_read_all_stats",),
    Service.WEB: ("pg_read_all_stats",),
}


def name_of(service: Service, prefix: str = DEFAULT_PREFIX) -> str:
    """The name of a service's role."""
    return f"{prefix}_{service.value}"


def purpose_of(service: Service) -> RolePurpose:
    """What the role of a service may do."""
    return RolePurpose(
        "services",
        {table: rights.of(service) for table, rights in TABLES.items() if rights.of(service)},
        (*CHANGING, "SELECT"),
        sequences=_SEQUENCES.get(service, ()),
        functions=_FUNCTIONS.get(service, ()),
        temporary=True,  # jobs are staged in temporary tables
        memberships=_MEMBERSHIPS.get(service, ()),
    )


_CONNECTED = text("""
SELECT DISTINCT r.rolname
FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE c.relnamespace = 'public'::regnamespace
UNION
SELECT DISTINCT r.rolname
FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid CROSS JOIN LATERAL aclexplode(t.attacl) a
JOIN pg_roles r ON r.oid = a.grantee
WHERE c.relnamespace = 'public'::regnamespace
UNION
SELECT DISTINCT r.rolname
FROM pg_proc f CROSS JOIN LATERAL aclexplode(f.proacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE f.pronamespace = 'public'::regnamespace
""")
_OPEN = text("SELECT has_database_privilege('public', current_database(), 'CONNECT')")
_DATABASE = text("SELECT current_database()")


def close_to_public(connection: Connection) -> None:
    """From now on only roles with rights in this database connect to it, and only its owner makes tables in it.

    Postgres lets every role of a server connect to each database and make temporary tables there. Roles that have rights on
    tables here, such as those of workers and readers, keep the right to connect.

    Raises `RoleRefused` where this is not the database's owner.
    """
    database = sql.Identifier(connection.execute(_DATABASE).scalar_one())
    connected = list(connection.execute(_CONNECTED).scalars())
    try:
        with cursor_of(connection) as cursor:
            for role in connected:
                cursor.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, sql.Identifier(role)))
            cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
            cursor.execute(sql.SQL("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    except errors.InsufficientPrivilege as error:
        raise RoleRefused(name="PUBLIC", why=first_line(error)) from None
    if connection.execute(_OPEN).scalar_one():  # Postgres only warns who is not the owner
        raise RoleRefused(name="PUBLIC", why="the database belongs to another role")


def set_up_service_roles(
    connection: Connection, passwords: Mapping[Service, str | None], *, prefix: str = DEFAULT_PREFIX
) -> None:
    """Creates or updates the roles of these services, so that they have the rights of `TABLES` and no other.

    In the caller's transaction. A password of None does not change that of the role.

    Raises `BadRole` for a role that is something else, and `RoleRefused` where Postgres refuses.
    """
    close_to_public(connection)
    for service, password in passwords.items():
        roles.set_up(connection, name_of(service, prefix), purpose_of(service), password)
