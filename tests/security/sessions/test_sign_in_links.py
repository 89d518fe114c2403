"""Attacks on links that sign in once: by other accounts of the machine, and by services on other ports."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine

from farm.api import OPERATIONS, PREFIX
from farm.api.access import Access
from farm.web import local_access
from farm.web.app import make_app
from farm.web.local_access import LocalAccess, SignInCodes
from farm.web.security import Policy
from support.commands import called, farm_here, farm_in, refused
from support.homes import environment
from support.programs import free_port
from support.recording_server import recording
from support.serving_process import serving
from support.signing_in import ABOUT, COOKIE, HERE, OWN, OWN_URL, Clock, execute, link, status
from support.visiting import chromium, chromium_path


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
