"""Commands made of operations: the options are what the operation takes, declared once with the operation.

>>> @asks(operations.list_)  # doctest: +SKIP
... def sentinels(found: list[SentinelNow]) -> None:
...     _SENTINELS.show(found)

`asks` makes a command of a function that presents a result. Where a command does more than ask once, `takes` gives it the
options:

>>> @takes(operations.show)  # doctest: +SKIP
... def health(query: dict[str, Any], *, as_json: JsonOption = False) -> None:
...     found = farm.ask(operations.show, **query)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from farm.api import farm_of
from farm.api.access import Access
from farm.api.operation import Cli, arguments_of, checked, fields_of
from farm.cli.output import JsonOption, emit_json
from farm.settings import settings

Command = Callable[..., None]
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")


def takes(
    query: Callable[..., Any] | type[BaseModel], *, without: Sequence[str] = (), required: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command the options of what an operation takes, before its own ones.

    Args:
        query: an operation, or a model that one takes.
        without: fields that the command line does not have.
        required: optional fields that the command line requires.

    The command's first parameter is what was given: the operation's arguments by name, or the model.
    """

    def decorate(command: Command) -> Command:
        fields = {name: field for name, field in fields_of(query).items() if name not in without}
        hints = get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        parameters = [
            *(_parameter(name, field, required=name in required) for name, field in fields.items()),
            *(one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in own),
        ]

        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            make = checked if isinstance(query, type) else arguments_of
            command(make(query, **{name: value for name, value in values.items() if value is not None}), **given)  # type: ignore[arg-type]

        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def asks(
    operation: Callable[Concatenate[Access, P], R],
    *,
    without: Sequence[str] = (),
    required: Sequence[str] = (),
    json_of: Callable[[R], Any] = lambda result: result,
) -> Callable[[Callable[Concatenate[R, Q], None]], Command]:
    """Makes a command that runs one operation. The decorated function presents the result; `--json` prints it instead.

    Args:
        operation: the operation to run. Its parameters are options of the command.
        without: fields that the command line does not have.
        required: optional fields that the command line requires.
        json_of: what `--json` prints of the result.

    As the callback of a group, it runs only where no command of the group is named.
    """

    def decorate(present: Callable[Concatenate[R, Q], None]) -> Command:
        def command(query: dict[str, Any], *, context: typer.Context, as_json: JsonOption = False, **own: Any) -> None:
            if context.invoked_subcommand is not None:
                return
            with farm_of(settings()) as farm:
                result = farm.ask(operation, **query)  # type: ignore[call-arg]
            if as_json:
                emit_json(json_of(result))
            else:
                present(result, **own)  # type: ignore[call-arg]

        _, *own = inspect.signature(present).parameters.values()
        query, *shared, _ = inspect.signature(command).parameters.values()
        command.__signature__ = inspect.Signature([query, *own, *shared])  # type: ignore[attr-defined]
        hints = get_type_hints(present, include_extras=True)
        command.__annotations__ |= {one.name: hints[one.name] for one in own}
        command.__doc__, command.__name__, command.__module__ = present.__doc__, present.__name__, present.__module__
        return takes(operation, without=without, required=required)(command)

    return decorate


def _parameter(name: str, field: FieldInfo, *, required: bool) -> inspect.Parameter:
    cli = next(_of(Cli, field), Cli())
    default = (
        inspect.Parameter.empty if required or field.is_required() else None if field.default == [] else field.default
    )
    described: dict[str, Any] = {
        "help": field.description,
        "metavar": cli.metavar,
        "min": next((one.ge for one in _of(Ge, field)), None),
        "max": next((one.le for one in _of(Le, field)), None),
        "show_default": cli.default or (default not in (None, False, inspect.Parameter.empty)),
    }
    names = cli.names or (f"--{name.replace('_', '-')}",)
    info = typer.Argument(**described) if cli.argument else typer.Option(*names, **described)
    if cli.commas:
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str], info]
        )
    kind = _without_metadata(field.annotation if default is not None else field.annotation | None)  # type: ignore[operator]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _without_metadata(annotation: Any) -> Any:
    """The same type, with no `Annotated` inside lists either, which Typer does not know."""
    return get_type_hints(type("_", (), {"__annotations__": {"value": annotation}}))["value"]


def _of(kind: type[T], field: FieldInfo) -> Iterator[T]:
    return (one for one in field.metadata if isinstance(one, kind))
