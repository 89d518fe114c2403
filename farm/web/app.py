"""The web application: the API, the pages, their guard and their errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import farm
from farm.api import PREFIX
from farm.api.access import Access
from farm.db import changes
from farm.errors import FarmError, TookTooMuchMemory
from farm.metrics import Metrics
from farm.web import errors
from farm.web.events import Events
from farm.web.limits import PROCESS_MEMORY_BYTES
from farm.web.measured import Measured
from farm.web.pages import readable, routes_of_pages
from farm.web.processes import Processes
from farm.web.routes import routes_of_operations
from farm.web.security import Guard, Policy
from farm.web.shared_answers import SharedAnswers
from farm.web.traced import Traced

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

    from farm.web.oidc.configuration import Configuration

DESCRIPTION = """\
The farm over HTTP. Each command has an operation, and `--json` prints the same documents.

If the server requires tokens, send one as `Authorization: Bearer TOKEN`. Errors are JSON: `{"error": {"kind", "message",
"exit_code"}}`, with the messages and exit codes of the command line.
"""


MAX_THREADS = 20
"""Requests in work at a time, each in a thread with one connection to the database. Others wait."""


_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI's own spans would have queries and paths, which name campaigns. `Traced` makes those of the farm."""


class App(FastAPI):
    """The application inside its guard, which also covers Starlette's responses to defects."""

    def __init__(self, *, policy: Policy, metrics: Metrics, **settings: Any) -> None:
        super().__init__(**settings)
        self._policy = policy
        self._metrics = metrics

    def build_middleware_stack(self) -> ASGIApp:
        return Measured(Traced(Guard(self.unguarded(), policy=self._policy)), self._metrics)

    def unguarded(self) -> ASGIApp:
        """The application for requests that passed the guard of another process."""
        return super().build_middleware_stack()


@asynccontextmanager
async def _with_threads(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
    yield
    await app.state.events.close()
    if app.state.processes is not None:
        app.state.processes.close()
    if app.state.provider is not None:
        app.state.provider.close()


def make_app(
    access: Access, *, policy: Policy, processes: Processes | None = None, metrics: Metrics | None = None
) -> App:
    """The web application of a farm.

    Args:
        access: shared by all requests. The caller closes it.
        policy: who may send requests, and how.
        processes: for expensive operations. Without them, these run in this process without limits of time and memory.
        metrics: count the requests.
    """
    app = App(
        policy=policy,
        metrics=metrics or Metrics(),
        telemetry=_NO_TELEMETRY,
        title="GEMM Farm",
        version=farm.__version__,
        description=DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_with_threads,
        # `include_router` makes each route once more, with the first request to each application.
        routes=[*routes_of_operations(policy.tokens).routes, *routes_of_pages().routes],
    )
    app.state.access = access
    app.state.policy = policy
    app.state.processes = processes
    events = Events(lambda: _fingerprints(access))
    app.state.events = events
    app.state.shared = SharedAnswers(lambda: events.latest)
    _add_errors(app)
    _add_provider(app, policy.oidc)
    return app


def _add_provider(app: FastAPI, configuration: Configuration | None) -> None:
    """The pages of an OpenID provider, where there is one. Without one, nothing of them is imported."""
    app.state.provider = None
    if configuration is None:
        return
    from farm.web.oidc.flow import FlowCookie
    from farm.web.oidc.pages import router
    from farm.web.oidc.provider import Provider

    app.state.provider = Provider(configuration)
    app.state.flow_cookie = FlowCookie(configuration)
    app.include_router(router)


def _fingerprints(access: Access) -> dict[str, str]:
    with access.connect() as connection:
        return changes.fingerprints(connection, silent_after=access.silent_after)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(FarmError)
    async def _farm(request: Request, error: FarmError) -> Response:
        return readable(request, errors.of_farm(error))

    @app.exception_handler(RequestValidationError)
    async def _request(request: Request, error: RequestValidationError) -> Response:
        return readable(request, errors.of_request(error))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return readable(request, errors.of_http(error))

    @app.exception_handler(DBAPIError)
    async def _database(request: Request, error: DBAPIError) -> Response:
        return readable(request, errors.of_database(request, error))

    @app.exception_handler(NoConnectionLeft)
    async def _busy(request: Request, __: NoConnectionLeft) -> Response:
        return readable(request, errors.of_absence())

    @app.exception_handler(MemoryError)
    async def _memory(request: Request, _: MemoryError) -> Response:
        request.app.state.out_of_memory = True
        return readable(request, errors.of_farm(TookTooMuchMemory(mib=PROCESS_MEMORY_BYTES // 2**20)))

    @app.exception_handler(Exception)
    async def _defect(request: Request, error: Exception) -> Response:
        return readable(request, errors.of_defect(request, error))
