"""Helpers of the tests that start services in homes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil
import pytest
from sqlalchemy import Row, text

from farm.db.engine import make_engine
from farm.errors import EmbeddedServiceMissing
from farm.services.server_binaries import postgres_of_wheel, redis_server
from farm.settings import Settings

HOLD = """
import signal, sys
from farm.services import services
from farm.settings import settings
with services(settings(), broker=sys.argv[1] == "both") as urls:
    print(urls.database_url, urls.broker_url, flush=True)
    sys.stdin.readline()
"""
"""A command of the farm that uses the services until a line comes in or its input ends."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """This environment without any FARM_ variable, for a command that works in `home`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "OTEL_")) and k != "MLFLOW_TRACKING_URI"}
    return {**kept, "FARM_HOME": str(home), "FARM_DEVICE_LOCKS": f"{home}-locks", **more}


def need_embedded_services() -> None:
    """Skips a test where the wheels are missing, but fails it in continuous integration, where they must be there."""
    try:
        postgres_of_wheel()
        redis_server()
    except EmbeddedServiceMissing as missing:
        skip_but_fail_in_ci(str(missing))


def skip_but_fail_in_ci(why: str) -> NoReturn:
    """Skips a test that this machine cannot run, but fails it in continuous integration."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(why)
    pytest.skip(why)


def embedded_settings(home: Path) -> Settings:
    """Settings of a farm with embedded services in `home`, whatever the environment says."""
    return Settings.model_construct(
        **{
            **Settings().model_dump(),
            "home": home,
            "database_url": None,
            "broker_url": None,
            "mlflow_tracking_uri": None,
        }
    )


@contextmanager
def holder(home: Path, what: str = "both") -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the services of a home; `stdout` has its URLs in one line."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, what],
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def urls_of(process: subprocess.Popen[str]) -> list[str]:
    """The URLs that a holder says it uses. Waits until it does."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return line.split()


def let_go(process: subprocess.Popen[str]) -> None:
    """Lets a holder leave in order, and waits for it."""
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert process.wait(120) == 0


def processes_under(*folders: Path) -> list[str]:
    """Every live process that works in one of the folders or below, or names one in its command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            words = [process.cwd(), *process.cmdline()]
            if any(word == str(f) or word.startswith(f"{f}/") for word in words for f in folders):
                found.append(f"{process.pid} {process.cmdline()}")
    return found


def ask(url: str, sql: str) -> Row[tuple[object, ...]] | None:
    """Runs one statement in a transaction of its own and returns its first row."""
    engine = make_engine(url, application="tests", pool_size=1)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(sql))
            return result.first() if result.returns_rows else None
    finally:
        engine.dispose()


_T = TypeVar("_T")


def eventually(condition: Callable[[], _T], seconds: float = 120.0) -> _T:
    """Waits until the condition holds and returns its value; fails where it does not in time."""
    begun = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begun
        assert waited < seconds, "it did not come to hold in time"
        time.sleep(
            min(0.2, max(0.02, waited / 20))
        )  # rarely where it takes long: what is waited for needs the processor
    return found
