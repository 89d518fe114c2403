"""Passwords and tokens do not appear in what people read: messages, logs, tracebacks, the settings that are shown."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from farm.db.engine import check_reachable, make_engine, sqlalchemy_url
from farm.errors import BadInput, BadServiceUrl, DatabaseUnreachable, RegistryUnreachable
from farm.logs import set_up_logging
from farm.masking import masked
from farm.services.urls import safe_url
from farm.settings import Settings
from support.commands import called
from support.homes import environment

SECRET = "hunter22"

URLS = [
    f"postgresql://ann:{SECRET}@db/farm",
    f"postgresql+psycopg://ann:{SECRET}@db/farm?sslmode=require",
    f"postgresql://ann:%68{SECRET}@db/farm",
    f"postgresql://ann:a@{SECRET}@db/farm",
    f"postgresql://ann:a/{SECRET}@db/farm",
    f"postgresql://db/farm?user=ann&password={SECRET}",
    f"postgresql://db/farm?PASSWORD={SECRET}&user=ann",
    f"postgresql://db/farm?sslkey=k&sslpassword={SECRET}",
    f"postgresql://db/farm?p%61ssword={SECRET}",
    f"postgresql://db/farm?ssl%70assword={SECRET}",
    f"host=db user=ann password={SECRET} dbname=farm",
    f"host=db password = '{SECRET} and more' dbname=farm",
    f"host=db password='it\\'s {SECRET}'",
    f"redis://:{SECRET}@cache:6379/0",
    f"redis://{SECRET}@cache:6379/0",
    f"rediss://ann:{SECRET}@cache/0?ssl_cert_reqs=required",
    f"redis+socket://:{SECRET}@/run/redis.sock?virtual_host=0",
    f"unix:///run/redis.sock?db=0&password={SECRET}",
    f"redis://cache/0?ssl_password={SECRET}",
    f"http://ann:{SECRET}@mlflow:5000",
    f"https://{SECRET}@mlflow",
    f"https://mlflow/api?token={SECRET}",
    f"https://bucket/x?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}",
]


@pytest.mark.parametrize("url", URLS)
def test_no_form_of_a_url_shows_its_secret(url: str) -> None:
    assert SECRET not in safe_url(url)
    assert SECRET not in masked(f"connection to {url} failed: timeout")
    assert SECRET not in str(BadInput(detail=f"{url}: no"))


@pytest.mark.parametrize(
    "text",
    [
        f"FARM_API_TOKEN={SECRET}",
        f"PGPASSWORD='{SECRET}' psql",
        f'{{"user": "ann", "password": "{SECRET}"}}',
        f"{{'sslpassword': '{SECRET}'}}",
        f"Authorization: Bearer {SECRET}",
    ],
)
def test_other_forms_are_masked_too(text: str) -> None:
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "write postgresql://user:password@host:5432/database",
        "the broker at redis://cache:6379/0 does not answer",
        "postgresql://ann@db/farm?sslmode=require&connect_timeout=2",
        "tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0",
        "http://127.0.0.1:8000/campaigns/9f?next=2&type=cpu",
        "The token ends in 7 days. Make one: farm tokens create NAME",
        "lease=17 batch_id=3 job_id=4",
    ],
)
def test_what_holds_no_secret_is_left_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_a_connection_string_that_is_no_url_is_refused_without_its_password() -> None:
    with pytest.raises(BadServiceUrl) as refused:
        sqlalchemy_url(f"host=db {SECRET} password={SECRET}")
    assert SECRET not in str(refused.value)
    assert "write postgresql://user:password@host" in str(refused.value)


def test_a_database_that_does_not_answer_is_named_without_its_passwords() -> None:
    url = f"postgresql+psycopg://ann@127.0.0.1:1/farm?password={SECRET}&sslpassword={SECRET}"
    engine = make_engine(url, application="test")
    with pytest.raises(DatabaseUnreachable) as refused:
        check_reachable(engine)
    assert SECRET not in str(refused.value)


def test_a_registry_that_does_not_answer_is_named_without_its_password() -> None:
    for url in (f"http://ann:{SECRET}@mlflow:5000", f"http://{SECRET}@mlflow", f"http://mlflow?token={SECRET}"):
        assert SECRET not in str(RegistryUnreachable(url=url, why=f"no answer from {url}"))


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("FARM_API_URL", f"http://ann:{SECRET}@host:port"),
        ("FARM_API_URL", f"ftp://host/?token={SECRET}"),
        ("FARM_API_URL", f"https://{SECRET}@host"),
        ("FARM_DATABASE_URL", f"host=db password={SECRET}"),
        ("FARM_DATABASE_URL", f"postgresql://127.0.0.1:1/farm?password={SECRET}"),
        ("FARM_DATABASE_URL", f"postgresql://127.0.0.1:1/farm?p%61ssword={SECRET}"),
    ],
)
def test_a_command_does_not_print_them(tmp_path: Path, variable: str, url: str) -> None:
    done = called(["status"], tmp_path, environment(tmp_path / ".farm", **{variable: url}))
    assert done.returncode in (2, 3), done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_settings_that_are_shown_hold_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://mlflow?token={SECRET}")
    monkeypatch.setenv("FARM_DATABASE_URL", URLS[0])
    assert SECRET not in str(Settings().in_force) + repr(Settings())


@pytest.mark.parametrize("as_json", [False, True])
def test_logs_hold_none_in_messages_arguments_and_tracebacks(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back at the end
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        set_up_logging(Settings(log_json=as_json), "test")
        try:
            raise ConnectionError(f"cannot reach {URLS[0]}, {URLS[5]}")
        except ConnectionError:
            logging.getLogger("farm.test").exception("gone: %s", URLS[13], extra={"url": URLS[0]})
        sys.excepthook(ValueError, ValueError(URLS[10]), None)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    text = written.getvalue()
    assert SECRET not in text
    assert text.count("***") >= 4
    if as_json:
        assert json.loads(text.splitlines()[0])["url"] == masked(URLS[0])


def test_a_defect_shows_none_even_in_its_traceback(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from farm.cli import app\n"
        f"def broken(*_, **__): raise RuntimeError('no answer from {URLS[0]} or {URLS[5]}')\n"
        "app.app = broken\n"
        "app.main()\n"
    )
    line = [sys.executable, "-c", script]
    variables = environment(tmp_path / ".farm", FARM_LOG_LEVEL="DEBUG")
    done = subprocess.run(line, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "This is a defect of the farm: RuntimeError: no answer from postgresql://ann:***@" in done.stderr
    # The first line of the script is no secret; Python shows no source of it.
    assert SECRET not in done.stderr
