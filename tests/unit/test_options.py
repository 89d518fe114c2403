"""Options of commands that are made of what an operation takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any
from unittest.mock import Mock, patch

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from farm.api import (
    OPERATIONS,  # all of them: tests put it back as it is here
    Direct,
)
from farm.api.access import Access
from farm.api.operation import Cli, Document, InTable, Upload, fields_of, operation
from farm.cli.options import asks, takes
from farm.cli.result_table import ResultTable
from farm.cli.tables import TABLES
from support.screens import printed


class Query(Document):
    """A query with a field of each kind."""

    side: Annotated[list[str], Cli(metavar="GROUP", argument=True)] = Field(
        default=[], max_length=2, description="Sides."
    )
    tie: Annotated[float, Cli(metavar="PCT")] = Field(default=1.0, ge=0.5, le=50, description="A tie, in %.")
    type: Annotated[str | None, Cli(("--type", "-t"))] = Field(default=None, description="Only this type.")
    any_source: bool = Field(default=False, description="Every row.")


def run(command: Any, *words: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, list(words))


@takes(Query)
def shown(query: Query, *, more: Annotated[int, typer.Option("--more", help="An own option.")] = 0) -> None:
    typer.echo(f"{query.model_dump_json()} {more}")


def test_a_command_gets_the_model_of_what_was_given() -> None:
    done = run(shown, "a", "b", "--tie", "2", "-t", "nvidia-h200", "--any-source", "--more", "3")
    assert done.output == '{"side":["a","b"],"tie":2.0,"type":"nvidia-h200","any_source":true} 3\n'


def test_what_is_not_given_has_the_defaults_of_the_model() -> None:
    assert run(shown).output == f"{Query().model_dump_json()} 0\n"


@pytest.mark.parametrize("words", [("--tie", "0.4"), ("--tie", "51"), ("--no-any-source",), ("--side", "a")])
def test_what_the_model_does_not_take_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert run(shown, *words).exit_code == 2


def test_what_no_option_can_check_names_the_field() -> None:
    done = run(shown, "a", "b", "c")
    assert str(done.exception).startswith("side: ")


def test_help_is_the_description_of_the_field() -> None:
    told = " ".join(run(shown, "--help").output.split())
    for part in (
        "Sides.",
        "A tie, in %. [default: 1.0]",
        "0.5<=x<=50",
        "Only this type.",
        "Every row.",
        "An own option.",
    ):
        assert part in told, told


class Body(Document):
    """A body with a bound that no option checks."""

    names: Annotated[list[str], Cli(default="all")] = Field(default=[], max_length=2, description="Names.")
    reason: str | None = Field(default=None, description="Why.")


class Row(Document):
    """A result."""

    size: Annotated[int, InTable("bytes", text=lambda size: f"{size:,} B")]
    hidden: str = ""
    name: Annotated[str, InTable(folds=True)]
    at: Annotated[datetime, InTable(priority=2)]
    tags: Annotated[list[str], InTable(priority=1)]
    changes: Annotated[dict[str, object], InTable(priority=1)]


@operation("GET", "/tests/{name}")
def found(
    access: Access,
    name: Annotated[str, Field(description="A name."), Cli(argument=True)],
    *,
    numbers: Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(description="Numbers.")] = None,
    page: Annotated[int | None, Field(description="The next page.")] = None,
) -> list[int]:
    """An operation with a path and a query."""
    return [len(name), *(numbers or ())]


@operation("POST", "/tests/{name}")
def changed(access: Access, name: Annotated[str, Field(description="A name."), Cli(argument=True)], body: Body) -> str:
    """An operation with a path and a body."""
    return f"{name} {body.names} {body.reason}"


KNOWN = {function: OPERATIONS.pop(function) for function in (found, changed)}
"""Operations that only the tests of this module know."""


@contextmanager
def farm_here(_: object) -> Iterator[Direct]:
    yield Direct(Mock())


@pytest.fixture(autouse=True)
def operations_of_this_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("farm.cli.options.farm_of", farm_here)
    with patch.dict(OPERATIONS, KNOWN):
        yield


def test_an_operation_gives_its_parameters_to_a_command_and_some_can_be_left_out() -> None:
    @takes(found, without=("page",))
    def command(query: dict[str, Any]) -> None:
        typer.echo(query)

    assert run(command, "x", "--numbers", "1", "--numbers", "2").output == "{'name': 'x', 'numbers': [1, 2]}\n"
    assert run(command).exit_code == 2
    assert run(command, "x", "--page", "1").exit_code == 2


def test_a_command_presents_what_an_operation_answers_or_prints_it_as_json() -> None:
    @asks(found, without=("page",), json_of=lambda numbers: {"numbers": numbers})
    def command(result: list[int], *, upper: Annotated[bool, typer.Option("--upper")] = False) -> None:
        """A summary."""
        typer.echo(f"{result} {upper}")

    assert run(command, "abc", "--numbers", "1", "--upper").output == "[3, 1] True\n"
    assert json.loads(run(command, "abc", "--json").output) == {"numbers": [3]}
    assert "A summary." in run(command, "--help").output


def test_the_fields_of_a_body_are_options_and_can_be_required() -> None:
    @asks(changed, required=("reason",))
    def command(result: str) -> None:
        typer.echo(result)

    assert run(command, "x", "--names", "a", "--reason", "so").output == "x ['a'] so\n"
    assert run(command, "x").exit_code == 2
    assert "[default: (all)]" in run(command, "--help").output
    refused = run(command, "x", "--reason", "so", "--names", "a", "--names", "b", "--names", "c")
    assert str(refused.exception).startswith("names: ")


def test_the_callback_of_a_group_asks_only_where_no_command_is_named() -> None:
    app = typer.Typer(invoke_without_command=True)

    @asks(found, without=("name", "page"))
    def group(result: list[int]) -> None:
        raise AssertionError

    app.callback()(group)
    app.command("inner")(lambda: typer.echo("inner"))
    assert CliRunner().invoke(app, ["inner"]).output == "inner\n"


def test_the_columns_of_a_table_are_the_fields_that_say_so() -> None:
    table = ResultTable("a table of this test", Row, first=("name",))
    try:
        row = Row(
            size=1234, name="n", at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC), tags=["a", "b"], changes={"x": 1, "y": "z"}
        )
        assert [column.heading for column in table.columns] == ["name", "bytes", "at (UTC)", "tags", "changes"]
        assert [column.number for column in table.columns] == [False, True, False, False, False]
        line = printed(lambda: table.show([row], otherwise="nothing"), None)[-1]
        for cell in ("1,234 B", "2026-01-02 03:04", "a, b", "x 1, y z"):
            assert cell in line
        assert printed(lambda: table.show([], otherwise="nothing"), None) == ["nothing"]
    finally:
        del TABLES[table.key]


def test_the_fields_of_every_operation_are_described_in_sentences() -> None:
    import farm.api

    for function, known in farm.api.OPERATIONS.items():
        for name, field in fields_of(function).items():
            if field.annotation is Upload:
                continue
            about = f"{known.name}, {name}: {field.description}"
            assert field.description, about
            assert field.description[0].isupper(), about
            assert field.description.endswith("."), about
