"""The embedded Postgres: a real server on a Unix socket, with its data in the farm's home."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from functools import cached_property
from pathlib import Path

from farm.errors import EmbeddedServiceFailed, OtherPostgresVersion
from farm.services.cluster import Cluster, find_cluster, place_cluster
from farm.services.home import Home
from farm.services.log_rotation import set_aside
from farm.services.moved import require_not_moved
from farm.services.processes import (
    all_working_in,
    become,
    end_with,
    is_alive,
    last_lines,
    start_detached,
    wait_gone,
    works_in,
)
from farm.services.server_binaries import PostgresBinaries
from farm.services.urls import embedded_database_url
from farm.settings import settings

PORT = 5432
"""Part of the socket's name only: nothing listens on the network."""

START_TIMEOUT_S = 60.0
"""Recovery after a crash replays at most 1 GB of changes since the last checkpoint."""

SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "shared_buffers": "128MB",
    # The default of 4 is that of a disk that rotates: a campaign's rows were then found by reading all jobs of the farm.
    "random_page_cost": "1.1",
    "max_connections": "100",
    "wal_level": "minimal",
    "max_logical_replication_workers": "0",  # its launcher is a process with nothing to do
    "max_wal_senders": "0",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}

_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}

_HBA = "# Only the farm's own role, with its password, through the socket.\nlocal all farm scram-sha-256\n"

# Nothing can connect to a server of one process, so the superuser needs no password.
_CREATE = "CREATE ROLE farm LOGIN CREATEDB PASSWORD '{password}';\nCREATE DATABASE farm OWNER farm;\n"
_SET_PASSWORD = "ALTER ROLE farm PASSWORD '{password}';\n"


