"""Operations: what the farm can be asked, each a function that the command line, the API and the pages share.

>>> @operation("GET", "/campaigns/{campaign}")  # doctest: +SKIP
... def show(access: Access, campaign: str) -> CampaignNow: ...

The function's own signature says what it takes and answers: the server makes a route of it, and a client that reaches the
farm through the API makes its request of it. Parameters that the path names go there, a `BaseModel` is the body, and
everything else is in the query.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict

from farm.db.tables import Role

if TYPE_CHECKING:
    from farm.api.access import Access

PREFIX = "/api/v1"
"""Where the API begins. A change that breaks its users begins another."""

LARGEST_ID = 2**63 - 1
"""Ids are 64-bit integers."""

Method = Literal["GET", "POST"]

P = ParamSpec("P")
R = TypeVar("R")


class Document(BaseModel):
    """What an operation answers or takes as its body: `--json`, the API and the pages show the same.

    Fields that a newer farm sends are left out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


@dataclass(frozen=True)
class Operation:
    """One thing that the farm can be asked."""

    function: Callable[..., Any]
    method: Method
    path: str
    role: Role
    tag: str

    @property
    def name(self) -> str:
        """`campaigns_show`: the same in the API's description, and unique."""
        return f"{self.tag}_{self.function.__name__.rstrip('_')}"

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of its parameters, and of `return`, with their annotations."""
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """Its parameters, less the access that comes first; annotations are types."""
        _, *rest = inspect.signature(self.function).parameters.values()
        return [parameter.replace(annotation=self.hints[parameter.name]) for parameter in rest]

    def is_body(self, parameter: inspect.Parameter) -> bool:
        kind = parameter.annotation
        return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel)

    def in_path(self, parameter: inspect.Parameter) -> bool:
        return f"{{{parameter.name}}}" in self.path


OPERATIONS: dict[Callable[..., Any], Operation] = {}
"""All of them, by their functions."""


def operation(
    method: Method, path: str, *, role: Role = Role.READ
) -> Callable[[Callable[Concatenate[Access, P], R]], Callable[Concatenate[Access, P], R]]:
    """Makes an operation of a function, which stays as it is."""

    def add(function: Callable[Concatenate[Access, P], R]) -> Callable[Concatenate[Access, P], R]:
        tag = function.__module__.rpartition(".")[2]
        OPERATIONS[function] = Operation(function, method, path, role, tag)
        return function

    return add
