"""The URLs of Postgres and of the broker: which forms are taken, and how they are shown without their passwords."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from farm.db.engine import sqlalchemy_url
from farm.errors import BadServiceUrl
from farm.masking import masked

BROKER_SCHEMES = ("redis", "rediss", "redis+socket")
CERTIFICATE_RULES = ("required", "optional", "none", "CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE")
"""Values of `ssl_cert_reqs` that kombu knows. It raises `KeyError` for any other."""


def safe_url(url: str) -> str:
    """The URL with its passwords as `***`, whether or not it is a well-formed one.

    >>> safe_url("redis://:secret@host:6379/0")
    'redis://:***@host:6379/0'
    >>> safe_url("redis+socket://:secret@/run/redis.sock?virtual_host=0")
    'redis+socket://:***@/run/redis.sock?virtual_host=0'
    """
    # Greedy up to the last @, since a password that should have been escaped may hold one itself.
    whole = re.sub(r"(//[^:/?#@]*):.*@", r"\1:***@", url)
    return masked(whole)


def database_url(url: str) -> str:
    """The URL as SQLAlchemy takes it, `postgresql+psycopg://…`. Raises `BadServiceUrl` for anything but Postgres."""
    try:
        parsed = make_url(sqlalchemy_url(url))
    except (ArgumentError, ValueError) as error:
        raise BadServiceUrl(variable="FARM_DATABASE_URL", url=safe_url(url), why=_reason(error)) from None
    return parsed.render_as_string(hide_password=False)


def broker_url(url: str) -> str:
    """The URL, checked: Redis over TCP, TLS or a Unix socket. Raises `BadServiceUrl` for anything else.

    TLS checks the server's certificate, unless `ssl_cert_reqs` says otherwise.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it is what checks it
        query = dict(parse_qsl(parts.query))
    except ValueError as error:
        raise BadServiceUrl(variable="FARM_BROKER_URL", url=safe_url(url), why=_reason(error)) from None
    if parts.scheme not in BROKER_SCHEMES:
        why = "the farm sends through Redis only; write redis://:password@host:6379/0 (or rediss://, redis+socket://)"
    elif parts.scheme == "redis+socket" and (parts.hostname or not parts.path.strip("/") or "password" in query):
        # kombu overwrites a password of the query with that of the host part, even where there is none.
        why = "write it as in redis+socket://:password@/run/redis.sock?virtual_host=0"
    elif parts.scheme != "redis+socket" and not parts.hostname:
        why = "it names no host"
    elif query.get("ssl_cert_reqs", "required") not in CERTIFICATE_RULES:
        why = "ssl_cert_reqs is required, optional or none"
    else:
        return _with_checked_certificate(url)
    raise BadServiceUrl(variable="FARM_BROKER_URL", url=safe_url(url), why=why)


def redis_client_url(url: str) -> str:
    """A broker URL in the form of the `redis` package, which names sockets, databases and TLS rules differently."""
    parts = urlsplit(_with_checked_certificate(url))
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].lower().removeprefix("cert_")
    if parts.scheme == "redis+socket":
        query["db"] = query.pop("virtual_host", "0").strip("/") or "0"
        return urlunsplit(("unix", parts.netloc, parts.path, urlencode(query), ""))
    return urlunsplit(parts._replace(query=urlencode(query)))


def embedded_database_url(*, socket_folder: str, port: int, user: str, password: str, database: str) -> str:
    """The URL of a Postgres on a Unix socket. The port is named too, or PGPORT of the environment would count."""
    url = URL.create(
        "postgresql+psycopg",
        username=user,
        password=password,
        database=database,
        query={"host": socket_folder, "port": str(port)},
    )
    return url.render_as_string(hide_password=False)


def embedded_broker_url(*, socket: str, password: str) -> str:
    """The URL of a Redis on a Unix socket, as kombu takes it."""
    return f"redis+socket://:{quote(password, safe='')}@{quote(socket)}?virtual_host=0"


def _with_checked_certificate(url: str) -> str:
    """A `rediss://` URL with `ssl_cert_reqs`: without TLS options, kombu accepts every certificate."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or "ssl_cert_reqs" in dict(parse_qsl(parts.query)):
        return url
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))))


def _reason(error: Exception) -> str:
    """Why a URL could not be read, without repeating the URL, which may hold a password."""
    text = str(error)
    return "it cannot be read as a URL" if "'" in text or "://" in text else text
