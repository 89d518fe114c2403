"""`farm serve` and a real OpenID provider, each a process of its own, and a browser between them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from farm.api import PREFIX
from farm.db.engine import make_engine
from farm.web.security import Policy
from farm.web.serving import listening
from support.commands import farm_here, refused
from support.openid import CLIENT_ID, ROLES, SECRET, browser, configuration, provider_process
from support.serving import served
from support.serving_process import serving
from support.visiting import chromium

USERS: dict[str, dict[str, Any]] = {
    "ada": {"preferred_username": "ada", "groups": ["gemm-admins", "staff"]},
    "ben": {"email": "ben@example.org", "email_verified": True, "groups": ["staff", "gpu-users"]},
    "cy": {"preferred_username": "cy", "groups": ["staff"]},
    "dee": {"preferred_username": "dee", "groups": "gpu-operators"},
    "eve": {"preferred_username": "eve", "groups": ["sales"]},
}


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = make_engine(database_url, application="test")
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider_process(USERS) as url:
        yield url


def signed_in(client: httpx.Client, person: str, after: str = "/") -> httpx.Response:
    """The farm's answer when a person comes back from the provider."""
    there = client.get("/oidc/sign-in", params={"next": after})
    assert there.status_code == 303
    back = client.post(there.headers["location"], data={"sub": person})
    assert back.status_code == 302, back.text
    return client.get(back.headers["location"])


def test_a_real_provider_gives_each_group_its_role(engine: Engine, issuer: str) -> None:
    with served(engine, policy=lambda url: Policy(tokens=True, oidc=configuration(issuer, url))) as url:
        for person, name, role in (
            ("ada", "oidc:ada", "admin"),
            ("ben", "oidc:ben@example.org", "submit"),
            ("cy", "oidc:cy", "read"),
            ("dee", "oidc:dee", "operate"),
        ):
            with browser(url) as client:
                assert signed_in(client, person, "/models").headers["location"] == "/models"
                page = client.get("/sessions").text
                assert f"signed in as {name}, with the role {role}" in page
        with browser(url) as client:
            assert "Sign in with Example" in client.get("/login").text
            answer = signed_in(client, "eve")
            assert (answer.status_code, "Your groups: sales" in answer.text) == (403, True)
            signed_in(client, "cy")
            same = {"Sec-Fetch-Site": "same-origin"}
            assert client.get("/", headers=same).status_code == 200
            assert client.post("/logout", headers=same).status_code == 303
            assert client.get("/", headers=same).headers["location"] == "/login"
            out = client.get("/oidc/sign-out", headers=same).headers["location"]
            assert out.startswith(f"{issuer}/oauth2/end_session?client_id={CLIENT_ID}&post_logout_redirect_uri=")
            denied = client.get("/oidc/sign-in").headers["location"]
            back = client.post(denied, data={"action": "deny"}).headers["location"]
            assert client.get(f"{back}&state={state_of(denied)}").status_code == 403
        with engine.connect() as connection:
            people = connection.execute(text("SELECT count(*) FROM oidc_users")).scalar_one()
    assert people == 4


def state_of(location: str) -> str:
    return httpx.URL(location).params["state"]


def test_serve_refuses_mistyped_settings_with_one_message(tmp_path: Path) -> None:
    farm = farm_here(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    wrong = {"FARM_OIDC_CLIENT_ID": "x", "FARM_OIDC_ROLES": "gpu=submitter"}
    told = farm("serve", "--tokens", **wrong)
    refused(told, 2, "without FARM_OIDC_ISSUER")
    assert "'submitter' in 'gpu=submitter' is no role" in told.stderr
    right = {
        "FARM_OIDC_ISSUER": "https://id.example",
        "FARM_PUBLIC_URL": "https://farm.example",
        "FARM_OIDC_ROLES": "*=read",
    }
    refused(farm("serve", FARM_OIDC_CLIENT_ID="x", **right), 2, "so it needs --tokens")


@pytest.mark.long
def test_a_browser_signs_in_at_farm_serve_and_lands_on_its_page(
    engine: Engine, database_url: str, issuer: str, tmp_path: Path
) -> None:
    # The address comes before the server. No other program of this machine takes a port of this one.
    host = "127.41.7.3"
    with listening(host, 0) as listener:
        port = listener.getsockname()[1]
    url = f"http://{host}:{port}"
    variables = {
        "FARM_PUBLIC_URL": url,
        "FARM_OIDC_ISSUER": issuer,
        "FARM_OIDC_CLIENT_ID": CLIENT_ID,
        "FARM_OIDC_CLIENT_SECRET": SECRET,
        "FARM_OIDC_NAME": "Example",
        "FARM_OIDC_ROLES": ROLES,
    }
    with (
        serving(tmp_path, database_url, "--tokens", "--host", host, "--port", str(port), **variables) as farm,
        chromium() as started,
    ):
        page = started.new_page()
        page.goto(f"{url}/models?type=x")
        page.get_by_role("link", name="Sign in with Example").click()
        page.get_by_role("button", name="ben", exact=True).click()
        page.get_by_text("oidc:ben@example.org").wait_for()
        assert page.url == f"{url}/models?type=x"
        answer = page.request.get(f"{url}{PREFIX}/about", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.json()["who"] == "oidc:ben@example.org"
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("Signed out.").wait_for()
        page.get_by_role("link", name="its own sign-out").click()
        page.wait_for_url(f"{issuer}/oauth2/end_session?**")
        assert farm.stop(signal.SIGTERM) == 0
    assert "code=" not in farm.said
