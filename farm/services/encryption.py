"""Finds connections to other machines without encryption, or without a check of the server's certificate."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from farm.addresses import is_loopback, stays_here
from farm.errors import BadServiceUrl
from farm.services import urls
from farm.settings import Settings

log = logging.getLogger(__name__)

UNCHECKED_SSLMODES: Mapping[str, str] = {
    "disable": "does not encrypt what goes to",
    "allow": "does not require encryption to",
    "prefer": "does not require encryption to",
    "require": "does not check the certificate of",
}
"""Modes of libpq that are weaker than `verify-ca`."""


def plain_connections(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str]:
    """A message for each named service beyond this machine to which a password may go in the clear, or to the wrong server.

    An invalid URL is skipped, because its user reports it. Passwords in MLflow's credentials file are not known here.
    """
    checks: list[Callable[[], Iterator[str]]] = [
        lambda: _database(settings, environment),
        lambda: _broker(settings),
        lambda: _registry(settings, environment),
    ]
    found: list[str] = []
    for check in checks:
        try:
            found += check()
        except (BadServiceUrl, ArgumentError, ValueError):
            continue
    return found


def warn_of_plain_connections(settings: Settings) -> None:
    """Logs one warning with these connections, if there are any."""
    if found := plain_connections(settings):
        log.warning("connections without TLS to a checked server: %s", "; ".join(found))


def _database(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    if settings.database_url is None:
        return
    url = make_url(urls.database_url(settings.database_url.get_secret_value()))
    _, options = url.get_dialect()().create_connect_args(url)
    mode = options.get("sslmode") or environment.get("PGSSLMODE") or "prefer"
    address = options.get("hostaddr") or environment.get("PGHOSTADDR")
    named = address or options.get("host") or environment.get("PGHOST") or ""
    for host in str(named).split(","):
        if not stays_here(host) and mode in UNCHECKED_SSLMODES:
            yield f"FARM_DATABASE_URL: sslmode={mode} {UNCHECKED_SSLMODES[mode]} {host}"


def _broker(settings: Settings) -> Iterator[str]:
    if settings.broker_url is None:
        return
    parts = urlsplit(urls.broker_url(settings.broker_url.get_secret_value()))
    if parts.scheme == "redis+socket" or is_loopback(parts.hostname or ""):
        return
    if parts.scheme == "redis":
        yield f"FARM_BROKER_URL: redis:// does not encrypt what goes to {parts.hostname}"
    elif dict(parse_qsl(parts.query)).get("ssl_cert_reqs", "").lower().endswith("none"):
        yield f"FARM_BROKER_URL: ssl_cert_reqs=none does not check the certificate of {parts.hostname}"


def _registry(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    parts = urlsplit(settings.tracking_uri)
    host = parts.hostname or ""
    secrets = (parts.password, *map(environment.get, ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")))
    if parts.scheme == "http" and any(secrets) and not is_loopback(host):
        yield f"MLFLOW_TRACKING_URI: http:// does not encrypt the password for {host}"
