"""Connections of the Python API to a farm."""

from __future__ import annotations

from contextlib import ExitStack
from urllib.parse import urlsplit

from pydantic import SecretStr

from farm.api.connecting import farm_of
from farm.client.client import Client
from farm.errors import BadInput, BadServiceUrl, NoServerForToken
from farm.settings import settings

URL = "the URL of farm.connect"


def connect(url: str | None = None, *, token: str | None = None) -> Client:
    """A client of a farm. It opens its connection with the first request.

    Args:
        url: Of a `farm serve`, as `http://host:8000`. None: what `FARM_API_URL` names, or the database of
            `FARM_DATABASE_URL`, or the farm of this machine, whose services are started.
        token: For that server. None: what `FARM_API_TOKEN` has.

    Raises:
        BadServiceUrl: The URL is not one of a server.
        NoServerForToken: A token is given, but no server.
        TokenInTheClear: The token would be sent to another machine without encryption.
    """
    current = settings()
    changes = dict[str, object]()
    if url is not None:
        changes["api_url"] = _checked(url)
    if token is not None:
        if not isinstance(token, str) or not token.strip() or not (token.isascii() and token.isprintable()):
            raise BadInput(detail="token: write the text that farm tokens create printed.")
        if url is None and current.api_url is None:
            raise NoServerForToken
        changes["api_token"] = SecretStr(token.strip())
    stack = ExitStack()
    farm = stack.enter_context(farm_of(current.model_copy(update=changes)))
    return Client(farm, stack)


def _checked(url: object) -> str:
    """The URL of a server. Raises `BadServiceUrl`, without what may be a password."""
    if not isinstance(url, str):
        raise BadInput(detail=f"{URL}: write http://host:8000 or https://host, not a {type(url).__name__}.")
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        why = "for a database, set FARM_DATABASE_URL, and leave out the URL"
        raise BadServiceUrl(variable=URL, url=f"{scheme}://…", why=why)
    if scheme not in ("http", "https"):
        raise BadServiceUrl(variable=URL, url=url, why="write http://host:8000 or https://host")
    return url
