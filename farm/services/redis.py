"""The embedded Redis: a server on a Unix socket without persistence, since Postgres is the source of truth."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from farm.broker.replies import require_writable
from farm.errors import EmbeddedServiceFailed
from farm.services.home import Home
from farm.services.log_rotation import set_aside
from farm.services.processes import all_working_in, end_with, last_lines, works_in
from farm.services.server_binaries import redis_server
from farm.services.urls import embedded_broker_url, redis_client_url
from farm.settings import settings

if TYPE_CHECKING:
    import redis

START_TIMEOUT_S = 20.0
PROGRAMS = ("redis-server", "valkey-server")
"""Possible names of the process: in some distributions `redis-server` starts Valkey."""

_CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
requirepass {password}
daemonize yes
pidfile {pidfile}
dir {folder}
logfile {log}
loglevel notice
save ""
appendonly no
maxmemory-policy noeviction
"""


class EmbeddedRedis:
    """Redis for one home. See `farm.services.usage` for its life."""

    name = "Redis"
    key = "redis"

    def __init__(self, home: Home) -> None:
        self._home = home
        self._log = home.log(self.key)
        self._folder = home.path / "redis"
        self._pidfile = self._folder / "redis.pid"
        self._sockets = home.short_folder(self._folder, "redis.sock", None)
        self._socket = self._sockets / "redis.sock"

    @property
    def url(self) -> str:
        """The URL as kombu and Celery take it."""
        return embedded_broker_url(socket=str(self._socket), password=self._home.passwords()[self.key])

    def running(self) -> bool:
        return self._pid() is not None and self._answers() is None

    def start(self) -> None:
        server = redis_server()
        self._home.make_private(self._folder, None)
        self._home.make_private(self._sockets, None)
        # One that does not answer, or whose note is gone, cannot be used again, and it holds nothing to lose.
        self._end(all_working_in(self._folder, *PROGRAMS))
        self._socket.unlink(missing_ok=True)
        self._pidfile.unlink(missing_ok=True)
        set_aside(self._log, settings().log_max_bytes)
        since = self._log.stat().st_size if self._log.exists() else 0
        # Through its standard input: a command line would show the password to every user of the machine.
        launched = subprocess.run(
            [str(server), "-"],
            input=self._configuration(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
            env={"LC_ALL": "C", "PATH": os.defpath},
            start_new_session=True,
            umask=0o077,
            check=False,
        )
        if launched.returncode != 0:
            lines = [line for line in launched.stdout.splitlines() if line.strip()]
            self._fail(lines[-1] if lines else f"it ended with {launched.returncode}")
        self._wait_ready(since)

    def stop(self) -> None:
        if (pid := self._pid()) is not None:
            self._end([pid])

    def _configuration(self) -> str:
        return _CONFIGURATION.format(
            socket=_quoted(self._socket),
            pidfile=_quoted(self._pidfile),
            folder=_quoted(self._folder),
            log=_quoted(self._log),
            password=self._home.passwords()[self.key],
        )

    def _wait_ready(self, since: int) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while (why := self._answers()) is not None or self._pid() is None:
            live = all_working_in(self._folder, *PROGRAMS)
            if not live:
                self._fail(last_lines(self._log, since=since))
            if time.monotonic() > end:
                self._end(live)
                self._fail(f"no answer within {START_TIMEOUT_S:.0f} s ({why}): {last_lines(self._log, since=since)}")
            time.sleep(0.01)

    def _answers(self) -> str | None:
        """Why the server does not answer or refuses our password, or None."""
        return why_broker_does_not_answer(self.url, timeout_s=5.0)

    def _pid(self) -> int | None:
        """The number of the live server of this home, from its own note and checked against the process."""
        try:
            pid = int(self._pidfile.read_text())
        except (OSError, ValueError):
            return None
        return pid if works_in(pid, self._folder, *PROGRAMS) else None

    def _end(self, pids: list[int]) -> None:
        if not end_with(pids, [(signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)]):
            self._fail(f"process {pids} does not end")

    def _fail(self, why: str) -> NoReturn:
        raise EmbeddedServiceFailed(service=self.name, why=why, log=self._log)


def why_broker_does_not_answer(url: str, *, timeout_s: float) -> str | None:
    """Why the Redis at a broker URL does not answer a PING, or None."""
    return _why_not(url, timeout_s, lambda client: client.ping())


def why_broker_takes_no_messages(url: str, *, timeout_s: float) -> str | None:
    """Why the Redis at a broker URL does not answer or cannot be written to, or None."""

    def ask(client: redis.Redis) -> None:
        client.ping()
        require_writable(client)

    return _why_not(url, timeout_s, ask)


def _why_not(url: str, timeout_s: float, ask: Callable[[redis.Redis], object]) -> str | None:
    import redis

    try:
        with redis.Redis.from_url(
            redis_client_url(url), socket_timeout=timeout_s, socket_connect_timeout=timeout_s
        ) as client:
            ask(client)
    except (redis.RedisError, OSError, ValueError, TypeError) as error:
        return str(error).strip() or type(error).__name__
    return None


def _quoted(path: Path) -> str:
    """A path as an argument of Redis's configuration file."""
    return '"{}"'.format(str(path).replace("\\", "\\\\").replace('"', '\\"'))
