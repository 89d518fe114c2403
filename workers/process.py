"""`python -m workers.process`: the Celery worker of one device. `farm-worker` starts it."""

from __future__ import annotations

from celery import Celery

from farm.broker import consume, make_app, queue_of_device, queue_of_type
from farm.db import devices
from farm.settings import settings
from workers import tasks


def app() -> Celery:
    """The application on the broker that `farm-worker` names."""
    url = settings().broker_url
    assert url is not None, "farm-worker sets FARM_BROKER_URL"
    return make_app(url.get_secret_value(), include=("workers.tasks",))


def main() -> None:
    with tasks.engine().connect() as connection:
        identity = devices.identity(connection, tasks.device_id())
    queues = [queue_of_device(identity.uuid), queue_of_type(identity.type)]
    consume(app(), pool="prefork", queues=queues, name=f"{identity.uuid}@%h")


if __name__ == "__main__":
    main()
