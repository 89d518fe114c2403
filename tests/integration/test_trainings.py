"""A training that was asked for happens, whatever becomes of its message and of its trainer; and it happens once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine, text

from farm import registry
from farm.api.trainings import TrainingRequest
from farm.broker.celery_app import make_app
from farm.broker.queues import BUILD_QUEUE, TRAIN, TRAIN_QUEUE
from farm.campaign import Campaign
from farm.cli.training import train_here
from farm.coordinator.loop import Coordinator
from farm.coordinator.task_dispatch import SILENT_SECONDS, trainings_of
from farm.db import measurements, trainings
from farm.db.campaigns import Stored
from farm.db.farm_key import farm_key
from farm.db.states import TrainingState
from farm.db.task_rows import MAX_ATTEMPTS
from farm.db.trainings import TrainingAttempt
from farm.devices import DeviceIdentity
from farm.errors import TaskLost
from farm.services import ServiceUrls
from farm.services.consumers import is_consumed
from farm.services.session import Session
from farm.settings import Settings
from farm.tracing import ids_of_training
from support.cheap_training import cheap_trainings
from support.homes import environment, eventually
from support.otlp_collector import Collector, collecting
from support.samples import cpu, document, row
from support.training_tables import tiled_table
from trainer import tasks
from trainer.forest import ForestSettings
from trainer.registry import TrainingOutcome, train_and_register


@pytest.fixture
def broker(farm_services: ServiceUrls) -> Iterator[redis.Redis]:
    """Redis, in which no training waits before and after the test."""
    assert farm_services.broker_url is not None
    with make_app(farm_services.broker_url) as app, app.connection_for_write() as connection:
        client: redis.Redis = connection.default_channel.client
        client.delete(TRAIN_QUEUE)
        yield client
        client.delete(TRAIN_QUEUE)


@pytest.fixture
def app(farm_services: ServiceUrls, broker: redis.Redis) -> Iterator[Celery]:
    assert farm_services.broker_url is not None
    with make_app(farm_services.broker_url) as made:
        yield made


def asked(engine: Engine, **changes: Any) -> int:
    with engine.begin() as connection:
        return trainings.request(connection, **{"device_type": "cpu-test", **changes})


def started(engine: Engine, training_id: int) -> TrainingAttempt:
    with engine.begin() as connection:
        found = trainings.start(connection, training_id)
    assert found is not None
    return found


def stored(engine: Engine, training_id: int) -> dict[str, Any]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT * FROM trainings WHERE id = :id"), {"id": training_id})
        return dict(found.mappings().one())


def silent(engine: Engine, seconds: float = SILENT_SECONDS + 1) -> None:
    """As if nothing had been heard of any trainer for that long."""
    with engine.begin() as connection:
        older = (
            "heard_of_at - make_interval(secs => :seconds), started_at = started_at - make_interval(secs => :seconds)"
        )
        connection.execute(text(f"UPDATE trainings SET heard_of_at = {older}"), {"seconds": seconds})


def taken_back(engine: Engine) -> dict[int, TrainingState]:
    with engine.begin() as connection:
        return trainings.take_back(connection, silent_after=SILENT_SECONDS, max_attempts=MAX_ATTEMPTS)


# --- on the SQL level ----------------------------------------------------------------------------------


def test_a_training_starts_once_however_often_its_message_comes(engine: Engine) -> None:
    training_id = asked(engine, any_source=True)
    assert started(engine, training_id) == TrainingAttempt(training_id, 1, "cpu-test", True)
    with engine.begin() as connection:
        assert trainings.start(connection, training_id) is None
        assert trainings.start(connection, training_id + 1) is None


def test_a_training_whose_trainer_fell_silent_is_started_again_and_given_up_after_three_starts(engine: Engine) -> None:
    training_id = asked(engine)
    for number in (1, 2, 3):
        assert started(engine, training_id).number == number
        assert taken_back(engine) == {}
        silent(engine, SILENT_SECONDS - 10)
        assert taken_back(engine) == {}
        silent(engine)
        assert taken_back(engine) == {training_id: "requested" if number < 3 else "failed"}
    found = stored(engine, training_id)
    assert (found["state"], found["starts"]) == ("failed", 3)
    assert found["error"] == "its trainer died or fell silent, 3 times in a row; the log of the trainer may say why"
    assert found["finished_at"] > found["started_at"]
    assert taken_back(engine) == {}


def test_a_trainer_that_is_heard_of_keeps_its_training(engine: Engine) -> None:
    first = started(engine, asked(engine))
    silent(engine)
    with engine.begin() as connection:
        assert trainings.beat(connection, first)
    assert taken_back(engine) == {}


def test_a_trainer_says_how_far_it_is_and_the_next_one_begins_anew(engine: Engine) -> None:
    training_id = asked(engine)
    first = started(engine, training_id)
    for share, stored_share in ((None, None), (0.25, 0.25), (None, 0.25)):
        with engine.begin() as connection:
            assert trainings.beat(connection, first, progress=share)
            assert trainings.read(connection, training_id)["progress"] == stored_share
    silent(engine)
    taken_back(engine)
    second = started(engine, training_id)
    with engine.begin() as connection:
        assert not trainings.beat(connection, first, progress=0.9)
        assert trainings.read(connection, training_id)["progress"] is None
        assert trainings.beat(connection, second, progress=0.5)
        found = trainings.read(connection, training_id)
    assert found["progress"] == 0.5
    assert found["running_s"] >= 0


def test_a_trainer_that_comes_back_after_another_took_over_changes_nothing(engine: Engine) -> None:
    training_id = asked(engine)
    first = started(engine, training_id)
    silent(engine)
    assert taken_back(engine) == {training_id: "requested"}
    for _ in ("while it waits for another trainer", "while another trains"):
        before = stored(engine, training_id)
        with engine.begin() as connection:
            assert not trainings.beat(connection, first)
            assert not trainings.finish(connection, first, outcome={"rows": 1})
            assert not trainings.finish(connection, first, error="it was paused")
        assert stored(engine, training_id) == before
        if before["state"] == "requested":
            second = started(engine, training_id)
    with engine.begin() as connection:
        assert trainings.finish(connection, second, outcome={"rows": 2})
        assert not trainings.finish(connection, second, error="twice")
    found = stored(engine, training_id)
    assert (found["state"], found["outcome"], found["error"]) == ("done", {"rows": 2}, None)


def test_a_training_that_ran_before_the_database_was_upgraded_is_started_again(engine: Engine) -> None:
    training_id = asked(engine)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE trainings SET state = 'running', started_at = clock_timestamp() - interval '1 h'")
        )
    assert taken_back(engine) == {training_id: "requested"}


def test_the_longer_a_request_waits_the_more_rarely_it_is_sent(engine: Engine) -> None:
    training_id = asked(engine)

    def due(waited_s: float, since_sent_s: float) -> bool:
        with engine.begin() as connection:
            connection.execute(
                text("""
                    UPDATE trainings SET sent_at = clock_timestamp() - make_interval(secs => :since),
                        requested_at = clock_timestamp() - make_interval(secs => :since + :waited)
                """),
                {"since": since_sent_s, "waited": waited_s},
            )
            return trainings.unsent(connection, resend_after=15) == [training_id]

    assert [due(1, 14), due(1, 16)] == [False, True]
    assert [due(3600, 350), due(3600, 370)] == [False, True]


# --- memory ------------------------------------------------------------------------------------------


def out_of_memory(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("place", "does", "why"),
    [
        (
            "farm.host_memory.available_bytes",
            lambda: 0,
            "is not trained: 12 rows of 12 configurations take about 0.0 GiB",
        ),
        (
            "trainer.reading.read_training_table",
            out_of_memory,
            "The trainer ran out of memory while it trained a model",
        ),
        ("trainer.learn.configurations", out_of_memory, "The trainer ran out of memory while it trained a model"),
    ],
    ids=["estimated", "while reading", "while training"],
)
def test_a_training_without_memory_says_why_and_the_trainer_goes_on_to_the_next(
    engine: Engine,
    measured: Engine,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    does: Callable[..., object],
    why: str,
) -> None:
    monkeypatch.setattr(tasks, "engine", lambda: engine.execution_options(isolation_level="AUTOCOMMIT"))
    training_id, next_id = asked(engine), asked(engine, device_type="another")
    with monkeypatch.context() as without_memory:
        without_memory.setattr(place, does)
        tasks.train(training_id)
    found = stored(engine, training_id)
    assert (found["state"], found["starts"]) == ("failed", 1)
    assert why in found["error"]
    assert "Start a trainer where more memory is free" in found["error"]
    tasks.train(next_id)
    assert "another has 0 measured configurations" in stored(engine, next_id)["error"]


# --- deciding ----------------------------------------------------------------------------------------


def waits_to_decide(engine: Engine) -> bool:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        return found.first() is not None


def test_one_trainer_at_a_time_decides_on_a_model_and_others_on_other_models(engine: Engine) -> None:
    came: list[str] = []

    def decide() -> None:
        with trainings.deciding(engine, "gemm-forest-a"):
            came.append("another trainer")

    with trainings.deciding(engine, "gemm-forest-a") as connection:
        waiting = threading.Thread(target=decide)
        waiting.start()
        eventually(lambda: waits_to_decide(engine))
        with trainings.deciding(engine, "gemm-forest-b"):
            came.append("of another model")
        connection.execute(text("SELECT 1"))
        assert waiting.is_alive()
    waiting.join(120)
    assert came == ["of another model", "another trainer"]


def test_a_trainer_that_may_no_longer_decide_is_told_before_it_registers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    monkeypatch.setattr(tasks, "engine", lambda: autocommit)
    first, second = started(engine, asked(engine)), started(engine, asked(engine))
    monkeypatch.setattr(trainings, "DECISION_SECONDS", 0.2)
    with tasks._deciding(first) as check:
        check()
        monkeypatch.setattr(trainings, "DECISION_SECONDS", 600)
        with tasks._deciding(second) as check_second:  # the first stands still for too long
            check_second()
            with pytest.raises(TaskLost, match=f"training {first.training_id} is no longer held"):
                check()
            silent(engine)
            assert second.training_id in taken_back(engine)
            with pytest.raises(TaskLost, match=f"training {second.training_id} is no longer held"):
                check_second()


@pytest.mark.filterwarnings("ignore")  # of MLflow's: what is said to Python about warnings is said to all threads
def test_of_two_trainings_that_decide_at_the_same_time_the_later_is_judged_against_the_earlier(
    engine: Engine, tracking_uri: str
) -> None:
    table, both = tiled_table((256, 512, 1024)), threading.Barrier(2)

    @contextmanager
    def deciding() -> Iterator[Callable[[], None]]:
        both.wait(120)
        with trainings.deciding(engine, "gemm-forest-test-device"):
            yield lambda: None

    def train(seed: int) -> TrainingOutcome:
        of = {"tracking_uri": tracking_uri, "code_version": "1.0", "settings": ForestSettings(trees=10, seed=seed)}
        return train_and_register(table, "test-device", deciding=deciding, **of)  # type: ignore[arg-type]

    with cheap_trainings(), ThreadPoolExecutor(2) as pool:
        first, second = sorted(pool.map(train, (0, 1)), key=lambda outcome: outcome.version)
    assert (first.version, second.version) == ("1", "2")
    assert "there was no champion before" in first.decision
    assert "champion version 1" in second.decision


# --- the coordinator and the command line --------------------------------------------------------------


def test_the_coordinator_sends_what_was_asked_for_and_sends_it_again_where_redis_lost_it(
    engine: Engine, app: Celery, broker: redis.Redis
) -> None:
    training_id = asked(engine)
    Coordinator(engine, app, Settings()).turn()
    Coordinator(engine, app, Settings()).turn()
    assert broker.llen(TRAIN_QUEUE) == 1
    broker.delete(TRAIN_QUEUE)
    Coordinator(engine, app, Settings(resend_after_seconds=0.001)).turn()
    assert broker.llen(TRAIN_QUEUE) == 1
    started(engine, training_id)
    Coordinator(engine, app, Settings(resend_after_seconds=0.001)).turn()
    assert broker.llen(TRAIN_QUEUE) == 1


def test_a_broker_that_is_away_delays_a_training_and_no_more(engine: Engine, app: Celery, broker: redis.Redis) -> None:
    asked(engine)
    with make_app("redis://127.0.0.1:1/0") as nowhere:
        assert not trainings_of(engine, nowhere, Settings()).reconcile()
    assert trainings_of(engine, app, Settings()).reconcile()
    assert broker.llen(TRAIN_QUEUE) == 1


def test_a_training_is_given_up_by_the_coordinator(engine: Engine, app: Celery, broker: redis.Redis) -> None:
    training_id = asked(engine)
    for _ in range(MAX_ATTEMPTS):
        started(engine, training_id)
        silent(engine)
        Coordinator(engine, app, Settings()).turn()
    assert stored(engine, training_id)["state"] == "failed"
    assert broker.llen(TRAIN_QUEUE) == MAX_ATTEMPTS - 1


# --- real trainers -------------------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]

TRAINER = """
import os, pathlib, time
from farm.services import task_runner
from support.cheap_training import cheap_trainings
from trainer import main, registry

