"""Whoever can write to Redis can write any message, and any key. Consumers drop what is not the farm's and go on as they are."""

from __future__ import annotations

import base64
import bz2
import json
import pickle
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine, text

import farm
from farm.broker.celery_app import make_app
from farm.broker.queues import BUILD, BUILD_QUEUE, MEASURE_BATCH, TRAIN, TRAIN_QUEUE, TRY_DEVICE
from farm.broker.replies import PROBE
from farm.broker.task_messages import MAX_BYTES, Message, MessageRefused, Reason, read
from farm.campaign import Campaign, load, plan
from farm.coordinator.loop import Coordinator
from farm.coordinator.sending import send
from farm.db import campaigns, trainings
from farm.settings import Settings
from support.homes import eventually
from support.programs import FARM_WORKER, Program, free_port, programs

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"
TRAINER = (sys.executable, "-c", "from trainer.main import main; main()")

NOBODY = 2**40
"""An id that nothing has."""

VICTIM = "gpu.victim"
"""A queue to which no consumer here may send anything."""

UNPACKED = 200 * 2**20
BOMB = base64.b64encode(bz2.compress(bytes(2**20)) * (UNPACKED // 2**20)).decode()

CONSUMER = """
import sys
from farm.broker.celery_app import consume, make_app
from farm.logs import set_up_logging
from farm.settings import settings
set_up_logging(settings(), "consumer")
sys.exit(consume(make_app(sys.argv[1], include=(sys.argv[2],)), pool=sys.argv[3], queues=[sys.argv[4]], name="consumer@%h"))
"""
"""A trainer or builder without its database: it takes messages, and its tasks find nothing."""


@pytest.fixture
def url(redis_port: int) -> str:
    return f"redis://127.0.0.1:{redis_port}/0"


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    with make_app(url) as made:
        yield made


# --- messages ----------------------------------------------------------------------------------------


def message(queue: str, name: str, number: object = NOBODY, /, **changes: Any) -> dict[str, Any]:
    """As Celery writes it. `changes` replace the body's parts, headers, properties or parts of the message, wherever they are."""
    made = Message(name, 1).payload(queue)
    signatures = {one: changes.pop(one, None) for one in ("callbacks", "errbacks", "chain", "chord")}
    body = [changes.pop("args", [number]), changes.pop("kwargs", {}), signatures]
    made["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    for one, value in changes.items():
        where = next((part for part in (made["headers"], made["properties"], made) if one in part), made["headers"])
        where[one] = value
    return made


def signature() -> dict[str, Any]:
    """Of a task that Celery would send to the victim."""
    return {
        "task": MEASURE_BATCH, "args": [7], "kwargs": {}, "options": {"queue": VICTIM}, "subtask_type": None,
        "immutable": True,
    }  # fmt: skip


def bad_messages(queue: str, task: str) -> dict[str, dict[str, Any] | str | bytes]:
    """What somebody wrote into the queue of a consumer that knows that task."""

    def changed(**changes: Any) -> dict[str, Any]:
        return message(queue, task, **changes)

    without_properties = changed()
    del without_properties["properties"]
    return {
        # First, while a worker's child still starts: a limit kills it then.
        "a time limit": changed(timelimit=[0.2, None]),
        "a soft time limit": changed(timelimit=[None, 0.2]),
        "a bomb": changed(body=BOMB, compression="application/x-bz2"),
        "a callback": changed(callbacks=[signature()]),
        "an errback": changed(errbacks=[signature()], args=["x", "y", "z"]),
        "a chain": changed(chain=[signature()]),
        "a chord": changed(chord=signature(), group="4f3f7f7c-0e4e-4f0b-8a1c-9e8f5a9f8a10"),
        "a date in the future": changed(eta="2099-01-01T00:00:00+00:00"),
        "an end": changed(expires="2001-01-01T00:00:00+00:00"),
        "stamps": changed(stamped_headers=["x"], stamps={"x": [1]}, x=[1]),
        "a retry": changed(retries=10**6),
        "a header that nobody knows": changed(farm_secret="x"),
        "a priority": changed(priority=9),
        "another task": changed(task="celery.backend_cleanup"),
        "a task that nobody has": changed(task="os.system"),
        "no name of a task": changed(task=["x"]),
        "a word": changed(args=["5"]),
        "a truth": changed(args=[True]),
        "a fraction": changed(args=[1.5]),
        "no argument": changed(args=[]),
        "two arguments": changed(args=[1, 2]),
        "a named argument": changed(kwargs={"batch_id": 5}),
        "nothing positive": changed(args=[0]),
        "a number for no database": changed(args=[2**63]),
        "a body of lists": changed(body=base64.b64encode(b"[[[1]]]").decode()),
        "a body that is not base64": changed(body="!" * 40),
        "a body that is not text": changed(body=5),
        "a body of endless lists": changed(body=base64.b64encode(b"[" * 5000).decode()),
        "a pickled body": {
            **changed(body=base64.b64encode(pickle.dumps([[1], {}, {}])).decode()),
            "content-type": "application/x-python-serialize",
            "content-encoding": "binary",
        },
        "another encoding": changed(body_encoding="utf-8"),
        "properties of another kind": {**changed(), "properties": [1]},
        "no properties": without_properties,
        "headers of another kind": {**changed(), "headers": "x"},
        "a message of the first protocol": {
            **changed(body=base64.b64encode(json.dumps({"task": task, "id": "x", "args": [5]}).encode()).decode()),
            "headers": {},
        },
        "a list": "[1, 2]",
        "null": "null",
        "not JSON": "not JSON",
        "not UTF-8": b"\xff\xfe\x00",
        "nothing": "",
        "endless lists": "[" * 100_000,
        "a number of a million digits": "1" * 1_000_000,
        "32 MB": b"x" * (32 * 2**20),
        "escape sequences": "\x1b]0;owned\x07\x1b[2J",
    }


def wrong_keys(broker: redis.Redis, queue: str) -> dict[str, Callable[[], object]]:
    """What somebody did to keys of Redis that a consumer of the queue uses, or that kombu's consumers share."""

    def anew(key: str, store: Callable[[], object]) -> Callable[[], object]:
        return lambda: (broker.delete(key), store())

    return {
        "a string for the queue": anew(queue, lambda: broker.set(queue, "x")),
        "a hash for the queue": anew(queue, lambda: broker.hset(queue, "x", "y")),
        "a string for what is not acknowledged": anew("unacked", lambda: broker.set("unacked", "x")),
        "a string for its index": anew("unacked_index", lambda: broker.set("unacked_index", "x")),
        "messages to be restored that are none": lambda: (
            broker.delete("unacked", "unacked_index"),
            broker.hset("unacked", "x", "not JSON"),
            broker.zadd("unacked_index", {"x": 1}),
        ),
        "a string for bindings": anew(f"_kombu.binding.{queue}", lambda: broker.set(f"_kombu.binding.{queue}", "x")),
        "a binding to another queue": anew(
            f"_kombu.binding.{queue}",
            lambda: broker.sadd(f"_kombu.binding.{queue}", f"{queue}\x06\x16\x06\x16{VICTIM}"),
        ),
        "a list where Redis is tried": anew(PROBE, lambda: broker.lpush(PROBE, "x")),
        # Consumers connect anew, and find all of that.
        "ended connections": lambda: [
            broker.client_kill_filter(_id=one["id"]) for one in broker.client_list() if one["name"]
        ],
    }


def broadcasts(url: str) -> dict[str, Callable[[], object]]:
    """What Celery's remote control tells every worker that listens."""

    def tell(command: str, **arguments: Any) -> Callable[[], object]:
        def told() -> None:
            with Celery("stranger", broker=url) as stranger:
                stranger.control.broadcast(command, arguments=arguments)

        return told

    return {
        "shutdown": tell("shutdown"),
        "pool_restart": tell("pool_restart"),
        "pool_shrink": tell("pool_shrink", n=1),
        "rate_limit": tell("rate_limit", task_name=MEASURE_BATCH, rate_limit="1/h"),
        "time_limit": tell("time_limit", task_name=MEASURE_BATCH, hard=0.1),
        "cancel_consumer": tell("cancel_consumer", queue=TRAIN_QUEUE),
    }


def put(broker: redis.Redis, queue: str, bad: dict[str, Any] | str | bytes) -> None:
    broker.lpush(queue, json.dumps(bad) if isinstance(bad, dict) else bad)


def attacks(broker: redis.Redis, url: str, queue: str, task: str) -> dict[str, Callable[[], object]]:
    def putting(bad: dict[str, Any] | str | bytes) -> Callable[[], object]:
        return lambda: put(broker, queue, bad)

    return {
        **{name: putting(bad) for name, bad in bad_messages(queue, task).items()},
        **wrong_keys(broker, queue),
        **broadcasts(url),
    }


def max_memory(pid: int) -> int:
    """The most memory that the process ever had, in bytes."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def check_log(program: Program) -> None:
    log = program.log()
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert 1 <= log.count("refused") < 10  # in a minute, one line


# --- consumers ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_worker_measures_on_after_each_attack_with_the_same_processes(
    engine: Engine, broker: redis.Redis, url: str, app: Celery, tmp_path: Path, database_url: str
) -> None:
    metrics_port = free_port()
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": url, "FARM_WORKER_METRICS": str(metrics_port)}
    with programs(tmp_path, **urls) as start:
        worker = start(FARM_WORKER, "--devices", f"recorded:{RECORDING}")
        eventually(lambda: asked(engine, "SELECT uuid FROM devices WHERE last_seen_at > first_seen_at"))
        (child,) = eventually(worker.children_that_measure)
        parent = child.parent()
        assert parent is not None
        memory = max_memory(parent.pid)
        kind, uuid = asked(engine, "SELECT type FROM devices"), asked(engine, "SELECT uuid FROM devices")
        coordinator = Coordinator(engine, app, Settings(resend_after_seconds=0.5))
        document = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000).document
        document |= {"kernels": [{"family": "tiled", "tile": [16]}]}
        tried = attacks(broker, url, f"device.{uuid}", MEASURE_BATCH) | {
            f"{name}, for the type": lambda attack=attack: attack()
            for name, attack in wrong_keys(broker, f"gpu.{kind}").items()
        }
        for number, (name, attack) in enumerate(tried.items()):
            attack()
            submit(engine, Campaign.from_document({**document, "name": f"good-{number}"}))

            def measured(wanted: int = number + 1) -> bool:
                coordinator.turn()
                return asked(engine, "SELECT count(*) FROM campaigns WHERE state = 'done'") == wanted

            eventually(measured)
            assert [one.pid for one in worker.children_that_measure()] == [child.pid], name
            assert parent.is_running(), name
            assert broker.llen(VICTIM) == 0, name
        assert max_memory(parent.pid) < memory + 50 * 2**20
        assert asked(engine, "SELECT count(*) FROM failures") == 0
        assert asked(engine, "SELECT state FROM devices") == "active"
        counted = refused(metrics_port)
        assert counted.keys() == set(Reason)
        assert counted[Reason.KEY] >= 1  # the coordinator deletes such keys too, where it comes first
        assert sum(counted.values()) - counted[Reason.KEY] == len(bad_messages("", MEASURE_BATCH))
        check_log(worker)
        assert worker.stop() == 0


def refused(metrics_port: int) -> dict[str, float]:
    """What a farm-worker counted, by reason."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
        lines = re.findall(r'worker_messages_refused_total{.*reason="(\w+)"} (\S+)', answer.read().decode())
    return {reason: float(count) for reason, count in lines if float(count)}


def submit(engine: Engine, campaign: Campaign) -> None:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())


@pytest.mark.long
def test_a_trainer_goes_on_after_each_attack(
    engine: Engine, broker: redis.Redis, url: str, app: Celery, tmp_path: Path, database_url: str,
    new_registry: Callable[[Path], str],
) -> None:  # fmt: skip
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": url, "MLFLOW_TRACKING_URI": new_registry(tmp_path)}
    with programs(tmp_path, **urls) as start:
        trainer = start(TRAINER)

        def train() -> None:
            """A training of a type that nobody measured: it ends at once, and says so."""
            with engine.begin() as connection:
                training_id = trainings.request(connection, device_type="nothing")
            assert send(app, TRAIN, [(training_id, TRAIN_QUEUE)]) == [training_id]
            eventually(lambda: asked(engine, f"SELECT state FROM trainings WHERE id = {training_id}") == "failed")

        train()
        memory = max_memory(trainer.pid)
        for name, attack in attacks(broker, url, TRAIN_QUEUE, TRAIN).items():
            attack()
            eventually(lambda: broker.type(TRAIN_QUEUE) == b"none")
            assert trainer.is_alive(), name
            assert broker.llen(VICTIM) == 0, name
        train()
        assert max_memory(trainer.pid) < memory + 50 * 2**20
        check_log(trainer)
        assert trainer.stop() == 0


@pytest.mark.long
def test_a_builder_goes_on_after_each_attack(broker: redis.Redis, url: str, app: Celery, tmp_path: Path) -> None:
    consumer = (sys.executable, "-c", CONSUMER, url, "workers.building", "threads", BUILD_QUEUE)
    with programs(tmp_path, FARM_DATABASE_URL="postgresql://nobody@127.0.0.1:1/farm") as start:
        builder = start(consumer)
        eventually(lambda: any(one["name"] for one in broker.client_list()))
        memory = max_memory(builder.pid)
        for name, attack in attacks(broker, url, BUILD_QUEUE, BUILD).items():
            attack()
            eventually(lambda: broker.type(BUILD_QUEUE) == b"none")
            assert builder.is_alive(), name
            assert broker.llen(VICTIM) == 0, name
        assert max_memory(builder.pid) < memory + 50 * 2**20
        check_log(builder)
        assert send(app, BUILD, [(NOBODY, BUILD_QUEUE)]) == [NOBODY]
        eventually(lambda: "the kernel is given up" in builder.log())  # it was taken up, and the database is away
        assert builder.stop() == 0


def test_a_sender_deletes_a_key_that_is_no_queue_and_sends_to_all_others(broker: redis.Redis, app: Celery) -> None:
    broker.set("gpu.a", "x")
    messages = [(n, "gpu.a" if n % 2 else "gpu.b") for n in range(1, 9)]
    assert send(app, MEASURE_BATCH, messages) == [2, 4, 6, 8]
    assert send(app, MEASURE_BATCH, messages[::2]) == [1, 3, 5, 7]
    assert broker.llen("gpu.a") == broker.llen("gpu.b") == 4


def test_consumers_and_senders_leave_no_key_but_the_queues(broker: redis.Redis, app: Celery) -> None:
    assert send(app, MEASURE_BATCH, [(1, "gpu.a"), (2, "device.b")]) == [1, 2]
    assert set(broker.keys()) == {b"gpu.a", b"device.b"}


# --- one by one --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bad_messages(TRAIN_QUEUE, TRAIN))
def test_a_message_that_the_farm_does_not_write_is_refused(name: str) -> None:
    bad = bad_messages(TRAIN_QUEUE, TRAIN)[name]
    raw = bad if isinstance(bad, bytes) else (json.dumps(bad) if isinstance(bad, dict) else bad).encode()
    with pytest.raises(MessageRefused):
        read(raw, TRAIN_QUEUE)


def test_a_message_of_the_farm_is_taken_and_nothing_of_it_but_task_and_id(broker: redis.Redis, app: Celery) -> None:
    assert send(app, TRAIN, [(5, TRAIN_QUEUE), (2**63 - 1, TRAIN_QUEUE)]) == [5, 2**63 - 1]
    written = broker.lrange(TRAIN_QUEUE, 0, -1)
    assert {read(raw, TRAIN_QUEUE) for raw in written} == {Message(TRAIN, 5), Message(TRAIN, 2**63 - 1)}
    assert max(map(len, written)) < MAX_BYTES / 4
    # It is made anew from these two, with the same fields, for Celery to find what it looks for.
    payload = read(written[0], TRAIN_QUEUE).payload(TRAIN_QUEUE)
    found = json.loads(written[0])
    assert payload.keys() == found.keys()
    assert payload["headers"].keys() == found["headers"].keys()
    assert payload["properties"].keys() == found["properties"].keys()


@pytest.mark.parametrize(
    ("queue", "task", "reason"),
    [
        (TRAIN_QUEUE, MEASURE_BATCH, Reason.TASK),
        (BUILD_QUEUE, TRAIN, Reason.TASK),
        ("gpu.x", TRY_DEVICE, Reason.TASK),
        ("nothing", TRAIN, Reason.TASK),
    ],
)
def test_each_queue_has_its_tasks(queue: str, task: str, reason: Reason) -> None:
    with pytest.raises(MessageRefused) as refused:
        read(json.dumps(Message(task, 1).payload(queue)).encode(), queue)
    assert refused.value.reason is reason


def asked(engine: Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one_or_none()
