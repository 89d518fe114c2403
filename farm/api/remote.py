"""The client of the API: an operation becomes a request, and an error response a `FarmError`."""

from __future__ import annotations

import inspect
import io
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

import farm
from farm.addresses import is_loopback, port_of
from farm.api.access import Access
from farm.api.operation import FILE, OPERATIONS, PREFIX, Download, made_file
from farm.api.results import MAX_ROWS
from farm.errors import (
    ApiMoved,
    ApiRefused,
    ApiUnreachable,
    BadInput,
    BadServiceUrl,
    FarmError,
    Forbidden,
    NotFound,
    OtherApi,
    RoleTooSmall,
    ServiceUnavailable,
    TokenInTheClear,
    first_line,
    known_errors,
)
from farm.system_account import login_name
from farm.tracing import current, traceparent
from farm.tracing.ids import HEADER

P = ParamSpec("P")
R = TypeVar("R")

Query = list[tuple[str, str | int | float | bool | None]]


@dataclass(frozen=True)
class Body:
    """The body of a request: none, a document, or a file that is sent while it is read."""

    content: str | Path | None = None
    media_type: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        found = {} if self.media_type is None else {"Content-Type": self.media_type}
        # Otherwise httpx would send it in chunks, and a server could refuse a file that is too large only after reading it.
        return found | ({"Content-Length": str(self.content.stat().st_size)} if isinstance(self.content, Path) else {})

    @contextmanager
    def opened(self) -> Iterator[str | IO[bytes] | None]:
        """What httpx sends."""
        if not isinstance(self.content, Path):
            yield self.content
            return
        with self.content.open("rb") as file:
            yield file


CONNECT_SECONDS = 10.0
MAX_DOCUMENT_BYTES = 1 << 28
"""Of a response that is held in memory. The largest page of rows has a tenth of it."""

MAX_DOWNLOAD_BYTES = 1 << 32
"""Of a file. The pairs of a comparison of a million rows have a tenth of it."""

MAX_ERROR_BYTES = 1 << 20

RESPONSE_SECONDS = 300.0
"""Comparisons of millions of rows, and the first use of a model, take a while."""


class RemoteError(FarmError):
    """{message}"""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message=message)
        self.exit_code = exit_code  # type: ignore[misc]


