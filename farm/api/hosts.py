"""Worker hosts: one database login for each. List, add, revoke."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import text

from farm.api.access import Access
from farm.api.operation import Cli, Document, InTable, operation
from farm.db import roles, worker_logins
from farm.db.states import Role
from farm.errors import BadRole
from farm.services import host_settings
from farm.settings import Settings

HostName = Annotated[
    str, Field(description="The host's name, as farm devices shows it."), Cli(argument=True, metavar="NAME")
]


class HostLine(Document):
    """A login of a worker host. host null: it acts for every host."""

    login: Annotated[str, InTable(folds=True)]
    host: Annotated[str | None, InTable(folds=True, text=lambda host: host or "every host")]
    created_at: Annotated[datetime, InTable("made", priority=2)]
    devices: Annotated[int, InTable(text=lambda devices: devices or None)]
    last_seen_at: Annotated[datetime | None, InTable("last heartbeat", priority=1)]


class NewHost(Document):
    """Request for the login of a worker host."""

    name: HostName
    prefix: Annotated[str, Field(description="Prefix of the logins, if several farms share one server.")] = (
        worker_logins.DEFAULT_PREFIX
    )


class SettingOfHost(Document):
    """A variable to set on a worker host."""

    variable: str
    value: str
    notes: list[str] = Field(description="what to replace in the value, or to do for it")


class AddedHost(Document):
    """The login of a worker host. A password is shown only in this response."""

    host: str
    login: str
    new: bool
    password: str | None = Field(description="of a new login")
    settings: list[SettingOfHost]
    warning: str | None = Field(description="what the owner of the database could not set")


class RevokedHost(Document):
    """A host whose logins are removed."""

    host: str
    logins: list[str]
    revoked: bool = True


@operation("GET", "/hosts", role=Role.ADMIN, privileged=True)
def list_(access: Access) -> list[HostLine]:
    """List the logins of worker hosts. A login acts for the devices of its host, and for no others."""
    with access.connect() as connection:
        return [HostLine.model_validate(one) for one in worker_logins.list_logins(connection)]


@operation("POST", "/hosts", role=Role.ADMIN, privileged=True)
def add(access: Access, new_host: NewHost) -> AddedHost:
    """Make the login of a worker host, or give it the rights of this version. A new password is shown only in the response."""
    name, prefix = new_host.name, new_host.prefix
    login = worker_logins.login_of(name, prefix)
    _require_shared(access.settings, login)
    # These may refuse a setting. They come before a password that is shown once.
    others = [host_settings.broker(access.settings, name=name), host_settings.kernel_keys(access.settings)]
    with access.change(add) as change:
        new = not roles.exists(change.connection, login)
        password = secrets.token_urlsafe(24) if new else None
        worker_logins.add(change.connection, name, password=password, prefix=prefix)
        change.record("host", name, after={"login": login, "new": new, "password_set": new})
        limited = roles.limits_temporary_files(change.connection, login)
        database = host_settings.database(
            access.session.urls.database_url,
            name=name,
            login=login,
            password=password,
            database=change.connection.execute(text("SELECT current_database()")).scalar_one(),
        )
    return AddedHost(
        host=name,
        login=login,
        new=new,
        password=password,
        settings=[SettingOfHost.model_validate(one) for one in (database, *others)],
        warning=None if limited else roles.NO_FILE_LIMIT.format(name=login),
    )


@operation("POST", "/hosts/{host}/revoke", role=Role.ADMIN, privileged=True)
def revoke(access: Access, host: HostName) -> RevokedHost:
    """End the login of a worker host and its connections. Its results are kept, and its jobs go to other devices."""
    with access.change(revoke) as change:
        logins = worker_logins.shut_out(change.connection, host)
        change.record("host", host, after={"logins": logins, "revoked": True})
    with access.change(revoke) as change:
        worker_logins.remove(change.connection, host, logins)
        change.record("host", host, after={"logins": [], "revoked": True})
    return RevokedHost(host=host, logins=logins)


def _require_shared(settings: Settings, login: str) -> None:
    """Raises `BadRole` where the database is the embedded one."""
    if settings.embedded_database:
        why = f"the database embedded in {settings.home} has one role, and only this machine reaches it"
        raise BadRole(
            name=login, whom="workers", why=f"{why}. Set FARM_DATABASE_URL to a Postgres that worker hosts reach"
        )
