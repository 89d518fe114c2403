"""Access for the login that runs `farm serve`: links for its browser, and a key for its programs.

A link works once and for a few minutes, as Jupyter's. The key stands in a file of the farm's home that only its owner can
read. Neither is in the database.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from farm.db.web_sessions import SessionHolder

LINK_SECONDS = 600.0
"""How long a sign-in link works."""

MAX_LINKS = 100
"""Unused links. Another link ends the oldest."""


@dataclass(frozen=True)
class LocalAccess:
    """The login that runs the server: admin with the key, and operate in a browser. `issuer` names its home in sessions."""

    login: str
    issuer: str
    key: str = field(default_factory=lambda: f"gfarm_{secrets.token_urlsafe(32)}", repr=False)

    @property
    def holder(self) -> SessionHolder:
        return SessionHolder(login=self.login, issuer=self.issuer)

    def has_key(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.key.encode())


class SignInCodes:
    """The codes of sign-in links, in memory. Each signs in its holder, once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[bytes, tuple[SessionHolder, float]] = {}

    def make(self, holder: SessionHolder) -> str:
        """A code of 256 random bits."""
        made = secrets.token_urlsafe(32)
        # Requests run in threads: each step is a single operation on the dictionary.
        for oldest in list(self._waiting)[: max(0, len(self._waiting) - MAX_LINKS + 1)]:
            self._waiting.pop(oldest, None)
        self._waiting[_digest(made)] = (holder, self._clock() + LINK_SECONDS)
        return made

    def redeem(self, code: str) -> SessionHolder | None:
        """Redeems a code and returns whom it signs in; None if it is unknown, used or expired."""
        holder, until = self._waiting.pop(_digest(code), (None, 0.0))
        return holder if self._clock() < until else None


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
