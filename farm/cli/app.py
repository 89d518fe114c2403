"""`farm`: the program, and how it reports errors."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import farm
from farm.cli import streams
from farm.cli.commands import LazyGroup
from farm.cli.completing import silent
from farm.control_characters import LineFormatter
from farm.errors import BadParameter, FarmError, RightMissing, first_line
from farm.masking import masked

app = typer.Typer(
    name="farm",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Measure matrix multiplications on every GPU you have, and learn to predict their time, power and energy.

    Examples:
        farm run examples/campaigns/quickstart.yaml
        farm status
        farm predict "tiled(tile=16) 512x512x512 f32"
    """,
    epilog="Exit codes: 2 bad input, 3 a service cannot be used, 4 no such thing, 5 wrong database revision, "
    "6 jobs ended dead or no model trained, 7 a device is unhealthy, or a group or version slower than it may be, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gemm-farm {farm.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.resilient_parsing:
        return
    from farm.settings import unknown_variables

    for warning in unknown_variables():
        _print("[yellow]warning:[/]", warning)


def main() -> None:
    """Runs the program `farm`: prepares signals and the log, and runs the command line."""
    streams.prepare()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    # Looking through everything that was imported, once more at the end, takes a tenth of the time of farm status.
    atexit.register(gc.freeze)
    # While Python takes itself down, Ctrl-C would end the process with another exit code.
    atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    carry_out(sys.argv[1:])


def carry_out(arguments: Sequence[str]) -> NoReturn:
    """Runs a command line and exits. A user's mistake ends with one message and its exit code, never with a traceback."""
    try:
        with silent() if "_FARM_COMPLETE" in os.environ else streams.flushed():
            app(arguments, standalone_mode=True)
    except FarmError as error:
        _say(_text_of(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("Interrupted. What was submitted is kept and goes on with the next farm run or farm up.")
        sys.exit(130)
    except Exception as error:
        # Imported here, because most commands that end well do not need it.
        from psycopg.errors import InsufficientPrivilege
        from sqlalchemy.exc import OperationalError, ProgrammingError

        if isinstance(error, ProgrammingError) and isinstance(error.orig, InsufficientPrivilege):
            refused = RightMissing(why=first_line(error.orig))
            _say(str(refused))
            sys.exit(refused.exit_code)
        if isinstance(error, OperationalError):
            _say(f"The database stopped answering: {first_line(error.orig)}")
            sys.exit(3)
        if _debugging():
            sys.stderr.write(masked(traceback.format_exc()))
        _say(f"This is a defect of the farm: {type(error).__name__}: {error}. FARM_LOG_LEVEL=DEBUG shows where.")
        sys.exit(1)
    sys.exit(0)


def _text_of(error: FarmError) -> str:
    """The message of an error, with a parameter that is wrong as the option of the command line."""
    if not isinstance(error, BadParameter):
        return str(error)
    name = re.match(r"\w*", str(error))
    assert name is not None
    return f"--{name[0].replace('_', '-')}{str(error)[name.end() :]}"


def _debugging() -> bool:
    from farm.settings import settings

    try:
        return settings().log_level == "DEBUG"
    except FarmError:  # the settings themselves are wrong
        return False


def _interrupt(*_: object) -> None:
    """Makes SIGTERM and SIGHUP end a command like Ctrl-C: it stops what it started."""
    raise KeyboardInterrupt


def _say(message: str) -> None:
    _print("[bold red]error:[/]", message)


def _print(label: str, message: str) -> None:
    """Prints a line on stderr. Imports rich only when it is called."""
    from rich.markup import escape

    from farm.cli.output import remarks

    remarks.print(f"{label} {escape(masked(message))}")
