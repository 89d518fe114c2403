"""Asking the farm: its database and registry from here, or its API from anywhere."""

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
    """Whatever carries out operations."""

    rows_at_once: int
    """Rows of results that one answer may have."""

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the operation answers. Raises what it raises; through the API, a `FarmError` with the same message."""
        ...


class Direct:
    """Operations carried out in this process, on the farm's database and registry."""

    rows_at_once = sys.maxsize

    def __init__(self, access: Access) -> None:
        self.access = access

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return operation(self.access, *args, **kwargs)


@contextmanager
def farm_of(settings: Settings) -> Iterator[Farm]:
    """The farm behind FARM_API_URL where that is set; else the one of this machine or of FARM_DATABASE_URL."""
    if settings.api_url is not None:
        with remote_of(settings, settings.api_url) as remote:
            yield remote
        return
    with closing(Access(settings)) as access:
        yield Direct(access)


@contextmanager
def remote_of(settings: Settings, url: str) -> Iterator[Remote]:
    """The farm that a server has: with the token of the settings; else, for a server of this home, with its key."""
    from farm.api.remote import Remote

    token = None if settings.api_token is None else settings.api_token.get_secret_value()
    if token is None:
        from farm.services.served import served_at

        if (known := served_at(settings, url)) is not None:
            url, token = known.url, known.key
    with closing(Remote(url, token=token)) as remote:
        yield remote
