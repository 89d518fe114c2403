"""What a form says of the fields of a query, so that a page declares none of them again."""

from __future__ import annotations

from typing import Any, get_origin

from pydantic import BaseModel
from starlette.datastructures import ImmutableMultiDict

CHECKED = "true"
"""The value of a checked box."""


def form_values(model: type[BaseModel], given: ImmutableMultiDict[str, Any]) -> dict[str, Any]:
    """The fields of a model that a form gives, as text; lists as lists of text. Blank fields and empty boxes are not given.

    Args:
        model: whose fields are read; others are ignored.
        given: the query or the body of a form.
    """
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        values = [value.strip() for value in given.getlist(name) if isinstance(value, str) and value.strip()]
        if field.annotation is bool:
            values = [value for value in values if value.lower() == CHECKED]
        if values:
            found[name] = values if get_origin(field.annotation) is list else values[-1]
    return found
