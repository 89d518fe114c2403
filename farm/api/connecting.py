"""Connections to a farm: to its database and registry, or to its API."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from farm.api.access import Access
from farm.settings import Settings

if TYPE_CHECKING:
    from farm.api.remote import Remote

P = ParamSpec("P")
R = TypeVar("R")


class Farm(Protocol):
    """Runs operations."""

    rows_at_once: int
    """Maximum rows of one result."""

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs an operation and returns its result. Over the API, its errors are `FarmError` with the same message."""
        ...


class Direct:
    """Runs operations in this process, on the farm's database and registry."""

    rows_at_once = sys.maxsize

    def __init__(self, access: Access) -> None:
        self.access = access

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return operation(self.access, *args, **kwargs)


@contextmanager
def farm_of(settings: Settings) -> Iterator[Farm]:
    """The farm behind FARM_API_URL if that is set; otherwise that of FARM_DATABASE_URL or of this machine."""
    if settings.api_url is not None:
        with remote_of(settings, settings.api_url) as remote:
            yield remote
        return
    with closing(Access(settings)) as access:
        yield Direct(access)


@contextmanager
def remote_of(settings: Settings, url: str) -> Iterator[Remote]:
    """The farm of a server, with the token of the settings or, for a server of this home, with its key."""
    from farm.api.remote import Remote

    token = None if settings.api_token is None else settings.api_token.get_secret_value()
    if token is None:
        from farm.services.served import served_at

        if (known := served_at(settings, url)) is not None:
            url, token = known.url, known.key
    with closing(Remote(url, token=token)) as remote:
        yield remote
