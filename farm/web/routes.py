"""The API: a route for each operation, from the operation's own signature."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, TypeVar, get_args, get_origin

from fastapi import APIRouter, Body, Depends, Query, Request, Response, Security
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.background import BackgroundTask

from farm.api import OPERATIONS, PREFIX, Download, Operation
from farm.api.access import Access
from farm.api.operation import FILE, Upload, build_documents
from farm.db.audit import Actor
from farm.db.states import Way
from farm.errors import BadInput
from farm.web.errors import ErrorResponse
from farm.web.limits import MAX_BODY_BYTES
from farm.web.places import place_of
from farm.web.processes import Processes
from farm.web.security import Caller, Policy, caller

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_ERRORS = {
    400: "The request is invalid. The message names the mistake, its place and what to do.",
    401: "A valid token is required.",
    403: "The token's role does not allow it, or the request came from a page of another site.",
    404: "No such resource.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    421: "The server does not accept the request's way: through a proxy, over plain HTTP, or by another name.",
    422: "The request does not match its schema.",
    500: "A defect of the farm. The server's log has details.",
    503: "The database or the registry does not respond, or not in time.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "model": ErrorResponse} for status, about in _ERRORS.items()
}


OF_REPORTS = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
"""For reports, which contain their scripts. In a sandbox, a report has no origin and no access to the farm."""


def who(request: Request) -> Caller:
    """The caller of a request. The request counts against the caller's limit from now on.

    Raises `SignInNeeded`, `TooManyRequests`.
    """
    policy: Policy = request.app.state.policy
    access: Access = request.app.state.access
    found = caller(request, policy, access.session.engine)
    if (place := place_of(request.scope)) is not None and found.holder is not None:
        place.identified(found.holder)
    return found


def access_of(request: Request, user: Annotated[Caller, Depends(who)]) -> Access:
    """The farm on behalf of the caller."""
    shared: Access = request.app.state.access
    return shared.on_behalf_of(actor_of(request, user))


def actor_of(request: Request, user: Caller) -> Actor:
    """The caller of a request, as changes are recorded: by which way, and from which address."""
    way = Way.API if request.url.path.startswith(f"{PREFIX}/") else Way.PAGE
    address = "unknown" if request.client is None else request.client.host
    return Actor(name=user.name, role=user.role, way=way, origin=address)


def perform(known: Operation, access: Access, *args: Any, **kwargs: Any) -> Any:
    """Runs an operation for the caller of a request. Changes are logged with their arguments."""
    if known.changes:
        arguments = inspect.signature(known.function).bind(access, *args, **kwargs).arguments
        actor = access.actor
        target = ", ".join(f"{name}={_shown(value)}" for name, value in list(arguments.items())[1:])
        log.info("%s (%s, %s): %s %s", _shown(actor.name), actor.way, actor.origin, known.name, target)
    return known.function(access, *args, **kwargs)


MAX_SHOWN = 300
"""Characters of one argument in the log."""


def _shown(value: object) -> str:
    """An argument as one line of ASCII without control characters."""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    written = json.dumps(plain, default=str)
    return written if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}..."


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Guarded(APIRoute):
    """A route that checks the caller's role before it reads and validates the body."""

    def get_route_handler(self) -> Handler:
        known: Operation = vars(self.endpoint)["operation"]
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            user = await run_in_threadpool(who, request)
            user.need(known.role)
            request.state.caller = user
            return await _run(known, request, user, handle)

        return guarded


async def _run(known: Operation, request: Request, user: Caller, handle: Handler) -> Response:
    """Handles a request for an operation. An expensive one gets a process of its own."""
    if known.seconds is None:
        return await handle(request)
    if (place := place_of(request.scope)) is not None:
        place.largest_body_bytes = MAX_BODY_BYTES
    processes: Processes | None = request.app.state.processes
    if processes is None:
        return await handle(request)
    return await processes.answer(request, user.holder, seconds=known.seconds)


