"""OpenID providers for tests: a real one as a process, and one in this process that lies as a test tells it to."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.jwk import RSAKey

from farm.settings import Settings
from farm.web.oidc.configuration import Configuration, configured

CLIENT_ID = "the-farm"
SECRET = "secret-of-the-farm"
ROLES = "gemm-admins=admin,gpu-operators=operate,gpu-users=submit,staff=read"


def configuration(issuer: str, farm_url: str, **more: Any) -> Configuration:
    """A farm at that URL as a client of that provider."""
    settings: dict[str, Any] = {
        "public_url": farm_url,
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": SECRET,
        "oidc_name": "Example",
        "oidc_roles": ROLES,
    }
    found = configured(Settings(**{**settings, **more}))
    assert found is not None
    return found


def browser(url: str) -> httpx.Client:
    """A browser that follows no redirect by itself."""
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False, verify=False)


@contextmanager
def provider_process(users: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The issuer of oidc-provider-mock, with these users and their claims, as a process until the block ends."""
    listed = [part for sub, claims in users.items() for part in ("--user-claims", json.dumps({"sub": sub, **claims}))]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", "0", *listed]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        lines = list[str]()
        try:
            for line in process.stderr:
                lines.append(line)
                if (found := re.search(r"http://127\.0\.0\.1:\d+", line)) is not None:
                    drain = threading.Thread(target=lambda: list(process.stderr or ()), daemon=True)
                    drain.start()
                    yield found[0]
                    break
            else:
                raise AssertionError("".join(lines))
        finally:
            process.kill()
            process.wait()


@dataclass
class FakeProvider:
    """A provider in this process. Its attributes say how it lies."""

    url: str = ""
    key: RSAKey = field(default_factory=lambda: new_key("one"))
    published: list[dict[str, Any]] = field(default_factory=list)
    """The keys of its key set."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Replace those of the ID token; None removes one."""
    sign: Callable[[dict[str, Any]], str] | None = None
    """Makes the ID token of these claims, in place of the key."""
    metadata: dict[str, Any] = field(default_factory=dict)
    user_info: dict[str, Any] = field(default_factory=lambda: {"sub": "1"})
    failing: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
    """Answers every request."""
    requests: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    bodies: list[str] = field(default_factory=list)

    def grant(self, authorization_url: str, **more: str) -> str:
        """Signs a person in: where the browser goes back to. `more` replaces parameters of that URL."""
        asked = dict(parse_qsl(urlsplit(authorization_url).query))
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], **more})}"

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/logout",
            **self.metadata,
        }

    def tokens(self, body: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """The token endpoint, with PKCE and the client's password. A code works once."""
        given = {name: value for name, (value, *_) in parse_qs(body).items()}
        asked = self.codes.pop(given.get("code", ""), None)
        credentials = base64.b64encode(f"{CLIENT_ID}:{SECRET}".encode()).decode()
        if authorization != f"Basic {credentials}" and given.get("client_secret") != SECRET:
            return 401, {"error": "invalid_client"}
        digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or asked["code_challenge_method"] != "S256"
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != given["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant", "error_description": f"<b>{given}</b>"}
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT_ID, "sub": "1", "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        return 200, {"access_token": "the-access-token", "token_type": "Bearer", "id_token": self._signed(claims)}

    def _signed(self, claims: dict[str, Any]) -> str:
        if self.sign is not None:
            return self.sign(claims)
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)


@cache
def new_key(kid: str, owner: str = "provider") -> RSAKey:
    """A key with that id, the same one for each owner in a process."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


def public(key: RSAKey) -> dict[str, Any]:
    return dict(key.as_dict(private=False))


@contextmanager
def fake_provider() -> Iterator[FakeProvider]:
    """A provider on a port of this machine, until the block ends."""
    made = FakeProvider()
    made.published = [public(made.key)]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            made.requests.append(path)
            if made.failing is not None:
                made.failing(self)
                return
            authorized = self.headers.get("Authorization") == "Bearer the-access-token"
            found = {
                "/.well-known/openid-configuration": made.document(),
                "/keys": {"keys": made.published},
                **({"/userinfo": made.user_info} if authorized else {}),
            }.get(path)
            self.answer(404 if found is None else 200, found or {})

        def do_POST(self) -> None:
            made.requests.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            made.bodies.append(body)
            if made.failing is not None:
                made.failing(self)
                return
            self.answer(*made.tokens(body, self.headers.get("Authorization", "")))

        def answer(self, status: int, document: Mapping[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
