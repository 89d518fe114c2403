"""Forms of pages: what is read and what is drawn comes from the fields of an operation or a model.

>>> form = Form(health.show, visit.request.query_params)  # doctest: +SKIP
... found, wrong = visit.ask_form(health.show, form)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Le, MaxLen
from fastapi import Depends, Request
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo
from starlette.datastructures import ImmutableMultiDict

from farm.api.operation import arguments_of, checked, fields_of

CHECKED = "true"
"""The value of a checked box."""

Query = Callable[..., Any] | type[BaseModel]
Given = ImmutableMultiDict[str, Any]


@dataclass(frozen=True)
class Input:
    """What a template needs to draw the input of a field: its value, and its declaration."""

    value: Any
    help: str
    is_flag: bool
    choices: Sequence[str]
    """The values of an enumeration or of literal texts."""

    optional: bool
    """Whether a choice can be left open."""

    attributes: dict[str, Any]
    """`type`, and the bounds of numbers and texts."""


class Form:
    """A form of the fields of an operation or a model. Blank fields and empty boxes are not given.

    Attributes:
        values: What is given, as text; lists as lists of text.
    """

    def __init__(self, query: Query, given: Given, *, fields: Sequence[str] = ()) -> None:
        """Reads the fields from the query or the body of a request.

        Args:
            query: The operation or model.
            given: The form's data. Other names in it are ignored.
            fields: The fields that the form has; all if none.
        """
        self._fields = {name: field for name, field in fields_of(query).items() if name in fields or not fields}
        self.values: dict[str, Any] = {}
        for name, field in self._fields.items():
            values = [value.strip() for value in given.getlist(name) if isinstance(value, str) and value.strip()]
            if _is_flag(field):
                values = [value for value in values if value.lower() == CHECKED]
            if values:
                self.values[name] = values if _is_list(field) else values[-1]

    def arguments(self, operation: Callable[..., Any], **more: Any) -> dict[str, Any]:
        """The arguments of an operation. Raises `BadInput`, which names the field.

        Args:
            operation: the form's operation, or one that takes the form's model.
            more: values of fields that the form does not have.
        """
        given = checked(_model(operation), **{**self.values, **more})
        return arguments_of(operation, **{name: getattr(given, name) for name in given.model_fields_set})

    def __getitem__(self, name: str) -> Input:
        """The input of a field, for templates."""
        field = self._fields[name]
        value = self.values.get(
            name, "" if field.default in (None, [], False) or field.is_required() else field.default
        )
        kinds = _kinds(field)
        choices = next(([one.value for one in kind] for kind in kinds if issubclass(kind, Enum)), _literals(field))
        attributes: dict[str, Any] = {}
        if kinds & {int, float}:
            attributes = {
                "type": "number",
                "min": next((one.ge for one in field.metadata if isinstance(one, Ge)), None),
                "max": next((one.le for one in field.metadata if isinstance(one, Le)), None),
                "step": "any" if float in kinds else None,
            }
        elif kinds == {str}:
            attributes = {
                "maxlength": next((one.max_length for one in field.metadata if isinstance(one, MaxLen)), None)
            }
        return Input(
            value=" ".join(map(str, value)) if isinstance(value, list) else value,
            help=field.description or "",
            is_flag=_is_flag(field),
            choices=choices,
            optional=not field.is_required() and field.default in (None, []),
            attributes=attributes,
        )


@cache
def _model(operation: Callable[..., Any]) -> type[BaseModel]:
    """A model with the fields of an operation, which converts text to their types."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in fields_of(operation).items()}
    return create_model("Form", **fields)


def _kinds(field: FieldInfo) -> set[type]:
    """The types that a value, or an item of a list, may have."""
    found, left = set[type](), [field.annotation]
    while left:
        kind = left.pop()
        left += get_args(kind)
        if isinstance(kind, type) and kind is not type(None):
            found.add(kind)
    return found


def _literals(field: FieldInfo) -> list[str]:
    """The values of a field that takes some texts only."""
    kinds = (field.annotation, *get_args(field.annotation))
    return [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]


def _is_flag(field: FieldInfo) -> bool:
    return field.annotation is bool


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in (field.annotation, *get_args(field.annotation)))


async def _posted(request: Request) -> AsyncIterator[Given]:
    async with request.form() as data:
        yield data


Posted = Annotated[ImmutableMultiDict[str, Any], Depends(_posted)]
"""The body of a form, for a page's function."""