folder = pathlib.Path(os.environ["TEST_FOLDER"])

def slowly(*arguments):
    learned = learn_once(*arguments)
    (folder / f"learned-{os.getpid()}").touch()
    while not (folder / f"go-on-{os.getpid()}").exists():
        time.sleep(0.02)
    return learned

task_runner.HEARTBEAT_SECONDS = 0.1
with cheap_trainings():
    learn_once = registry.learn
    if "TEST_SLOWLY" in os.environ:
        registry.learn = slowly
    main.main()
"""
"""`farm-trainer`, which speaks more often and learns less; a slow one does not finish learning before it is told to go on."""


class Trainer:
    """A trainer as a process."""

    def __init__(self, folder: Path, variables: dict[str, str], *, slow: bool) -> None:
        self._folder = folder
        self._log = folder / "trainer.log"
        more = {**variables, "TEST_FOLDER": str(folder), **({"TEST_SLOWLY": "1"} if slow else {})}
        with self._log.open("ab") as output:
            command = [sys.executable, "-c", TRAINER]
            variables = environment(folder / ".farm", **more)
            self._process = subprocess.Popen(command, cwd=TESTS, env=variables, stderr=output)

    def log(self) -> str:
        return self._log.read_text()

    def has_learned(self) -> bool:
        assert self._process.poll() is None, self.log()
        return (self._folder / f"learned-{self._process.pid}").exists()

    def go_on(self) -> None:
        (self._folder / f"go-on-{self._process.pid}").touch()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(120)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def tracking_uri(tmp_path: Path, new_registry: Callable[[Path], str]) -> str:
    return new_registry(tmp_path)


@pytest.fixture
def trainer(
    tmp_path: Path, database_url: str, farm_services: ServiceUrls, broker: redis.Redis, tracking_uri: str
) -> Iterator[Callable[..., Trainer]]:
    made = []

    def start(*, slow: bool = False, **more: str) -> Trainer:
        urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
        made.append(Trainer(tmp_path, {**urls, "MLFLOW_TRACKING_URI": tracking_uri, **more}, slow=slow))
        return made[-1]

    yield start
    for one in made:
        one.kill()


def test_a_trainer_that_is_up_is_seen_at_the_broker(
    engine: Engine, trainer: Callable[..., Trainer], database_url: str, farm_services: ServiceUrls
) -> None:
    here = Settings(database_url=database_url, broker_url=str(farm_services.broker_url))
    assert is_consumed(here, TRAIN_QUEUE) is False
    one = trainer()
    eventually(lambda: is_consumed(here, TRAIN_QUEUE) is True)
    assert is_consumed(here, BUILD_QUEUE) is False
    one.kill()
    eventually(lambda: is_consumed(here, TRAIN_QUEUE) is False)


@pytest.fixture
def measured(engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]) -> Engine:
    """A device with enough measurements to learn from."""
    device_id = announce(cpu())
    campaign_id = submit(Campaign.from_document(document())).campaign_id
    with engine.begin() as connection:
        ids = connection.execute(text("SELECT id FROM configurations ORDER BY id")).scalars().all()
        rows = [(None, campaign_id, UUID(str(i)), device_id, row(float(at + 1))) for at, i in enumerate(ids)]
        measurements.insert(connection, rows)
    return engine


def is_done(engine: Engine, training_id: int) -> bool:
    found = stored(engine, training_id)
    assert found["state"] != "failed", found["error"]
    return bool(found["state"] == "done")


def heard_of_after_s(engine: Engine, training_id: int) -> float:
    """From the start of the training to the last time that its trainer was heard of."""
    found = stored(engine, training_id)
    return float((found["heard_of_at"] - found["started_at"]).total_seconds())


@pytest.mark.long
def test_a_training_whose_trainer_is_killed_in_the_middle_is_carried_out_by_another(
    measured: Engine, app: Celery, trainer: Callable[..., Trainer], tracking_uri: str
) -> None:
    training_id = asked(measured)
    Coordinator(measured, app, Settings()).turn()
    first = trainer(slow=True)
    eventually(first.has_learned)
    silent(measured)
    eventually(lambda: heard_of_after_s(measured, training_id) > SILENT_SECONDS)  # it speaks, so the silence ends
    assert taken_back(measured) == {}
    first.kill()
    silent(measured)
    Coordinator(measured, app, Settings()).turn()
    assert stored(measured, training_id)["state"] == "requested"
    trainer()
    eventually(lambda: is_done(measured, training_id))
    assert stored(measured, training_id)["starts"] == 2
    assert [model.version for model in registry.list_models(tracking_uri)] == ["1"]


@pytest.mark.long
def test_a_trainer_that_was_paused_and_comes_back_registers_and_writes_nothing(
    measured: Engine, app: Celery, trainer: Callable[..., Trainer], tracking_uri: str
) -> None:
    training_id = asked(measured)
    Coordinator(measured, app, Settings()).turn()
    first = trainer(slow=True)
    eventually(first.has_learned)
    first.send(signal.SIGSTOP)
    silent(measured)
    Coordinator(measured, app, Settings()).turn()
    trainer()
    eventually(lambda: is_done(measured, training_id))
    before = stored(measured, training_id)
    first.go_on()
    first.send(signal.SIGCONT)
    eventually(lambda: first.log().count("is no longer held here") >= 2)  # its heartbeat's, and the training's own
    assert stored(measured, training_id) == before
    assert [(model.version, model.aliases) for model in registry.list_models(tracking_uri)] == [("1", ("challenger",))]


def test_farm_train_gets_its_model_without_a_coordinator_though_the_message_is_lost(
    measured: Engine, broker: redis.Redis, farm_services: ServiceUrls, trainer: Callable[..., Trainer]
) -> None:
    opened = Session(Settings(resend_after_seconds=1), farm_services, measured)
    came: dict[str, Any] = {}

    def ask() -> None:
        came.update(train_here(opened, TrainingRequest(device_types=["cpu-test"]), check=lambda: None))

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: broker.delete(TRAIN_QUEUE))
    with collecting() as collector:
        one = trainer(FARM_OTEL_ENDPOINT=collector.url)
        asking.join(120)
        assert came["cpu-test"].state == "done", came
        assert came["cpu-test"].outcome["rows"] == 12
        one.stop()
    check_spans(collector, measured, came["cpu-test"].id)


def check_spans(collector: Collector, engine: Engine, training_id: int) -> None:
    """A training is one trace, from its request to the decision."""
    trace = f"{ids_of_training(str(farm_key(engine)), training_id).trace:032x}"
    (trained,) = collector.named("run training")
    assert (trained.program, trained.trace, trained.parent, trained.failed) == ("gemm-farm-trainer", trace, "", False)
    attributes = {name.removeprefix("gemm_farm."): value for name, value in trained.attributes.items()}
    assert attributes == {
        "training.id": training_id, "training.attempt": 1, "device.type": "cpu-test", "rows": 12,
        "model.name": "gemm-forest-cpu-test", "model.version": "1", "model.alias": "challenger",
    }  # fmt: skip
    parts = [one for one in collector.spans if one.parent == trained.span]
    assert [one.name for one in parts] == ["wait for trainer", "read rows", "train model", "decide promotion"]
    assert {one.trace for one in parts} == {trace}
    assert parts[0].began_ns == trained.began_ns
    found = stored(engine, training_id)
    waited_s = (found["started_at"] - found["requested_at"]).total_seconds()
    assert 1e-9 * (parts[0].ended_ns - parts[0].began_ns) == pytest.approx(waited_s, abs=1e-5)
    for earlier, later in pairwise(parts):
        assert earlier.ended_ns <= later.began_ns
    assert parts[-1].ended_ns <= trained.ended_ns


@pytest.mark.long
def test_messages_that_name_no_training_are_refused_and_harm_nothing(
    measured: Engine, app: Celery, trainer: Callable[..., Trainer]
) -> None:
    one = trainer()
    for arguments in (["1"], [True], [1.5], [None], [[1]], [], [1, 2], [10**30]):
        app.send_task(TRAIN, args=arguments, queue=TRAIN_QUEUE)
    app.send_task("trainer.no_such_task", args=[1], queue=TRAIN_QUEUE)
    app.send_task(TRAIN, args=[1], queue=TRAIN_QUEUE, serializer="pickle")
    training_id = asked(measured)
    app.send_task(TRAIN, args=[training_id], queue=TRAIN_QUEUE)
    eventually(lambda: is_done(measured, training_id))
    assert stored(measured, training_id)["starts"] == 1
    assert one.log().count("refused") == 1  # in a minute, one line for all
