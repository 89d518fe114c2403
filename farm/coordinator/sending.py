"""Handing ids to the broker."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from farm.errors import first_line

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

_REFUSED: weakref.WeakKeyDictionary[Celery, str] = weakref.WeakKeyDictionary()
"""Why the broker of an application took no message last time; none where it took them."""


def send(app: Celery, task: str, messages: Iterable[tuple[int, str]]) -> list[int]:
    """Sends one message of that task for each (id, queue). Returns the ids that the broker took.

    A broker that takes none is logged once, and once when it takes them again: what was not sent is safe in Postgres and
    waits for the next turn.
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
        why, left = first_line(error), len(waiting) - len(sent)
        if _REFUSED.get(app) != why:
            log.warning("the broker takes no messages (%s); %d of %s wait to be sent", why, left, task)
        _REFUSED[app] = why
    else:
        if _REFUSED.pop(app, None) is not None:
            log.warning("the broker takes messages again")
    return sent
