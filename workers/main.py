"""`farm-worker`: serves the devices of this host, for as long as it runs."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import typer

from farm.control_characters import REPLACEMENT, neutralised
from farm.db import migrate
from farm.db.engine import ANNOUNCING
from farm.db.states import ProgramKind
from farm.errors import BadInput, FarmError
from farm.logs import print_error, set_up_logging, warn_of_unknown_variables
from farm.services.encryption import warn_of_plain_connections
from farm.services.process_groups import collect_orphans
from farm.services.reconnecting import connected_services, set_on_signals
from farm.services.registering import registered
from farm.settings import environment_for_children, settings
from workers import metrics
from workers.device_watcher import DeviceWatcher
from workers.devices import discover

log = logging.getLogger(__name__)

RESCAN_SECONDS = 20.0
"""Between two looks for devices that came or vanished."""


def serve(selection: str, stop: threading.Event) -> None:
    """Runs a worker for each selected device until `stop`."""
    from workers import spans
    from workers.hosting import Host  # with the signals of a device's worker, which are none of a builder's

    collect_orphans()
    watcher = DeviceWatcher(selection)
    first = watcher.first()
    with (
        metrics.served(settings()) as variables,
        connected_services(
            stop, require=migrate.require_for_worker, application="farm-worker", pool_size=1, session=ANNOUNCING
        ) as reached,
    ):
        if reached is None:
            return
        urls, engine = reached
        with spans.exported(settings(), engine) as for_spans, registered(urls.database_url, ProgramKind.WORKER):
            environment = environment_for_children(
                FARM_DATABASE_URL=urls.database_url,
                FARM_BROKER_URL=urls.broker_url or "",
                FARM_HOME=str(settings().home.absolute()),
                **variables,
                **for_spans,
            )
            Host(watcher, engine, environment, rescan_s=RESCAN_SECONDS).serve(first, stop)


def _command(
    devices_to_serve: Annotated[
        str | None,
        typer.Option("--devices", help="auto, cpu, cuda, recorded:FILE, a UUID, or several with commas."),
    ] = None,
    build: Annotated[
        bool,
        typer.Option("--build", help="Build kernels for the farm instead; no device is needed.", show_default=False),
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="Say which devices would be served, and end.")] = False,
) -> None:
    """Measure for a farm on the devices of this host, or build its kernels. FARM_DATABASE_URL and FARM_BROKER_URL say where the farm is."""
    stop = threading.Event()
    set_on_signals(stop, signal.SIGTERM, signal.SIGINT)
    try:
        selection = devices_to_serve or settings().devices
        set_up_logging(settings(), "farm-worker")
        warn_of_unknown_variables()
        if list_only:
            for identity in discover(selection):
                line = f"{identity.uuid}  {identity.type}  {identity.name}"
                typer.echo(neutralised(line).replace("\n", REPLACEMENT))
            return
        warn_of_plain_connections(settings())
        if build:
            if devices_to_serve is not None:
                raise BadInput(detail="--build serves no device: leave --devices away, or start another farm-worker.")
            from workers import builder  # with Celery, which this process has no use for otherwise

            builder.serve(stop)
        else:
            serve(selection, stop)
    except FarmError as error:
        raise typer.Exit(print_error(error)) from None


def main() -> None:
    typer.run(_command)


if __name__ == "__main__":
    main()
