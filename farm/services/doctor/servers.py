"""What Postgres, the broker, the model registry and the running stack are asked."""

from __future__ import annotations

import re
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from farm.db.engine import check_reachable
from farm.db.states import DeviceState
from farm.errors import FarmError, HomeMoved, OtherPostgresVersion, first_line
from farm.formatting import seconds_text, some_of
from farm.installing import INSTALL
from farm.services import urls
from farm.services.background import running_stack
from farm.services.cluster import find_cluster
from farm.services.doctor.asking import asked, database
from farm.services.doctor.check import Check, CheckState
from farm.services.encryption import plain_connections
from farm.services.home import Home
from farm.services.moved import require_not_moved
from farm.services.postgres import EmbeddedPostgres
from farm.services.redis import EmbeddedRedis, why_broker_takes_no_messages
from farm.services.server_binaries import output_of, postgres_of_wheel, redis_server
from farm.settings import Settings

MIN_POSTGRES = 15
CLOCK_WARNING_S = 5.0
"""Leases use the database's clock alone, but logs of two hosts that differ by more cannot be read together."""


def check_database(settings: Settings) -> Check:
    """Whether the database answers, is new enough and takes writes."""
    check = _embedded_database(settings) if settings.embedded_database else _database_of_url(settings)
    if check.state is not CheckState.OK:
        return check
    from farm.db import obstacles

    try:
        with database(settings) as engine:
            if engine is None:
                return check
            with engine.connect() as connection:
                read_only = obstacles.read_only(connection)
    except (FarmError, SQLAlchemyError) as error:
        return Check("database", CheckState.MISSING, first_line(error), "see its log")
    if read_only is None:
        return check
    what = f"{check.what} takes no writes: {read_only.why}"
    return Check("database", CheckState.MISSING, what, read_only.how_to_end)


def _database_of_url(settings: Settings) -> Check:
    try:
        with database(settings) as engine:
            assert engine is not None  # a URL is set
            check_reachable(engine)
            with engine.connect() as connection:
                number = int(connection.execute(text("SHOW server_version_num")).scalar_one())
            what = f"Postgres {number // 10000}.{number % 10000} at {urls.safe_url(str(engine.url))}"
    except (FarmError, SQLAlchemyError) as error:
        return Check("database", CheckState.MISSING, first_line(error), "start it, or correct FARM_DATABASE_URL")
    if number // 10000 < MIN_POSTGRES:
        return Check("database", CheckState.MISSING, what, f"use Postgres {MIN_POSTGRES} or later")
    return Check("database", CheckState.OK, what)


def check_broker(settings: Settings) -> Check:
    if settings.broker_url is None:
        return _embedded_broker(settings)
    try:
        url = urls.broker_url(settings.broker_url.get_secret_value())
    except FarmError as error:
        return Check("broker", CheckState.MISSING, str(error), "correct FARM_BROKER_URL")
    shown = urls.safe_url(url)
    if (why := why_broker_takes_no_messages(url, timeout_s=5.0)) is not None:
        fix = "start it, correct FARM_BROKER_URL, or remove the cause that Redis names; programs wait and go on then"
        return Check("broker", CheckState.MISSING, f"{shown}: {why}", fix)
    version, policy = _redis_facts(url)
    what = f"Redis {version} at {shown}"
    if policy not in ("noeviction", ""):
        fix = "set maxmemory-policy noeviction: messages that Redis drops are sent again only after a while"
        return Check("broker", CheckState.WARNING, f"{what} evicts keys ({policy})", fix)
    return Check("broker", CheckState.OK, what)


def check_encryption(settings: Settings) -> Check:
    """Whether what goes to services on other machines is encrypted."""
    if not (found := plain_connections(settings)):
        return Check("encryption", CheckState.OK, "no connection to another machine goes without TLS")
    fix = 'turn TLS on (docs/operating.md, "Encryption between hosts"), unless a VPN or the network of one machine carries it'
    return Check("encryption", CheckState.WARNING, "; ".join(found), fix)


_LAST_BACKUP = text("""
SELECT name, at, extract(epoch FROM clock_timestamp() - at)::float8 AS age_s FROM audit
WHERE operation = 'backup_create' ORDER BY id DESC LIMIT 1
""")


