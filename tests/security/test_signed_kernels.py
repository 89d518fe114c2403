"""Code that nobody vouches for is not loaded, wherever it is planted: the host's cache, the farm's store, its database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.builds.cache import KernelCache
from farm.builds.record import Built, Record
from farm.builds.stores import DatabaseStore
from farm.db import kernels
from farm.devices import traits_of_capability
from farm.errors import KernelMissing, KernelUnreachable
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.toolchains import BUILT_WITH
from farm.settings import Settings
from farm.signing import Purpose, Signer, is_signed
from support.commands import farm_here
from workers.kernels.sources import FarmKernels, own_kernels

_RECORD = {
    "seconds": 1.0, "params_bytes": 368, "shared_bytes": 49152, "threads": 128, "registers": 99, "spill_bytes": 0,
    "stack_bytes": 0, "static_shared_bytes": 0,
}  # fmt: skip


def binary_with(stages: int) -> Binary:
    found = Configuration.parse(f"cutlass(stages={stages}) 64x64x32 f16").binary(traits_of_capability((9, 0)))
    assert found is not None
    return found


BINARY, OTHER = binary_with(3), binary_with(2)


def built(code: bytes, binary: Binary = BINARY) -> Built:
    """A kernel that nobody signed."""
    facts = {"hash": binary.hash(BUILT_WITH), "sha256": hashlib.sha256(code).hexdigest(), "bytes": len(code)}
    versions = binary.template.toolchain.of(BUILT_WITH)
    return Built(code, Record.model_validate({**_RECORD, **versions, **facts, **binary.to_json()}))


@pytest.fixture
def builder(tmp_path: Path) -> Signer:
    return Signer.make(tmp_path / "builder.pem")


@pytest.fixture
def stranger(tmp_path: Path) -> Signer:
    return Signer.make(tmp_path / "stranger.pem")


@pytest.fixture
def good(builder: Signer) -> Built:
    return built(b"good").signed(builder)


@pytest.fixture
def fetch(engine: Engine, tmp_path: Path, builder: Signer) -> Callable[[], Built]:
    """What a worker gets."""
    source = FarmKernels(
        KernelCache(tmp_path / "cache"), DatabaseStore(engine), engine, BUILT_WITH, public_keys=[builder.public]
    )
    return lambda: source.get(BINARY)


def record(engine: Engine, what: Built, binary: Binary = BINARY) -> None:
    """What whoever may write to the farm's store and database can do."""
    name = binary.hash(BUILT_WITH)
    DatabaseStore(engine).put(name, what.code)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kernels WHERE hash = :hash"), {"hash": name})
        kernels.add(
            connection,
            binary,
            BUILT_WITH,
            record=what.record.model_dump(),
            signature=what.signature,
            builder="somewhere",
        )


def test_what_its_builder_signed_is_loaded(engine: Engine, good: Built, fetch: Callable[[], Built]) -> None:
    record(engine, good)
    assert fetch() == good
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kernel_code"))
    assert fetch() == good


def test_a_kernel_planted_in_the_cache_of_a_host_is_not_loaded(
    engine: Engine, tmp_path: Path, stranger: Signer, good: Built, fetch: Callable[[], Built]
) -> None:
    cache = KernelCache(tmp_path / "cache")
    for planted in (built(b"planted"), built(b"planted").signed(stranger)):
        cache.put(planted)
        record(engine, good)
        assert fetch() == good
        assert cache.get(good.record.hash) == good


def test_code_in_the_place_of_that_which_was_recorded_is_not_loaded(
    engine: Engine, tmp_path: Path, good: Built, fetch: Callable[[], Built]
) -> None:
    record(engine, good)
    DatabaseStore(engine).put(good.record.hash, b"planted")
    with pytest.raises(KernelMissing):
        fetch()
    assert KernelCache(tmp_path / "cache").get(good.record.hash) is None


@pytest.mark.parametrize("signs", [False, True])
def test_a_kernel_that_was_recorded_without_a_trusted_signature_is_not_loaded(
    engine: Engine, stranger: Signer, fetch: Callable[[], Built], *, signs: bool
) -> None:
    planted = built(b"planted")
    record(engine, planted.signed(stranger) if signs else planted)
    with pytest.raises(KernelUnreachable, match="FARM_KERNEL_KEYS"):
        fetch()


def test_a_signature_is_of_one_record_and_for_one_purpose(
    engine: Engine, builder: Signer, good: Built, fetch: Callable[[], Built]
) -> None:
    record(engine, Built(b"planted", built(b"planted").record, good.signature))
    with pytest.raises(KernelUnreachable):
        fetch()
    content = json.dumps(good.record.model_dump(), sort_keys=True, separators=(",", ":")).encode()
    assert is_signed([builder.public], Purpose.KERNEL, content, good.signature)
    record(engine, Built(good.code, good.record, builder.sign(Purpose.MODEL, content)))
    with pytest.raises(KernelUnreachable):
        fetch()


def test_a_signed_kernel_is_not_loaded_in_the_place_of_another(
    engine: Engine, builder: Signer, fetch: Callable[[], Built]
) -> None:
    record(engine, built(b"other", OTHER).signed(builder), BINARY)
    with pytest.raises(KernelMissing):
        fetch()


@pytest.mark.parametrize("signs", [False, True])
def test_a_host_alone_does_not_load_what_was_planted_in_its_cache(
    tmp_path: Path, stranger: Signer, monkeypatch: pytest.MonkeyPatch, *, signs: bool
) -> None:
    monkeypatch.setattr("workers.kernels.toolchains.nvcc.Nvcc.find", lambda: pytest.fail("it is built here"))
    here = Settings(home=tmp_path / "home", kernels=tmp_path / "cache")
    planted = built(b"planted")
    KernelCache(here.kernel_cache).put(planted.signed(stranger) if signs else planted)
    with pytest.raises(pytest.fail.Exception, match="it is built here"):
        own_kernels(here).get(BINARY)
    told = Settings(home=tmp_path / "home", kernels=tmp_path / "cache", kernel_keys=stranger.public)
    if signs:
        assert own_kernels(told).get(BINARY).code == b"planted"


def test_a_folder_of_kernels_from_elsewhere_is_taken_only_where_somebody_vouches_for_it(
    engine: Engine, database_url: str, tmp_path: Path, stranger: Signer, fetch: Callable[[], Built]
) -> None:
    KernelCache(tmp_path / "theirs").put(built(b"theirs").signed(stranger))
    farm = farm_here(tmp_path, database_url)
    refused = farm("kernels", "add", "theirs", "--json")
    assert refused.returncode == 6
    assert "signed by none of FARM_KERNEL_KEYS" in json.loads(refused.stdout)["refused"][0]
    with pytest.raises(KernelMissing):
        fetch()
    given = farm("kernels", "add", "theirs", "--json", FARM_KERNEL_KEYS=stranger.public)
    assert json.loads(given.stdout)["added"] == 1
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kernels"))
    taken = farm("kernels", "add", "theirs", "--trust", "--json")
    assert json.loads(taken.stdout)["added"] == 1
    with pytest.raises(KernelUnreachable):  # this worker trusts the builder, and not who took it
        fetch()
