"""Sends ids to the broker."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kombu.exceptions import BatchPublishError, OperationalError

from farm.errors import first_line

if TYPE_CHECKING:
    from celery import Celery
    from kombu.messaging import Producer

log = logging.getLogger(__name__)

_REFUSED: weakref.WeakKeyDictionary[Celery, str] = weakref.WeakKeyDictionary()
"""Why the broker of an application refused messages last time, by application."""


def refusal(app: Celery) -> str | None:
    """Why the broker of this application refused messages last time; None if it took them."""
    return _REFUSED.get(app)


MAX_PIPELINE_MESSAGES = 500
"""Messages per pipeline."""


def send(app: Celery, task: str, messages: Iterable[tuple[int, str]]) -> list[int]:
    """Sends one message of that task for each (id, queue). Returns the ids that the broker took.

    A refusal is logged once, and once when it ends. Unsent ids stay in Postgres and are sent in the next turn.
    """
    waiting, sent = list(messages), list[int]()
    if not waiting:
        return sent
    try:
        with app.connection_for_write() as broker, app.amqp.Producer(broker) as producer:
            for first in range(0, len(waiting), MAX_PIPELINE_MESSAGES):
                _send_at_once(app, producer, task, waiting[first : first + MAX_PIPELINE_MESSAGES], sent)
    except (OperationalError, BatchPublishError) as error:
        why, left = first_line(error), len(waiting) - len(sent)
        if _REFUSED.get(app) != why:
            log.warning("the broker takes no messages (%s); %d of %s wait to be sent", why, left, task)
        _REFUSED[app] = why
    else:
        if _REFUSED.pop(app, None) is not None:
            log.warning("the broker takes messages again")
    return sent


def _send_at_once(
    app: Celery, producer: Producer, task: str, messages: Sequence[tuple[int, str]], sent: list[int]
) -> None:
    """Sends messages in one pipeline, and adds the ids that the broker took to `sent`.

    Raises `PartlyTaken` where it did not take all, and `OperationalError` where it cannot be reached, or a queue not be declared.
    """
    from farm.broker.transport import PartlyTaken

    handed, failed = list[int](), None
    most = len(messages) + 1  # the last one would end the pipeline from within `send_task` otherwise
    try:
        with producer.batch(most):  # type: ignore[no-untyped-call]
            for number, queue in messages:
                try:
                    app.send_task(task, args=(number,), queue=queue, producer=producer, retry=False)
                except OperationalError as error:
                    failed = error
                    break
                handed.append(number)
    except PartlyTaken as error:
        sent += [handed[place] for place in sorted(error.taken)]
        raise
    sent += handed
    if failed is not None:
        raise failed