class EmbeddedPostgres:
    """Postgres for one home: database `farm`, owned by role `farm`. See `farm.services.usage` for its life."""

    name = "Postgres"
    key = "postgres"

    def __init__(self, home: Home) -> None:
        self._home = home
        self._log = home.log(self.key)

    @cached_property
    def _cluster(self) -> Cluster:
        return place_cluster(self._home)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `farm`."""
        return embedded_database_url(
            socket_folder=str(self._cluster.sockets),
            port=PORT,
            user="farm",
            password=self._password,
            database="farm",
        )

    @property
    def _password(self) -> str:
        return self._home.passwords()[self.key]

    def running(self) -> bool:
        cluster = find_cluster(self._home)
        return cluster is not None and _state(cluster.data) == "ready" and _postmaster(cluster.data) is not None

    def start(self) -> None:
        require_not_moved(self._home)
        cluster = self._cluster
        if (pid := _postmaster(cluster.data)) is not None:
            # Another process was killed while it started or stopped this server.
            if _state(cluster.data) != "stopping":
                self._wait_ready(pid, since=0)
                return
            self._stop([pid])
        set_aside(self._log, settings().log_max_bytes)
        binaries = cluster.binaries()
        if not cluster.data.is_dir():
            self._initialise(binaries)
        self._check_version(binaries)
        self._clear_remains()
        self._know_password(binaries)
        self._home.make_private(cluster.sockets, cluster.user)
        since = self._log.stat().st_size if self._log.exists() else 0
        pid = start_detached(
            [str(binaries.postgres), "-D", str(cluster.data), *self._options()],
            log=self._log,
            environment=_ENVIRONMENT,
            user=cluster.user,
            folder=cluster.base,
            private=True,
        )
        self._wait_ready(pid, since=since)

    def stop(self) -> None:
        cluster = find_cluster(self._home)
        if cluster is not None and (pid := _postmaster(cluster.data)) is not None:
            self._stop([pid])

    def _stop(self, pids: list[int]) -> None:
        # Fast: ends sessions, writes a checkpoint. Immediate: recovers at the next start.
        steps = [(signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        if not end_with(pids, steps):
            raise EmbeddedServiceFailed(service=self.name, why=f"process {pids} does not end", log=self._log)

    def _options(self) -> list[str]:
        folder = '"{}"'.format(str(self._cluster.sockets).replace('"', '""'))
        options = {**SETTINGS, "unix_socket_directories": folder, "unix_socket_permissions": "0700"}
        return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]

    def _wait_ready(self, pid: int, *, since: int) -> None:
        data, end = self._cluster.data, time.monotonic() + START_TIMEOUT_S
        while not (_state(data) == "ready" and _postmaster(data) is not None):
            if not is_alive(pid):
                raise EmbeddedServiceFailed(service=self.name, why=last_lines(self._log, since=since), log=self._log)
            if time.monotonic() > end:
                self._stop([pid])
                why = f"it was not ready after {START_TIMEOUT_S:.0f} s: {last_lines(self._log, since=since)}"
                raise EmbeddedServiceFailed(service=self.name, why=why, log=self._log)
            time.sleep(0.01)

    def _initialise(self, binaries: PostgresBinaries) -> None:
        """Creates the cluster with its role and database. It gets its name when it is complete."""
        cluster, draft = self._cluster, self._cluster.base / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        self._run(
            [str(binaries.initdb), "-D", str(draft), "-U", "postgres", "--no-locale", "-E", "UTF8", "-A", "reject"]
        )
        (draft / "pg_hba.conf").write_text(_HBA)
        self._run_sql(binaries, draft, _CREATE)
        draft.rename(cluster.data)
        self._note_password()

    def _know_password(self, binaries: PostgresBinaries) -> None:
        """Sets the role's password again if the home's file of passwords was lost and created again."""
        note = self._home.run / "postgres.password"
        known = note.read_text() if note.exists() else ""
        if known != self._password_mark():
            self._run_sql(binaries, self._cluster.data, _SET_PASSWORD)
            self._note_password()

    def _note_password(self) -> None:
        (self._home.run / "postgres.password").write_text(self._password_mark())

    def _password_mark(self) -> str:
        """Identifies the file of the role's password, without the password."""
        found = (self._home.path / "secrets.json").stat()
        return f"{found.st_ino}:{found.st_mtime_ns}"

    def _run_sql(self, binaries: PostgresBinaries, data: Path, sql: str) -> None:
        command = [str(binaries.postgres), "--single", "-D", str(data), "-c", "exit_on_error=on"]
        self._run([*command, "-c", "log_checkpoints=off", "postgres"], stdin=sql.format(password=self._password))

    def _run(self, command: list[str], *, stdin: str = "") -> None:
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_ENVIRONMENT,
            cwd=self._cluster.base,
            start_new_session=True,
            umask=0o077,
            check=False,
            **become(self._cluster.user),
        )
        with self._log.open("a") as log:
            log.write(done.stderr)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            why = lines[-1] if lines else f"{Path(command[0]).name} ended with {done.returncode}"
            raise EmbeddedServiceFailed(service=self.name, why=why, log=self._log)

    def _check_version(self, binaries: PostgresBinaries) -> None:
        data = self._cluster.data
        found, installed = (data / "PG_VERSION").read_text().strip(), binaries.version(self._cluster.user)
        if installed is None or found != installed.partition(".")[0]:
            raise OtherPostgresVersion(data=data, found=found, installed=installed)

    def _clear_remains(self) -> None:
        """Removes the remains of a killed server: its processes, and a note with a reused process number."""
        data = self._cluster.data
        if not (data / "postmaster.pid").exists():
            return
        remains = all_working_in(data, "postgres")
        # They end by themselves when they notice, unless they are in the middle of a statement.
        if not wait_gone(remains, 1.0):
            end_with(remains, [(signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)])
        (data / "postmaster.pid").unlink(missing_ok=True)
        for leftover in self._cluster.sockets.glob(".s.PGSQL.*"):
            leftover.unlink(missing_ok=True)


def _postmaster(data: Path) -> int | None:
    """Process number of the live server of these data, from its note and checked against the process."""
    lines = _note(data)
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    return pid if works_in(pid, data, "postgres") else None


def _state(data: Path) -> str:
    """State of the server, from the last line of its note: starting, ready, standby or stopping."""
    lines = _note(data)
    return lines[7].strip() if len(lines) > 7 else ""


def _note(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except OSError:
        return []
