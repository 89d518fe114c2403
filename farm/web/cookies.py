"""The cookie of a session: its name, what it may do, and how long it lasts.

Browsers send a cookie to every port of a host, over plain HTTP as over HTTPS. What that means depends on the name by which
the browser knows the farm:

- Over HTTPS the cookie has the prefix `__Host-`: it is never sent in the clear, and no other host can set it.
- `farm serve` on loopback has a name of its own, `farm-….localhost`, which is secret. Browsers resolve it to
  loopback, and send its cookie only there. A service on another port never hears of it.
- By `localhost` or `127.0.0.1` the cookie reaches every service on another port. Such a session is short.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import Response

from farm.addresses import is_loopback, port_of
from farm.db.web_sessions import SessionLimits

LIMITS = SessionLimits(idle=timedelta(hours=12), absolute=timedelta(days=7))
LIMITS_ON_SHARED_NAMES = SessionLimits(idle=timedelta(minutes=15), absolute=timedelta(hours=8))


def new_own_name() -> str:
    """A host name of loopback with 80 random bits, which cannot be guessed. RFC 6761 reserves `localhost` and all names below it."""
    return f"farm-{secrets.token_hex(10)}.localhost"


@dataclass(frozen=True)
class Origin:
    """Scheme, host and port of a request, as its browser knows them."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, request: Request) -> Origin:
        scheme = request.url.scheme
        try:
            parts = urlsplit(f"{scheme}://{request.headers.get('host', '')}")
            return cls(scheme, parts.hostname or "", port_of(parts))
        except ValueError:
            return cls(scheme, "", 0)

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def cookie(self) -> str:
        """Farms on several ports of a host have a cookie each."""
        return f"{'__Host-' if self.encrypted else ''}farm_session_{self.port}"

    @property
    def limits(self) -> SessionLimits:
        return LIMITS_ON_SHARED_NAMES if not self.encrypted and is_loopback(self.host) else LIMITS

    def set_cookie(self, answer: Response, session: str) -> None:
        # Lax: a link from elsewhere, as in a chat, opens the page; requests of other sites' pages are refused by `Guard`.
        answer.set_cookie(
            self.cookie,
            session,
            max_age=int(self.limits.absolute.total_seconds()),
            path="/",
            httponly=True,
            samesite="lax",
            secure=self.encrypted,
        )

    def delete_cookie(self, answer: Response) -> None:
        answer.delete_cookie(self.cookie, path="/", httponly=True, samesite="lax", secure=self.encrypted)
