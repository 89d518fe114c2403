"""Campaigns of the strategy `halving`, and their rounds step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db import batches, campaigns
from farm.db.batches import Failure, Lease
from farm.db.states import FailureKind
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits
from farm.kernels import Configuration
from support.batch_steps import claim, form
from support.samples import document, row

FAILED = Failure(FailureKind.FAILED, "a hiccup")


def gpu(number: int = 1) -> DeviceIdentity:
    return DeviceIdentity(
        uuid=f"GPU-{number}",
        type="nvidia-test",
        name="Test GPU",
        backend=Backend.CUDA,
        traits=DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36, compute_capability=(9, 0)),
    )


def wanted(name: str = "search", **changes: Any) -> Campaign:
    """16 tiles for each of two problems, and by halving: 16 short, 8 short, 4 closely."""
    asked = {
        "name": name,
        "problems": {"m": [64, 128], "n": 64, "k": 32, "types": ["f32"]},
        "kernels": {"family": "tiled", "tile": "1..16"},
        "search": {"strategy": "halving", "keep": 0.5, "finalists": 4},
        "measure": {"power": "all", "max_attempts": 1},
        **changes,
    }
    return Campaign.from_document(document(**{key: value for key, value in asked.items() if value is not None}))


def time_ms(configuration: Configuration) -> float:
    """The larger the tile, the faster; cuBLASLt takes half as long as the largest."""
    tile = dict(configuration.kernel.parameters).get("tile", 32)
    return configuration.problem.shape.m / tile


def land(
    engine: Engine, lease: Lease, fails: Callable[[Configuration], bool] = lambda _: False, **columns: object
) -> None:
    failed = {job.id: FAILED for job in lease.jobs if fails(job.configuration)}
    results = [(job, row(time_ms(job.configuration), **columns)) for job in lease.jobs if job.id not in failed]
    with engine.begin() as connection:
        batches.land(connection, lease, results, failed)


def measure(
    engine: Engine,
    device: int,
    fails: Callable[[Configuration], bool] = lambda _: False,
    size: int = 100,
    **columns: object,
) -> list[Lease]:
    """All that waits, batch by batch, and folds it. `columns` are of every row."""
    leases = []
    while (batch_id := form(engine, size, kind="nvidia-test")) is not None:
        lease = claim(engine, batch_id, device)
        assert lease is not None
        land(engine, lease, fails, **columns)
        leases.append(lease)
    fold(engine)
    return leases


def fold(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        batches.fold(connection)
        return campaigns.finish(connection)
