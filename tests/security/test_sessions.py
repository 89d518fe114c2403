"""Attacks on sessions, sign-in links and tokens on their way: by thieves of cookies, other accounts, and the network."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pty
import re
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, text

from farm.api import OPERATIONS, PREFIX, about
from farm.api.access import Access
from farm.api.remote import Remote
from farm.db import tokens, web_sessions
from farm.db.states import Role
from farm.errors import ApiMoved, ApiUnreachable, OtherApi, TokenInTheClear
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.web import local_access
from farm.web.app import make_app
from farm.web.cookies import LIMITS, LIMITS_ON_SHARED_NAMES
from farm.web.local_access import LocalAccess, SignInCodes
from farm.web.security import Policy
from support.certificates import certificate
from support.commands import called, farm_here, farm_in, refused
from support.homes import environment
from support.programs import free_port
from support.serving import served as served_here
from support.serving_process import serving
from support.visiting import chromium, chromium_path, visitor

HERE = "http://127.0.0.1:8000"
OWN = "farm-0123456789abcdef0123.localhost"
OWN_URL = f"http://{OWN}:8000"
HTTPS = "https://farm.example"
ABOUT = f"{PREFIX}/about"
COOKIE = "farm_session_8000"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def access(engine: Engine) -> Access:
    current = Settings()
    urls = ServiceUrls(engine.url.render_as_string(hide_password=False), None, "")
    return Access(current, who="test", opened=Session(current, urls, engine))


@pytest.fixture
def local() -> LocalAccess:
    return LocalAccess("ann", issuer=OWN)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def policy(local: LocalAccess, clock: Clock) -> Policy:
    """As `farm serve` has it by default."""
    return Policy(tokens=True, local=local, own_name=OWN, codes=SignInCodes(clock))


@pytest.fixture
def app(access: Access, policy: Policy) -> FastAPI:
    return make_app(access, policy=policy)


@pytest.fixture
def browse(app: FastAPI) -> Iterator[Callable[..., httpx.Client]]:
    """Makes browsers that know the farm by an address, and follow no redirects."""
    with ExitStack() as opened:

        def made(url: str = HERE, of: FastAPI = app, **headers: str) -> httpx.Client:
            client = opened.enter_context(visitor(of, url, **headers))
            client.follow_redirects = False
            return client

        yield made


@pytest.fixture
def token(engine: Engine) -> str:
    with engine.begin() as connection:
        return tokens.create(connection, "ann", Role.OPERATE, by="test")


def signed_in(client: httpx.Client, token: str) -> str:
    """The session's id, as the browser has it in its cookie."""
    done = client.post("/login", data={"token": token})
    assert done.status_code == 303, done.text
    (value,) = client.cookies.values()
    assert value is not None
    return value


def link(client: httpx.Client, policy: Policy, local: LocalAccess) -> httpx.Response:
    return client.get("/sign-in", params={"code": policy.codes.make(local.holder)})


def thief(browse: Callable[..., httpx.Client], session: str, url: str = HERE, name: str = COOKIE) -> httpx.Client:
    """Who has stolen a cookie, and claims to be a browser at that address."""
    client = browse(url)
    client.headers["Cookie"] = f"{name}={session}"
    return client


def status(client: httpx.Client) -> int:
    return client.get(ABOUT).status_code


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


# --- the cookie ------------------------------------------------------------------------------------------


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


# --- when a session ends -----------------------------------------------------------------------------------


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


# --- one's own sessions, and those of others ---------------------------------------------------------------


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


# --- one-time links ------------------------------------------------------------------------------------------


def test_a_link_signs_in_once(browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess) -> None:
    code = policy.codes.make(local.holder)
    first, second = browse(), browse()
    done = first.get("/sign-in", params={"code": code, "next": "/devices"})
    assert (done.status_code, done.headers["location"]) == (303, "/devices")
    assert first.get(ABOUT).json()["who"] == "ann"
    again = second.get("/sign-in", params={"code": code})
    assert (again.status_code, status(second)) == (401, 401)
    assert COOKIE not in again.headers.get("set-cookie", "")
    assert "used before" in again.text


def test_a_link_that_is_used_by_many_at_once_signs_in_one(policy: Policy, local: LocalAccess) -> None:
    for _ in range(50):
        code = policy.codes.make(local.holder)
        with ThreadPoolExecutor(8) as pool:
            assert sum(found is not None for found in pool.map(policy.codes.redeem, [code] * 8)) == 1


def test_a_link_expires(browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess, clock: Clock) -> None:
    code = policy.codes.make(local.holder)
    clock.now = local_access.LINK_SECONDS
    assert browse().get("/sign-in", params={"code": code}).status_code == 401


