"""Requests to a provider, with limits of time, size and number."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from farm.errors import first_line
from farm.web.oidc.configuration import Configuration, is_protected
from farm.web.oidc.errors import ProviderBusy, ProviderUnreachable

SECONDS = 5.0
"""How long a provider may take for a response."""

MAX_BYTES = 2**20
"""Maximum size of a response."""

MAX_TURNS = 6
"""Sign-ins that wait for the provider at a time. Others are refused at once, so that requests with tokens keep their threads."""


class ProviderHttp:
    """Sends requests to one provider. Its methods may be called from several threads."""

    def __init__(self, configuration: Configuration) -> None:
        self._name = configuration.name
        # A proxy of the environment sees nothing of HTTPS, and all of plain HTTP.
        self._client = httpx.Client(
            timeout=SECONDS,
            follow_redirects=False,
            trust_env=not configuration.on_loopback,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        self._turns = threading.BoundedSemaphore(MAX_TURNS)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One of the sign-ins that may wait for the provider. Raises `ProviderBusy`."""
        if not self._turns.acquire(blocking=False):
            raise ProviderBusy(count=MAX_TURNS, name=self._name)
        try:
            yield
        finally:
            self._turns.release()

    def ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of a response. Raises `ProviderUnreachable`."""
        if not is_protected(urlsplit(url)):
            raise self.unreachable(f"{url} is not encrypted")
        deadline = time.monotonic() + SECONDS
        try:
            with self._client.stream(method, url, headers=headers, content=body) as response:
                content = b""
                for part in response.iter_raw():
                    content += part
                    if len(content) > MAX_BYTES:
                        raise self.unreachable(f"{url} sent more than {MAX_BYTES:,} bytes")
                    if time.monotonic() > deadline:
                        raise self.unreachable(f"{url} took more than {SECONDS:g} s")
        except httpx.TimeoutException:
            raise self.unreachable(f"{url} took more than {SECONDS:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.unreachable(f"{url} does not respond: {first_line(error)}") from None
        if response.status_code >= 500 or response.is_redirect:
            raise self.unreachable(f"{url} responded with status {response.status_code}")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.unreachable(f"{url} sent no JSON object, with status {response.status_code}")
        return response.status_code, found

    def get(self, url: str, **headers: str) -> dict[str, Any]:
        """The JSON object at a URL. Raises `ProviderUnreachable`."""
        status, found = self.ask("GET", url, headers=headers)
        if status != 200:
            raise self.unreachable(f"{url} responded with status {status}")
        return found

    def unreachable(self, why: str) -> ProviderUnreachable:
        return ProviderUnreachable(name=self._name, why=why)

    def close(self) -> None:
        self._client.close()
