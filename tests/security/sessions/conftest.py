"""A farm in this process, and browsers that know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine

from farm.api.access import Access
from farm.db import tokens
from farm.db.states import Role
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.web.app import make_app
from farm.web.local_access import LocalAccess, SignInCodes
from farm.web.security import Policy
from support.signing_in import HERE, OWN, Clock
from support.visiting import visitor


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
