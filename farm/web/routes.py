"""The API: a route for each operation, from the operation's own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter, Body, Depends, FastAPI, Path, Query, Request
from pydantic.fields import FieldInfo

from farm.api import OPERATIONS, PREFIX, Operation
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
            response_model=known.hints["return"],
        )
    app.include_router(router)


def _endpoint(known: Operation) -> Callable[..., Any]:
    def endpoint(**given: Any) -> Any:
        access, asking = given.pop("access"), given.pop("asking")
        asking.need(known.role)
        return known.function(access, **given)

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


def _annotated(known: Operation, parameter: inspect.Parameter) -> Any:
    """The parameter's type with where FastAPI finds it: in the path, the body or the query."""
    kind, notes = parameter.annotation, tuple[Any, ...]()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        notes = tuple(rest)
    if known.is_body(parameter):
        return Annotated[kind, Body()]
    field = next((note for note in notes if isinstance(note, FieldInfo)), None)
    place = Path if known.in_path(parameter) else Query
    constraints = () if field is None else tuple(field.metadata)
    return Annotated[kind, *constraints, place(description=None if field is None else field.description)]
