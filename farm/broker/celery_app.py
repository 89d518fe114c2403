"""The Celery application, and its worker.

Messages carry only ids, as JSON. What an id means is looked up in Postgres, so a message that is lost, repeated or
late changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from farm.broker.queues import client_name

if TYPE_CHECKING:
    from celery import Celery

    from farm.broker.task_messages import Reason

ANSWER_SECONDS = 10.0
"""Timeout of the broker."""

_AMQP = "farm.broker.transport:BrokerAMQP"
"""By name, because a measuring process gets the application and never connects: its imports are an eighth of the process's start."""


def make_app(broker_url: str, *, include: tuple[str, ...] = ()) -> Celery:
    """A Celery application on that broker; `include` names the modules whose tasks it can run.

    Never prefetched, and never put back: Postgres decides who measures a batch, so Redis need not redeliver. A Redis
    that is away, or refuses to write, is waited for by Celery workers, and raises kombu's `OperationalError` in who sends.
    """
    from celery import Celery

    from farm.broker.task_loader import InstalledModules

    app = Celery("gemm-farm", broker=broker_url, include=list(include), amqp=_AMQP, loader=InstalledModules)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        # The next message is taken when the last task has ended. A limit of the messages in hand as well would end all
        # consuming where Redis goes away between a delivery and its acknowledgement: kombu counts that message for ever.
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=0,
        worker_concurrency=1,
        # How long a child that died is waited for before its batch is handed back.
        worker_lost_wait=1.0,
        worker_pool_start_method="spawn",
        # Celery kills a child that is not up after this; 4 s by default, which its imports alone take on a busy host.
        worker_proc_alive_timeout=120.0,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "priority_steps": [0],  # one list for each queue
            "socket_keepalive": True,
            "health_check_interval": 10,
            # Who sends tries again itself, at its next turn. A Celery worker reconnects without end all the same.
            "max_retries": 0,
            # A broker that takes connections and never answers must not hold whoever sends: the coordinator above all.
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": ANSWER_SECONDS,
        },
        task_create_missing_queues=True,
        task_default_queue="farm",
    )
    return app


def consume(
    app: Celery,
    *,
    pool: str,
    queues: Sequence[str],
    name: str,
    stop: threading.Event | None = None,
    slots: int = 1,
    idle_s: float | None = None,
    refused: Callable[[Reason], object] | None = None,
) -> int:
    """Runs a Celery worker on those queues, so many tasks at a time, until it is told to stop. Returns its exit status.

    Celery takes the signals over when it begins. `stop` says that the program was told before that, and would not be again.
    With `idle_s`, the worker also ends after that many seconds without a task. `refused` is called for each message that is
    none of the farm's (`farm.broker.task_messages`).
    """
    from celery import concurrency, signals
    from celery.utils.nodenames import host_format
    from celery.worker import state

    from farm.broker.refusals import Refusals

    def end_if_told(**_: Any) -> None:
        if stop is not None and stop.is_set():
            state.should_stop = 0
        elif idle_s is not None:
            threading.Thread(target=_end_when_idle, args=(idle_s,), name="idle", daemon=True).start()

    signals.worker_ready.connect(end_if_told, weak=False)
    own = {"client_name": client_name(queues), "refusals": Refusals(refused)}
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **own}
    # As `celery worker` makes it. The command itself would bring a shell with completion, 10 MB in each process.
    worker = app.Worker(
        hostname=host_format(name),
        pool_cls=concurrency.get_implementation(pool),
        concurrency=slots,
        queues=list(queues),
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return worker.exitcode or 0


def _end_when_idle(idle_s: float) -> None:
    """Ends this process's worker when it has had no task for so long. A message that comes just then is sent again."""
    from celery.worker import state

    busy_at = time.monotonic()
    while time.monotonic() - busy_at < idle_s:
        time.sleep(min(1.0, idle_s / 4))
        if state.reserved_requests or state.active_requests:
            busy_at = time.monotonic()
    state.should_stop = 0
