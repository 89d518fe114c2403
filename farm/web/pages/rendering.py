"""Templates, how pages write figures, and a visit: one request for a page, and on whose behalf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import farm
from farm.api import OPERATIONS
from farm.api.access import Access
from farm.both_times import APART, burst_apart, protocol_text
from farm.db.states import Role
from farm.devices import IMPORTED_PREFIX
from farm.errors import FarmError
from farm.formatting import (
    configuration_text,
    counted,
    kernel_text,
    rate_text,
    seconds_text,
    share_text,
    types_of_text,
    types_text,
)
from farm.web.errors import status_of
from farm.web.pages import flash
from farm.web.pages.assets import address_of
from farm.web.pages.forms import Form
from farm.web.routes import access_of, perform, who
from farm.web.security import Caller
from farm.web.shared_answers import SharedAnswers

P = ParamSpec("P")
R = TypeVar("R")

HTML = "text/html"
STOP_ASKING = 286
"""The status by which htmx is told that a fragment will not change any more."""

NAVIGATION = (
    ("/", "Campaigns"),
    ("/devices", "Devices"),
    ("/health", "Health"),
    ("/compare", "Compare"),
    ("/cost", "Cost of a GEMM"),
    ("/plan", "Plan"),
    ("/models", "Models"),
    ("/submit", "Submit"),
)


def figure(value: float | None, digits: int = 4) -> str:
    """`1,240`, `0.01235`, or `–`: as tables on the command line have it."""
    if value is None or isnan(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def factor(value: float | None) -> str:
    """Four digits, as differences of a tenth of a percent are seen."""
    if value is None:
        return "–"
    return f"{value:.4f}" if value < 10 else f"{value:.4g}"


def moment(value: datetime | None) -> str:
    """`2026-11-22 08:30 UTC`; times of the farm are in UTC."""
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def floored(percent: float) -> str:
    """`41.6%`; rounded down, so that 100% means all."""
    return f"{int(percent * 10) / 10:g}%"


def segment(text: object) -> str:
    """A text as one part of a path."""
    return quote(str(text), safe="")


def linked(path: str, query: Mapping[str, Any]) -> str:
    """A link with the parts of the query that say something."""
    kept = {name: value for name, value in query.items() if value not in (None, "", [], False)}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


def shortened(uuid: str) -> str:
    """`GPU-f168d49b…`, and `IMP-10e2…GPU-f168d49b…` of a device whose rows were imported: what tells devices apart."""
    if uuid.startswith(IMPORTED_PREFIX):
        return f"{uuid[:8]}…{shortened(uuid.removeprefix(IMPORTED_PREFIX).partition('-')[2])}"
    return uuid if len(uuid) <= 20 else f"{uuid[:12]}…"


def inline_code(text: str) -> Markup:
    """Text in which `backticks` mark code, as messages of the command line have it."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("farm.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        configuration=configuration_text,
        counted=counted,
        configuration_of=lambda document: configuration_text(document.model_dump()),
        factor=factor,
        figure=figure,
        floored=floored,
        inline_code=inline_code,
        kernel=kernel_text,
        kernel_of=lambda configuration: configuration.partition(" ")[0],
        moment=moment,
        rate=rate_text,
        seconds=seconds_text,
        segment=segment,
        share=share_text,
        short_types=types_of_text,
        shortened=shortened,
        types=types_text,
    )
    made.globals.update(
        asset=address_of,
        apart=APART,
        burst_apart=burst_apart,
        protocol_text=protocol_text,
        linked=linked,
        navigation=NAVIGATION,
        Role=Role,
        version=farm.__version__,
    )
    # As a global, since a block that is rendered alone does not see what its template imports.
    made.globals["parts"] = made.get_template("parts.html").module
    return made


_templates = _environment()


def rendered(template: str, *, block: str | None = None, **context: Any) -> str:
    """A template as text, or one block of it."""
    found = _templates.get_template(template)
    if block is None:
        return found.render(**{"said": None, **context})
    return "".join(found.blocks[block](found.new_context(context)))


def is_update(request: Request) -> bool:
    """Whether a page asks for the part of it that changes, and not a person for the page."""
    return "hx-request" in request.headers


@dataclass(frozen=True)
class Visit:
    """One request for a page."""

    request: Request
    access: Access
    caller: Caller

    def ask(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs an operation for the caller. Raises its errors, and `RoleTooSmall`."""
        known = OPERATIONS[operation]
        self.caller.need(known.role)
        answer: R = perform(known, self.access, *args, **kwargs)
        if known.changes:
            self._shared.clear()
        return answer

    def ask_shared(self, operation: Callable[Concatenate[Access, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `ask`, for what does not depend on the caller: pages that refresh at the same moment share the answer."""
        if not is_update(self.request):
            return self.ask(operation, *args, **kwargs)
        self.caller.need(OPERATIONS[operation].role)
        key = (operation, repr(args), repr(sorted(kwargs.items())))
        return self._shared.answer(key, lambda: self.ask(operation, *args, **kwargs))

    @property
    def _shared(self) -> SharedAnswers:
        shared: SharedAnswers = self.request.app.state.shared
        return shared

    def ask_form(
        self, operation: Callable[Concatenate[Access, ...], R], form: Form, **more: Any
    ) -> tuple[R | None, FarmError | None]:
        """The result of an operation on the fields of a form, or the user's mistake, which the page shows.

        Args:
            operation: the form's operation, or one that takes the form's model.
            form: what was given.
            more: values of fields that the form does not have.
        """
        try:
            return self.ask(operation, **form.arguments(operation, **more)), None
        except FarmError as error:
            if status_of(error) >= 500:
                raise
            return None, error

    def owns(self, owner: str) -> bool:
        """Whether the caller may steer campaigns of that owner."""
        return self.caller.role.may(Role.OPERATE) or (self.caller.role.may(Role.SUBMIT) and self.caller.name == owner)

    def show(
        self,
        template: str,
        *,
        wrong: FarmError | None = None,
        status: int = 200,
        over: bool = False,
        **context: Any,
    ) -> HTMLResponse:
        """The page, or only its block `live` for a request that updates it.

        Args:
            template: the template's file.
            wrong: a user's mistake, which the page shows and which sets the status.
            status: the status of the response otherwise.
            over: the page does not change any more.
            context: what the template uses.
        """
        status = status if wrong is None else status_of(wrong)
        context["wrong"] = wrong
        context |= {"request": self.request, "caller": self.caller, "over": over}
        if is_update(self.request):
            fragment = rendered(template, block="live", **context)
            return HTMLResponse(fragment, STOP_ASKING if over else status)
        message = flash.message_in(self.request)
        page = HTMLResponse(_templates.get_template(template).render(said=message, **context), status)
        if message is not None:
            flash.clear(page)
        return page

    def go(self, path: str, message: str | None = None, count: int = 0) -> RedirectResponse:
        """Redirects to a page after an action. The page shows the message once: see `flash`."""
        answer = RedirectResponse(path, 303)
        if message is not None:
            flash.set_message(answer, message, count)
        return answer


def _visit(
    request: Request, access: Annotated[Access, Depends(access_of)], caller: Annotated[Caller, Depends(who)]
) -> Visit:
    return Visit(request, access, caller)


Visiting = Annotated[Visit, Depends(_visit)]
