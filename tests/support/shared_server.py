"""A Postgres as services on several hosts share it: its roles made by the script that Compose runs, and passwords asked of all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import URL, make_url

import farm
from farm.db.engine import make_engine
from farm.db.service_roles import Service, set_up_service_roles
from farm.services import ServiceUrls, postgres
from farm.services.server_binaries import postgres_of_wheel
from support.servers import WITH_PASSWORDS, own_services

SCRIPT = Path(farm.__file__).parent.parent / "deploy" / "postgres-roles.sh"

SUPERUSER = "postgres"
PASSWORDS: Mapping[str, str] = {
    name: f"of/{name}%'s:own" for name in (SUPERUSER, "farm_owner", "mlflow", *(f"farm_{one}" for one in Service))
}
"""By role."""


@dataclass(frozen=True)
class SharedServer:
    """Its URLs; those of services are the ones of `farm`, which owns nothing once the roles are made."""

    urls: ServiceUrls

    def url(self, role: str, database: str = "farm") -> str:
        """The URL of a database under a role of `PASSWORDS`."""
        found: URL = make_url(self.urls.database_url).set(username=role, password=PASSWORDS[role], database=database)
        return found.render_as_string(hide_password=False)

    def make_roles(self) -> None:
        """What Compose does in a new database, and an operator in one of an older version."""
        at = make_url(self.urls.database_url)
        variables = {
            **os.environ,
            "PATH": f"{postgres_of_wheel().postgres.parent}:{os.environ['PATH']}",
            "PGHOST": str(at.query["host"]),
            "PGPORT": str(at.query.get("port", at.port)),
            "PGPASSWORD": PASSWORDS[SUPERUSER],
            "POSTGRES_USER": SUPERUSER,
            "OWNER_PASSWORD": PASSWORDS["farm_owner"],
            "MLFLOW_DATABASE_PASSWORD": PASSWORDS["mlflow"],
        }
        subprocess.run(["sh", SCRIPT], env=variables, check=True)


@contextmanager
def shared_server() -> Iterator[SharedServer]:
    """Every role logs in with its password, the superuser too. Redis runs beside it."""
    superuser = f"ALTER ROLE {SUPERUSER} PASSWORD '{PASSWORDS[SUPERUSER].replace(chr(39), 2 * chr(39))}';\n"
    with own_services(hba=WITH_PASSWORDS, create=postgres._CREATE + superuser) as urls:
        yield SharedServer(urls)


@contextmanager
def server_of_the_owner() -> Iterator[ServiceUrls]:
    """The URLs of such a server with the roles made, under the owner, who may make databases for tests here."""
    with shared_server() as server:
        server.make_roles()
        engine = make_engine(server.url(SUPERUSER), application="tests", pool_size=1)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER ROLE farm_owner CREATEDB")
        engine.dispose()
        yield replace(server.urls, database_url=server.url("farm_owner"))


def urls_of_roles(database_url: str) -> dict[Service, str]:
    """Gives services their roles in a migrated database of the owner's; the URL of each."""
    engine = make_engine(database_url, application="tests", pool_size=1)
    try:
        with engine.begin() as connection:
            set_up_service_roles(connection, {one: PASSWORDS[f"farm_{one}"] for one in Service})
    finally:
        engine.dispose()
    at = make_url(database_url)
    return {
        one: at.set(username=f"farm_{one}", password=PASSWORDS[f"farm_{one}"]).render_as_string(hide_password=False)
        for one in Service
    }
