"""Errors as answers: the same words and exit codes as on the command line."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import InsufficientPrivilege, QueryCanceled
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError
from starlette.exceptions import HTTPException

from farm.db.engine import ASKING_SECONDS, fault_of
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
    """The HTTP status for an error of the farm: what nobody can mend from outside is 500."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


class Mistake(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    what: str


class Error(BaseModel):
    """What went wrong: `kind` for programs, `message` for people, and what the command line ends with."""

    kind: str
    message: str
    exit_code: int
    mistakes: list[Mistake] = []


class Told(BaseModel):
    """An error, as every answer that is none has it."""

    error: Error


def told(kind: str, message: str, exit_code: int, **more: Any) -> dict[str, Any]:
    """The document of an error."""
    return {"error": {"kind": kind, "message": message, "exit_code": exit_code, **more}}


def of_farm(error: FarmError) -> JSONResponse:
    headers = None
    if isinstance(error, SignInNeeded):
        headers = {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, TooManyRequests | ProcessesBusy):
        headers = {"Retry-After": "5"}
    return JSONResponse(told(type(error).__name__, str(error), error.exit_code), status_of(error), headers=headers)


def of_request(error: RequestValidationError) -> JSONResponse:
    """What is wrong with a request, one line for each mistake."""
    found = [
        {"where": ".".join(str(step) for step in mistake["loc"]), "what": mistake["msg"]} for mistake in error.errors()
    ]
    message = "; ".join(f"{one['where']}: {one['what']}" for one in found)
    return JSONResponse(told("BadRequest", message, 2, mistakes=found), 422)


def of_http(error: HTTPException) -> JSONResponse:
    """A path that is none, or a method that it does not have."""
    exit_code = NotFound.exit_code if error.status_code == 404 else BadInput.exit_code
    return JSONResponse(told("HttpError", f"{error.detail}.", exit_code), error.status_code, headers=error.headers)


def of_database(request: Request, error: DBAPIError) -> JSONResponse:
    """A statement took too long, lacked a right or had an impossible value, or the database is away. All else is a defect."""
    if isinstance(error.orig, QueryCanceled):
        message = (
            f"The database took more than {ASKING_SECONDS} s for this, and was stopped. Ask for less: a campaign, a type, "
            "since a time, a smaller limit."
        )
        return JSONResponse(told("TookTooLong", message, 3), 503)
    if isinstance(error.orig, InsufficientPrivilege):
        return of_farm(RightMissing(why=first_line(error.orig)))
    if isinstance(error, DataError):
        return JSONResponse(told("BadRequest", f"The database cannot take a value: {first_line(error.orig)}.", 2), 400)
    if not fault_of(error).passes:
        return of_defect(request, error)
    log.warning("the database stopped answering: %s", first_line(error.orig))
    return of_absence()


def of_absence() -> JSONResponse:
    """The database is away, or has no connection left."""
    return JSONResponse(told("DatabaseUnreachable", "The database does not answer. Try again.", 3), 503)


def of_defect(request: Request, error: Exception) -> JSONResponse:
    """A defect is told without its words, which may hold what is nobody's business; the log has them."""
    log.error("a defect at %s %s", request.method, quote(request.url.path), exc_info=error)
    return JSONResponse(told("Defect", "This is a defect of the farm; the server's log has more.", 1), 500)