def test_a_wrong_code_signs_nobody_in_and_leads_nowhere_else(
    browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess
) -> None:
    code = policy.codes.make(local.holder)
    assert len(code) == 43
    for guess in ("", code[:-1], code + "=", code.swapcase(), hashlib.sha256(code.encode()).hexdigest(), "x" * 5000):
        assert browse().get("/sign-in", params={"code": guess}).status_code == 401
    assert SignInCodes().redeem(code) is None  # another start of the server
    done = browse().get("/sign-in", params={"code": code, "next": "//evil.example"})
    assert done.headers["location"] == "/"


def test_links_that_wait_are_few(policy: Policy, local: LocalAccess) -> None:
    made = [policy.codes.make(local.holder) for _ in range(local_access.MAX_LINKS + 2)]
    assert [code for code in made if policy.codes.redeem(code) is None] == made[:2]


def test_a_program_does_not_use_a_link_up(
    browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess
) -> None:
    code = policy.codes.make(local.holder)
    program = browse()
    del program.headers["sec-fetch-site"]
    assert program.get("/sign-in", params={"code": code}).status_code == 400
    assert browse().get("/sign-in", params={"code": code}).status_code == 303


def test_who_has_no_token_or_key_gets_no_code_and_a_session_does_not_prolong_itself(
    browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess, token: str
) -> None:
    client = browse(Accept="application/json")
    assert client.post("/sign-in/codes").status_code == 401
    link(client, policy, local)
    assert status(client) == 200
    assert client.post("/sign-in/codes").status_code == 401
    for bearer, name in ((token, "ann"), (local.key, "ann")):
        code = browse().post("/sign-in/codes", headers={"Authorization": f"Bearer {bearer}"}).json()["code"]
        fresh = browse()
        assert fresh.get("/sign-in", params={"code": code}).status_code == 303
        assert fresh.get(ABOUT).json()["who"] == name


def test_a_link_by_a_token_ends_with_the_token(browse: Callable[..., httpx.Client], engine: Engine, token: str) -> None:
    code = browse().post("/sign-in/codes", headers={"Authorization": f"Bearer {token}"}).json()["code"]
    execute(engine, "UPDATE tokens SET revoked_at = clock_timestamp()")
    client = browse()
    client.get("/sign-in", params={"code": code})
    assert status(client) == 401


def test_a_session_of_a_login_is_good_at_servers_of_its_home_alone(
    browse: Callable[..., httpx.Client], access: Access, policy: Policy, local: LocalAccess
) -> None:
    client = browse()
    link(client, policy, local)
    (session,) = client.cookies.values()
    for other, expected in (
        (Policy(tokens=True), 401),
        (Policy(tokens=True, local=LocalAccess("ann", issuer="farm-other.localhost")), 401),
        (Policy(tokens=True, local=LocalAccess("ann", issuer=OWN)), 200),  # started again
    ):
        elsewhere = browse(HERE, make_app(access, policy=other))
        elsewhere.headers["Cookie"] = f"{COOKIE}={session}"
        assert status(elsewhere) == expected


def test_the_name_of_its_own_is_in_no_line_that_is_pasted_elsewhere(
    browse: Callable[..., httpx.Client], policy: Policy, local: LocalAccess
) -> None:
    client = browse(OWN_URL)
    assert link(client, policy, local).status_code == 303
    described = client.get("/api").text
    assert "http://localhost:8000/api/v1/campaigns" in described
    assert OWN not in described


# --- other accounts of the machine ---------------------------------------------------------------------------


def test_another_account_gets_nothing_without_a_code(
    browse: Callable[..., httpx.Client], app: FastAPI, local: LocalAccess
) -> None:
    client = browse()
    client.headers.update({"X-Farm-User": "ann", "Authorization": "Bearer "})
    for known in OPERATIONS.values():
        path = re.sub(r"\{\w+\}", "x", known.path)
        assert client.request(known.method, PREFIX + path).status_code == 401, known.name
    for route in app.routes:
        path = re.sub(r"\{\w+\}", "x", str(getattr(route, "path", "")))
        if path.startswith((PREFIX, "/static", "/favicon", "/login", "/logout", "/sign-in")) or not path:
            continue
        for method in getattr(route, "methods", ()):
            answer = client.request(method, path)
            assert answer.status_code == 303, (method, path)
            assert answer.headers["location"].startswith("/login"), (method, path)


