"""The API: a route for each operation, from the operation's own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter, Body, Depends, FastAPI, Path, Query, Request
from fastapi.responses import FileResponse, JSONResponse
from pydantic.fields import FieldInfo
from starlette.background import BackgroundTask

from farm.api import OPERATIONS, PREFIX, Download, Operation
from farm.api.access import Access
from farm.web.security import Caller, Policy, caller

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "What was asked for is not right; the message says what, where and what to do."},
    401: {"description": "A token is needed."},
    403: {"description": "The token's role does not allow it, or a page of another site asked."},
    404: {"description": "There is no such thing."},
    413: {"description": "The body is too large."},
    422: {"description": "The request does not have the form that it must have."},
    503: {"description": "The database or the registry does not answer."},
}


OF_REPORTS = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
"""A report brings its scripts with it; in a sandbox it has no origin, and so nothing of this farm's."""


def who(request: Request) -> Caller:
    """The caller of a request. Raises `SignInNeeded`."""
    policy: Policy = request.app.state.policy
    access: Access = request.app.state.access
    return caller(request, policy, access.session.engine)


def access_of(request: Request, asking: Annotated[Caller, Depends(who)]) -> Access:
    """The farm on behalf of the caller."""
    shared: Access = request.app.state.access
    return shared.on_behalf_of(asking.name)


def add_operations(app: FastAPI) -> None:
    """Every operation, under `PREFIX`."""
    router = APIRouter(prefix=PREFIX, responses=ERRORS)
    for known in OPERATIONS.values():
        router.add_api_route(
            known.path,
            _endpoint(known),
            methods=[known.method],
            operation_id=known.name,
            name=known.name,
            tags=[known.tag],
            summary=(known.function.__doc__ or "").partition("\n")[0],
            description=f"{inspect.cleandoc(known.function.__doc__ or '')}\n\nNeeds the role {known.role}.",
            response_model=None if _sends_file(known) else known.hints["return"],
            response_class=FileResponse if _sends_file(known) else JSONResponse,
        )
    app.include_router(router)


def _endpoint(known: Operation) -> Callable[..., Any]:
    def endpoint(**given: Any) -> Any:
        access, asking = given.pop("access"), given.pop("asking")
        asking.need(known.role)
        answer = known.function(access, **given)
        return _file(answer) if isinstance(answer, Download) else answer

    keyword = inspect.Parameter.KEYWORD_ONLY
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("access", keyword, annotation=Annotated[Access, Depends(access_of)]),
            inspect.Parameter("asking", keyword, annotation=Annotated[Caller, Depends(who)]),
            *(
                parameter.replace(kind=keyword, annotation=_annotated(known, parameter))
                for parameter in known.parameters
            ),
        ]
    )
    return endpoint


def _sends_file(known: Operation) -> bool:
    return known.hints["return"] is Download


def _file(made: Download) -> FileResponse:
    """The file, which is removed when it was sent."""
    headers = {} if made.rows is None else {"X-Farm-Rows": str(made.rows)}
    is_page = made.media_type == "text/html"
    if is_page:
        headers["Content-Security-Policy"] = OF_REPORTS
    return FileResponse(
        made.path,
        media_type=made.media_type,
        filename=made.name,
        content_disposition_type="inline" if is_page else "attachment",
        headers=headers,
        background=BackgroundTask(made.path.unlink, missing_ok=True),
    )


def _annotated(known: Operation, parameter: inspect.Parameter) -> Any:
    """The parameter's type with where FastAPI finds it: in the path, the body or the query."""
    kind, notes = parameter.annotation, tuple[Any, ...]()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        notes = tuple(rest)
    if known.is_model(parameter):
        return Annotated[kind, Query() if known.method == "GET" else Body()]
    field = next((note for note in notes if isinstance(note, FieldInfo)), None)
    place = Path if known.in_path(parameter) else Query
    constraints = () if field is None else tuple(field.metadata)
    return Annotated[kind, *constraints, place(description=None if field is None else field.description)]
