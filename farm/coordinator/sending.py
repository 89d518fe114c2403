"""Handing ids to the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)


def send(app: Celery, task: str, messages: Iterable[tuple[int, str]]) -> list[int]:
    """Sends one message of that task for each (id, queue). Returns the ids that the broker took.

    A broker that does not answer is logged: what was not sent is safe in Postgres and waits for the next turn.
    """
    waiting, sent = list(messages), list[int]()
    if not waiting:
        return sent
    try:
        with app.connection_for_write() as broker, app.amqp.Producer(broker) as producer:
            for number, queue in waiting:
                app.send_task(task, args=(number,), queue=queue, producer=producer, retry=False)
                sent.append(number)
    except OperationalError as error:
        left = len(waiting) - len(sent)
        log.warning("the broker does not answer (%s); %d messages of %s wait to be sent", error, left, task)
    return sent
