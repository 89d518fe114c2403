"""What the processes of a farm's services use, and a client of its Redis."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import psutil
import redis
from sqlalchemy import Engine, text


def redis_client(broker_url: str) -> redis.Redis:
    """A client of its own on the embedded broker's socket."""
    url = urlsplit(broker_url)
    return redis.Redis(unix_socket_path=unquote(url.path), password=unquote(url.password or ""))


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of these processes and their children."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def postgres_and_redis(engine: Engine, broker_url: str) -> list[int]:
    """The main processes of this farm's services."""
    with engine.connect() as connection:
        postgres = psutil.Process(connection.execute(text("SELECT pg_backend_pid()")).scalar_one()).ppid()
    return [postgres, int(redis_client(broker_url).info()["process_id"])]