class ExpensivePage(APIRoute):
    """A page's route. A page that `runs` marks is handled like the operation that it runs."""

    def get_route_handler(self) -> Handler:
        known: Operation | None = getattr(self.endpoint, "operation", None)
        handle = super().get_route_handler()
        if known is None:
            return handle

        async def expensive(request: Request) -> Response:
            user = await run_in_threadpool(who, request)
            return await _run(known, request, user, handle)

        return expensive


def runs(function: Callable[..., Any]) -> Callable[[F], F]:
    """Marks a page of an `ExpensivePage` router that runs that operation."""

    def mark(page: F) -> F:
        page.operation = OPERATIONS[function]  # type: ignore[attr-defined]
        return page

    return mark


@cache
def routes_of_operations(tokens: bool) -> APIRouter:
    """Every operation, under `PREFIX`. Applications of one process share the routes, which take long to make."""
    operations = OPERATIONS.values()  # imports every document
    build_documents()
    router = APIRouter(prefix=PREFIX, responses=ERRORS, route_class=_Guarded, dependencies=_schemes(tokens))
    for known in operations:
        router.add_api_route(
            known.path,
            _endpoint(known),
            methods=[known.method],
            operation_id=known.name,
            name=known.name,
            tags=[known.tag],
            summary=(known.function.__doc__ or "").partition("\n")[0],
            description=f"{inspect.cleandoc(known.function.__doc__ or '')}\n\nNeeds the role {known.role}.",
            **_answers(known),
        )
    return router


def _schemes(tokens: bool) -> list[Any]:
    """The security scheme of tokens, for the API's description. `_Guarded` checks the token."""
    if not tokens:
        return []
    bearer = HTTPBearer(
        auto_error=False, description="made with farm tokens create NAME --role read|submit|operate|admin"
    )
    return [Security(bearer)]


def _endpoint(known: Operation) -> Callable[..., Any]:
    upload = next((parameter.name for parameter in known.parameters if known.is_upload(parameter)), None)

    def endpoint(request: Request, **given: Any) -> Any:
        with ExitStack() as stack:
            if upload is not None:
                # Browsers send forms of other sites as text or multipart, without a preflight request.
                if request.headers.get("content-type") != FILE:
                    raise BadInput(detail=f"Send the file as the body, with Content-Type: {FILE}.")
                path = stack.enter_context(_received(given[upload]))
                given[upload] = Upload(path)
            answer = perform(known, access_of(request, request.state.caller), **given)
        return _file(answer) if isinstance(answer, Download) else answer

    keyword = inspect.Parameter.KEYWORD_ONLY
    endpoint.operation = known  # type: ignore[attr-defined]
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request),
            *(
                parameter.replace(kind=keyword, annotation=_annotated(known, parameter))
                for parameter in known.parameters
            ),
        ]
    )
    return endpoint


@contextmanager
def _received(content: bytes) -> Iterator[Path]:
    """A body as a temporary file."""
    with NamedTemporaryFile(prefix="farm-upload-") as file:
        file.write(content)
        file.flush()
        yield Path(file.name)


def _answers(known: Operation) -> dict[str, Any]:
    if known.sends is None:
        return {"response_model": known.hints["return"]}
    file = {"description": "The file.", "content": {known.sends: {"schema": {"type": "string"}}}}
    return {"response_model": None, "response_class": FileResponse, "responses": {200: file}}


def _file(made: Download) -> FileResponse:
    """The file. It is removed after it was sent."""
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
    """The parameter's type and its place: the path, the body or the query."""
    kind, notes = parameter.annotation, tuple[Any, ...]()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        notes = tuple(rest)
    if known.is_upload(parameter):
        return Annotated[bytes, Body(media_type=FILE)]
    if known.is_model(parameter):
        return Annotated[kind, Query() if known.method == "GET" else Body()]
    field = next((note for note in notes if isinstance(note, FieldInfo)), None)
    place = InPath if known.in_path(parameter) else Query
    if field is None:
        return Annotated[kind, place()]
    return Annotated[kind, *field.metadata, place(description=field.description, examples=field.examples)]
