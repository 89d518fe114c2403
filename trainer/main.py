"""`farm-trainer`: a Celery worker on the `train` queue."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from celery import signals

from farm.broker.celery_app import consume, make_app
from farm.broker.queues import TRAIN_QUEUE
from farm.db.states import ProgramKind
from farm.errors import FarmError
from farm.logs import print_error, set_up_logging, warn_of_unknown_variables
from farm.services.encryption import warn_of_plain_connections
from farm.services.reconnecting import connected_services, set_on_signals
from farm.services.registering import registered
from farm.settings import idle_exit_s, settings
from farm.tracing import running

USAGE = """usage: farm-trainer

Train models for a farm. FARM_DATABASE_URL and FARM_BROKER_URL say where the farm is, MLFLOW_TRACKING_URI where
models are registered. It takes no arguments; `farm train` asks it for a model.
"""


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    set_up_logging(settings(), "trainer")


def main() -> None:
    if len(sys.argv) > 1:
        helped = sys.argv[1] in ("-h", "--help")
        (sys.stdout if helped else sys.stderr).write(USAGE)
        sys.exit(0 if helped else 2)
    try:
        set_up_logging(settings(), "trainer")
        warn_of_unknown_variables()
        warn_of_plain_connections(settings())
        stop = threading.Event()
        set_on_signals(stop, signal.SIGTERM, signal.SIGINT)
        with connected_services(stop, application="farm trainer", pool_size=1) as reached:
            if reached is None:
                return
            urls, engine = reached
            assert urls.broker_url is not None
            engine.dispose()
            os.environ["FARM_DATABASE_URL"], os.environ["MLFLOW_TRACKING_URI"] = urls.database_url, urls.tracking_uri
            os.environ["FARM_HOME"] = str(settings().home.absolute())
            settings.cache_clear()
            # One training at a time, in this very process: it holds no device, and libraries are loaded once.
            app = make_app(urls.broker_url, include=("trainer.tasks",))
            with running(settings(), "trainer"), registered(urls.database_url, ProgramKind.TRAINER):
                status = consume(
                    app, pool="solo", queues=[TRAIN_QUEUE], name="trainer@%h", stop=stop, idle_s=idle_exit_s()
                )
        sys.exit(status)
    except FarmError as error:
        sys.exit(print_error(error))


if __name__ == "__main__":
    main()
