"""Attacks on sessions, by thieves of cookies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import Engine, text

from farm.api import PREFIX
from farm.db import tokens, web_sessions
from farm.db.states import Role
from farm.web.cookies import LIMITS, LIMITS_ON_SHARED_NAMES
from support.commands import farm_here, refused
from support.signing_in import ABOUT, COOKIE, HERE, HTTPS, OWN_URL, execute, signed_in, status, thief


def test_the_cookie_is_no_token_and_a_token_is_no_cookie(
    browse: Callable[..., httpx.Client], engine: Engine, token: str
) -> None:
    client = browse()
    session = signed_in(client, token)
    assert status(client) == 200
    assert (len(session), session == token) == (43, False)  # 256 bits in base 64
    bearer = browse()
    assert bearer.get(ABOUT, headers={"Authorization": f"Bearer {session}"}).status_code == 401
    assert status(thief(browse, token)) == 401
    assert status(thief(browse, token, name="farm_token")) == 401
    with engine.connect() as connection:
        row = connection.execute(text("SELECT s.sha256, CAST(to_jsonb(s) AS text) FROM web_sessions s")).one()
    assert row[0] == hashlib.sha256(session.encode()).digest()
    assert session not in row[1]
    assert token not in row[1]


def test_programs_and_pages_of_other_sites_have_no_session(browse: Callable[..., httpx.Client], token: str) -> None:
    session = signed_in(browse(), token)
    for says, expected in ((None, 401), ("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        client = thief(browse, session)
        del client.headers["sec-fetch-site"]
        headers = {} if says is None else {"Sec-Fetch-Site": says}
        assert client.get(ABOUT, headers=headers).status_code == expected, says


@pytest.mark.parametrize("url", [HERE, OWN_URL, HTTPS, "https://farm.example:8443"])
def test_the_cookie_says_how_it_may_be_used(browse: Callable[..., httpx.Client], token: str, url: str) -> None:
    client = browse(url)
    set_cookie = client.post("/login", data={"token": token}).headers["set-cookie"]
    name, _, rest = set_cookie.partition("=")
    attributes = {part.strip().lower() for part in rest.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert not [one for one in attributes if one.startswith("domain")]
    port = urlsplit(url).port or 443
    assert ("secure" in attributes, name) == (
        (True, f"__Host-farm_session_{port}") if url.startswith("https") else (False, f"farm_session_{port}")
    )
    gone = client.post("/logout").headers.get_list("set-cookie")[0]
    assert gone.startswith(f'{name}=""')
    assert ("secure" in gone.lower()) is url.startswith("https")  # else a browser keeps a __Host- cookie


def test_a_session_is_good_for_the_origin_where_it_was_made_alone(
    browse: Callable[..., httpx.Client], token: str
) -> None:
    made = {url: signed_in(browse(url), token) for url in (HERE, "http://127.0.0.1:8001", OWN_URL, HTTPS)}
    names = {url: next(iter(browse(url).cookies), None) for url in made}
    assert set(names.values()) == {None}
    for at in made:
        port = urlsplit(at).port or 443
        cookie = f"__Host-farm_session_{port}" if at == HTTPS else f"farm_session_{port}"
        for url, session in made.items():
            assert status(thief(browse, session, at, cookie)) == (200 if at == url else 401), (at, url)


def test_a_session_by_a_name_that_other_ports_share_is_short(
    browse: Callable[..., httpx.Client], engine: Engine, token: str
) -> None:
    for url in (HERE, "http://localhost:8000", OWN_URL, HTTPS):
        signed_in(browse(url), token)
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT idle_limit, expires_at - created_at AS lasts FROM web_sessions ORDER BY id")
        ).all()
    assert [row.idle_limit for row in found] == [*[LIMITS_ON_SHARED_NAMES.idle] * 2, *[LIMITS.idle] * 2]
    assert found[0].lasts < found[2].lasts
    assert LIMITS_ON_SHARED_NAMES.idle < LIMITS.idle


def test_a_session_is_worth_nothing_after_logout(browse: Callable[..., httpx.Client], token: str) -> None:
    client = browse()
    session = signed_in(client, token)
    assert status(thief(browse, session)) == 200
    assert client.post("/logout").status_code == 303
    assert status(thief(browse, session)) == 401
    assert browse().get(ABOUT, headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tokens SET revoked_at = clock_timestamp()",
        "UPDATE tokens SET expires_at = clock_timestamp() - interval '1 s'",
        "UPDATE web_sessions SET last_used_at = last_used_at - idle_limit",
        "UPDATE web_sessions SET expires_at = clock_timestamp()",
        "UPDATE web_sessions SET ended_at = clock_timestamp()",
    ],
)
def test_a_session_ends_with_its_token_and_its_limits(
    browse: Callable[..., httpx.Client], engine: Engine, token: str, change: str
) -> None:
    client = browse()
    signed_in(client, token)
    assert status(client) == 200
    execute(engine, change)
    assert status(client) == 401
    assert client.get("/").headers["location"] == "/login"


def test_use_moves_the_idle_limit_and_not_the_absolute_one(
    browse: Callable[..., httpx.Client], engine: Engine, token: str
) -> None:
    client = browse()
    signed_in(client, token)
    execute(engine, "UPDATE web_sessions SET last_used_at = last_used_at - idle_limit + interval '1 minute'")
    for _ in range(2):
        assert status(client) == 200
    with engine.connect() as connection:
        asked = text("SELECT clock_timestamp() - last_used_at < interval '1 minute', created_at FROM web_sessions")
        moved, created = connection.execute(asked).one()
        until = connection.execute(text("SELECT expires_at FROM web_sessions")).scalar_one()
    assert moved
    assert abs(until - created - LIMITS_ON_SHARED_NAMES.absolute).total_seconds() < 5


def test_a_session_may_what_its_token_may_now(browse: Callable[..., httpx.Client], engine: Engine, token: str) -> None:
    client = browse()
    signed_in(client, token)
    drain = {"url": f"{PREFIX}/devices/drain", "json": {"which": ["nothing"]}}
    assert client.post(**drain).status_code == 404
    execute(engine, "UPDATE tokens SET role = 'read'")
    assert client.post(**drain).status_code == 403


def test_signing_in_makes_a_new_session_whatever_cookie_was_there(
    browse: Callable[..., httpx.Client], engine: Engine, token: str
) -> None:
    victim = browse()
    victim.cookies.set(COOKIE, "planted", domain="127.0.0.1")
    victim.post("/login", data={"token": token})
    assert status(thief(browse, "planted")) == 401
    with engine.begin() as connection:
        other = tokens.create(connection, "mallory", Role.READ, by="test")
    planted = signed_in(browse(), other)
    victim = thief(browse, planted)
    fresh = victim.post("/login", data={"token": token}).cookies[COOKIE]
    assert fresh != planted
    assert status(thief(browse, planted)) == 401
    assert thief(browse, fresh).get(ABOUT).json()["who"] == "ann"


def test_guesses_and_what_is_no_id_let_nobody_in(browse: Callable[..., httpx.Client], token: str) -> None:
    session = signed_in(browse(), token)
    for guess in (
        session[:-1],
        session + "x",
        session.swapcase(),
        "x" * 10_000,
        '"',
        "%00",
        "' OR true --",
        hashlib.sha256(session.encode()).hexdigest(),
    ):
        assert status(thief(browse, guess)) == 401, guess[:50]


def test_a_holder_has_a_bounded_number_of_sessions(
    browse: Callable[..., httpx.Client], engine: Engine, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        web_sessions, "_TRIM", text(web_sessions._TRIM.text.replace(f"OFFSET {web_sessions.MAX_SESSIONS}", "OFFSET 3"))
    )
    client, made = browse(), []
    for _ in range(5):
        client.cookies.clear()
        made.append(signed_in(client, token))
    assert [status(thief(browse, session)) for session in made] == [401, 401, 200, 200, 200]


def test_everybody_sees_and_ends_their_own_sessions_alone(
    browse: Callable[..., httpx.Client], engine: Engine, token: str
) -> None:
    with engine.begin() as connection:
        other = tokens.create(connection, "bob", Role.OPERATE, by="test")
    ann, bob, second = browse(**{"User-Agent": "<b>Ann's\x7f</b>"}), browse(), browse()
    signed_in(ann, token)
    signed_in(second, token)
    signed_in(bob, other)
    page = ann.get("/sessions").text
    assert page.count("End session") == 2
    assert "&lt;b&gt;Ann&#39;s&lt;/b&gt;" in page
    bobs = re.search(r"End session (\d+)", bob.get("/sessions").text)
    assert bobs is not None
    assert ann.post("/sessions/end", data={"session": bobs[1]}).status_code == 303
    assert status(bob) == 200
    assert ann.post("/sessions/end").headers["location"] == "/login"
    assert [status(client) for client in (ann, second, bob)] == [401, 401, 200]


def test_operators_list_and_revoke_sessions(
    browse: Callable[..., httpx.Client], database_url: str, engine: Engine, token: str, tmp_path: Path
) -> None:
    farm = farm_here(tmp_path, database_url)
    clients = [browse() for _ in range(3)]
    sessions = [signed_in(client, token) for client in clients]
    listed = farm("sessions", "--json")
    assert not [one for one in (*sessions, token) if one in listed.stdout]
    newest, *_ = (one["id"] for one in json.loads(listed.stdout))
    assert farm("sessions", "revoke", str(newest)).stdout == "1 session ended.\n"
    assert [status(client) for client in clients] == [200, 200, 401]
    refused(farm("sessions", "revoke", str(newest)), 4, f"no session {newest}")
    refused(farm("sessions", "revoke"), 2, "--of NAME")
    assert farm("sessions", "revoke", "--of", "ann").stdout == "2 sessions ended.\n"
    refused(farm("sessions", "revoke", "--of", "ann"), 4, "no session 'ann'")
    assert [status(client) for client in clients] == [401, 401, 401]
    assert farm("sessions").stdout == "No browser is signed in.\n"
    assert len(json.loads(farm("sessions", "--all", "--json").stdout)) == 3
