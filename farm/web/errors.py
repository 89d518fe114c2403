"""Errors as HTTP responses, with the messages and exit codes of the command line."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import QueryCanceled
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from farm.db.engine import ASKING_SECONDS, SILENT, fault_of, refusal_of
from farm.errors import (
    BadInput,
    FarmError,
    Forbidden,
    NotFound,
    ProcessesBusy,
    RightMissing,
    ServiceUnavailable,
    SignInNeeded,
    TooManyRequests,
    WrongRevision,
    first_line,
)

log = logging.getLogger(__name__)

_STATUSES: tuple[tuple[type[FarmError], int], ...] = (
    (SignInNeeded, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (BadInput, 400),
    (ServiceUnavailable, 503),
    (WrongRevision, 503),
)


def status_of(error: FarmError) -> int:
    """The HTTP status of an error. An error that the client cannot correct is 500."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


class Mistake(BaseModel):
    """One mistake in a request."""

    where: str
    what: str


class Error(BaseModel):
    """An error: `kind` for programs, `message` for people, and the exit code of the command line."""

    kind: str
    message: str
    exit_code: int
    mistakes: list[Mistake] = []


class ErrorResponse(BaseModel):
    """The body of every response that reports an error."""

    error: Error


def error_document(kind: str, message: str, exit_code: int, **more: Any) -> dict[str, Any]:
    """The document of an error."""
    return {"error": {"kind": kind, "message": message, "exit_code": exit_code, **more}}


def of_farm(error: FarmError) -> JSONResponse:
    headers = None
    if isinstance(error, SignInNeeded):
        headers = {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, TooManyRequests | ProcessesBusy):
        headers = {"Retry-After": "5"}
    return JSONResponse(
        error_document(type(error).__name__, str(error), error.exit_code), status_of(error), headers=headers
    )


def of_request(error: RequestValidationError) -> JSONResponse:
    """The mistakes in a request that does not match its schema."""
    found = [
        {"where": ".".join(str(step) for step in mistake["loc"]), "what": mistake["msg"]} for mistake in error.errors()
    ]
    message = "; ".join(f"{one['where']}: {one['what']}" for one in found)
    return JSONResponse(error_document("BadRequest", message, 2, mistakes=found), 422)


def of_http(error: HTTPException) -> JSONResponse:
    """An unknown path, or a method that it does not support."""
    exit_code = NotFound.exit_code if error.status_code == 404 else BadInput.exit_code
    return JSONResponse(
        error_document("HttpError", f"{error.detail}.", exit_code), error.status_code, headers=error.headers
    )


def of_database(request: Request, error: DBAPIError) -> JSONResponse:
    """A statement took too long, lacked a right or had an impossible value, or the database is away. All else is a defect."""
    if isinstance(error.orig, QueryCanceled):
        message = (
            f"The database took more than {ASKING_SECONDS} s for this, and was stopped. Ask for less: a campaign, a type, "
            "since a time, a smaller limit."
        )
        return JSONResponse(error_document("TookTooLong", message, 3), 503)
    refused = refusal_of(error)
    if isinstance(refused, RightMissing):
        return of_farm(refused)
    if isinstance(refused, BadInput):
        return JSONResponse(error_document("BadRequest", str(refused), refused.exit_code), 400)
    if not fault_of(error).passes:
        return of_defect(request, error)
    log.warning("the database stopped answering: %s", first_line(error.orig))
    return of_absence()


def of_absence() -> JSONResponse:
    """The database does not respond, or has no connection left."""
    return JSONResponse(error_document("DatabaseUnreachable", SILENT, 3), 503)


def of_defect(request: Request, error: Exception) -> JSONResponse:
    """A defect. Only the log has its message, which may contain private data."""
    log.error("a defect at %s %s", request.method, quote(request.url.path), exc_info=error)
    return JSONResponse(error_document("Defect", "This is a defect of the farm; the server's log has more.", 1), 500)
