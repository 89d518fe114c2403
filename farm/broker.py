"""The Celery application, and the names by which the three programs reach one another.

Messages carry only ids, as JSON. What an id means is looked up in Postgres, so a message that is lost, repeated or
late changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery

MEASURE_BATCH = "workers.measure_batch"
"""Task: measure the batch of that id. Argument: batch_id (int)."""

TRAIN = "trainer.train"
"""Task: carry out the training of that id. Argument: training_id (int)."""

TRAIN_QUEUE = "train"


def queue_of_type(device_type: str) -> str:
    """The queue that every device of a type serves."""
    return f"gpu.{device_type}"


def queue_of_device(device_uuid: str) -> str:
    """The queue that one device serves."""
    return f"device.{device_uuid}"


def make_app(broker_url: str, *, include: tuple[str, ...] = ()) -> Celery:
    """A Celery application on that broker; `include` names the modules whose tasks it can run.

    Acknowledged early and never prefetched: Postgres decides who measures a batch, so Redis need not redeliver.
    """
    app = Celery("gemm-farm", broker=broker_url, include=list(include))
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_concurrency=1,
        worker_pool_start_method="spawn",
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600, "socket_keepalive": True, "health_check_interval": 10},
        task_create_missing_queues=True,
        task_default_queue="farm",
    )
    return app


def consume(app: Celery, *, pool: str, queues: Sequence[str], name: str) -> None:
    """Runs a Celery worker on those queues, one task at a time, until it is told to stop."""
    chatter = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    app.worker_main(
        ["--quiet", "worker", "-P", pool, "-c", "1", "-Q", ",".join(queues), "-n", name, "-l", "WARNING", *chatter]
    )
