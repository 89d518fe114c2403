"""Attacks on tokens on their way, by networks and proxies."""

from __future__ import annotations

import http.server
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from farm.api import about
from farm.api.access import Access
from farm.api.remote import Remote
from farm.errors import ApiMoved, ApiUnreachable, OtherApi, TokenInTheClear
from farm.web.app import make_app
from farm.web.security import Policy
from support.certificates import certificate
from support.commands import farm_here, refused
from support.recording_server import recording
from support.serving import served as served_here
from support.serving_process import serving
from support.signing_in import ABOUT, HERE, HTTPS


def test_the_server_refuses_tokens_that_came_in_the_clear_or_through_an_unknown_proxy(
    access: Access, browse: Callable[..., httpx.Client], token: str
) -> None:
    bearer = {"Authorization": f"Bearer {token}"}
    plain, proxied = {}, {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    for behind_proxy, url, headers, expected in (
        (False, "http://farm.example:8000", plain, "NotEncrypted"),
        (False, "http://farm-guess.localhost:8000", plain, "NotEncrypted"),
        (False, HTTPS, plain, None),
        (False, HERE, plain, None),
        (False, HERE, proxied, "ThroughProxy"),
        (False, HTTPS, proxied, "ThroughProxy"),
        (True, "http://farm.example:8000", plain, "NotEncrypted"),
        (True, "http://farm.example:8000", proxied, "NotEncrypted"),  # of a proxy that is not believed
        (True, HTTPS, proxied, None),
        (True, HERE, plain, None),
    ):
        app = make_app(access, policy=Policy(tokens=True, behind_proxy=behind_proxy))
        answer = browse(url, app).get(ABOUT, headers={**bearer, **headers})
        assert answer.status_code == (200 if expected is None else 421), (behind_proxy, url, headers)
        if expected is not None:
            assert answer.json()["error"]["kind"] == expected


def test_serve_refuses_to_take_tokens_in_the_clear(database_url: str, tmp_path: Path) -> None:
    farm = farm_here(tmp_path, database_url)
    refused(farm("serve", "--host", "0.0.0.0", "--tokens"), 2, "over plain HTTP", "--behind-proxy")
    refused(farm("serve", "--host", "0.0.0.0"), 2, "needs --tokens")
    refused(farm("serve", "--host", "0.0.0.0", "--no-tokens", "--behind-proxy"), 2, "needs --tokens")
    refused(farm("serve", "--behind-proxy"), 2, "needs --tokens")


def test_only_a_proxy_that_is_named_is_believed(
    engine: Engine, database_url: str, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": f"Bearer {token}", "Host": "farm.example", "X-Forwarded-Proto": "https"}
    options = ("--tokens", "--behind-proxy")
    with serving(tmp_path, database_url, *options, FORWARDED_ALLOW_IPS="127.0.0.1") as served:
        assert httpx.get(served.address + ABOUT, headers=headers, timeout=60).status_code == 200
    for named, expected in (("127.0.0.1", 200), ("203.0.113.7", 421)):
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", named)
        with served_here(engine, policy=lambda _: Policy(tokens=True, behind_proxy=True)) as url:
            assert httpx.get(url + ABOUT, headers=headers, timeout=60).status_code == expected


@pytest.mark.parametrize("url", ["http://farm.example:8000", "http://10.0.0.1", "http://127.0.0.1.evil.example",
    "http://farm-0123.localhost:8000", "http://0.0.0.0:8000", "HTTP://farm.example"])  # fmt: skip
def test_the_client_sends_no_token_in_the_clear_beyond_loopback(url: str, tmp_path: Path) -> None:
    with pytest.raises(TokenInTheClear, match="ssh -L"):
        Remote(url, token="gfarm_secret")
    Remote(url, token=None).close()
    told = farm_here(tmp_path, "")("status", FARM_API_URL=url, FARM_API_TOKEN="gfarm_secret")
    refused(told, 2, "must not go to another machine over plain HTTP")
    assert "gfarm_secret" not in told.stderr


def test_the_client_sends_no_token_to_where_a_server_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording() as (there, seen):

        def redirect(request: http.server.BaseHTTPRequestHandler) -> None:
            request.send_response(307)
            request.send_header("Location", f"{there}{request.path}")
            request.end_headers()

        with recording(redirect) as (url, _):
            for client in (None, httpx.Client(follow_redirects=True)):
                remote = Remote(url, token="gfarm_secret", client=client)
                with pytest.raises(ApiMoved, match=there):
                    remote.ask(about.show)
                remote.close()
    assert seen == []


def test_the_client_sends_its_token_to_servers_with_a_trusted_certificate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, key = certificate(tmp_path, "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, key)
    with recording(tls=tls) as (url, seen):
        for trusted, error in ((False, ApiUnreachable), (True, OtherApi)):
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(shown))
            remote = Remote(url, token="gfarm_secret")
            with pytest.raises(error):
                remote.ask(about.show)
            remote.close()
            assert [headers["authorization"] for headers in seen] == ["Bearer gfarm_secret"] * trusted


def test_the_client_sends_no_token_through_a_proxy_in_the_clear(
    engine: Engine, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_here(engine, tokens=True) as url, recording() as (proxy, seen):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        remote = Remote(url, token=token)
        assert remote.ask(about.show).who == "ann"
        remote.close()
    assert seen == []
