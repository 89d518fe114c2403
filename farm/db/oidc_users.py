"""Names of the people whom an OpenID provider signs in, as owners of campaigns and in the audit.

A person is the issuer and the subject, which never change. The name is chosen at the first sign-in and kept. It begins with `oidc:`,
which no token and no login can have. Where another person has the name already, it gets a part of a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from sqlalchemy import Connection, text

PREFIX = "oidc:"
"""How the name of every such person begins."""

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}")

_FIND = text("SELECT name FROM oidc_users WHERE issuer = :issuer AND subject = :subject")
_ADD = text("INSERT INTO oidc_users (issuer, subject, name) VALUES (:issuer, :subject, :name) ON CONFLICT DO NOTHING")


def name_of(connection: Connection, issuer: str, subject: str, wanted: Sequence[str]) -> str:
    """The name of a person, chosen now if this is the first sign-in.

    Args:
        connection: in the transaction of the sign-in.
        issuer: the provider.
        subject: the person's id there.
        wanted: readable names, the best first. Those that are not plain are passed over.
    """
    person = {"issuer": issuer, "subject": subject}
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode()).hexdigest()[:16]
    plain = next((one.lower() for one in wanted if _PLAIN.fullmatch(one.lower())), None)
    for name in (plain, f"{plain or ''}~{digest}"):
        if (found := connection.execute(_FIND, person).scalar_one_or_none()) is not None:
            return str(found)
        if name is not None:
            connection.execute(_ADD, {**person, "name": PREFIX + name})
    return str(connection.execute(_FIND, person).scalar_one())
