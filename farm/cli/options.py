"""Options of commands, made of what operations take: a name, a bound and a help text are declared once, with the operation.

>>> @takes(operations.show)  # doctest: +SKIP
... def health(query: dict[str, Any], *, as_json: JsonOption = False) -> None:
...     farm.ask(operations.show, **query)

Of a model, as `takes(Comparing)`, the command gets the model itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from farm.api.operation import Cli, checked, fields_of

Command = Callable[..., None]
T = TypeVar("T")


def takes(query: Callable[..., Any] | type[BaseModel], *, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Gives a command the options of what an operation takes, before its own ones.

    Args:
        query: an operation, or a model that one takes.
        without: fields that the command line does not have.

    The command's first parameter is what was given: a dictionary of the operation's arguments, or the model.
    """

    def decorate(command: Command) -> Command:
        fields = {name: field for name, field in fields_of(query).items() if name not in without}
        hints = get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        parameters = [
            *(_parameter(name, field) for name, field in fields.items()),
            *(one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in own),
        ]

        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            asked = {name: value for name, value in values.items() if value is not None}
            command(checked(query, **asked) if isinstance(query, type) else asked, **given)

        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    cli = next(_of(Cli, field), Cli())
    default = inspect.Parameter.empty if field.is_required() else None if field.default == [] else field.default
    described: dict[str, Any] = {
        "help": field.description,
        "metavar": cli.metavar,
        "min": next((one.ge for one in _of(Ge, field)), None),
        "max": next((one.le for one in _of(Le, field)), None),
        "show_default": default is not None and default is not False,
    }
    names = cli.names or (f"--{name.replace('_', '-')}",)
    info = typer.Argument(**described) if cli.argument else typer.Option(*names, **described)
    kind = _without_metadata(field.annotation if default is not None else field.annotation | None)  # type: ignore[operator]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _without_metadata(annotation: Any) -> Any:
    """The same type, with no `Annotated` inside lists either, which Typer does not know."""
    return get_type_hints(type("_", (), {"__annotations__": {"value": annotation}}))["value"]


def _of(kind: type[T], field: FieldInfo) -> Iterator[T]:
    return (one for one in field.metadata if isinstance(one, kind))
