"""The users of Redis: the keys and commands of each service, declared once.

| user | who logs in with it |
| --- | --- |
| `farm_coordinator` | coordinators, and people who use `farm` with the broker's URL |
| `farm_worker` | worker hosts |
| `farm_builder` | builders |
| `farm_trainer` | trainers |

Only the coordinator sends. The others take messages from their own queues, and delete a key of these that is no list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from farm.broker.queues import BUILD_QUEUE, QUEUE_PREFIXES, TRAIN_QUEUE, queue_of_device
from farm.broker.replies import PROBE


class RedisUser(StrEnum):
    """Whose user it is. The user's name is `farm_` and this."""

    COORDINATOR = "coordinator"
    WORKER = "worker"
    BUILDER = "builder"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """Patterns of keys, and commands on them."""

    keys: tuple[str, ...]
    commands: tuple[str, ...]


_CONNECT = ("auth", "hello", "ping", "select", "client|setname")
_TAKE = ("brpop", "type", "unlink")
_MEASURE = (*(f"{prefix}*" for prefix in QUEUE_PREFIXES), queue_of_device("*"))

USERS: Mapping[RedisUser, RedisAccess] = {
    # `info`, `client|list` and `llen` tell `farm doctor`, `farm train` and `farm up` about the server, its consumers and their work.
    RedisUser.COORDINATOR: RedisAccess(
        (*_MEASURE, BUILD_QUEUE, TRAIN_QUEUE, PROBE),
        ("lpush", "llen", "type", "unlink", "setrange", "info", "client|list"),
    ),
    RedisUser.WORKER: RedisAccess((*_MEASURE, PROBE), _TAKE),
    RedisUser.BUILDER: RedisAccess((BUILD_QUEUE, PROBE), _TAKE),
    RedisUser.TRAINER: RedisAccess((TRAIN_QUEUE, PROBE), _TAKE),
}
"""What users may do. tests/security/test_redis_users.py tries every command of this table as each user."""


def name_of(user: RedisUser) -> str:
    """The name of a user."""
    return f"farm_{user.value}"


def acl_lines(passwords: Mapping[RedisUser, str]) -> list[str]:
    """The lines of an ACL file (`aclfile`) for Redis 6.2 or later. It contains SHA-256 hashes of the passwords.

    The user `default`, who needs no name, is off.
    """
    lines = ["user default reset"]
    for user, access in USERS.items():
        hashed = hashlib.sha256(passwords[user].encode()).hexdigest()
        keys = [f"~{key}" for key in access.keys]
        commands = [f"+{command}" for command in (*_CONNECT, *access.commands)]
        lines.append(" ".join(["user", name_of(user), "reset", "on", f"#{hashed}", *keys, *commands]))
    return lines
