"""The cache of built kernels: what is put comes back, what is damaged does not, and processes do not disturb each other."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from farm.builds.cache import ABANDONED_SECONDS, KernelCache
from farm.builds.record import Built, Record
from farm.signing import Signer


def built(name: str = "a", code: bytes = b"code of a kernel") -> Built:
    return Built(
        code,
        Record(
            hash=hashlib.sha256(name.encode()).hexdigest(), template="cutlass/gemm2x.cu",
            definitions={"STAGES": "3"}, arch="sm_90a", label="f16", cutlass="4.2.0",
            cuda="13.0.88", seconds=3.5, sha256=hashlib.sha256(code).hexdigest(), bytes=len(code), params_bytes=368,
            shared_bytes=49152, threads=128, registers=246, spill_bytes=0, stack_bytes=0, static_shared_bytes=0,
        ),
    )  # fmt: skip


def folder_of(root: Path, kernel: Built) -> Path:
    return root / kernel.record.hash


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path)


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    KernelCache(tmp_path / "new" / "cache").put(built())
    assert KernelCache(tmp_path / "new" / "cache").get(built().record.hash) == built()


def test_a_record_has_the_versions_of_one_toolchain() -> None:
    """And the JSON of before there were several, so that its signature stays valid."""
    record = built().record
    assert record.versions == {"cutlass": "4.2.0", "cuda": "13.0.88"}
    assert record.model_dump().items() >= record.versions.items()
    for change in ({"cuda": None}, {"triton": "3.9.0"}, {"cutlass": 4}):
        facts = {name: value for name, value in {**record.model_dump(), **change}.items() if value is not None}
        with pytest.raises(ValidationError, match=r"toolchain|string"):
            Record.model_validate(facts)


def test_what_was_never_put_is_not_there(cache: KernelCache) -> None:
    assert cache.get(built().record.hash) is None
    assert list(cache.records()) == []
    assert cache.prune(0) == 0


def test_a_name_that_is_no_hash_is_a_defect_of_the_caller(cache: KernelCache) -> None:
    with pytest.raises(ValueError, match="no SHA-256"):
        cache.get("../../etc/passwd")


def test_code_that_its_record_is_not_of_is_not_kept(cache: KernelCache) -> None:
    with pytest.raises(ValueError, match="not of this code"):
        cache.put(Built(b"other", built().record))


def test_what_is_put_takes_the_place_of_what_was_there(cache: KernelCache) -> None:
    cache.put(built(code=b"compiled elsewhere"))
    cache.put(built())
    assert cache.get(built().record.hash) == built()


def test_a_signature_is_kept_with_its_kernel(cache: KernelCache, tmp_path: Path) -> None:
    signer = Signer.make(tmp_path / "key.pem")
    cache.put(built())
    cache.put(built().signed(signer))
    found = cache.get(built().record.hash)
    assert found is not None
    assert found.is_signed([signer.public])


def _flip_a_bit(folder: Path) -> None:
    file = folder / "kernel.cubin"
    code = bytearray(file.read_bytes())
    code[3] ^= 1
    file.write_bytes(code)


def _cut(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(b"")


def _of_another_kernel(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(b"b")
    (folder / "kernel.json").write_text(built("b", b"b").record.model_dump_json())


def _garbage(folder: Path) -> None:
    (folder / "kernel.json").write_text("{")


def _other_columns(folder: Path) -> None:
    (folder / "kernel.json").write_text('{"hash": "00"}')


def _no_record(folder: Path) -> None:
    (folder / "kernel.json").unlink()


def _no_code(folder: Path) -> None:
    (folder / "kernel.cubin").unlink()


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_flip_a_bit, "SHA-256"),
        (_cut, "SHA-256"),
        (_of_another_kernel, "built as"),
        (_garbage, "cannot be read"),
        (_other_columns, "cannot be read"),
        (_no_record, "lacks kernel.json"),
        (_no_code, "lacks kernel.cubin"),
        (_a_file, "is a file"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused_and_removed_with_a_remark(
    cache: KernelCache, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, why: str
) -> None:
    assert callable(damage)
    cache.put(built())
    damage(folder_of(tmp_path, built()))
    with caplog.at_level(logging.WARNING):
        assert cache.get(built().record.hash) is None
    assert why in caplog.text
    assert list(tmp_path.iterdir()) == []
    cache.put(built())
    assert cache.get(built().record.hash) == built()


def test_a_damaged_kernel_is_replaced_by_putting_a_good_one(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(built())
    _flip_a_bit(folder_of(tmp_path, built()))
    cache.put(built())
    assert cache.get(built().record.hash) == built()


def test_files_that_are_not_the_caches_are_left_alone(cache: KernelCache, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    cache.put(built())
    assert cache.prune(0) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


class TestPruning:
    def _put(self, cache: KernelCache, root: Path, *names: str) -> None:
        """Each 100,000 bytes, used a minute after the one before."""
        for minute, name in enumerate(names):
            kernel = built(name, bytes(100_000))
            cache.put(kernel)
            at = time.time() - 86_400 + 60 * minute
            os.utime(folder_of(root, kernel), (at, at))

    def _left(self, cache: KernelCache) -> list[str]:
        known = {built(name).record.hash: name for name in "abcd"}
        return [known[record.hash] for record in cache.records()]

    def test_what_was_not_used_for_longest_goes_first(self, cache: KernelCache, tmp_path: Path) -> None:
        self._put(cache, tmp_path, "a", "b", "c", "d")
        assert self._left(cache) == ["d", "c", "b", "a"]
        assert cache.prune(250_000) == 2
        assert self._left(cache) == ["d", "c"]

    def test_what_is_read_is_used(self, cache: KernelCache, tmp_path: Path) -> None:
        self._put(cache, tmp_path, "a", "b", "c")
        assert cache.get(built("a").record.hash) is not None
        assert cache.prune(150_000) == 2
        assert self._left(cache) == ["a"]

    def test_nothing_goes_where_all_fits(self, cache: KernelCache, tmp_path: Path) -> None:
        self._put(cache, tmp_path, "a", "b")
        assert cache.prune(10**6) == 0
        assert self._left(cache) == ["b", "a"]

    def test_what_a_killed_process_left_goes_and_what_another_writes_stays(
        self, cache: KernelCache, tmp_path: Path
    ) -> None:
        for name, age in (("old", ABANDONED_SECONDS + 60), ("new", 0)):
            folder = tmp_path / f".unfinished-{name}"
            folder.mkdir()
            os.utime(folder, (time.time() - age,) * 2)
        cache.prune(10**6)
        assert [path.name for path in tmp_path.iterdir()] == [".unfinished-new"]


def _busy(root: str, seed: int, seconds: float) -> None:
    """Puts, gets and prunes at random; exits with 1 where it is given a kernel that nobody put."""
    cache, chance, until = KernelCache(Path(root)), random.Random(seed), time.monotonic() + seconds
    logging.disable()
    while time.monotonic() < until:
        name = chance.choice("abcdef")
        # Two compilers need not write the same bytes for the same source.
        kernel = built(name, f"{name} by {seed}".encode() * 5000)
        what = chance.random()
        if what < 0.45:
            cache.put(kernel)
        elif what < 0.95:
            found = cache.get(kernel.record.hash)
            if found is not None and not found.code.startswith(f"{name} by ".encode()):
                os._exit(1)
        else:
            cache.prune(chance.choice([0, 200_000]))


def test_processes_that_write_read_and_prune_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=_busy, args=(str(tmp_path), seed, 1.5)) for seed in range(4)]
    for process in busy:
        process.start()
    for process in busy:
        process.join(240)
    assert [process.exitcode for process in busy] == [0, 0, 0, 0]
    assert all(path.name[0] != "." for path in tmp_path.iterdir())
