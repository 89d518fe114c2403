"""Sessions of signed-in browsers. Only the SHA-256 of a session's id is stored.

A session belongs to a token and ends with it, to a login of the machine that runs `farm serve`, or to a subject of an OpenID
provider. It is valid for one origin: the scheme, host and port of the sign-in.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, text

from farm.db.states import Role
from farm.db.tokens import Bearer
from farm.errors import NotFound

MAX_SESSIONS = 100
"""Maximum sessions of one holder. A further one deletes the oldest."""

MAX_TEXT = 200
"""Maximum characters of the browser's name."""


class NoSuchSession(NotFound):
    """There is no session {which!r} that has not ended. `farm sessions` lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHolder:
    """The holder of sessions: a token, a login with links from servers of one home (the issuer), or a subject of an OpenID
    provider (the issuer) with its name in `farm.db.oidc_users` as the login."""

    token_id: int | None = None
    login: str | None = None
    issuer: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Maximum time of a session without a request, and in all."""

    idle: timedelta
    absolute: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """The holder of a session in use, and the role. `token` is None for a login and a subject."""

    session_id: int
    holder: SessionHolder
    name: str
    role: Role
    token: Bearer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNow:
    """A session in lists. It is `valid` until it ends, reaches a limit, or its token becomes invalid."""

    id: int
    name: str
    role: Role
    origin: str
    address: str
    browser: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    valid: bool


_OF_HOLDER = (
    "token_id IS NOT DISTINCT FROM :token_id AND login IS NOT DISTINCT FROM :login "
    "AND issuer IS NOT DISTINCT FROM :issuer AND subject IS NOT DISTINCT FROM :subject"
)

_CREATE = text("""
INSERT INTO web_sessions (sha256, token_id, login, issuer, subject, role, origin, address, browser, idle_limit, expires_at)
VALUES (
    :sha256, :token_id, :login, :issuer, :subject, :role, :origin, :address, :browser, :idle, clock_timestamp() + :absolute
)
""")
_TRIM = text(f"""
DELETE FROM web_sessions WHERE expires_at < clock_timestamp() - interval '30 days' OR id IN (
    SELECT id FROM web_sessions WHERE {_OF_HOLDER} ORDER BY id DESC OFFSET {MAX_SESSIONS}
)
""")


def create(
    connection: Connection,
    holder: SessionHolder,
    *,
    origin: str,
    address: str,
    browser: str,
    limits: SessionLimits,
    role: Role | None = None,
) -> str:
    """Creates a session and returns its id. The id cannot be read again. `role`: of the subject of an OpenID provider."""
    assert (role is None) is (holder.subject is None)
    made = secrets.token_urlsafe(32)
    whose = _parameters(holder)
    seen = {"origin": origin, "address": _printable(address), "browser": _printable(browser)}
    lasts = {"idle": limits.idle, "absolute": limits.absolute}
    connection.execute(_CREATE, {"sha256": _digest(made), **whose, "role": role, **seen, **lasts})
    connection.execute(_TRIM, whose)
    return made


def _parameters(holder: SessionHolder) -> dict[str, object]:
    return {
        "token_id": holder.token_id,
        "login": holder.login,
        "issuer": holder.issuer,
        "subject": holder.subject,
    }


def _printable(given: str) -> str:
    return "".join(one for one in given[:MAX_TEXT] if one.isprintable())


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()


_VALID = """(
    s.ended_at IS NULL AND s.expires_at > clock_timestamp() AND s.last_used_at + s.idle_limit > clock_timestamp()
    AND (s.token_id IS NULL OR t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp()))
)"""

_FIND = text(f"""
SELECT s.id, s.token_id, s.login, s.issuer, s.subject, s.role AS role_of_subject, t.name, t.role,
    s.last_used_at < clock_timestamp() - interval '1 minute' AS stale
FROM web_sessions s LEFT JOIN tokens t ON t.id = s.token_id
WHERE s.sha256 = :sha256 AND s.origin = :origin AND {_VALID}
    AND (s.issuer IS NULL OR s.issuer = CASE WHEN s.subject IS NULL THEN CAST(:issuer AS text) ELSE CAST(:provider AS text) END)
""")
_USED = text("UPDATE web_sessions SET last_used_at = clock_timestamp() WHERE id = :id")


