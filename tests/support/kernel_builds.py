"""Builders of kernels and the jobs that wait for them, without a compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine

from farm.builds.cache import KernelCache
from farm.builds.record import Built, Record
from farm.builds.stores import DatabaseStore, Store
from farm.campaign import Campaign
from farm.db import batches, kernels
from farm.db.campaigns import Stored
from farm.db.kernels import BuildAttempt as Build
from farm.devices import DeviceIdentity
from farm.kernels.binary import Binary
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import BUILT_WITH, TOOLCHAINS
from farm.signing import Signer
from support.batch_steps import claim, form
from support.samples import card
from workers.kernels.sources import FarmKernels

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]

TRITON = {"family": "triton", "tile_m": 64, "tile_k": 32, "stages": [2, 3]}


def wanted(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return kernels.unsent(connection, resend_after=1000)


TOOLCHAINS_HERE = [toolchain.text(BUILT_WITH) for toolchain in TOOLCHAINS]


def start(
    engine: Engine, kernel_id: int, toolchains: Sequence[str] = TOOLCHAINS_HERE, *, builder: str = "here"
) -> Build | None:
    with engine.begin() as connection:
        return kernels.start(connection, kernel_id, toolchains, builder=builder)


def began(engine: Engine, kernel_id: int) -> Build:
    started = start(engine, kernel_id)
    assert started is not None
    return started


SIGNER = Signer(Ed25519PrivateKey.generate())


RECORD = {
    "seconds": 1.0, "params_bytes": 368, "shared_bytes": 49152, "threads": 128, "registers": 99, "spill_bytes": 0,
    "stack_bytes": 0, "static_shared_bytes": 0,
}  # fmt: skip


def built_of(binary: Binary, code: bytes = b"code") -> Built:
    made = {
        **RECORD, "hash": binary.hash(BUILT_WITH), "sha256": hashlib.sha256(code).hexdigest(), "bytes": len(code),
        **binary.template.toolchain.of(BUILT_WITH), **binary.to_json(),
    }  # fmt: skip
    return Built(code, Record.model_validate(made)).signed(SIGNER)


def build(engine: Engine, kernel_id: int, store: Store | None = None) -> Built:
    """What a builder does with it."""
    started = began(engine, kernel_id)
    built = built_of(binary_from_json(started.description), f"code {kernel_id}".encode())
    (store or DatabaseStore(engine)).put(built.record.hash, built.code)
    with engine.begin() as connection:
        assert kernels.built(
            connection, started, record=built.record.model_dump(), signature=built.signature, builder="here"
        )
    return built


def let_go(engine: Engine) -> int:
    with engine.begin() as connection:
        return batches.release_waiting(connection)


def awaited(engine: Engine, stored: Stored) -> tuple[int, int, int]:
    with engine.connect() as connection:
        found = kernels.awaited(connection, stored.campaign_id, silent_after=20)
    return found.kernels, found.building, found.jobs


def leased_of(engine: Engine, device_id: int, size: int = 100) -> batches.Lease:
    batch_id = form(engine, size, kind="nvidia-test")
    assert batch_id is not None
    lease = claim(engine, batch_id, device_id)
    assert lease is not None
    return lease


def source(engine: Engine, folder: Path, store: Store | None = None) -> FarmKernels:
    return FarmKernels(
        KernelCache(folder / "cache"), store or DatabaseStore(engine), engine, BUILT_WITH, [SIGNER.public]
    )


def binary_of(job: batches.ClaimedJob) -> Binary:
    binary = job.configuration.binary(card().traits)
    assert binary is not None
    return binary


def states(engine: Engine) -> dict[str, str]:
    """The state of each kernel, by what is compiled in."""
    with engine.connect() as connection:
        return {f"{k['label'].split('stages ')[1][0]} {k['arch']}": k["state"] for k in kernels.listed(connection)}


def fail(engine: Engine, kernel_id: int, *, final: bool) -> None:
    started = began(engine, kernel_id)
    with engine.begin() as connection:
        assert kernels.failed(connection, started, error="gemm.cu(3): error: no", final=final, builder="here")
