"""The application: the API and the pages, and what is around both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

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
from farm.errors import FarmError, TookTooMuchMemory
from farm.web import errors
from farm.web.limits import PROCESS_MEMORY_BYTES
from farm.web.pages import readable, routes_of_pages
from farm.web.processes import Processes
from farm.web.routes import routes_of_operations
from farm.web.security import Guard, Policy

DESCRIPTION = """\
What `farm` asks a database for, over HTTP: each command has its operation, and `--json` prints the same documents.

Where tokens are asked for, send one as `Authorization: Bearer TOKEN`. Errors are JSON: `{"error": {"kind", "message",
"exit_code"}}`, with the words and exit codes of the command line.
"""


AT_A_TIME = 20
"""Requests that are worked on at once, each in a thread and with one connection to the database; others wait."""


class App(FastAPI):
    """The application within its guard: answers to defects, which Starlette makes outside of all else, pass it too."""

    def __init__(self, *, policy: Policy, **settings: Any) -> None:
        super().__init__(**settings)
        self._policy = policy

    def build_middleware_stack(self) -> ASGIApp:
        return Guard(self.unguarded(), policy=self._policy)

    def unguarded(self) -> ASGIApp:
        """The application for requests that passed the guard of another process."""
        return super().build_middleware_stack()


@asynccontextmanager
async def _with_threads(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = AT_A_TIME
    yield
    if app.state.processes is not None:
        app.state.processes.close()


def make_app(access: Access, *, policy: Policy, processes: Processes | None = None) -> App:
    """The web application of a farm. The access is shared by all requests, and stays the caller's to close.

    Without `processes` expensive operations run in this process, and nothing bounds their time and memory.
    """
    app = App(
        policy=policy,
        title="GEMM Farm",
        version=farm.__version__,
        description=DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_with_threads,
    )
    app.state.access = access
    app.state.policy = policy
    app.state.processes = processes
    _add_errors(app)
    app.include_router(routes_of_operations(policy.tokens))
    app.include_router(routes_of_pages())
    return app


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
