"""Attacks on signing in with an OpenID provider: forged ID tokens, codes and states of others, and a provider that misbehaves."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from sqlalchemy import Engine, text

from farm.api import PREFIX
from farm.db import devices, tokens, web_sessions
from farm.db.states import Role
from farm.web.oidc import http as provider_http
from farm.web.oidc import provider as provider_module
from farm.web.security import Policy
from support.openid import CLIENT_ID, SECRET, FakeProvider, browser, configuration, fake_provider, new_key, public
from support.samples import cpu, document
from support.serving import served

ABOUT = f"{PREFIX}/about"


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with fake_provider() as made:
        made.claims = {"groups": ["gpu-users"], "preferred_username": "ann"}
        yield made


@contextmanager
def farm_of(engine: Engine, provider: FakeProvider, **more: Any) -> Iterator[str]:
    made = partial(configuration, provider.url, **more)
    with served(engine, policy=lambda url: Policy(tokens=True, oidc=made(url))) as url:
        yield url


@pytest.fixture
def farm_url(engine: Engine, provider: FakeProvider) -> Iterator[str]:
    with farm_of(engine, provider) as url:
        yield url


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def begun(client: httpx.Client, after: str = "/devices") -> str:
    """Where the farm sends a browser that signs in."""
    answer = client.get("/oidc/sign-in", params={"next": after})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def signed_in(client: httpx.Client, provider: FakeProvider, **more: str) -> httpx.Response:
    return client.get(provider.grant(begun(client), **more))


def who(client: httpx.Client) -> str | None:
    answer = client.get(ABOUT)
    return answer.json()["who"] if answer.status_code == 200 else None


def stored(engine: Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        counted = text("SELECT (SELECT count(*) FROM web_sessions), (SELECT count(*) FROM oidc_users)")
        sessions, people = connection.execute(counted).one()
    return sessions, people


# --- ID tokens ---------------------------------------------------------------------------------------------


def test_an_id_token_that_is_not_for_this_sign_in_lets_nobody_in(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    now = int(time.time())
    honest = provider.claims
    for claims, why in (
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": [CLIENT_ID, "another-client"]}, "azp"),
        ({"azp": "another-client"}, "azp"),
        ({"exp": now - 120}, "exp"),
        ({"exp": None}, "exp"),
        ({"exp": "never"}, "exp"),
        ({"iat": now + 600}, "issued in the future"),
        ({"nbf": now + 600}, "not yet valid"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": 7}, "sub"),
        ({"at_hash": "d3Jvbmc"}, "at_hash"),
    ):
        provider.claims = {**honest, **claims}
        with browser(farm_url) as client:
            answer = signed_in(client, provider)
            assert answer.status_code == 403, claims
            assert why in answer.text, (claims, answer.text)
            assert who(client) is None
    assert stored(engine) == (0, 0)
    provider.claims = honest
    with browser(farm_url) as client:
        assert signed_in(client, provider).headers["location"] == "/devices"
        assert who(client) == "oidc:ann"


def test_an_id_token_that_the_provider_did_not_sign_lets_nobody_in(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    key, other = provider.key, new_key("one", "forger")
    pem = key.as_pem(private=False)
    curve = ECKey.generate_key("P-256", {"kid": "one"})

    def tampered(claims: dict[str, Any]) -> str:
        head, _, signature = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key).split(".")
        body = jwt.encode({"alg": "RS256"}, {**claims, "groups": ["gemm-admins"]}, other).split(".")[1]
        return f"{head}.{body}.{signature}"

    def joined(header: dict[str, Any], claims: dict[str, Any]) -> str:
        return ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))

    def unsigned(claims: dict[str, Any]) -> str:
        return f"{joined({'alg': 'none'}, claims)}."

    def with_a_secret(claims: dict[str, Any], secret: bytes = pem) -> str:
        text = joined({"alg": "HS256", "kid": "one"}, claims)
        return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"

    forgers: dict[str, Callable[[dict[str, Any]], str]] = {
        "another key": lambda claims: jwt.encode({"alg": "RS256", "kid": "one"}, claims, other),
        "another key without an id": lambda claims: jwt.encode({"alg": "RS256"}, claims, other),
        "its own key in the header": lambda claims: jwt.encode({"alg": "RS256", "jwk": public(other)}, claims, other),
        "another kind of key": lambda claims: jwt.encode({"alg": "ES256", "kid": "one"}, claims, curve),
        "changed": tampered,
        "none": unsigned,
        "the public key as a secret": with_a_secret,
        "the client's secret": partial(with_a_secret, secret=SECRET.encode()),
        "no token": lambda _: "nothing.of.use",
        "no text": lambda _: "",
    }
    for name, forger in forgers.items():
        provider.sign = forger
        with browser(farm_url) as client:
            answer = signed_in(client, provider)
            assert answer.status_code == 403, name
            assert who(client) is None, name
    assert stored(engine) == (0, 0)


def test_keys_may_change_and_a_key_for_encryption_signs_nothing(farm_url: str, provider: FakeProvider) -> None:
    def succeeds() -> bool:
        with browser(farm_url) as client:
            return signed_in(client, provider).status_code == 303

    assert succeeds()
    fetched = provider.requests.count("/keys")
    assert succeeds()
    assert provider.requests.count("/keys") == fetched  # known
    provider.key = new_key("two")
    assert not succeeds()
    assert provider.requests.count("/keys") == fetched + 1  # once for the unknown key
    provider.published.append(public(provider.key))
    assert succeeds()
    provider.published = [{"kty": "PQ", "kid": "new"}, {"kty": "RSA", "kid": "broken"}, *provider.published]
    provider.sign = lambda claims: jwt.encode(
        {"alg": "PS384"}, claims, provider.key, ["PS384"]
    )  # no id: each fitting key is tried
    assert succeeds()
    provider.sign, provider.key = None, new_key("three")
    provider.published = [{**public(provider.key), "use": "enc"}]
    assert not succeeds()


# --- states, codes and cookies of others ---------------------------------------------------------------------


def test_a_callback_counts_only_in_the_browser_that_began_and_once(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    with browser(farm_url) as attacker, browser(farm_url) as victim:
        back = provider.grant(begun(attacker))
        for case in (victim.get(back), victim.get("/oidc/callback")):  # login CSRF, and nothing at all
            assert (case.status_code, who(victim)) == (400, None)
            assert "began in another browser" in case.text
        own = begun(victim)
        assert victim.get(back).status_code == 400  # with a sign-in of the victim in progress
        injected = parse_qs(urlsplit(back).query)["code"][0]
        answer = victim.get(provider.grant(own, code=injected))  # the attacker's code with the victim's state
        assert (answer.status_code, "invalid_grant" in answer.text, who(victim)) == (403, True, None)
        assert "&lt;b&gt;" not in answer.text  # the provider's own text is not repeated
        back = provider.grant(begun(victim))
        kept = dict(victim.cookies)
        assert victim.get(back).status_code == 303
        assert who(victim) == "oidc:ann"
        assert victim.get(back).status_code == 400
        with browser(farm_url) as thief:  # with the cookie of before as well: the provider redeems a code once
            for name, value in kept.items():
                thief.cookies.set(name, value)
            assert (thief.get(back).status_code, who(thief)) == (403, None)
    assert stored(engine) == (1, 1)


def test_a_cookie_of_a_sign_in_is_signed_short_and_for_the_server_alone(
    farm_url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with browser(farm_url) as client:
        answer = client.get("/oidc/sign-in")
        name, _, rest = answer.headers["set-cookie"].partition("=")
        value, *attributes = (part.strip().lower() for part in rest.split(";"))
        assert {"httponly", "samesite=lax", "path=/", "max-age=600"} <= set(attributes)
        back = provider.grant(answer.headers["location"])
        sealed = client.cookies[name]
        client.cookies.clear()
        state = parse_qs(urlsplit(back).query)["state"][0]
        forged = jwt.encode(
            {"alg": "HS256"},
            {"state": state, "nonce": "n", "verifier": "v", "after": "/", "exp": int(time.time()) + 60},
            OctKey.import_key("x" * 32),
        )
        for wrong in ("", "x.y.z", forged, sealed[:-2], value):
            client.cookies.clear()
            client.cookies.set(name, wrong)
            assert client.get(back).status_code == 400, wrong
        client.cookies.clear()
        client.cookies.set(name, sealed)
        later = time.time() + 601
        monkeypatch.setattr(time, "time", lambda: later)
        assert client.get(back).status_code == 400


def test_after_signing_in_a_browser_opens_paths_of_the_farm_alone(farm_url: str, provider: FakeProvider) -> None:
    for after, expected in (
        ("/campaigns/sweep?sort=name", "/campaigns/sweep?sort=name"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/\nSet-Cookie: a=b", "/"),
        ("", "/"),
    ):
        with browser(farm_url) as client:
            answer = client.get(provider.grant(begun(client, after)))
            assert answer.headers["location"] == expected, after
    with browser(farm_url) as client:  # a path that is too long for a cookie
        begun(client, "/" + "x" * 20_000)
        assert all(len(value) < 4000 for value in client.cookies.values())


def test_a_program_gets_no_session_and_another_site_starts_none(farm_url: str, provider: FakeProvider) -> None:
    with browser(farm_url) as client:
        back = provider.grant(begun(client))
        assert client.get(back, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 303  # as a redirect comes
    with browser(farm_url) as client:
        del client.headers["sec-fetch-site"]
        assert client.get("/oidc/sign-in").status_code == 400
        back = back.replace("state=", "state=x")
        assert client.get(back).status_code == 400
    with browser(farm_url) as client:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        for path in ("/oidc/sign-in", "/oidc/callback?code=x&state=y", "/oidc/sign-out"):
            assert client.get(path, headers=headers).status_code == 403
            assert client.post(path).status_code == 405


# --- names and roles -----------------------------------------------------------------------------------------


def test_nobody_gets_the_name_of_a_token_or_of_another_person(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    with engine.begin() as connection:
        tokens.create(connection, "ann", Role.OPERATE, by="test")
    honest = {"groups": ["gpu-users"]}
    names = []
    for claims in (
        {"sub": "1", "preferred_username": "ann"},
        {"sub": "2", "preferred_username": "Ann"},
        {"sub": "2", "preferred_username": "root"},  # renamed: keeps the name
        {"sub": "3", "preferred_username": "\u0430nn", "email": "ann@example.org", "email_verified": True},
        {"sub": "4", "email": "root@example.org", "email_verified": False},
        {"sub": "auth0|5 x", "preferred_username": "oidc:ann"},
    ):
        provider.claims = {**honest, **claims}
        with browser(farm_url) as client:
            signed_in(client, provider)
            names.append(who(client))
    assert names[0] == "oidc:ann"
    assert names[1] == names[2]
    assert names[1] is not None
    assert names[1].startswith("oidc:ann~")
    assert names[3:5] == ["oidc:ann@example.org", "oidc:4"]
    assert names[5] is not None
    assert names[5].startswith("oidc:~")
    assert "ann" not in names


def test_who_has_no_role_learns_why_and_nothing_is_stored(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    for groups, shown in (
        (["Sales", "<b>Chess</b>"], "Sales, &lt;b&gt;Chess&lt;/b&gt;"),
        ([], "Your groups: none"),
        (None, "Your groups: none"),
        ({"gpu-users": True}, "Your groups: none"),
        ([["gpu-users"], 7, "gpu-users\n"], "Your groups: none"),
        ("GPU-users", "Your groups: GPU-users"),
        ([f"g{n}" for n in range(500)], "g19 and 480 more"),
    ):
        provider.claims = {"groups": groups}
        with browser(farm_url) as client:
            answer = signed_in(client, provider)
            assert answer.status_code == 403
            assert shown in answer.text
            assert "Ask an operator of the farm" in answer.text
            assert who(client) is None
    assert stored(engine) == (0, 0)


def test_a_session_may_what_its_groups_gave_until_it_ends(engine: Engine, provider: FakeProvider) -> None:
    drain = partial(httpx.Client.post, url=f"{PREFIX}/devices/drain", json={"which": ["nothing"]})
    with farm_of(engine, provider, oidc_session_hours=0.5) as url, browser(url) as client:
        signed_in(client, provider)
        same = {"headers": {"Sec-Fetch-Site": "same-origin"}}
        assert drain(client, **same).status_code == 403
        provider.claims = {"groups": ["gpu-operators"], "preferred_username": "ann"}
        assert drain(client, **same).status_code == 403  # the role of the sign-in
        signed_in(client, provider)
        assert drain(client, **same).status_code == 404
        with engine.begin() as connection:
            lasts = text("SELECT extract(epoch FROM expires_at - created_at) FROM web_sessions")
            assert all(abs(one - 1800) < 60 for one in connection.execute(lasts).scalars())
            connection.execute(text("UPDATE web_sessions SET expires_at = clock_timestamp()"))
        assert who(client) is None
        assert client.get("/devices").headers["location"] == "/login?next=/devices"
        signed_in(client, provider)
        with engine.begin() as connection:
            assert web_sessions.revoke_named(connection, "oidc:ann") == 1
        assert who(client) is None


def test_a_campaign_belongs_to_the_person_who_submits_it(engine: Engine, farm_url: str, provider: FakeProvider) -> None:
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
    same = {"headers": {"Sec-Fetch-Site": "same-origin"}}
    cancel = f"{PREFIX}/campaigns/mine/cancel"
    with browser(farm_url) as client:
        signed_in(client, provider)
        campaign = document(name="mine", owner="ann")
        submit = partial(client.post, "/submit", follow_redirects=False, **same)
        assert submit(data={"text": json.dumps(campaign), "to": "submit"}).status_code == 403, (
            "a token may have that name"
        )
        del campaign["owner"]
        done = submit(data={"text": json.dumps(campaign), "to": "submit"})
        assert done.status_code == 303, done.text
        assert client.get(f"{PREFIX}/campaigns/mine").json()["owner"] == "oidc:ann"
    provider.claims = {**provider.claims, "sub": "somebody-else", "preferred_username": "bob"}
    with browser(farm_url) as other:
        signed_in(other, provider)
        assert other.post(cancel, **same).status_code == 403
    with engine.connect() as connection:
        listed = connection.execute(text("SELECT owner, state FROM campaigns")).all()
    assert listed == [("oidc:ann", "active")]


def test_a_browser_that_knows_the_farm_by_another_name_moves_once(engine: Engine, provider: FakeProvider) -> None:
    with farm_of(engine, provider) as url, browser(url) as client:
        elsewhere = {"Host": f"localhost:{urlsplit(url).port}"}
        answer = client.get("/oidc/sign-in?next=/models", headers=elsewhere)
        assert answer.headers["location"] == f"{url}/oidc/sign-in?next=%2Fmodels&moved=1"
        answer = client.get(
            answer.headers["location"].removeprefix(url), headers=elsewhere
        )  # a proxy that changes Host
        assert (answer.status_code, f"FARM_PUBLIC_URL is {url}" in answer.text) == (503, True)
    assert provider.requests == []


def test_a_session_ends_with_its_provider(engine: Engine, farm_url: str, provider: FakeProvider) -> None:
    with browser(farm_url) as client:
        signed_in(client, provider)
        assert who(client) == "oidc:ann"
        with engine.begin() as connection:  # the farm was started with another provider
            connection.execute(text("UPDATE web_sessions SET issuer = 'https://old.example'"))
        assert who(client) is None
        signed_in(client, provider)
        with engine.begin() as connection:  # a session of a subject is none of a login, and the other way round
            connection.execute(text("UPDATE web_sessions SET subject = NULL, role = NULL"))
        assert who(client) is None


# --- a provider that misbehaves ----------------------------------------------------------------------------


def test_a_provider_that_is_away_is_one_page_and_tokens_work(
    engine: Engine, farm_url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "SECONDS", 0.5)
    with engine.begin() as connection:
        token = tokens.create(connection, "bob", Role.READ, by="test")

    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(40):
            handler.wfile.write(b" " * 2**16)

    def dripping(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)

    def status(number: int, content: bytes = b"{}") -> Callable[[http.server.BaseHTTPRequestHandler], None]:
        def send(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(number)
            handler.send_header("Location", "http://169.254.169.254/")
            handler.end_headers()
            handler.wfile.write(content)

        return send

    monkeypatch.setattr(provider_module, "FAILED_SECONDS", 0.0)
    for failing, why in (
        (status(500), "status 500"),
        (status(302), "status 302"),
        (status(404), "status 404"),
        (status(200, b"<html>"), "no JSON object"),
        (status(200, b"[" * 100_000), "no JSON object"),
        (status(200), "no discovery document"),
        (endless, "more than 1,048,576 bytes"),
        (dripping, "more than 0.5 s"),
    ):
        provider.failing = failing
        with browser(farm_url) as client:
            answer = client.get("/oidc/sign-in")
            assert (answer.status_code, why in answer.text) == (503, True), answer.text
            assert "sign in with a token" in answer.text
            assert client.post("/login", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}).is_redirect
            assert who(client) == "bob"
    provider.failing = None
    for metadata, why in (
        ({"issuer": "https://evil.example"}, "is of the issuer"),
        ({"token_endpoint": "http://evil.example/token"}, "not encrypted"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "not encrypted"),
        ({"end_session_endpoint": "http://[evil"}, "not encrypted"),
        ({"jwks_uri": None}, "jwks_uri"),
    ):
        provider.metadata = metadata
        with browser(farm_url) as client:
            answer = client.get("/oidc/sign-in")
            assert (answer.status_code, why in answer.text) == (503, True), answer.text
    provider.metadata = {}
    monkeypatch.undo()
    provider.failing = status(500)
    with browser(farm_url) as client:
        provider.requests.clear()
        assert [client.get("/oidc/sign-in").status_code for _ in range(3)] == [503] * 3
        assert len(provider.requests) == 1  # asked once for some seconds


def test_a_provider_that_fails_after_the_redirect_is_one_page(
    engine: Engine, farm_url: str, provider: FakeProvider
) -> None:
    with browser(farm_url) as client:
        back = provider.grant(begun(client))

        def away(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(503)
            handler.end_headers()

        provider.failing = away
        answer = client.get(back)
        assert (answer.status_code, "status 503" in answer.text) == (503, True)
        provider.failing = None
        denied = client.get(provider.grant(begun(client), error="access_denied", error_description="<b>call us</b>"))
        assert (denied.status_code, "access_denied" in denied.text, "call us" in denied.text) == (403, True, False)
        odd = client.get(provider.grant(begun(client), error="<script>"))
        assert (odd.status_code, "script>" in odd.text.partition("<main")[2]) == (403, False)
        mixed = client.get(provider.grant(begun(client), iss="https://evil.example"))
        assert (mixed.status_code, "another issuer" in mixed.text) == (403, True)
        assert client.get(provider.grant(begun(client), iss=provider.url)).status_code == 303
    provider.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    with farm_of(engine, provider) as url, browser(url) as client:
        assert signed_in(client, provider).status_code == 303
        assert "client_secret=" in provider.bodies[-1]
    provider.metadata = {}
    with farm_of(engine, provider, oidc_client_secret="wrong") as url, browser(url) as client:
        answer = signed_in(client, provider)
        assert (answer.status_code, "invalid_client" in answer.text) == (503, True)
    assert stored(engine) == (2, 1)


def test_sign_ins_that_wait_for_a_provider_are_few(
    farm_url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http.threading.BoundedSemaphore, "acquire", lambda *_, **__: False)
    with browser(farm_url) as client:
        answer = client.get("/oidc/sign-in")
    assert (answer.status_code, "Try again in a few seconds" in answer.text) == (503, True)
    assert provider.requests == []


def test_no_log_has_a_code_a_token_or_a_secret(
    farm_url: str, provider: FakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issued = []

    def kept(claims: dict[str, Any]) -> str:
        issued.append(jwt.encode({"alg": "RS256", "kid": "one"}, claims, provider.key))
        return issued[-1]

    provider.sign = kept
    with browser(farm_url) as client:
        location = begun(client)
        back = provider.grant(location)
        client.get(back)
        again = begun(client)
        client.get(provider.grant(again, code="stolen-code-of-ann"))
        provider.claims = {"nonce": "wrong"}
        signed_in(client, provider)
        session = [value for name, value in client.cookies.items() if "session" in name]
    own = [
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpcore", "httpx", "uvicorn"))
    ]
    assert any("oidc:ann is signed in" in line for line in own)
    # httpx logs addresses at the level INFO. Here it also logs those of the test's own browser.
    ours = [
        record.getMessage()
        for record in caplog.records
        if record.name == "httpx" and provider.url in record.getMessage()
    ]
    written = "\n".join(own + [line for line in ours if farm_url not in line])
    queries = {name: value for url in (location, back) for name, (value, *_) in parse_qs(urlsplit(url).query).items()}
    verifiers = [parse_qs(body)["code_verifier"][0] for body in provider.bodies]
    hidden = [queries["code"], queries["state"], queries["nonce"], "stolen-code-of-ann", "the-access-token", SECRET]
    for secret in (*hidden, *verifiers, *issued, *session):
        assert secret not in written
    assert len(verifiers) == 3