def check_backup(settings: Settings) -> Check:
    """When the last backup was taken. Whether it is still there is known to its folder alone."""
    found = asked(
        settings,
        "backup",
        lambda connection: connection.execute(_LAST_BACKUP).one_or_none(),
        idle="not known",
    )
    if isinstance(found, Check):
        return found
    if found is None:
        return Check("backup", CheckState.OK, "none was taken with farm backup create")
    ago = seconds_text(found.age_s)
    return Check("backup", CheckState.OK, f"{found.name}, {found.at:%Y-%m-%d %H:%M} UTC, {ago} ago")


def check_coordinator(settings: Settings) -> Check:
    """Whether a coordinator leads, and its steps work."""
    from farm.db import leadership, locks, obstacles

    def ask(connection: Connection) -> tuple[leadership.Leader, str | None]:
        read_only, holders = obstacles.read_only(connection), locks.holders(connection)
        return leadership.read(connection), obstacles.of_leading(read_only=read_only, holders=holders)

    answer = asked(settings, "coordinator", ask, idle="none leads")
    if isinstance(answer, Check):
        return answer
    leader, obstacle = answer
    what = leader.text(obstacle)
    if not leader.leads:
        fix = "start one: farm up, or python -m farm.coordinator; what is submitted waits"
        if obstacle is not None:
            fix = "see database and locks; a coordinator that runs leads within seconds then"
        return Check("coordinator", CheckState.WARNING, what, fix)
    if leader.failing:
        failing = "; ".join(one.text for one in leader.failing)
        return Check("coordinator", CheckState.WARNING, f"{what}; {failing}", "see broker and locks, and read its log")
    return Check("coordinator", CheckState.OK, what)


def check_locks(settings: Settings) -> Check:
    """Sessions that have held locks on tables of the farm for long."""
    from farm.db import locks

    found = asked(settings, "locks", locks.holders, idle="none")
    if isinstance(found, Check):
        return found
    if not found:
        return Check("locks", CheckState.OK, f"no session has held any for {locks.LONG_HOLD_SECONDS:g} s")
    texts = [one.text for one in found]
    fix = "end a session that should not be there: what it holds waits for it"
    return Check("locks", CheckState.WARNING, "; ".join(texts), fix)


def check_devices(settings: Settings) -> Check:
    """Whether the devices that are here take jobs."""
    from farm.db import devices

    silent_after = settings.silent_after_seconds
    found = asked(settings, "devices", lambda c: devices.overview(c, silent_after=silent_after), idle="none live")
    if isinstance(found, Check):
        return found
    live = [one for one in found if one["live"] and one["vanished_at"] is None]
    shut_out = [one for one in live if one["state"] in (DeviceState.PROBATION, DeviceState.QUARANTINED)]
    if shut_out:
        texts = [f"{one['name']} on {one['host']}: {one['state']} ({one['state_reason']})" for one in shut_out]
        fix = "see farm devices: one on probation comes back by a trial, one in quarantine by farm devices resume"
        return Check("devices", CheckState.WARNING, some_of(texts, limit=3, separator="; "), fix)
    return Check("devices", CheckState.OK, f"{len(live)} live" if live else "none live")


def check_sessions(settings: Settings) -> Check:
    """Whether two farm-workers want to serve one device, or measured on it at the same time."""
    from farm.db import device_sessions

    found = asked(settings, "sessions", device_sessions.contended, idle="none")
    if isinstance(found, Check):
        return found
    if not found:
        return Check("sessions", CheckState.OK, "each device is served by one farm-worker")
    fix = "serve each device with one farm-worker, and measure again what is left out"
    return Check("sessions", CheckState.WARNING, "; ".join(one.text for one in found), fix)


def check_registry(settings: Settings) -> Check:
    uri = settings.tracking_uri
    shown = urls.safe_url(uri)
    fix = "start it, or correct MLFLOW_TRACKING_URI"
    if uri.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5):
                return Check("registry", CheckState.OK, shown)
        except (OSError, ValueError) as error:
            return Check("registry", CheckState.MISSING, f"{shown}: {error}", fix)
    if (found := re.fullmatch(r"sqlite:///(.+)", uri)) is None:
        return Check("registry", CheckState.WARNING, f"{shown} cannot be looked into from here", "")
    file = Path(found[1])
    if not file.exists():
        return Check("registry", CheckState.OK, f"{file}, to be made")
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
            models = store.execute("SELECT count(*) FROM registered_models").fetchone()[0]
    except sqlite3.Error as error:
        return Check("registry", CheckState.MISSING, f"{file}: {error}", "move it away, or set MLFLOW_TRACKING_URI")
    return Check("registry", CheckState.OK, f"{file}, {models} registered models")