def test_serve_shows_its_link_on_a_terminal(engine: Engine, database_url: str, tmp_path: Path) -> None:
    port = free_port()
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [sys.executable, "-m", "farm", "serve", "--port", str(port)],
            cwd=tmp_path,
            env=environment(tmp_path / ".farm", FARM_DATABASE_URL=database_url, PYTHONPATH=os.pathsep.join(sys.path)),
            stdout=subprocess.PIPE,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        try:
            said = b""
            while b"Ctrl-C" not in said:
                said += terminal.read(1000)
            found = re.search(r"http://(farm-[0-9a-f]{20}\.localhost):\d+/sign-in\?code=([\w-]{43})\r", said.decode())
            assert found is not None, said
            headers = {"Host": f"{found[1]}:{port}", "Sec-Fetch-Site": "none"}
            at = f"http://127.0.0.1:{port}"
            answers = [httpx.get(f"{at}/sign-in?code={found[2]}", headers=headers, timeout=60) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [303, 401]
            assert httpx.get(at + ABOUT, headers={"Host": "farm-other.localhost"}, timeout=60).status_code == 421
        finally:
            process.terminate()
            process.wait(120)


def test_the_commands_of_the_same_account_need_no_token_and_those_of_others_do(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with serving(tmp_path, database_url) as served, recording() as (other, seen):
        assert httpx.get(served.address + ABOUT, headers={"X-Farm-User": "root"}, timeout=60).status_code == 401
        (note,) = (tmp_path / ".farm" / "run").glob("serve-*.json")
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / ".farm" / "web.json").stat().st_mode) == 0o600
        key = json.loads(note.read_text())["key"]
        others = tmp_path / "others"
        others.mkdir()
        port = urlsplit(served.address).port
        for url in (served.address, f"http://localhost:{port}"):
            away = environment(tmp_path / ".farm", FARM_API_URL=url)
            assert called(["status"], tmp_path, away).returncode == 0
            refused(called(["status"], others, environment(others / ".farm", FARM_API_URL=url)), 3, "A token is needed")
        wrong = called(
            ["status"], tmp_path, environment(tmp_path / ".farm", FARM_API_URL=served.address, FARM_API_TOKEN="x")
        )
        refused(wrong, 3, "A token is needed")  # a token that is given counts
        printed = farm_here(tmp_path, database_url)("open", "--print").stdout
        assert re.fullmatch(r"http://farm-[0-9a-f]{20}\.localhost:\d+/sign-in\?code=[\w-]{43}&next=%2F\n", printed)
        called(["status"], tmp_path, environment(tmp_path / ".farm", FARM_API_URL=other))
        assert seen
        assert not [headers for headers in seen if "authorization" in headers], "the key goes to its own server alone"
        assert served.stop() == 0
    assert key not in served.said
    assert "farm open" in served.said
    assert "code=" not in served.said, "the link is shown on a terminal alone"
    assert not note.exists()


def test_the_code_is_not_among_the_arguments_of_the_browser(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    with serving(tmp_path, database_url):
        display = environment(
            tmp_path / ".farm", FARM_DATABASE_URL=database_url, DISPLAY=":0", TERM="xterm", BROWSER=""
        )
        for _ in range(2):
            done = called(["open"], tmp_path, display)
    assert re.fullmatch(r"http://farm-[0-9a-f]{20}\.localhost:\d+/\n", done.stdout)
    assert len(opened) == 2
    assert not [address for address in opened if "code=" in address]
    (file,) = (tmp_path / ".farm" / "run").glob("sign-in-*.html")  # that of before is removed
    assert opened[-1] == file.as_uri()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "/sign-in?code=" in file.read_text()
    with serving(tmp_path, database_url, "--tokens") as served:
        called(["open"], tmp_path, display)
        assert served.stop() == 0
    assert ".localhost" not in opened[-1] + served.said  # the name that keeps the cookie from other ports


# --- a service on another port ---------------------------------------------------------------------------------


@contextmanager
def recording(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A service on a port of this machine: its address, and the headers of all requests that it gets."""
    seen = list[dict[str, str]]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            if answer is not None:
                answer(self)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>other</h1>")

        do_POST = do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_service_on_another_port_gets_nothing_of_a_browser_that_is_signed_in(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    chromium_path()
    with serving(tmp_path, database_url), recording() as (other, seen), chromium() as browser:
        page: Any = browser.new_page()
        page.goto(farm_in(tmp_path, database_url)("open", "--print").stdout.strip())
        page.wait_for_url("http://farm-*.localhost:*/")
        assert page.locator("h1").inner_text() == "Campaigns"
        (cookie,) = (one for one in page.context.cookies() if "session" in one["name"])
        page.locator(".who a").click()
        assert "this browser" in page.locator("tbody tr").inner_text()
        assert cookie["httpOnly"]
        assert page.evaluate("document.cookie") == ""
        port = urlsplit(other).port
        for host in ("127.0.0.1", "localhost", "farm-other.localhost"):
            page.goto(f"http://{host}:{port}/")
            assert page.locator("h1").inner_text() == "other"
        page.goto(f"http://{cookie['domain']}:{urlsplit(page.url).port}/")  # who knows the name gets the cookie
    *strangers, knowing = seen
    strangers = [headers for headers in seen if not headers["host"].startswith(cookie["domain"])]
    assert len(strangers) >= 3
    assert not [headers for headers in strangers if cookie["value"] in headers.get("cookie", "")]
    assert cookie["value"] in knowing["cookie"]  # as docs/serving.md says


# --- tokens on their way -----------------------------------------------------------------------------------------


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
