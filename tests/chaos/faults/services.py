"""Faults of Postgres and Redis."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading

import psutil

from chaos.faults.base import FaultsOfOneFarm, Mend, NotNow, does
from chaos.plan import Kind
from farm.services.cluster import find_cluster

log = logging.getLogger("chaos")


class FaultsOfServices(FaultsOfOneFarm):
    """What happens to what everybody needs."""

    @does(Kind.FLUSH_REDIS)
    def _flush_redis(self, _: int) -> None:
        with self.farm.redis() as client:
            client.flushall()

    @does(Kind.KILL_REDIS)
    def _kill_redis(self, _: int) -> None:
        self.farm.end_service(self.farm.redis_pid(), signal.SIGKILL)
        self.farm.start_redis()

    @does(Kind.STOP_REDIS)
    def _stop_redis(self, _: int) -> Mend:
        self.farm.end_service(self.farm.redis_pid(), signal.SIGTERM)
        return self.farm.start_redis

    @does(Kind.FREEZE_REDIS)
    def _freeze_redis(self, _: int) -> Mend:
        pid = self.farm.redis_pid()
        if pid is None or not psutil.pid_exists(pid):
            raise NotNow("Redis does not run")
        process = psutil.Process(pid)
        process.suspend()

        def go_on() -> None:
            with contextlib.suppress(psutil.Error):
                process.resume()

        return go_on

    @does(Kind.FULL_REDIS)
    def _full_redis(self, _: int) -> Mend:
        return self._refusing_redis(("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"))

    @does(Kind.READ_ONLY_REDIS)
    def _read_only_redis(self, _: int) -> Mend:
        return self._refusing_redis(("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"))

    def _refusing_redis(self, refuse: tuple[str, ...], accept: tuple[str, ...]) -> Mend:
        def ask(command: tuple[str, ...]) -> None:
            with self.farm.redis() as client:
                client.execute_command(*command)

        ask(refuse)
        return lambda: ask(accept)

    @does(Kind.FREEZE_POSTGRES)
    def _freeze_postgres(self, _: int) -> Mend:
        """A thread ends it: this one might wait for an answer itself."""
        pid = self.farm.postgres_pid()
        if pid is None or not psutil.pid_exists(pid):
            raise NotNow("Postgres does not run")
        postmaster = psutil.Process(pid)
        frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.suspend()

        def resume() -> None:
            for process in reversed(frozen):
                with contextlib.suppress(psutil.Error):
                    process.resume()

        timer = threading.Timer(self.lasts_s, resume)
        timer.start()
        return timer.join

    @does(Kind.READ_ONLY_POSTGRES)
    def _read_only_postgres(self, _: int) -> Mend:
        """As after a failover to a replica, but sessions stay: every transaction that begins from now on is read-only."""
        cluster = find_cluster(self.farm.home)
        assert cluster is not None
        settings = cluster.data / "postgresql.auto.conf"
        line = "default_transaction_read_only = on\n"

        def reload() -> None:
            pid = self.farm.postgres_pid()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)

        def writable() -> None:
            settings.write_text(settings.read_text().replace(line, ""))
            reload()

        settings.write_text(settings.read_text() + line)
        reload()
        return writable

    @does(Kind.CRASH_POSTGRES)
    def _crash_postgres(self, _: int) -> Mend:
        self.farm.end_service(self.farm.postgres_pid(), signal.SIGQUIT)
        return self.farm.start_postgres

    @does(Kind.KILL_POSTGRES)
    def _kill_postgres(self, _: int) -> Mend:
        self.farm.end_service(self.farm.postgres_pid(), signal.SIGKILL)
        return self.farm.start_postgres

    @does(Kind.RESTART_POSTGRES)
    def _restart_postgres(self, _: int) -> None:
        self.farm.end_service(self.farm.postgres_pid(), signal.SIGINT)
        self.farm.start_postgres()

    @does(Kind.DROP_CONNECTIONS)
    def _drop_connections(self, _: int) -> None:
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'farm%'"
        log.info("  %d connections", self.scalar(cut))
