"""Connections that leave this machine without TLS are named, and stop nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import farm.cli.services as cli
import farm.coordinator.__main__ as coordinator
import trainer.main as trainer
import workers.main as worker
from farm.services.doctor import CheckState
from farm.services.doctor.servers import check_encryption
from farm.services.encryption import plain_connections
from farm.settings import Settings, settings

PLAIN = {
    "database_url": "postgresql://ann:hunter22@db.example/farm",
    "broker_url": "redis://ann:hunter22@cache.example/0",
}


def found(environment: dict[str, str] | None = None, **named: str) -> list[str]:
    return plain_connections(Settings(home=Path("/nowhere"), **named), environment or {})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "sslmode=prefer does not require encryption to db.example"),
        ("?sslmode=disable", "sslmode=disable does not encrypt what goes to db.example"),
        ("?sslmode=allow", "sslmode=allow does not require encryption to db.example"),
        ("?sslmode=require", "sslmode=require does not check the certificate of db.example"),
        ("?sslmode=verify-ca", None),
        ("?sslmode=verify-full", None),
    ],
)
def test_postgres_on_another_machine_needs_a_checked_certificate(query: str, message: str | None) -> None:
    expected = [] if message is None else [f"FARM_DATABASE_URL: {message}"]
    assert found(database_url=f"postgresql://ann:hunter22@db.example:5432/farm{query}") == expected


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:pw@127.0.0.1/farm",
        "postgresql://ann:pw@[::1]:5432/farm",
        "postgresql://ann:pw@LOCALHOST/farm",
        "postgresql://ann:pw@/farm",
        "postgresql+psycopg://ann:pw@/farm?host=/run/postgresql&port=5432",
        "postgresql://ann:pw@db.example/farm?hostaddr=127.0.0.1",
    ],
)
def test_postgres_on_this_machine_needs_none(url: str) -> None:
    assert found(database_url=url) == []


def test_hosts_and_mode_that_libpq_takes_from_elsewhere_count() -> None:
    several = found(database_url="postgresql://ann:pw@/farm?host=127.0.0.1,b.example,c.example")
    assert [text.rpartition(" ")[2] for text in several] == ["b.example", "c.example"]
    assert len(found({"PGHOST": "db.example"}, database_url="postgresql://ann:pw@/farm")) == 1
    assert found({"PGSSLMODE": "verify-full"}, database_url="postgresql://ann:pw@db.example/farm") == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:pw@redis:6379/0", "redis:// does not encrypt what goes to redis"),
        ("redis://10.0.0.5", "redis:// does not encrypt what goes to 10.0.0.5"),
        ("rediss://:pw@cache/0?ssl_cert_reqs=CERT_NONE", "ssl_cert_reqs=none does not check the certificate of cache"),
        ("rediss://:pw@cache/0", None),
        ("redis://:pw@127.0.0.1:6379/0", None),
        ("redis+socket://:pw@/run/redis.sock?virtual_host=0", None),
    ],
)
def test_redis_on_another_machine_needs_tls(url: str, message: str | None) -> None:
    assert found(broker_url=url) == ([] if message is None else [f"FARM_BROKER_URL: {message}"])


@pytest.mark.parametrize(
    ("uri", "environment", "is_named"),
    [
        ("http://mlflow:5000", {"MLFLOW_TRACKING_PASSWORD": "pw"}, True),
        ("http://mlflow:5000", {"MLFLOW_TRACKING_TOKEN": "pw"}, True),
        ("http://ann:pw@mlflow:5000", {}, True),
        ("http://mlflow:5000", {}, False),
        ("http://127.0.0.1:5000", {"MLFLOW_TRACKING_PASSWORD": "pw"}, False),
        ("https://mlflow", {"MLFLOW_TRACKING_PASSWORD": "pw"}, False),
        ("sqlite:////var/lib/mlflow.db", {"MLFLOW_TRACKING_PASSWORD": "pw"}, False),
    ],
)
def test_a_password_for_mlflow_on_another_machine_needs_https(
    uri: str, environment: dict[str, str], is_named: bool
) -> None:
    message = "MLFLOW_TRACKING_URI: http:// does not encrypt the password for mlflow"
    assert found(environment, MLFLOW_TRACKING_URI=uri) == ([message] if is_named else [])


def test_urls_that_cannot_be_read_and_embedded_services_are_none() -> None:
    assert found() == []
    assert found(database_url="mysql://h/farm", broker_url="amqp://h", MLFLOW_TRACKING_URI="http://[h") == []


def test_doctor_warns_and_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = check_encryption(Settings(home=tmp_path, **PLAIN))
    assert (check.check, check.state) == ("encryption", CheckState.WARNING)
    assert "db.example" in check.what
    assert "cache.example" in check.what
    assert "hunter22" not in check.what
    monkeypatch.setattr(cli, "examine", lambda _: [check])
    monkeypatch.setattr(cli, "_check_api", lambda _: [])
    cli.doctor(as_json=True)  # raises typer.Exit where it does not end with 0
    assert check_encryption(Settings(home=tmp_path)).state is CheckState.OK


@contextmanager
def nothing_answers(*_: Any, **__: Any) -> Iterator[None]:
    yield None


def start_worker() -> None:
    worker._command(devices_to_serve="cpu")


@pytest.mark.parametrize(
    ("module", "start"),
    [(coordinator, coordinator.main), (trainer, trainer.main), (worker, start_worker)],
    ids=["coordinator", "trainer", "worker"],
)
def test_programs_warn_once_when_they_start(
    module: Any,
    start: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, url in PLAIN.items():
        monkeypatch.setenv(f"FARM_{name.upper()}", url)
    monkeypatch.setenv("FARM_HOME", str(tmp_path / ".farm"))
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr(module, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(module, "set_on_signals", lambda *_: None)
    if module is worker:
        monkeypatch.setattr(module, "serve", lambda *_: None)
    else:
        monkeypatch.setattr(module, "connected_services", nothing_answers)
    settings.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            start()
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "farm.services.encryption"]
    assert "db.example" in warning
    assert "cache.example" in warning
