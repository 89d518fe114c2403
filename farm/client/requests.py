"""Requests of the Python API: arguments are checked before they are sent, and every error is a `FarmError`.

The checks are those of the server, made from the same declarations. So a mistake has the same error over a database, where no
server would check it.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Concatenate, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from sqlalchemy.exc import DBAPIError

from farm.api import results
from farm.api.access import Access
from farm.api.connecting import Farm
from farm.api.operation import OPERATIONS, checked, fields_of
from farm.campaign.suggestions import did_you_mean
from farm.client.measured_rows import MeasuredRows
from farm.db.engine import refusal_of
from farm.errors import BadInput, BadOption, ClientClosed

R = TypeVar("R")

MAX_NAME = 4096
"""Characters of a name that stands in the path of a request."""


class Requests:
    """Runs operations of a farm for the Python API."""

    def __init__(self, farm: Farm, opened: ExitStack) -> None:
        """`opened` closes the farm: when `close` is called, or when neither a client nor a campaign needs it any more."""
        self._farm = farm
        self.close = weakref.finalize(self, opened.close)

    def run(self, call: str, operation: Callable[Concatenate[Access, ...], R], /, **given: Any) -> R:
        """Runs an operation.

        Args:
            call: the name of the method, for messages.
            operation: the operation.
            given: values of its fields; None stands for the default.

        Raises:
            FarmError: an argument is wrong, or the operation fails.
        """
        arguments = arguments_of(call, operation, given)
        with self.usable():
            return self._farm.ask(operation, **arguments)

    def rows(self, limit: int | None, **given: Any) -> MeasuredRows:
        """Rows of measurements, read page by page."""
        most = None if limit is None else checked(_Limit, limit=limit).limit
        arguments = arguments_of("results", results.rows, given, without=("limit", "after", "commands"))
        with self.usable():
            return MeasuredRows.of_pages(results.pages(self._farm, most, **arguments))

    def with_farm(self, work: Callable[[Farm], R]) -> R:
        """What takes several operations, here and elsewhere."""
        with self.usable():
            return work(self._farm)

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Refuses a closed client, and makes errors of the database those of the farm."""
        if not self.close.alive:
            raise ClientClosed
        try:
            yield
        except DBAPIError as error:
            refused = refusal_of(error)
            if refused is None:
                raise
            raise refused from error


def arguments_of(
    call: str, operation: Callable[..., Any], given: Mapping[str, Any], *, without: Iterable[str] = ()
) -> dict[str, Any]:
    """The arguments of an operation, made of values of its fields. Raises `BadOption`, and `BadInput`, which names the field."""
    fields = {name: field for name, field in fields_of(operation).items() if name not in without}
    for name in given:
        if name not in fields:
            raise BadOption(call=call, name=name, hint=did_you_mean(name, fields))
    values = {name: _listed(fields[name], value) for name, value in given.items() if value is not None}
    found = dict[str, Any]()
    for parameter in OPERATIONS[operation].parameters:
        if OPERATIONS[operation].is_model(parameter):
            inside = {name: values.pop(name) for name in parameter.annotation.model_fields if name in values}
            found[parameter.name] = checked(parameter.annotation, **inside)
    read = checked(_parameters_of(operation), **values)
    return found | {name: getattr(read, name) for name in values}


@cache
def _parameters_of(operation: Callable[..., Any]) -> type[BaseModel]:
    """A model of the parameters of an operation that are not models themselves."""
    known = OPERATIONS[operation]
    declared: dict[str, Any] = {
        parameter.name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for parameter in known.parameters
        if not known.is_model(parameter)
    }
    model: type[BaseModel] = create_model(known.name, __config__=ConfigDict(arbitrary_types_allowed=True), **declared)
    return model


class _Limit(BaseModel):
    limit: int = Field(ge=1)


def _listed(field: FieldInfo, value: object) -> object:
    """A text alone stands for a list of one text."""
    kinds = (field.annotation, *get_args(field.annotation))
    return [value] if isinstance(value, str) and any(get_origin(kind) is list for kind in kinds) else value


def checked_name(what: str, name: object) -> str:
    """A name that may stand in the path of a request. Raises `BadInput`."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or not name.isprintable()
        or "/" in name
        or name in (".", "..")
        or len(name) > MAX_NAME
    ):
        written = repr(name)
        shown = written if len(written) <= 80 else f"{written[:80]}…"
        raise BadInput(
            detail=f"{what}: write the name of a campaign, or the first six or more digits of its digest, not {shown}."
        )
    return name


def whole_numbers(what: str, written: object) -> list[int]:
    """A number, or a sequence of numbers, as a list. A text is refused: it would be a sequence of digits. Raises `BadInput`."""
    wrong = BadInput(
        detail=f"{what}: write whole numbers from 1, as in [1, 8, 128], not {str(written)[:80]!r} ({type(written).__name__})."
    )
    if isinstance(written, str | bytes | bool | Mapping) or written is None:
        raise wrong
    try:
        numbers = [operator.index(written)] if hasattr(written, "__index__") else list(written)  # type: ignore[call-overload]
        found = [operator.index(number) for number in numbers if not isinstance(number, bool)]
    except TypeError:
        raise wrong from None
    if not found or len(found) < len(numbers) or min(found) < 1:
        raise wrong
    return found
