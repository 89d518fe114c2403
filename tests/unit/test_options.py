"""Options of commands that are made of what an operation takes."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from farm.api import comparing, health
from farm.api.access import Access
from farm.api.operation import OPERATIONS, Cli, Document, fields_of, operation
from farm.cli.options import takes


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


def test_an_operation_gives_its_parameters_to_a_command_and_some_can_be_left_out() -> None:
    @operation("GET", "/tests")
    def asked(
        access: Access,
        name: Annotated[str, Field(description="A name."), Cli(argument=True)],
        *,
        numbers: Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(description="Numbers.")] = None,
        page: Annotated[int | None, Field(description="The next page.")] = None,
    ) -> None: ...

    try:

        @takes(asked, without=("page",))
        def command(query: dict[str, Any]) -> None:
            typer.echo(query)

        assert run(command, "x", "--numbers", "1", "--numbers", "2").output == "{'name': 'x', 'numbers': [1, 2]}\n"
        assert run(command).exit_code == 2
        assert run(command, "x", "--page", "1").exit_code == 2
    finally:
        del OPERATIONS[asked]


def test_descriptions_of_what_commands_take_are_sentences() -> None:
    for query in (comparing.Comparing, health.show):
        for name, field in fields_of(query).items():
            assert field.description is not None, name
            assert field.description[0].isupper(), name
            assert field.description.endswith("."), name
