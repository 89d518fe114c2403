"""What each user of Redis may do, held to a real server: every command is tried on every kind of key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, text

import farm
from farm.broker.celery_app import make_app
from farm.broker.queues import MEASURE_BATCH, queues_of_client
from farm.broker.redis_users import RedisUser, acl_lines, name_of
from farm.campaign import Campaign, load, plan
from farm.coordinator.sending import send
from farm.db import campaigns, trainings
from farm.services.redis import why_broker_takes_no_messages
from farm.services.server_binaries import redis_server
from support.homes import eventually
from support.programs import COORDINATOR, FARM_WORKER, free_port, programs
from support.toolkit import Toolkit

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"
TRAINER = (sys.executable, "-c", "from trainer.main import main; main()")

PASSWORDS = {user: f"secret-of-{user}" for user in RedisUser}
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
    RedisUser.COORDINATOR: {"gpu.x", "device.x", "build", "train"},
    RedisUser.WORKER: {"gpu.x", "device.x"},
    RedisUser.BUILDER: {"build"},
    RedisUser.TRAINER: {"train"},
}


def allowed(user: RedisUser, command: str, key: str) -> bool:
    """The expected table."""
    if key == "gemm-farm:probe":
        own = (
            {"LPUSH", "LLEN", "TYPE", "UNLINK", "SETRANGE"}
            if user is RedisUser.COORDINATOR
            else {"BRPOP", "TYPE", "UNLINK"}
        )
        return command in own
    sends = user is RedisUser.COORDINATOR
    return key in QUEUES[user] and command in {
        "TYPE",
        "UNLINK",
        *(("LPUSH", "LLEN", "SETRANGE") if sends else ("BRPOP",)),
    }


@contextmanager
def redis_with_users(folder: Path, port: int, passwords: Mapping[RedisUser, str]) -> Iterator[None]:
    acl = folder / "users.acl"
    acl.write_text("\n".join(acl_lines(passwords)) + "\n")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--aclfile", str(acl)]
    process = subprocess.Popen([str(redis_server()), *options], stdout=subprocess.DEVNULL)

    def answers() -> bool:
        with suppress(redis.exceptions.ConnectionError):
            return bool(client(port, RedisUser.COORDINATOR).ping())
        return False

    try:
        eventually(answers)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    found = free_port()
    with redis_with_users(tmp_path, found, PASSWORDS):
        yield found


def client(port: int, user: RedisUser) -> redis.Redis:
    return redis.Redis(port=port, username=name_of(user), password=PASSWORDS[user])


def url(port: int, user: RedisUser) -> str:
    return f"redis://{name_of(user)}:{PASSWORDS[user]}@127.0.0.1:{port}/0"


def is_refused(broker: redis.Redis, *words: Any) -> bool:
    try:
        broker.execute_command(*words)
    except redis.exceptions.NoPermissionError:
        return True
    except redis.exceptions.ResponseError as error:
        # Redis 7 allows DEBUG to nobody, and says so before it looks at the user.
        return "command not allowed" in str(error)
    return False


@pytest.mark.parametrize("user", RedisUser)
def test_a_user_has_the_commands_on_keys_that_it_needs_and_no_other(port: int, user: RedisUser) -> None:
    with client(port, user) as broker:
        for key in KEYS:
            for command, arguments in COMMANDS.items():
                assert is_refused(broker, command, key, *arguments) != allowed(user, command, key), (command, key)
        for line in SERVER:
            expected = line == "PING" or (user is RedisUser.COORDINATOR and line in ("INFO", "CLIENT LIST"))
            assert is_refused(broker, *line.split()) != expected, line


@pytest.mark.long
def test_nobody_is_let_in_without_a_name_or_with_the_password_of_another_user(port: int) -> None:
    with redis.Redis(port=port) as broker, pytest.raises(redis.exceptions.AuthenticationError):
        broker.ping()
    wrong = redis.Redis(port=port, username=name_of(RedisUser.COORDINATOR), password=PASSWORDS[RedisUser.WORKER])
    with wrong as broker, pytest.raises(redis.exceptions.AuthenticationError):
        broker.ping()


def test_the_coordinator_sends_and_the_user_of_workers_cannot(port: int) -> None:
    with make_app(url(port, RedisUser.WORKER)) as app:
        assert send(app, MEASURE_BATCH, [(1, "gpu.x")]) == []
    with make_app(url(port, RedisUser.COORDINATOR)) as app:
        assert send(app, MEASURE_BATCH, [(1, "gpu.x"), (2, "device.x")]) == [1, 2]
    with client(port, RedisUser.WORKER) as broker:
        assert broker.brpop(["gpu.x"], timeout=60) is not None


@pytest.mark.parametrize("user", RedisUser)
def test_each_user_finds_redis_ready(port: int, user: RedisUser) -> None:
    assert why_broker_takes_no_messages(url(port, user), timeout_s=60.0) is None


@pytest.mark.long
def test_programs_measure_build_and_train_under_their_users(
    engine: Engine, port: int, tmp_path: Path, database_url: str, new_registry: Callable[[Path], str]
) -> None:
    def count(statement: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(statement)).scalar_one())

    urls = {
        "FARM_DATABASE_URL": database_url,
        "MLFLOW_TRACKING_URI": new_registry(tmp_path),
        "FARM_TRAIN_NEW_ROWS": "0",
    }
    toolkit = Toolkit(tmp_path / "toolkit")
    with programs(tmp_path, **urls, **toolkit.variables) as start:
        started = [
            start(FARM_WORKER, "--devices", f"recorded:{RECORDING}", FARM_BROKER_URL=url(port, RedisUser.WORKER)),
            start(TRAINER, FARM_BROKER_URL=url(port, RedisUser.TRAINER)),
            start(FARM_WORKER, "--build", FARM_BROKER_URL=url(port, RedisUser.BUILDER)),
            start(COORDINATOR, FARM_BROKER_URL=url(port, RedisUser.COORDINATOR)),
        ]
        eventually(lambda: count("SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))
        document = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000).document
        campaign = Campaign.from_document({**document, "name": "small", "kernels": [{"family": "tiled", "tile": [16]}]})
        with engine.begin() as connection:
            known = campaigns.known_devices(connection)
            campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())
            trainings.request(connection, device_type="nothing")
        eventually(lambda: count("SELECT count(*) FROM campaigns WHERE state = 'done'"))
        eventually(lambda: count("SELECT count(*) FROM trainings WHERE state = 'failed' AND device_type = 'nothing'"))
        builders = client(port, RedisUser.COORDINATOR)
        eventually(lambda: any("build" in queues_of_client(one["name"]) for one in builders.client_list()))
        for program in started:
            assert "no permissions" not in program.log()
            assert "Traceback" not in program.log()
            assert program.stop() == 0


@pytest.mark.long
def test_workers_with_the_old_password_wait_and_take_no_messages_and_those_with_the_new_one_go_on(
    engine: Engine, tmp_path: Path, database_url: str
) -> None:
    """The steps of docs/operating.md, "A host was lost"."""
    port, new = free_port(), {**PASSWORDS, RedisUser.WORKER: "changed"}

    def consumers() -> int:
        with client(port, RedisUser.COORDINATOR) as broker:
            return sum(bool(queues_of_client(one["name"])) for one in broker.client_list())

    words = (FARM_WORKER, "--devices", f"recorded:{RECORDING}")
    with programs(tmp_path, FARM_DATABASE_URL=database_url) as start:
        with redis_with_users(tmp_path, port, PASSWORDS):
            worker = start(*words, FARM_BROKER_URL=url(port, RedisUser.WORKER))
            eventually(consumers)
        with redis_with_users(tmp_path, port, new):
            eventually(lambda: "invalid username-password pair" in worker.log())
            assert consumers() == 0
            assert worker.is_alive()
            assert worker.stop() == 0
            late = start(*words, name="late", FARM_BROKER_URL=url(port, RedisUser.WORKER))
            eventually(lambda: "invalid username-password pair" in late.log())
            assert late.stop() == 0
            given = url(port, RedisUser.WORKER).replace(PASSWORDS[RedisUser.WORKER], new[RedisUser.WORKER])
            changed = start(*words, name="changed", FARM_BROKER_URL=given)
            eventually(consumers)
            assert changed.stop() == 0


def test_the_file_has_no_password() -> None:
    assert not any(password in line for password in PASSWORDS.values() for line in acl_lines(PASSWORDS))
