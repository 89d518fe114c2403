"""A Redis that answers and refuses to write: everybody waits, says why, and goes on by itself. A real Redis, and a real worker."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, text

import farm
from farm.broker.celery_app import make_app
from farm.campaign import Campaign, load
from farm.coordinator import leading
from farm.coordinator.leading import leadership
from farm.coordinator.loop import Coordinator
from farm.coordinator.metrics import SLOW_SECONDS, FarmCollector, Watch
from farm.db import leadership as leaders
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.services.doctor import examine
from farm.settings import Settings
from support.commands import farm_here
from support.homes import eventually
from support.programs import FARM_WORKER, programs, redis_answers
from support.samples import cpu, document

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"
WAITING = "Trying again in"
"""What a Celery worker logs at each attempt to connect that fails."""

TRAINER = (sys.executable, "-c", "from trainer.main import main; main()")


def _full(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)


def _a_replica(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")


def _unable_to_save(client: redis.Redis) -> None:
    folder = Path(client.config_get("dir")["dir"])
    (folder / "dump.rdb").mkdir()
    client.config_set("stop-writes-on-bgsave-error", "yes")
    client.config_set("save", "3600 1")
    client.bgsave()
    eventually(lambda: not redis_answers(client))  # then even a PING is refused


def _heal(client: redis.Redis) -> None:
    client.config_set("maxmemory", 0)
    client.execute_command("REPLICAOF", "NO", "ONE")
    client.config_set("stop-writes-on-bgsave-error", "no")


@pytest.mark.long
def test_a_worker_and_a_coordinator_wait_for_a_redis_that_refuses_and_go_on(
    engine: Engine, submit: Callable[[Campaign], Stored], broker: redis.Redis, redis_port: int, tmp_path: Path,
    database_url: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    url = f"redis://127.0.0.1:{redis_port}/0"
    campaign = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000)
    with programs(tmp_path, FARM_DATABASE_URL=database_url, FARM_BROKER_URL=url) as start, make_app(url) as app:
        coordinator = Coordinator(engine, app, Settings(resend_after_seconds=0.5))
        worker = start(FARM_WORKER, "--devices", f"recorded:{RECORDING}")
        eventually(lambda: asked(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))

        def all_done() -> bool:
            coordinator.turn()
            return asked(engine, "SELECT count(*) FROM jobs WHERE state <> 'done'") == 0

        for number, refuse in enumerate((_full, _a_replica, _unable_to_save)):
            refuse(broker)
            submit(Campaign.from_document({**campaign.document, "name": f"refused-{number}"}))
            caplog.clear()
            attempts = worker.log().count(WAITING)
            with caplog.at_level(logging.WARNING):
                for _ in range(3):
                    coordinator.turn()
                if refuse is not _full:  # taking messages needs no memory
                    eventually(lambda: worker.log().count(WAITING) > attempts)  # noqa: B023
                _heal(broker)
                eventually(all_done)
            messages = [record.getMessage() for record in caplog.records if "broker" in record.getMessage()]
            assert [message.partition(" (")[0] for message in messages] == [
                "the broker takes no messages",
                "the broker takes messages again",
            ]
        assert worker.is_alive()
        assert asked(engine, "SELECT count(*) FROM measurements") == 3 * 270
        assert worker.stop() == 0


@pytest.mark.long
def test_programs_that_start_while_redis_refuses_wait_and_doctor_names_the_reason(
    engine: Engine, broker: redis.Redis, redis_port: int, tmp_path: Path, database_url: str
) -> None:
    _a_replica(broker)
    url = f"redis://127.0.0.1:{redis_port}/0"
    reason = f"waiting for the broker at {url}: You can't write against a read only replica."
    with programs(tmp_path, FARM_DATABASE_URL=database_url, FARM_BROKER_URL=url) as start:
        trainer = start(TRAINER, name="trainer")
        eventually(lambda: reason in trainer.log())
        (check,) = [
            one
            for one in examine(Settings(home=tmp_path / ".farm", database_url=database_url, broker_url=url))
            if one.check == "broker"
        ]
        assert check.state == "missing"
        assert "read only replica" in check.what
        _heal(broker)
        eventually(lambda: b"gemm-farm:train" in {client["name"].encode() for client in broker.client_list()})
        assert trainer.stop() == 0


@pytest.mark.long
def test_a_coordinator_whose_redis_refuses_names_the_step_until_it_works_again(
    engine: Engine, submit: Callable[[Campaign], Stored], announce: Callable[[DeviceIdentity], int], broker: redis.Redis,
    redis_port: int, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(leading, "RENEW_SECONDS", 0.05)
    url = f"redis://127.0.0.1:{redis_port}/0"
    command, watch = farm_here(tmp_path, database_url), Watch()
    announce(cpu())
    submit(Campaign.from_document(document()))
    with make_app(url) as app, leadership(engine, threading.Event(), watch) as lead:
        assert lead is not None
        coordinator = Coordinator(lead.engine, app, Settings(), watch)

        def failing() -> dict[str, str]:
            with engine.connect() as connection:
                return {one.step: one.error for one in leaders.read(connection).failing}

        def seconds() -> float:
            (gauge,) = (one for one in FarmCollector(engine, watch, Settings()).collect() if "failing" in one.name)
            return {sample.labels["step"]: sample.value for sample in gauge.samples}["send"]

        _a_replica(broker)
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                coordinator.turn()
        assert len([one for one in caplog.records if "takes no messages" in one.getMessage()]) == 1
        assert not [one for one in caplog.records if "step send" in one.getMessage()]
        eventually(lambda: "send" in failing())
        assert "read only replica" in failing()["send"]
        assert seconds() > 0
        assert "its step send has failed" in command("status").stderr
        doctor = command("doctor", FARM_BROKER_URL=url).stdout
        assert "its step send has failed" in doctor
        assert "read only replica" in doctor
        _heal(broker)
        eventually(
            lambda: (coordinator.turn(), asked(engine, "SELECT count(*) FROM batches WHERE sent_at IS NULL"))[1] == 0
        )
        eventually(lambda: failing() == {})
        assert seconds() == 0


def test_a_step_that_does_not_end_is_named_in_time_for_a_status_within_ten_seconds() -> None:
    assert SLOW_SECONDS + leading.RENEW_SECONDS < 10


def asked(engine: Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one_or_none()
