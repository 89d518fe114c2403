"""The farm on seven hosts of its own: a database, two coordinators, and four hosts of devices, each in a network namespace.

This process reaches Postgres and Redis through their Unix sockets, which no cut between the hosts affects.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self
from unittest.mock import patch

from sqlalchemy import make_url

from chaos.farm import OWN_TIMES, Farm
from chaos.network import Network, Unavailable
from chaos.workload import Workload
from farm.services import ServiceUrls, services
from farm.services import redis as embedded_redis
from farm.services.cluster import account_for_postgres, find_cluster

DEVICES_OF = (1, 1, 1, 1)
"""Devices of each of the four hosts."""

DISK_MB = 1536
"""The size of the database's disk."""

REDIS_PORT = 6379


class FarmOfHosts(Farm):
    """A farm whose programs reach its services over links that can be cut. Raises `Unavailable` on entering."""

    hosts_of_coordinators = ("coordinator-1", "coordinator-2")

    def __init__(
        self,
        folder: Path,
        workload: Workload,
        *,
        devices_of: Sequence[int] = DEVICES_OF,
        times: Mapping[str, str] = OWN_TIMES,
    ) -> None:
        super().__init__(folder, workload, devices_of=devices_of, times=times)
        self.hosts_of_devices = [self.name_of(host) for host in range(len(devices_of))]
        self.network = Network([self.services_host, *self.hosts_of_coordinators, *self.hosts_of_devices])
        self.disk = Disk(self.home.path / "postgres", DISK_MB)

    def _everything_up(self) -> None:
        self.disk.free()
        super()._everything_up()

    def at(self, host: str) -> AbstractContextManager[None]:
        return self.network.inside(host)

    @contextmanager
    def _services(self) -> Iterator[ServiceUrls]:
        with ExitStack() as held:
            held.enter_context(self.network)
            held.enter_context(self.disk)
            held.enter_context(_listening())
            urls = held.enter_context(self._services_there())
            cluster = find_cluster(self.home)
            assert cluster is not None
            with (cluster.data / "pg_hba.conf").open("a") as rules:
                rules.write("host all farm all scram-sha-256\n")
            pid = self.postgres_pid()
            assert pid is not None
            os.kill(pid, signal.SIGHUP)
            yield urls

    @contextmanager
    def _services_there(self) -> Iterator[ServiceUrls]:
        """The servers are started on their host; the block, and their end, are here."""
        with ExitStack() as held:
            with self.at(self.services_host):
                urls = held.enter_context(services(self.settings, broker=True))
            yield urls

    def urls_of_programs(self) -> ServiceUrls:
        address, password = self.network.address(self.services_host), self.home.passwords()["redis"]
        here = make_url(self.urls.database_url)
        there = here.set(host=address, port=5432, query={}).render_as_string(hide_password=False)
        return ServiceUrls(there, f"redis://:{password}@{address}:{REDIS_PORT}/0", self.urls.tracking_uri)


@contextmanager
def _listening() -> Iterator[None]:
    """Postgres and Redis that are started in the block listen on their host's network too, and Postgres keeps little."""
    small = {"listen_addresses": "*", "max_wal_size": "128MB"}
    served = embedded_redis._CONFIGURATION.replace("port 0\n", f"port {REDIS_PORT}\nbind 0.0.0.0\n")
    with patch.dict("farm.services.postgres.SETTINGS", small), patch.object(embedded_redis, "_CONFIGURATION", served):
        yield


class Disk:
    """A disk of its own, in memory, in a folder that only the account of Postgres can enter. It can be filled up."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self._folder = folder
        self._size_mb = size_mb
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        """Raises `Unavailable`."""
        account = account_for_postgres()
        uid, gid = (account.uid, account.gid) if account else (os.getuid(), os.getgid())
        self._folder.mkdir(mode=0o700, parents=True)
        options = f"size={self._size_mb}m,uid={uid},gid={gid},mode=0700"
        _run("mount", "-t", "tmpfs", "-o", options, "farm-chaos", str(self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", str(self._folder))

    def fill(self) -> None:
        """Leaves no byte free."""
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")
