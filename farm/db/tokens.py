"""Tokens for HTTP. Only the SHA-256 of a token is stored.

A token has 256 random bits, so it cannot be guessed, and a fast hash is sufficient.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from farm.db.states import Role
from farm.errors import BadInput, NotFound

PREFIX = "gfarm_"
"""Prefix of every token, which secret scanners can find."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


class BadTokenName(BadInput):
    """{name!r} cannot name a token: use up to 100 letters, digits, and . _ @ - after the first."""


class TokenExists(BadInput):
    """There is a token {name!r} already. Name another, or revoke it first: farm tokens revoke {name}"""


class NoSuchToken(NotFound):
    """There is no token {name!r}. Known: {known}. `farm tokens` lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The holder of a token, and its role."""

    id: int
    name: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNow:
    """A token in lists. It is `valid` until it expires or is revoked."""

    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    valid: bool


class BadLifetime(BadInput):
    """A token can be valid for {days:,} days at most, and for more than no time."""


MAX_DAYS = 36_500

_CREATE = text("""
INSERT INTO tokens (name, role, sha256, created_by, expires_at)
VALUES (:name, :role, :sha256, :by, clock_timestamp() + :lifetime) RETURNING id
""")


def create(connection: Connection, name: str, role: Role, *, by: str, lifetime: timedelta | None = None) -> str:
    """Creates a token and returns it. It cannot be read again. Raises `BadTokenName`, `BadLifetime`, `TokenExists`."""
    if not _NAME.fullmatch(name):
        raise BadTokenName(name=name)
    if lifetime is not None and not timedelta() < lifetime <= timedelta(days=MAX_DAYS):
        raise BadLifetime(days=MAX_DAYS)
    made = PREFIX + secrets.token_urlsafe(32)
    parameters = {"name": name, "role": role.value, "sha256": _digest(made), "by": by, "lifetime": lifetime}
    try:
        connection.execute(_CREATE, parameters)
    except IntegrityError:
        raise TokenExists(name=name) from None
    return made


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


_HOLDS = text("""
SELECT id, name, role, last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute' AS stale
FROM tokens
WHERE sha256 = :sha256 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
""")
_USED = text("UPDATE tokens SET last_used_at = clock_timestamp() WHERE id = :id")


def bearer(connection: Connection, token: str) -> Bearer | None:
    """The holder of a token; None if it is unknown, expired or revoked. Its use is recorded once a minute."""
    row = connection.execute(_HOLDS, {"sha256": _digest(token)}).one_or_none()
    if row is None:
        return None
    if row.stale:
        connection.execute(_USED, {"id": row.id})
    return Bearer(id=row.id, name=row.name, role=Role(row.role))


_LIST = text("""
SELECT name, role, created_by, created_at, expires_at, revoked_at, last_used_at,
    revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()) AS valid
FROM tokens ORDER BY valid DESC, name, id
""")


def list_tokens(connection: Connection) -> list[TokenNow]:
    """All tokens, valid ones first."""
    return [TokenNow(**{**row, "role": Role(row["role"])}) for row in connection.execute(_LIST).mappings()]


_REVOKE = text(
    "UPDATE tokens SET revoked_at = clock_timestamp() WHERE name = :name AND revoked_at IS NULL RETURNING id"
)


def revoke(connection: Connection, name: str) -> None:
    """Revokes a token. Raises `NoSuchToken`."""
    if connection.execute(_REVOKE, {"name": name}).one_or_none() is None:
        listed = ", ".join(token.name for token in list_tokens(connection) if token.revoked_at is None) or "none yet"
        raise NoSuchToken(name=name, known=listed)
