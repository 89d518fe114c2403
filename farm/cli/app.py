"""`farm`: the commands put together, and how errors leave."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from sqlalchemy.exc import OperationalError

import farm
from farm.cli import (
    analyze,
    best,
    campaigns,
    compare,
    database,
    devices,
    health,
    imports,
    jobs,
    kernels,
    measure,
    models,
    recommend,
    report,
    results,
    run,
    sentinels,
    serve,
    services,
    status,
    tokens,
)
from farm.cli.output import remarks
from farm.errors import FarmError, first_line
from farm.settings import settings, unknown_variables

app = typer.Typer(
    name="farm",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Measure matrix multiplications on every GPU you have, and learn to predict their time, power and energy.",
    epilog="Exit codes: 2 bad input, 3 a service cannot be used, 4 no such thing, 5 wrong database revision, "
    "6 jobs ended dead or no model trained, 7 a device is unwell or a side slower than it may be, 130 interrupted.",
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
    if not context.resilient_parsing:
        for warning in unknown_variables():
            remarks.print(f"[yellow]warning:[/] {escape(warning)}")


_MEASURE, _FOLLOW, _LEARN, _OPERATE = "Measure", "Follow and steer", "Learn", "Operate"
app.command(rich_help_panel=_MEASURE)(run.run)
app.command(rich_help_panel=_MEASURE)(campaigns.submit)
app.command(rich_help_panel=_MEASURE)(measure.measure)
app.command(rich_help_panel=_MEASURE)(results.results)
app.command("best", rich_help_panel=_MEASURE)(best.show)
app.command(rich_help_panel=_MEASURE)(compare.compare)
app.command(rich_help_panel=_MEASURE)(report.report)
app.add_typer(analyze.app, name="analyze", rich_help_panel=_MEASURE)
app.add_typer(imports.app, name="import", rich_help_panel=_MEASURE)
app.command(rich_help_panel=_FOLLOW)(status.status)
app.command(rich_help_panel=_FOLLOW)(campaigns.watch)
app.command(rich_help_panel=_FOLLOW)(sentinels.sentinels)
app.command(rich_help_panel=_FOLLOW)(jobs.jobs)
app.command(rich_help_panel=_FOLLOW)(jobs.retry)
app.command(rich_help_panel=_FOLLOW)(campaigns.pause)
app.command(rich_help_panel=_FOLLOW)(campaigns.resume)
app.command(rich_help_panel=_FOLLOW)(campaigns.cancel)
app.command(rich_help_panel=_LEARN)(models.train)
app.add_typer(models.app, name="models", rich_help_panel=_LEARN)
app.command(rich_help_panel=_LEARN)(models.predict)
app.command(rich_help_panel=_LEARN)(recommend.recommend)
app.add_typer(devices.app, name="devices", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(health.health)
app.add_typer(kernels.app, name="kernels", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(serve.serve)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(services.up)
app.command(rich_help_panel=_OPERATE)(services.down)
app.command(rich_help_panel=_OPERATE)(services.doctor)
app.add_typer(database.app, name="db", rich_help_panel=_OPERATE)


def main() -> None:
    """The program `farm`: its signals, its log, and the command line it was started with."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    # While Python takes itself down, Ctrl-C would end the process with another exit code.
    atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    carry_out(sys.argv[1:])


def carry_out(arguments: Sequence[str]) -> NoReturn:
    """Runs a command line and exits. A user's mistake ends with one message and its exit code, never with a traceback."""
    try:
        app(arguments, standalone_mode=True)
    except FarmError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except OperationalError as error:
        _say(f"The database stopped answering: {first_line(error.orig)}")
        sys.exit(3)
    except KeyboardInterrupt:
        _say("Interrupted. What was submitted is kept and goes on with the next farm run or farm up.")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if _debugging():
            traceback.print_exc()
        _say(f"This is a defect of the farm: {type(error).__name__}: {error}. FARM_LOG_LEVEL=DEBUG shows where.")
        sys.exit(1)
    sys.exit(0)


def _debugging() -> bool:
    try:
        return settings().log_level == "DEBUG"
    except FarmError:  # the settings themselves are wrong
        return False


def _interrupt(*_: object) -> None:
    """SIGTERM, and the end of the terminal, end a command as Ctrl-C does: what it started is stopped in order."""
    raise KeyboardInterrupt


def _say(message: str) -> None:
    remarks.print(f"[bold red]error:[/] {escape(message)}")
