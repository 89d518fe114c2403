"""The processes of an embedded Postgres and Redis."""

from __future__ import annotations

from pathlib import Path

import psutil
import redis

from farm.services import cluster
from farm.services.home import Home
from farm.services.processes import is_alive
from farm.services.urls import redis_client_url
from support.homes import (
    eventually,
)


def postmaster(home: Path) -> psutil.Process:
    place = cluster.find_cluster(Home(home))
    assert place is not None
    return psutil.Process(int((place.data / "postmaster.pid").read_text().splitlines()[0]))


def redis_process(home: Path) -> psutil.Process:
    return psutil.Process(int((home / "redis" / "redis.pid").read_text()))


def kill(process: psutil.Process) -> None:
    """Kills a process that is not our child, and waits until it is gone."""
    process.kill()
    eventually(lambda: not is_alive(process.pid))


def redis_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_client_url(url), decode_responses=True)
