"""The application: the API and the pages, and what is around both."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

import farm
from farm.api import PREFIX
from farm.api.access import Access
from farm.errors import FarmError
from farm.web import errors
from farm.web.pages import add_pages, readable
from farm.web.routes import add_operations
from farm.web.security import Guard, Policy

DESCRIPTION = """\
What `farm` asks a database for, over HTTP: each command has its operation, and `--json` prints the same documents.

Where tokens are asked for, send one as `Authorization: Bearer TOKEN`. Errors are JSON: `{"error": {"kind", "message",
"exit_code"}}`, with the words and exit codes of the command line.
"""


def make_app(access: Access, *, policy: Policy) -> FastAPI:
    """The web application of a farm. The access is shared by all requests, and stays the caller's to close."""
    app = FastAPI(
        title="GEMM Farm",
        version=farm.__version__,
        description=DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.access = access
    app.state.policy = policy
    _add_errors(app)
    add_operations(app)
    add_pages(app)
    app.add_middleware(Guard, policy=policy)
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

    @app.exception_handler(OperationalError)
    async def _database(request: Request, error: OperationalError) -> Response:
        return readable(request, errors.of_database(error))

    @app.exception_handler(Exception)
    async def _defect(request: Request, error: Exception) -> Response:
        return readable(request, errors.of_defect(request, error))
