"""Stores of built kernels: what a worker fetches from them, and stores that do not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy import Engine, text

from farm.builds.cache import KernelCache
from farm.builds.stores import DatabaseStore, FileStore, Store, store_of
from farm.db import kernels
from farm.db.campaigns import Stored
from farm.db.engine import make_engine
from farm.db.states import KernelState
from farm.errors import BadKernelStore, InvalidOnDevice, KernelMissing, KernelStoreUnusable, KernelUnreachable
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import BUILT_WITH
from farm.settings import Settings
from support.kernel_builds import SIGNER, build, built_of, fail, source, states, wanted
from workers.kernels import sources
from workers.kernels.sources import FarmKernels


@pytest.fixture(params=["database", "file", "memory"])
def store(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Store:
    if request.param == "database":
        return DatabaseStore(engine)
    return FileStore(f"file://{tmp_path}/store" if request.param == "file" else f"memory://{tmp_path}")


def test_what_is_put_into_a_store_comes_back(store: Store) -> None:
    name = "ab" * 32
    assert store.get(name) is None
    store.put(name, b"first")
    store.put(name, b"\0second")
    assert store.get(name) == b"\0second"


class Bucket(MemoryFileSystem):
    """As those of object stores: they have no folders, and what is made is the bucket itself."""

    async_impl = True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError(f"{path} is made in an object store")


def test_a_bucket_is_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = FileStore(f"memory://{tmp_path}")
    monkeypatch.setattr(store, "_files", Bucket())
    store.put("ab" * 32, b"code")
    assert store.get("ab" * 32) == b"code"


def test_a_worker_fetches_a_kernel_once(engine: Engine, stored: Stored, store: Store, tmp_path: Path) -> None:
    built = build(engine, wanted(engine)[0], store)
    binary = built.record.binary
    assert source(engine, tmp_path, store).get(binary) == built
    broken = FarmKernels(
        KernelCache(tmp_path / "cache"), FileStore("memory://nothing"), engine, BUILT_WITH, [SIGNER.public]
    )
    assert broken.get(binary) == built


def test_code_that_the_farm_did_not_record_is_refused(
    engine: Engine, stored: Stored, store: Store, tmp_path: Path
) -> None:
    built = build(engine, wanted(engine)[0], store)
    store.put(built.record.hash, built.code + b"x")
    with pytest.raises(KernelMissing) as missing:
        source(engine, tmp_path, store).get(built.record.binary)
    assert missing.value.binary == built.record.binary
    assert list(KernelCache(tmp_path / "cache").records()) == []


def test_a_kernel_that_does_not_compile_is_invalid_on_the_device(
    engine: Engine, stored: Stored, tmp_path: Path
) -> None:
    first, _ = wanted(engine)
    fail(engine, first, final=True)
    with engine.connect() as connection:
        (failed,) = kernels.listed(connection, states=[KernelState.FAILED])
        found = connection.execute(text("SELECT description FROM kernels WHERE id = :id"), {"id": first}).scalar_one()
    assert failed["kernel_id"] == first
    with pytest.raises(InvalidOnDevice, match=r"gemm\.cu\(3\): error: no"):
        source(engine, tmp_path).get(binary_from_json(found))


def test_what_did_not_compile_and_was_built_elsewhere_is_used(engine: Engine, stored: Stored, tmp_path: Path) -> None:
    first, _ = wanted(engine)
    fail(engine, first, final=True)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT description FROM kernels WHERE id = :id"), {"id": first}).scalar_one()
    built = built_of(binary_from_json(found))
    DatabaseStore(engine).put(built.record.hash, built.code)
    with engine.begin() as connection:
        record = built.record.model_dump()
        assert kernels.add(
            connection, built.record.binary, BUILT_WITH, record=record, signature=built.signature, builder="there"
        )
    assert source(engine, tmp_path).get(built.record.binary) == built


def test_a_store_that_does_not_answer_fails_neither_the_job_nor_the_kernel(
    engine: Engine, stored: Stored, tmp_path: Path
) -> None:
    (tmp_path / "store").write_text("a file where a folder should be")
    unusable = FileStore(f"file://{tmp_path}/store")
    built = build(engine, wanted(engine)[0])
    with pytest.raises(KernelStoreUnusable, match="does not answer"):
        unusable.put(built.record.hash, built.code)
    with pytest.raises(KernelUnreachable, match="does not answer"):
        source(engine, tmp_path, unusable).get(built.record.binary)
    assert "built" in states(engine).values()


def test_a_store_that_hangs_fails_neither_the_job_nor_the_kernel(
    engine: Engine, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(DatabaseStore):
        def get(self, hash_: str) -> bytes | None:
            asking.append(threading.current_thread())
            answers.wait()
            return super().get(hash_)

    monkeypatch.setattr(sources, "FETCH_SECONDS", 0.2)
    answers, asking = threading.Event(), list[threading.Thread]()
    built = build(engine, wanted(engine)[0])
    try:
        with pytest.raises(KernelUnreachable, match=r"did not answer within 0.2 s"):
            source(engine, tmp_path, Hanging(engine)).get(built.record.binary)
    finally:
        answers.set()
    for thread in asking:  # it would open a connection that nobody closes, once the engine is disposed of
        thread.join()
    monkeypatch.undo()
    assert source(engine, tmp_path, Hanging(engine)).get(built.record.binary).code == built.code
    for thread in asking:
        thread.join()


def test_a_database_that_cannot_be_asked_for_a_kernel_is_no_fault_of_the_job(
    engine: Engine, stored: Stored, tmp_path: Path
) -> None:
    built = build(engine, wanted(engine)[0])
    gone = make_engine("postgresql+psycopg://nobody@127.0.0.1:1/farm", application="test", pre_ping=False)
    with pytest.raises(KernelUnreachable, match="refused"):
        FarmKernels(KernelCache(tmp_path / "cache"), DatabaseStore(gone), gone, BUILT_WITH, [SIGNER.public]).get(
            built.record.binary
        )


@pytest.mark.parametrize("url", ["nowhere", "gopher://x/y"])
def test_a_store_that_nobody_knows_is_refused(engine: Engine, url: str) -> None:
    with pytest.raises(BadKernelStore, match="s3://bucket/folder"):
        store_of(Settings(kernel_store=url), engine)
