"""`python -m farm.coordinator`: leads until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import sys
import threading

from farm.broker.celery_app import make_app
from farm.coordinator.loop import run
from farm.coordinator.metrics import watching
from farm.db.engine import DISPATCHING, PROMPT
from farm.db.states import ProgramKind
from farm.errors import FarmError
from farm.logs import print_error, set_up_logging, warn_of_unknown_variables
from farm.services.encryption import warn_of_plain_connections
from farm.services.reconnecting import connected_services, set_on_signals
from farm.services.registering import registered
from farm.settings import settings
from farm.tracing import running

USAGE = """usage: python -m farm.coordinator

Lead a farm: form batches, send them to workers and dispatch trainings. FARM_DATABASE_URL and FARM_BROKER_URL say where
the farm is. It takes no arguments. Of several coordinators, one leads, and the others stand by.
"""


def main() -> int:
    if len(sys.argv) > 1:
        helped = sys.argv[1] in ("-h", "--help")
        (sys.stdout if helped else sys.stderr).write(USAGE)
        return 0 if helped else 2
    stop = threading.Event()
    set_on_signals(stop, signal.SIGTERM, signal.SIGINT)
    try:
        set_up_logging(settings(), "coordinator")
        warn_of_unknown_variables()
        warn_of_plain_connections(settings())
        # Without a ping: a turn that fails is tried again, and a ping would be waited for with nobody watching.
        with connected_services(
            stop, application="farm coordinator", session=DISPATCHING, client=PROMPT, pre_ping=False
        ) as reached:
            if reached is None:
                return 0
            urls, engine = reached
            assert urls.broker_url is not None
            with (
                running(settings(), "coordinator"),
                watching(settings(), urls.database_url) as watch,
                registered(urls.database_url, ProgramKind.COORDINATOR),
            ):
                run(engine, make_app(urls.broker_url), settings(), stop, watch)
    except FarmError as error:
        return print_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