class Remote:
    """Runs operations on a server of the farm."""

    rows_at_once = MAX_ROWS

    def __init__(self, url: str, *, token: str | None, client: httpx.Client | None = None) -> None:
        """Raises `BadServiceUrl`, `TokenInTheClear`. A `client` is for tests."""
        try:
            parts, valid = urlsplit(url), bool(httpx.URL(url).host)
            port_of(parts)
        except (ValueError, httpx.InvalidURL):
            valid = False
        if not valid or parts.scheme not in ("http", "https"):
            raise BadServiceUrl(variable="FARM_API_URL", url=url, why="write http://host:8000 or https://host")
        if parts.username or parts.password:
            raise BadServiceUrl(
                variable="FARM_API_URL",
                url=f"{parts.scheme}://…@{parts.hostname}",
                why="the token belongs into FARM_API_TOKEN",
            )
        encrypted = parts.scheme == "https"
        if token is not None and not encrypted and not is_loopback(parts.hostname or ""):
            raise TokenInTheClear(url=url, host=parts.hostname, port=port_of(parts))
        self.url = url.rstrip("/")
        headers = {"User-Agent": f"gemm-farm/{farm.__version__}"}
        if (name := login_name()) is not None and name.isascii():
            headers["X-Farm-User"] = name
        self.has_token = token is not None
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        timeout = httpx.Timeout(RESPONSE_SECONDS, connect=CONNECT_SECONDS)
        # A proxy of the environment would read what is sent over plain HTTP. Over HTTPS it sees only where it goes.
        # Certificates take a tenth of a second to read. Without encryption none is needed, and none is trusted.
        trusted = True if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = client or httpx.Client(timeout=timeout, trust_env=encrypted, verify=trusted)
        self._client.headers.update(headers)

    def close(self) -> None:
        self._client.close()

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs an operation on the server and returns its result. Raises `FarmError` with the server's message and exit code."""
        known = OPERATIONS[operation]
        bound = inspect.signature(operation).bind(None, *args, **kwargs)
        path, query, body = known.path, Query(), Body()
        for parameter in known.parameters:
            if parameter.name not in bound.arguments:
                continue
            value = bound.arguments[parameter.name]
            if known.in_path(parameter):
                path = path.replace(f"{{{parameter.name}}}", quote(str(value), safe=""))
            elif known.is_upload(parameter):
                body = Body(value.path, FILE)
            elif known.is_model(parameter):
                assert isinstance(value, BaseModel)
                if known.method == "GET":
                    query += _query(value.model_dump(mode="json", exclude_defaults=True))
                else:
                    body = Body(value.model_dump_json(), "application/json")
            else:
                query += _query({parameter.name: value})
        if known.sends is not None:
            return cast(R, self._download(known.method, PREFIX + path, query, body))
        response = self._request(known.method, PREFIX + path, query, body)
        try:
            answer: R = TypeAdapter(known.hints["return"]).validate_json(response.content)
        except ValidationError as error:
            raise OtherApi(url=self.url, version=farm.__version__, why=first_line(error)) from None
        return answer

    def sign_in_code(self) -> str | None:
        """A code that signs a browser in once as this client; None if the server requires no sign-in."""
        response = self._request("POST", "/sign-in/codes", Query(), Body())
        try:
            code = response.json()["code"]
        except (ValueError, KeyError, TypeError) as error:
            raise OtherApi(url=self.url, version=farm.__version__, why=first_line(error)) from None
        return None if code is None else str(code)

    def _request(self, method: str, path: str, query: Query, body: Body) -> httpx.Response:
        content = io.BytesIO()
        headers = self._receive(method, path, query, body, content, MAX_DOCUMENT_BYTES)
        return httpx.Response(200, headers=headers, content=content.getvalue())

    def _download(self, method: str, path: str, query: Query, body: Body) -> Download:
        with made_file("download") as received, received.open("wb") as file:
            headers = self._receive(method, path, query, body, file, MAX_DOWNLOAD_BYTES)
        rows = headers.get("X-Farm-Rows", "")
        media_type = headers.get("Content-Type", "").partition(";")[0]
        name = re.search(r'filename="([^"/\\]+)"', headers.get("Content-Disposition", ""))
        return Download(received, media_type, name[1] if name else "download", int(rows) if rows.isdecimal() else None)

    def _receive(
        self, method: str, path: str, query: Query, body: Body, to: IO[bytes], max_bytes: int
    ) -> httpx.Headers:
        """Writes the content of a response, of at most `max_bytes` when it is unpacked. Raises the error of an error response."""
        try:
            with (
                body.opened() as content,
                self._client.stream(
                    method,
                    self.url + path,
                    params=query,
                    content=content,
                    headers=body.headers | _caller(),
                    follow_redirects=False,
                ) as response,
            ):
                received, limit = 0, max_bytes if response.is_success else MAX_ERROR_BYTES
                file = to if response.is_success else io.BytesIO()
                for part in response.iter_bytes():
                    received += len(part)
                    if received > limit:
                        why = f"its answer has more than {limit:,} bytes"
                        raise OtherApi(url=self.url, version=farm.__version__, why=why)
                    file.write(part)
        except httpx.HTTPError as error:
            raise ApiUnreachable(url=self.url, why=first_line(error)) from None
        # What is kept is unpacked.
        headers = httpx.Headers(
            [
                one
                for one in response.headers.multi_items()
                if one[0].lower() not in ("content-encoding", "content-length")
            ]
        )
        if response.is_success:
            return headers
        if response.has_redirect_location:
            raise ApiMoved(url=self.url, location=_origin_of(response.headers["location"]))
        assert isinstance(file, io.BytesIO)
        raise self._error(httpx.Response(response.status_code, headers=headers, content=file.getvalue()))

    def _error(self, response: httpx.Response) -> FarmError:
        try:
            told = response.json()["error"]
            kind, message, exit_code = str(told["kind"]), str(told["message"]), int(told["exit_code"])
        except (ValueError, KeyError, TypeError):
            why = f"it answered {response.status_code} {response.reason_phrase}"
            return OtherApi(url=self.url, version=farm.__version__, why=why)
        known = _class_of(kind, exit_code)
        of_the_work = known is not None and issubclass(known, Forbidden) and not issubclass(known, RoleTooSmall)
        if response.status_code in (401, 403) and not of_the_work:
            return ApiRefused(url=self.url, why=message)
        return RemoteError(message, exit_code) if known is None else known.received(message)


def _caller() -> dict[str, str]:
    """The header that names the span of this request, if there is one."""
    return {} if (ids := current()) is None else {HEADER: traceparent(ids)}


_BY_EXIT_CODE: Mapping[int, type[FarmError]] = {one.exit_code: one for one in (BadInput, ServiceUnavailable, NotFound)}


def _class_of(kind: str, exit_code: int) -> type[FarmError] | None:
    """The class of an error by the name that a server sent. One that this version lacks is of the class of its exit code."""
    named = (one for one in known_errors() if one.__name__ == kind and one.exit_code == exit_code)
    return next(named, _BY_EXIT_CODE.get(exit_code))


def _origin_of(location: str) -> str:
    """Scheme, host and port of a redirect, which may be any text."""
    try:
        parts = urlsplit(location)
        found = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else "another path"
    except ValueError:
        found = "somewhere else"
    return found if found.isprintable() else "somewhere else"


def _query(given: Mapping[str, Any]) -> Query:
    """Query parameters: a list repeats its name, and None is left out."""
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in given.items()
        if value is not None
        for one in (value if isinstance(value, list) else [value])
    ]
