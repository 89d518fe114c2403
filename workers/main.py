"""`farm-worker`: serves the devices of this host, for as long as it runs."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from farm.db.engine import make_engine
from farm.db.migrate import require_head
from farm.errors import BrokerUnreachable, DatabaseUnreachable, FarmError, first_line
from farm.logs import set_up_logging
from farm.services import ServiceUrls, safe_url, services
from farm.services.backoff import BackOff
from farm.settings import environment_for_children, settings
from workers import metrics
from workers.devices import discover
from workers.hosting import Host
from workers.lookout import Lookout

log = logging.getLogger(__name__)

RESCAN_SECONDS = 20.0
"""Between two looks for devices that came or vanished."""


def serve(selection: str, stop: threading.Event) -> None:
    """Runs a worker for each selected device until `stop`."""
    lookout = Lookout(selection)
    first = lookout.first()
    with metrics.served(settings()) as variables, _services_when_they_answer(stop) as reached:
        if reached is None:
            return
        urls, engine = reached
        environment = environment_for_children(
            FARM_DATABASE_URL=urls.database_url,
            FARM_BROKER_URL=urls.broker_url or "",
            FARM_HOME=str(settings().home.absolute()),
            **variables,
        )
        Host(lookout, engine, environment, rescan_s=RESCAN_SECONDS).serve(first, stop)


@contextmanager
def _services_when_they_answer(stop: threading.Event) -> Iterator[tuple[ServiceUrls, Engine] | None]:
    """The services and an engine on the database; None where `stop` was set before they answered.

    Raises what `services` raises for servers that do not belong to others, and `WrongRevision`.
    """
    back_off = BackOff()
    with ExitStack() as held:
        reached = None
        while reached is None and not stop.is_set():
            back_off.started(time.monotonic())
            try:
                reached = _reach(held)
            except (DatabaseUnreachable, BrokerUnreachable, OperationalError) as error:
                back_off.ended(time.monotonic())
                log.warning("waiting for %s; asked again in %g s", _what_is_away(error), back_off.pause_s)
                stop.wait(back_off.pause_s)
        yield reached


def _reach(held: ExitStack) -> tuple[ServiceUrls, Engine]:
    with ExitStack() as trying:
        urls = trying.enter_context(services(settings(), broker=True))
        engine = make_engine(urls.database_url, application="farm-worker", pool_size=1)
        trying.callback(engine.dispose)
        require_head(engine)
        held.enter_context(trying.pop_all())
    return urls, engine


def _what_is_away(error: DatabaseUnreachable | BrokerUnreachable | OperationalError) -> str:
    """As in `the broker at redis://:***@host:6379/0: Connection refused`."""
    if isinstance(error, OperationalError):
        return f"the database: {first_line(error.orig)}"
    what = "database" if isinstance(error, DatabaseUnreachable) else "broker"
    return f"the {what} at {safe_url(error.fields['url'])}: {error.fields['why']}"


def _command(
    devices_to_serve: Annotated[
        str | None,
        typer.Option("--devices", help="auto, cpu, cuda, recorded:FILE, a UUID, or several with commas."),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Say which devices would be served, and end.")] = False,
) -> None:
    """Measure for a farm on the devices of this host. FARM_DATABASE_URL and FARM_BROKER_URL say where the farm is."""
    selection = devices_to_serve or settings().devices
    set_up_logging(settings(), "farm-worker")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if list_only:
            for identity in discover(selection):
                typer.echo(f"{identity.uuid}  {identity.type}  {identity.name}")
            return
        serve(selection, stop)
    except FarmError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None


def main() -> None:
    typer.run(_command)


if __name__ == "__main__":
    main()
