"""What each user of Redis may do, held to a real server: every command is tried on every kind of key."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from homes import eventually
from programs import free_port

from farm.broker import MEASURE_BATCH, make_app
from farm.coordinator.sending import send
from farm.redis_users import User, acl_lines, name_of
from farm.services.binaries import redis_server
from farm.services.redis import why_broker_takes_no_messages

PASSWORDS = {user: f"secret-of-{user}" for user in User}
KEYS = ("gpu.x", "device.x", "build", "train", "gemm-farm:probe", "other")
COMMANDS: dict[str, tuple[str, ...]] = {
    "LPUSH": ("v",), "RPUSH": ("v",), "BRPOP": ("0.01",), "LRANGE": ("0", "-1"), "LLEN": (), "GET": (), "SET": ("v",),
    "TYPE": (), "UNLINK": (), "DEL": (), "SETRANGE": ("0", ""), "EXPIRE": ("1",), "RENAME": ("other",), "HGETALL": (),
}  # fmt: skip
SERVER = (
    "FLUSHALL", "KEYS *", "SCAN 0", "CONFIG GET *", "ACL LIST", "ACL SETUSER x on", "SHUTDOWN NOSAVE", "MONITOR", "DEBUG SLEEP 0",
    "EVAL return(1) 0", "SUBSCRIBE x", "PUBLISH x y", "CLIENT LIST", "CLIENT KILL TYPE normal", "INFO", "MODULE LIST",
    "REPLICAOF NO ONE", "SAVE", "MULTI", "PING",
)  # fmt: skip
QUEUES = {
    User.COORDINATOR: {"gpu.x", "device.x", "build", "train"},
    User.WORKER: {"gpu.x", "device.x"},
    User.BUILDER: {"build"},
    User.TRAINER: {"train"},
}


def allowed(user: User, command: str, key: str) -> bool:
    """The expected table."""
    if key == "gemm-farm:probe":
        own = {"LPUSH", "TYPE", "UNLINK", "SETRANGE"} if user is User.COORDINATOR else {"BRPOP", "TYPE", "UNLINK"}
        return command in own
    sends = user is User.COORDINATOR
    return key in QUEUES[user] and command in {
        "TYPE",
        "UNLINK",
        *(("LPUSH", "SETRANGE") if sends else ("BRPOP",)),
    }


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    found = free_port()
    acl = tmp_path / "users.acl"
    acl.write_text("\n".join(acl_lines(PASSWORDS)) + "\n")
    options = ["--port", str(found), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--save", "", "--aclfile", str(acl)]
    process = subprocess.Popen([str(redis_server()), *options], stdout=subprocess.DEVNULL)

    def answers() -> bool:
        with suppress(redis.exceptions.ConnectionError):
            return bool(client(found, User.WORKER).ping())
        return False

    eventually(answers)
    yield found
    process.kill()
    process.wait()


def client(port: int, user: User) -> redis.Redis:
    return redis.Redis(port=port, username=name_of(user), password=PASSWORDS[user])


def url(port: int, user: User) -> str:
    return f"redis://{name_of(user)}:{PASSWORDS[user]}@127.0.0.1:{port}/0"


def is_refused(broker: redis.Redis, *words: Any) -> bool:
    try:
        broker.execute_command(*words)
    except redis.exceptions.NoPermissionError:
        return True
    except redis.exceptions.ResponseError:
        return False
    return False


@pytest.mark.parametrize("user", User)
def test_a_user_has_the_commands_on_keys_that_it_needs_and_no_other(port: int, user: User) -> None:
    with client(port, user) as broker:
        for key in KEYS:
            for command, arguments in COMMANDS.items():
                assert is_refused(broker, command, key, *arguments) != allowed(user, command, key), (command, key)
        for line in SERVER:
            expected = line == "PING" or (user is User.COORDINATOR and line in ("INFO", "CLIENT LIST"))
            assert is_refused(broker, *line.split()) != expected, line


def test_nobody_is_let_in_without_a_name_or_with_the_password_of_another_user(port: int) -> None:
    with redis.Redis(port=port) as broker, pytest.raises(redis.exceptions.AuthenticationError):
        broker.ping()
    wrong = redis.Redis(port=port, username=name_of(User.COORDINATOR), password=PASSWORDS[User.WORKER])
    with wrong as broker, pytest.raises(redis.exceptions.AuthenticationError):
        broker.ping()


def test_the_coordinator_sends_and_the_user_of_workers_cannot(port: int) -> None:
    with make_app(url(port, User.WORKER)) as app:
        assert send(app, MEASURE_BATCH, [(1, "gpu.x")]) == []
    with make_app(url(port, User.COORDINATOR)) as app:
        assert send(app, MEASURE_BATCH, [(1, "gpu.x"), (2, "device.x")]) == [1, 2]
    with client(port, User.WORKER) as broker:
        assert broker.brpop(["gpu.x"], timeout=1) is not None


@pytest.mark.parametrize("user", User)
def test_each_user_finds_redis_ready(port: int, user: User) -> None:
    assert why_broker_takes_no_messages(url(port, user), timeout_s=5.0) is None


def test_the_file_has_no_password() -> None:
    assert not any(password in line for password in PASSWORDS.values() for line in acl_lines(PASSWORDS))
