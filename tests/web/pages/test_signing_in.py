"""Pages for people with tokens: signing in and out, and what each role sees and does."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import Engine

from farm.api.access import Access
from farm.db import tokens
from farm.db.states import Role
from farm.web.app import make_app
from farm.web.security import Policy
from support.page_samples import RIGHT, imported
from support.visiting import visitor, words


@pytest.fixture
def token(engine: Engine) -> Callable[[Role], str]:
    def made(role: Role) -> str:
        with engine.begin() as connection:
            return tokens.create(connection, f"some-{role}", role, by="test")

    return made


def test_signing_in_leads_back_and_signing_out_ends_it(
    browser_with_tokens: httpx.Client, filled: int, token: Callable[[Role], str]
) -> None:
    client = browser_with_tokens
    refused = client.get("/compare?by=type", follow_redirects=False)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login?next=/compare%3Fby%3Dtype")
    assert client.get("/", headers={"HX-Request": "true"}).headers["hx-redirect"] == "/login"
    assert client.get("/api/v1/campaigns").status_code == 401
    wrong = client.post("/login", data={"token": "gfarm_no"})
    assert wrong.status_code == 401
    assert "farm_session" not in wrong.headers.get("set-cookie", "")
    done = client.post(
        "/login", data={"token": f" {token(Role.READ)} ", "next": "/compare?by=type"}, follow_redirects=False
    )
    assert (done.status_code, done.headers["location"]) == (303, "/compare?by=type")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    assert "some-read (role read)" in words(client.get("/").text)
    assert "Signed out." in words(client.post("/logout").text)
    assert client.get("/", follow_redirects=False).status_code == 303


def test_over_https_the_cookie_stays_there(access: Access, token: Callable[[Role], str]) -> None:
    app = make_app(access, policy=Policy(tokens=True))
    with visitor(app, "https://farm.example") as client:
        done = client.post("/login", data={"token": token(Role.READ)}, follow_redirects=False)
    assert "Secure" in done.headers["set-cookie"]


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"])
def test_nobody_is_led_elsewhere_after_signing_in(
    browser_with_tokens: httpx.Client, token: Callable[[Role], str], after: str
) -> None:
    done = browser_with_tokens.post("/login", data={"token": token(Role.READ), "next": after}, follow_redirects=False)
    assert done.headers["location"] == "/"


def test_a_role_sees_and_does_no_more_than_it_may(
    browser_with_tokens: httpx.Client, engine: Engine, filled: int, token: Callable[[Role], str]
) -> None:
    client = browser_with_tokens
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=1)
    seen = {}
    for role in Role:
        client.post("/login", data={"token": token(role)})
        pages = {
            path: client.get(path).text for path in ("/campaigns/small", "/devices", "/submit", "/models/nvidia-h200")
        }
        seen[role] = (
            'value="pause"' in pages["/campaigns/small"],
            'value="drain"' in pages["/devices"],
            'value="submit"' in pages["/submit"],
            "/delete" in pages["/campaigns/small"],
            "/imports/3fa94c0e11d2ab47/delete" in pages["/devices"],
            "/models/gemm-forest-nvidia-h200/delete" in pages["/models/nvidia-h200"],
        )
        if role is Role.READ:
            for path, form in (
                ("/campaigns/small/steer", {"to": "pause"}),
                ("/campaigns/small/retry", {}),
                ("/campaigns/small/delete", {"cancel": "true"}),
                ("/models/nvidia-h200/delete", {"version": "1"}),
                ("/imports/3fa94c0e11d2ab47/delete", {}),
                ("/deleted/restore", {"kind": "campaign", "name": "small"}),
                ("/devices", {"which": "CPU-1", "to": "drain"}),
                ("/submit", {"text": RIGHT, "to": "submit"}),
            ):
                assert client.post(path, data=form).status_code == 403, path
            assert client.post("/submit", data={"text": RIGHT, "to": "check"}).status_code == 200
    assert seen == {
        Role.READ: (False, False, False, False, False, False),
        Role.SUBMIT: (False, False, True, False, False, False),  # the campaign is somebody else's
        Role.OPERATE: (True, True, True, True, True, True),
        Role.ADMIN: (True, True, True, True, True, True),
    }