def visitor(
    connection: Connection, session: str, *, origin: str, issuer: str | None, provider: str | None = None
) -> Visitor | None:
    """The holder of a session; None if it is unknown, has ended, or has another origin or issuer.

    Its use is recorded once a minute. A login has the role operate. A session of a token has the present role of the token. That of a
    subject has the role that it began with.

    Args:
        connection: to the database.
        session: the session's id.
        origin: scheme, host and port of the request.
        issuer: that makes sign-in links here, if any.
        provider: the issuer of the OpenID provider, if there is one.
    """
    parameters = {"sha256": _digest(session), "origin": origin, "issuer": issuer, "provider": provider}
    row = connection.execute(_FIND, parameters).one_or_none()
    if row is None:
        return None
    if row.stale:
        connection.execute(_USED, {"id": row.id})
    holder = SessionHolder(token_id=row.token_id, login=row.login, issuer=row.issuer, subject=row.subject)
    if row.token_id is None:
        role = Role.OPERATE if row.subject is None else Role(row.role_of_subject)
        return Visitor(session_id=row.id, holder=holder, name=row.login, role=role, token=None)
    token = Bearer(id=row.token_id, name=row.name, role=Role(row.role))
    return Visitor(session_id=row.id, holder=holder, name=token.name, role=token.role, token=token)


_LIST = f"""
SELECT s.id, coalesce(t.name, s.login) AS name, coalesce(t.role, s.role, '{Role.OPERATE}') AS role, s.origin, s.address, s.browser,
    s.created_at, s.last_used_at, s.expires_at, s.ended_at, {_VALID} AS valid
FROM web_sessions s LEFT JOIN tokens t ON t.id = s.token_id
"""
_LIST_ALL = text(f"{_LIST} ORDER BY valid DESC, s.id DESC")
_LIST_OWN = text(f"""
{_LIST} WHERE {_OF_HOLDER} AND {_VALID} ORDER BY s.id DESC
""")


def list_sessions(connection: Connection) -> list[SessionNow]:
    """All stored sessions, valid ones first, then the newest first."""
    return [_now(row) for row in connection.execute(_LIST_ALL).mappings()]


def own(connection: Connection, holder: SessionHolder) -> list[SessionNow]:
    """The valid sessions of a holder, the newest first."""
    return [_now(row) for row in connection.execute(_LIST_OWN, _parameters(holder)).mappings()]


def _now(row: RowMapping) -> SessionNow:
    return SessionNow(**{**row, "role": Role(row["role"])})


_END = "UPDATE web_sessions SET ended_at = clock_timestamp() WHERE ended_at IS NULL AND "
_END_GIVEN = text(f"{_END} sha256 = :sha256")
_END_OWN = text(f"{_END} {_OF_HOLDER} AND (CAST(:id AS bigint) IS NULL OR id = :id)")
_END_LISTED = text(f"{_END} id = ANY(:ids) RETURNING id")
_END_NAMED = text(f"""
{_END} (login = :name OR token_id IN (SELECT id FROM tokens WHERE name = :name)) RETURNING id
""")


def end(connection: Connection, session: str) -> None:
    """Ends the session with that id, if it exists."""
    connection.execute(_END_GIVEN, {"sha256": _digest(session)})


def end_own(connection: Connection, holder: SessionHolder, session_id: int | None) -> int:
    """Ends a session of the holder, or all of them for None. Returns the number."""
    return connection.execute(_END_OWN, {**_parameters(holder), "id": session_id}).rowcount


def revoke(connection: Connection, ids: Sequence[int]) -> int:
    """Ends sessions by their numbers in lists. Returns the number. Raises `NoSuchSession`."""
    ended = set(connection.execute(_END_LISTED, {"ids": list(ids)}).scalars())
    if missing := [one for one in ids if one not in ended]:
        raise NoSuchSession(which=missing[0])
    return len(ended)


def revoke_named(connection: Connection, name: str) -> int:
    """Ends all sessions of a token or login. Returns the number. Raises `NoSuchSession`."""
    ended = len(connection.execute(_END_NAMED, {"name": name}).all())
    if not ended:
        raise NoSuchSession(which=name)
    return ended
