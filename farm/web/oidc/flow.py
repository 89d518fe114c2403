"""A sign-in in progress, in a cookie of the browser that began it.

The cookie has what only this browser may know: the state that the provider sends back, the nonce of the ID token, and the
verifier of the code (PKCE). It is signed, so that its deadline holds. Servers that share a client secret share the key.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import asdict, dataclass

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from fastapi import Request
from fastapi.responses import Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from farm.web.oidc.configuration import Configuration

MINUTES = 10
"""How long a person may take at the provider."""

_ALGORITHM = "HS256"


@dataclass(frozen=True)
class Flow:
    """What a sign-in must match when the browser comes back, and the path to open then."""

    state: str
    nonce: str
    verifier: str
    after: str

    @classmethod
    def begin(cls, after: str) -> Flow:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, after)

    @property
    def challenge(self) -> str:
        challenge: str = create_s256_code_challenge(self.verifier)
        return challenge


class FlowCookie:
    """Reads and writes the cookie."""

    def __init__(self, configuration: Configuration) -> None:
        secret = configuration.client_secret
        material = secrets.token_bytes(32) if secret is None else secret.encode()
        self._key = OctKey.import_key(hashlib.sha256(b"gemm-farm sign-in cookie\0" + material).digest())
        self._origin = configuration.origin

    @property
    def name(self) -> str:
        return f"{'__Host-' if self._origin.encrypted else ''}farm_oidc_{self._origin.port}"

    def set(self, answer: Response, flow: Flow) -> None:
        claims = {**asdict(flow), "exp": int(time.time()) + 60 * MINUTES}
        sealed = jwt.encode({"alg": _ALGORITHM}, claims, self._key)
        # Lax: the provider's redirect back brings it.
        answer.set_cookie(
            self.name,
            sealed,
            max_age=60 * MINUTES,
            path="/",
            httponly=True,
            samesite="lax",
            secure=self._origin.encrypted,
        )

    def delete(self, answer: Response) -> None:
        answer.delete_cookie(self.name, path="/", httponly=True, samesite="lax", secure=self._origin.encrypted)

    def flow_of(self, request: Request, state: str) -> Flow | None:
        """The sign-in that this browser began with that state; None if there is none, or its time has passed."""
        try:
            claims = jwt.decode(request.cookies.get(self.name, ""), self._key, algorithms=[_ALGORITHM]).claims
            jwt.JWTClaimsRegistry(exp={"essential": True}).validate(claims)
            del claims["exp"]
            found = Flow(**claims)
        except (JoseError, ValueError, TypeError):
            return None
        return found if secrets.compare_digest(found.state.encode(), state.encode()) else None
