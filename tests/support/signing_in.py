"""Browsers that sign in, and what thieves of their cookies do."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from sqlalchemy import Engine, text

from farm.api import PREFIX
from farm.web.local_access import LocalAccess
from farm.web.security import Policy

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
