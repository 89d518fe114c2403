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
from farm.web.errors import Told
from farm.web.limits import LARGEST_BODY_BYTES
from farm.web.places import place_of
from farm.web.processes import Processes
from farm.web.security import Caller, Policy, caller

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_ERRORS = {
    400: "What was asked for is not right; the message says what, where and what to do.",
    401: "A token is needed, and none that is valid was sent.",
    403: "The token's role does not allow it, or a page of another site asked.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    421: "The request came on a way that the server does not accept: through a proxy, over plain HTTP, or by another name.",
    422: "The request does not have the form that it must have.",
    500: "A defect of the farm; the server's log has more.",
    503: "The database or the registry does not answer, or not in time.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "model": Told} for status, about in _ERRORS.items()
}


OF_REPORTS = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
"""A report brings its scripts with it; in a sandbox it has no origin, and so nothing of this farm's."""


def who(request: Request) -> Caller:
    """The caller of a request, which is counted as theirs from now on. Raises `SignInNeeded`, `TooManyRequests`."""
    policy: Policy = request.app.state.policy
    access: Access = request.app.state.access
    found = caller(request, policy, access.session.engine)
    if (place := place_of(request.scope)) is not None and found.holder is not None:
        place.identified(found.holder)
    return found


def access_of(request: Request, asking: Annotated[Caller, Depends(who)]) -> Access:
    """The farm on behalf of the caller."""
    shared: Access = request.app.state.access
    return shared.on_behalf_of(actor_of(request, asking))


def actor_of(request: Request, asking: Caller) -> Actor:
    """The caller of a request, as changes are recorded: by which way, and from which address."""
    way = Way.API if request.url.path.startswith(f"{PREFIX}/") else Way.PAGE
    address = "unknown" if request.client is None else request.client.host
    return Actor(name=asking.name, role=asking.role, way=way, origin=address)


def perform(known: Operation, access: Access, *args: Any, **kwargs: Any) -> Any:
    """Runs an operation on behalf of the caller of a request. One that changes something is logged, with its target."""
    if known.changes:
        asked = inspect.signature(known.function).bind(access, *args, **kwargs).arguments
        actor = access.actor
        target = ", ".join(f"{name}={_shown(value)}" for name, value in list(asked.items())[1:])
        log.info("%s (%s, %s): %s %s", _shown(actor.name), actor.way, actor.origin, known.name, target)
    return known.function(access, *args, **kwargs)


MAX_SHOWN = 300
"""Characters of one argument in the log."""


def _shown(value: object) -> str:
    """An argument in one line of ASCII, which no control character can break."""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    written = json.dumps(plain, default=str)
    return written if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}..."


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Guarded(APIRoute):
    """A route that asks who is there, and whether that will do, before it reads the body or says what is wrong with it."""

    def get_route_handler(self) -> Handler:
        known: Operation = vars(self.endpoint)["operation"]
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            asking = await run_in_threadpool(who, request)
            asking.need(known.role)
            request.state.caller = asking
            return await _run(known, request, asking, handle)

        return guarded


async def _run(known: Operation, request: Request, asking: Caller, handle: Handler) -> Response:
    """Handles a request for an operation: in a process of its own where it may be expensive."""
    if known.seconds is None:
        return await handle(request)
    if (place := place_of(request.scope)) is not None:
        place.largest_body_bytes = LARGEST_BODY_BYTES
    processes: Processes | None = request.app.state.processes
    if processes is None:
        return await handle(request)
    return await processes.answer(request, asking.holder, seconds=known.seconds)


class ExpensivePage(APIRoute):
    """A page's route. What `runs` marks is handled as the operation that it runs."""

    def get_route_handler(self) -> Handler:
        known: Operation | None = getattr(self.endpoint, "operation", None)
        handle = super().get_route_handler()
        if known is None:
            return handle

        async def expensive(request: Request) -> Response:
            asking = await run_in_threadpool(who, request)
            return await _run(known, request, asking, handle)

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
    """How a token is sent, for the API's description; `_Guarded` reads it."""
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
                # Browsers send forms of other sites as text or multipart, without asking first.
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
    if known.is_upload(parameter):
        return Annotated[bytes, Body(media_type=FILE)]
    if known.is_model(parameter):
        return Annotated[kind, Query() if known.method == "GET" else Body()]
    field = next((note for note in notes if isinstance(note, FieldInfo)), None)
    place = InPath if known.in_path(parameter) else Query
    if field is None:
        return Annotated[kind, place()]
    return Annotated[kind, *field.metadata, place(description=field.description, examples=field.examples)]
