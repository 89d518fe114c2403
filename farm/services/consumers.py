"""Consumers of queues, from the names of the connections to Redis (`farm.broker.queues`)."""

from __future__ import annotations

from farm.broker.queues import queues_of_client
from farm.services.embedded import embedded_services
from farm.services.redis import EmbeddedRedis
from farm.services.urls import redis_client_url
from farm.settings import Settings

ANSWER_S = 2.0
"""How long the broker may take to answer."""


def is_consumed(settings: Settings, queue: str) -> bool | None:
    """Whether a program takes messages from the queue, or waits to be started for it.

    Returns:
        None if the broker is unknown here, or does not answer.
    """
    import redis

    url = None if settings.broker_url is None else settings.broker_url.get_secret_value()
    if url is None:
        embedded = next(one for one in embedded_services(settings) if isinstance(one, EmbeddedRedis))
        if not embedded.running():
            # With a database elsewhere, the broker may be elsewhere too, and this machine does not use it.
            return False if settings.embedded_database else None
        url = embedded.url
    try:
        with redis.Redis.from_url(
            redis_client_url(url), socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
        ) as broker:
            return any(queue in queues_of_client(client.get("name", "")) for client in broker.client_list())
    except (redis.RedisError, OSError, ValueError):
        return None