def check_clock(settings: Settings) -> Check:
    try:
        with database(settings) as engine:
            if engine is None:
                return Check("clock", CheckState.OK, "compared with the database's clock when that runs")
            with engine.connect() as connection:
                before = time.time()
                there = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
                skew_s = there - (before + time.time()) / 2
    except (FarmError, SQLAlchemyError):
        return Check("clock", CheckState.WARNING, "the database's clock cannot be read", "see database")
    what = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database's"
    if abs(skew_s) > CLOCK_WARNING_S:
        return Check("clock", CheckState.WARNING, what, "synchronise the clocks of both hosts (NTP)")
    return Check("clock", CheckState.OK, what)


def check_stack(settings: Settings) -> Check:
    stack = running_stack(settings)
    if stack is None:
        return Check("stack", CheckState.OK, "not up; farm up starts it")
    ended = [name for name, program in stack.programs.items() if program["state"] == "ended"]
    if ended:
        log = stack.programs[ended[0]]["log"]
        return Check("stack", CheckState.WARNING, f"up, but ended: {', '.join(ended)}", f"read {log}")
    restarted = [f"{name} {p['restarts']} times" for name, p in stack.programs.items() if p["restarts"]]
    if restarted:
        return Check(
            "stack", CheckState.WARNING, f"up; restarted: {', '.join(restarted)}", f"read the logs in {stack.home}/logs"
        )
    return Check("stack", CheckState.OK, f"{stack.state}: {', '.join(stack.programs)}")


def _embedded_database(settings: Settings) -> Check:
    fix = f"{INSTALL['embedded']}, or set FARM_DATABASE_URL"
    home = Home.of(settings)
    cluster = find_cluster(home)
    try:
        require_not_moved(home)
    except HomeMoved as error:
        return Check("database", CheckState.MISSING, str(error), "set FARM_DATABASE_URL")
    try:
        # Where another account runs it from a copy, that copy is not made here: the original is asked.
        version = postgres_of_wheel().version()
    except FarmError as error:
        return Check("database", CheckState.MISSING, str(error), fix)
    if version is None:
        return Check("database", CheckState.MISSING, f"{postgres_of_wheel().postgres} cannot be executed", fix)
    if cluster is None or not cluster.data.is_dir():
        return Check("database", CheckState.OK, f"embedded Postgres {version}, data to be made")
    found = (cluster.data / "PG_VERSION").read_text().strip()
    if found != version.partition(".")[0]:
        other = OtherPostgresVersion(data=cluster.data, found=found, installed=version)
        return Check("database", CheckState.MISSING, f"the data in {cluster.data} are of Postgres {found}", str(other))
    runs = "runs" if EmbeddedPostgres(home).running() else "does not run now"
    return Check("database", CheckState.OK, f"embedded Postgres {version} {runs}, data in {cluster.data}")


def _embedded_broker(settings: Settings) -> Check:
    fix = f"{INSTALL['embedded']}, or set FARM_BROKER_URL"
    try:
        server = redis_server()
    except FarmError as error:
        return Check("broker", CheckState.MISSING, str(error), fix)
    output = output_of([str(server), "--version"])
    if output is None:
        return Check("broker", CheckState.MISSING, f"{server} cannot be executed", fix)
    version = found[1] if (found := re.search(r"v=(\S+)", output)) else output
    runs = "runs" if EmbeddedRedis(Home.of(settings)).running() else "does not run now"
    return Check("broker", CheckState.OK, f"embedded Redis {version} {runs}")


def _redis_facts(url: str) -> tuple[str, str]:
    """Version and eviction policy; the policy is empty where the server does not tell."""
    import redis

    with redis.Redis.from_url(urls.redis_client_url(url), socket_timeout=5.0) as client:
        try:
            server, memory = client.info("server"), client.info("memory")
        except redis.exceptions.NoPermissionError:  # only the coordinator's user may ask
            return "", ""
    return str(server.get("redis_version", "")), str(memory.get("maxmemory_policy", ""))
