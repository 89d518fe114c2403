"""What the replies of Redis mean, and whether it takes commands that write."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from farm.broker.queues import CLIENT_PREFIX

if TYPE_CHECKING:
    import redis

PROBE = CLIENT_PREFIX + "probe"
"""A key that never exists. A command on it tells whether Redis takes commands that write."""


def require_writable(client: redis.Redis) -> None:
    """Raises `redis.exceptions.ResponseError` where Redis refuses to write, or to take more memory. Writes nothing.

    A user of Redis who may only take messages, and delete, learns of the first alone: taking needs no memory.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        client.setrange(PROBE, 0, "")  # an empty value: no key is made
    except NoPermissionError:
        with suppress(NoPermissionError):  # an ACL without this key says nothing about the queues
            client.unlink(PROBE)
    except ResponseError as error:
        if not is_of_wrong_kind(error):  # somebody's key, and Redis would have written to it
            raise


def is_of_wrong_kind(reply: object) -> bool:
    """Whether Redis answered that a key holds another kind of value than the command is for."""
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")
