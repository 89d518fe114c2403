"""Kernels that are built ahead of time: wanted once, built once, waited for, shared; and what happens when that fails."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy import Engine, text

from farm import signing_keys
from farm.builds.cache import KernelCache
from farm.builds.stores import DatabaseStore, FileStore, Store, store_of
from farm.campaign import Campaign, plan
from farm.cli.run import _require_builder
from farm.db import batches, campaigns, devices, jobs, kernels
from farm.db.campaigns import Stored
from farm.db.engine import make_engine
from farm.db.states import JobState, KernelState
from farm.db.task_rows import MAX_ATTEMPTS
from farm.devices import DeviceIdentity
from farm.errors import (
    BadKernelStore,
    InvalidOnDevice,
    KernelMissing,
    KernelStoreUnusable,
    KernelUnreachable,
    NoBuilder,
)
from farm.kernels import Configuration
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import BUILT_WITH
from farm.measurement import Measurement
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.signing import Purpose
from support.batch_steps import claim, counts, form, land, leased
from support.commands import farm_here, farm_in, refused
from support.homes import eventually
from support.invariants import faults
from support.kernel_builds import (
    SIGNER,
    TOOLCHAINS_HERE,
    awaited,
    began,
    binary_of,
    build,
    built_of,
    leased_of,
    let_go,
    source,
    start,
    wanted,
)
from support.programs import COORDINATOR, FARM_WORKER, Start, programs
from support.samples import ahead, card, cpu, document, row
from support.scripted_device import Scripted
from support.toolkit import Toolkit
from support.triton_toolkit import TritonToolkit
from workers.kernels import sources
from workers.kernels.sources import FarmKernels
from workers.runner import Runner

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]


@pytest.fixture
def gpu(announce: Announce) -> int:
    return announce(card())


@pytest.fixture
def stored(gpu: int, submit: Submit) -> Stored:
    return submit(Campaign.from_document(ahead()))


@pytest.fixture(autouse=True)
def nothing_is_broken(engine: Engine) -> Iterator[None]:
    yield
    with engine.connect() as connection:
        assert faults(connection) == []


def states(engine: Engine) -> dict[str, str]:
    """The state of each kernel, by what is compiled in."""
    with engine.connect() as connection:
        return {f"{k['label'].split('stages ')[1][0]} {k['arch']}": k["state"] for k in kernels.listed(connection)}


def fail(engine: Engine, kernel_id: int, *, final: bool) -> None:
    started = began(engine, kernel_id)
    with engine.begin() as connection:
        assert kernels.failed(connection, started, error="gemm.cu(3): error: no", final=final, builder="here")


# --- what jobs wait for ------------------------------------------------------------------------------


def test_jobs_wait_for_their_kernels_and_go_on_as_each_is_built(engine: Engine, gpu: int, stored: Stored) -> None:
    assert states(engine) == {"2 sm_90a": "wanted", "3 sm_90a": "wanted"}
    assert counts(engine, stored.campaign_id) == {"pending": 12}
    assert awaited(engine, stored) == (2, 0, 12)
    assert form(engine, kind="nvidia-test") is None
    first, second = wanted(engine)
    build(engine, first)
    assert let_go(engine) == 6
    assert awaited(engine, stored) == (1, 0, 6)
    lease = leased_of(engine, gpu)
    assert len({dict(job.configuration.kernel.parameters)["stages"] for job in lease.jobs}) == 1
    assert len(lease.jobs) == 6
    land(engine, lease)
    build(engine, second)
    assert let_go(engine) == 6
    assert len(leased_of(engine, gpu).jobs) == 6
    assert let_go(engine) == 0


def test_what_is_built_already_is_not_waited_for(engine: Engine, gpu: int, stored: Stored, submit: Submit) -> None:
    for kernel_id in wanted(engine):
        build(engine, kernel_id)
    again = submit(Campaign.from_document(ahead(name="again", measure={"max_attempts": 7})))
    assert awaited(engine, again) == (0, 0, 0)
    assert let_go(engine) == 12  # of the first campaign alone
    assert len(leased_of(engine, gpu).jobs) == 12


def test_two_campaigns_want_a_kernel_once(engine: Engine, stored: Stored, submit: Submit) -> None:
    other = submit(Campaign.from_document(ahead(name="other", owner="bob")))
    assert len(wanted(engine)) == 2
    for kernel_id in wanted(engine):
        build(engine, kernel_id)
    assert let_go(engine) == 24
    assert awaited(engine, other) == (0, 0, 0)


def test_what_does_not_compile_is_invalid_with_the_compiler_s_line(engine: Engine, stored: Stored) -> None:
    first, second = wanted(engine)
    fail(engine, first, final=True)
    assert let_go(engine) == 6
    assert counts(engine, stored.campaign_id) == {"pending": 6, "invalid": 6}
    with engine.connect() as connection:
        refused = jobs.listed(connection, stored.campaign_id, states=[JobState.INVALID])
    assert {job["error"] for job in refused} == {"gemm.cu(3): error: no"}
    assert wanted(engine) == [second]


def test_another_builder_tries_what_a_host_could_not_build(engine: Engine, stored: Stored) -> None:
    first, _ = wanted(engine)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert states(engine)["2 sm_90a"] == "wanted" or states(engine)["3 sm_90a"] == "wanted"
        assert first in wanted(engine)
        fail(engine, first, final=False)
        assert (first in wanted(engine)) == (attempt < MAX_ATTEMPTS)
    assert let_go(engine) == 6
    assert counts(engine, stored.campaign_id) == {"pending": 6, "dead": 6}


def test_a_retry_builds_again_what_could_not_be_built(engine: Engine, gpu: int, stored: Stored, tmp_path: Path) -> None:
    first, _ = wanted(engine)
    for _ in range(MAX_ATTEMPTS):
        fail(engine, first, final=False)
    let_go(engine)
    with engine.begin() as connection:
        assert batches.retry(connection, stored.campaign_id) == 6
    land_what_is_there(engine, leased_of(engine, gpu), tmp_path)
    assert awaited(engine, stored) == (2, 0, 12)
    assert first in wanted(engine)
    for kernel_id in wanted(engine):
        build(engine, kernel_id)
    assert let_go(engine) == 12
    assert len(leased_of(engine, gpu).jobs) == 12


def land_what_is_there(engine: Engine, lease: batches.Lease, folder: Path) -> int:
    """What a worker does: measures the jobs whose kernels it gets, and lets the others wait. How many were measured."""
    results, missing = [], {}
    for job in lease.jobs:
        try:
            source(engine, folder).get(binary_of(job))
            results.append((job, row()))
        except KernelMissing as error:
            missing[job.id] = error.binary
    with engine.begin() as connection:
        batches.land(connection, lease, results, {}, missing)
    return len(results)


def test_a_kernel_that_no_store_has_any_more_is_built_again_and_costs_no_attempt(
    engine: Engine, gpu: int, stored: Stored, tmp_path: Path
) -> None:
    first, second = wanted(engine)
    kept, lost = build(engine, first), build(engine, second)
    let_go(engine)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kernel_code WHERE hash = :hash"), {"hash": lost.record.hash})
    assert land_what_is_there(engine, leased_of(engine, gpu), tmp_path) == 6
    assert counts(engine, stored.campaign_id) == {"pending": 6, "done": 6}
    assert wanted(engine) == [second]
    assert KernelCache(tmp_path / "cache").get(kept.record.hash) == kept
    build(engine, second)
    assert let_go(engine) == 6
    with engine.connect() as connection:
        assert jobs.failures_by_kind(connection, stored.campaign_id) == {}
    assert land_what_is_there(engine, leased_of(engine, gpu), tmp_path) == 6
    assert counts(engine, stored.campaign_id) == {"done": 12}


def test_jobs_for_a_device_that_nobody_had_seen_want_their_kernels_when_it_has_come(
    engine: Engine, announce: Announce, tmp_path: Path
) -> None:
    announce(cpu())
    campaign = Campaign.from_document(ahead(targets=[{"type": "nvidia-test"}]))
    with engine.begin() as connection:
        stored = campaigns.store(connection, campaign, plan(campaign, [], allow_missing=True).jobs())
    assert states(engine) == {}
    assert land_what_is_there(engine, leased_of(engine, announce(card())), tmp_path) == 0
    assert awaited(engine, stored) == (2, 0, 12)
    assert states(engine) == {"2 sm_90a": "wanted", "3 sm_90a": "wanted"}


def test_a_job_of_several_architectures_waits_for_all_and_runs_where_one_was_built(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    announce(card())
    announce(card(2, kind="nvidia-old", capability=(8, 0)))
    stored = submit(Campaign.from_document(ahead(kernels=[{"family": "cutlass", "stages": 3}])))
    assert states(engine) == {"3 sm_90a": "wanted", "3 sm_80": "wanted"}
    first, second = wanted(engine)
    fail(engine, first, final=True)
    assert let_go(engine) == 0
    build(engine, second)
    assert let_go(engine) == 6
    assert counts(engine, stored.campaign_id) == {"pending": 6}


def test_what_a_campaign_awaits_is_counted_once_and_of_it_alone(
    engine: Engine, announce: Announce, gpu: int, submit: Submit
) -> None:
    """A job that waits for a kernel of each architecture is one job, and a kernel that two lanes wait for is one kernel."""
    announce(card(2, kind="nvidia-old", capability=(8, 0)))
    both = submit(Campaign.from_document(ahead(targets=["any", {"type": "nvidia-test"}])))
    one = submit(Campaign.from_document(ahead(name="one", owner="bob", targets=[{"type": "nvidia-old"}])))
    assert (awaited(engine, both), awaited(engine, one)) == ((4, 0, 24), (2, 0, 12))
    with engine.connect() as connection:
        first, *others = sorted(kernels.listed(connection), key=lambda kernel: kernel["arch"] != "sm_90a")
    began(engine, first["kernel_id"])
    assert awaited(engine, both) == (4, 1, 24)
    for kernel in others:
        build(engine, kernel["kernel_id"])
    assert (awaited(engine, both), awaited(engine, one)) == ((1, 1, 12), (0, 0, 0))


@pytest.mark.parametrize("how", [batches.pause, batches.cancel])
def test_what_only_stopped_campaigns_wait_for_is_not_built(
    engine: Engine, stored: Stored, submit: Submit, how: Callable[..., bool]
) -> None:
    with engine.begin() as connection:
        assert how(connection, stored.campaign_id)
    assert wanted(engine) == []
    submit(Campaign.from_document(ahead(name="urgent", priority=5, kernels=[{"family": "cutlass", "stages": 2}])))
    assert len(wanted(engine)) == 1
    submit(Campaign.from_document(ahead()))  # the same again
    if how is batches.cancel:
        assert len(wanted(engine)) == 2


def test_what_is_more_urgent_is_built_first(engine: Engine, stored: Stored, submit: Submit) -> None:
    before = wanted(engine)
    submit(Campaign.from_document(ahead(name="urgent", priority=5, kernels=[{"family": "cutlass", "stages": 4}])))
    assert wanted(engine) == [max(wanted(engine)), *before]


def test_kernels_of_other_families_are_not_built_ahead(engine: Engine, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document()))
    assert states(engine) == {}
    assert leased(engine, device).jobs


def test_a_worker_lets_jobs_wait_whose_kernels_it_cannot_get_and_measures_the_others(
    engine: Engine, gpu: int, stored: Stored, tmp_path: Path
) -> None:
    first, second = wanted(engine)
    build(engine, first)
    lost = build(engine, second)
    let_go(engine)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kernel_code WHERE hash = :hash"), {"hash": lost.record.hash})

    def measure(_: int, configuration: Configuration) -> Measurement:
        binary = configuration.binary(card().traits)
        assert binary is not None
        source(engine, tmp_path).get(binary)
        return row()

    batch_id = form(engine, kind="nvidia-test")
    assert batch_id is not None
    runner = Runner(engine, Scripted(measure), gpu, lease_seconds=60, stopping=threading.Event())
    assert runner.run_batch(batch_id) == 6
    assert counts(engine, stored.campaign_id) == {"pending": 6, "done": 6}
    assert awaited(engine, stored) == (1, 0, 6)


# --- builders ----------------------------------------------------------------------------------------


def test_of_two_builders_one_gets_a_kernel(engine: Engine, stored: Stored) -> None:
    first, _ = wanted(engine)
    assert start(engine, first) is not None
    assert start(engine, first) is None
    assert start(engine, 4711) is None


def test_a_builder_without_its_toolchain_leaves_it_to_others(engine: Engine, stored: Stored) -> None:
    first, _ = wanted(engine)
    assert start(engine, first, []) is None
    assert start(engine, first, ["cutlass 4.2.0, cuda 12.8.93", "triton 3.9.0"]) is None
    assert start(engine, first, ["triton 3.9.0", "cutlass 4.2.0, cuda 13.0.88"]) is not None


def test_what_a_builder_leaves_to_another_is_sent_again_at_once(engine: Engine, stored: Stored) -> None:
    first, second = wanted(engine)
    with engine.begin() as connection:
        kernels.mark_sent(connection, [first, second])
    assert start(engine, first, ["triton 3.9.0"]) is None
    assert wanted(engine) == []  # nobody else builds it
    with engine.begin() as connection:
        kernels.announce(connection, "there:34", toolchains=TOOLCHAINS_HERE, slots=1)
    assert start(engine, first, ["triton 3.9.0"]) is None
    assert wanted(engine) == [first]
    with engine.connect() as connection:
        assert kernels.builders(connection, silent_after=20) == [
            {"name": "there:34", "toolchains": TOOLCHAINS_HERE, "slots": 1}
        ]


def test_what_a_host_could_not_build_goes_to_another_where_there_is_one(engine: Engine, stored: Stored) -> None:
    first, second = wanted(engine)
    for kernel_id in (first, second):
        fail(engine, kernel_id, final=False)
    with engine.begin() as connection:
        kernels.announce(connection, "there:12", toolchains=["triton 3.9.0"], slots=1)
    assert start(engine, first) is not None  # there is no other that could
    with engine.begin() as connection:
        kernels.announce(connection, "here:12", toolchains=TOOLCHAINS_HERE, slots=1)
        kernels.announce(connection, "there:34", toolchains=TOOLCHAINS_HERE, slots=1)
    assert start(engine, second) is None
    assert start(engine, second, builder="there") is not None


def test_a_builder_that_fell_silent_changes_nothing_any_more(engine: Engine, stored: Stored) -> None:
    first, _ = wanted(engine)
    started = began(engine, first)
    with engine.begin() as connection:
        assert kernels.beat(connection, started)
        assert kernels.take_back(connection, silent_after=-1, max_attempts=9) == {first: KernelState.WANTED}
        assert not kernels.beat(connection, started)
        assert not kernels.built(connection, started, record={}, signature="", builder="here")
        assert not kernels.failed(connection, started, error="no", final=True, builder="here")
    assert began(engine, first).number == 2
    with engine.begin() as connection:  # now another one has it
        assert not kernels.beat(connection, started)
        assert not kernels.built(connection, started, record={}, signature="", builder="here")


def test_a_kernel_of_which_every_builder_died_is_given_up_and_says_so(engine: Engine, stored: Stored) -> None:
    first, _ = wanted(engine)
    for attempt in range(3):
        began(engine, first)
        with engine.begin() as connection:
            taken = kernels.take_back(connection, silent_after=-1, max_attempts=3)
        assert taken == {first: KernelState.FAILED if attempt == 2 else KernelState.WANTED}
    with engine.connect() as connection:
        (given_up,) = kernels.listed(connection, states=[KernelState.FAILED])
    assert "3 times in a row" in given_up["error"]


def test_starts_that_failed_and_starts_whose_builder_died_count_together(engine: Engine, stored: Stored) -> None:
    first, second = wanted(engine)
    for _ in range(MAX_ATTEMPTS - 1):
        fail(engine, first, final=False)
        began(engine, second)
        with engine.begin() as connection:
            kernels.take_back(connection, silent_after=-1, max_attempts=MAX_ATTEMPTS)
    assert sorted(wanted(engine)) == sorted([first, second])
    began(engine, first)
    with engine.begin() as connection:
        taken = kernels.take_back(connection, silent_after=-1, max_attempts=MAX_ATTEMPTS)
    assert taken == {first: KernelState.FAILED}
    fail(engine, second, final=False)
    assert wanted(engine) == []


# --- stores ------------------------------------------------------------------------------------------


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


# --- all of it together ------------------------------------------------------------------------------


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path / "toolkit")


@pytest.fixture
def start_program(tmp_path: Path, database_url: str, farm_services: ServiceUrls, toolkit: Toolkit) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    quick = {"FARM_HEARTBEAT_SECONDS": "0.3", "FARM_RESEND_AFTER_SECONDS": "1", "FARM_BUILD_SLOTS": "2"}
    with programs(tmp_path, **urls, **quick, **toolkit.variables) as starting:
        yield starting


def builders(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(kernels.builders(connection, silent_after=60))


@pytest.mark.long
def test_builders_build_each_kernel_once_for_the_whole_farm(
    engine: Engine, gpu: int, stored: Stored, start_program: Start, toolkit: Toolkit, tmp_path: Path
) -> None:
    toolkit.hold(True)  # or one builder may be done before the other is there
    start_program(COORDINATOR)
    first = start_program(FARM_WORKER, "--build", name="builder")
    second = start_program(FARM_WORKER, "--build", name="builder", FARM_KERNELS=str(tmp_path / "elsewhere"))
    eventually(lambda: builders(engine) == 2 and toolkit.compiled())
    toolkit.hold(False)
    eventually(lambda: set(states(engine).values()) == {"built"} and awaited(engine, stored) == (0, 0, 0))
    assert len(toolkit.compiled()) == 2
    lease = leased_by_the_coordinator(engine, gpu)
    trusted = signing_keys.trusted(Settings(home=tmp_path / ".farm"), Purpose.KERNEL)
    fetched = FarmKernels(KernelCache(tmp_path / "cache"), DatabaseStore(engine), engine, BUILT_WITH, trusted)
    assert {fetched.get(binary_of(job)).record.registers for job in lease.jobs} == {255}
    assert first.stop() == second.stop() == 0
    assert builders(engine) == 0


def test_a_builder_that_is_told_to_stop_before_celery_listens_to_signals_stops(farm_services: ServiceUrls) -> None:
    told = """if True:
        import sys, threading
        from farm.broker.celery_app import consume, make_app
        stop = threading.Event()
        stop.set()
        consume(make_app(sys.argv[1]), pool="threads", queues=["nothing"], name="told@%h", stop=stop)
    """
    done = subprocess.run([sys.executable, "-c", told, str(farm_services.broker_url)], timeout=240, check=False)
    assert done.returncode == 0


def leased_by_the_coordinator(engine: Engine, device_id: int) -> batches.Lease:
    """What the coordinator has formed for the type of that device."""

    def formed() -> int | None:
        with engine.connect() as connection:
            found: int | None = connection.execute(
                text("SELECT id FROM batches WHERE state = 'queued' ORDER BY id LIMIT 1")
            ).scalar_one_or_none()
        return found

    def beat() -> bool:
        with engine.begin() as connection:
            devices.heartbeat(connection, device_id)
        return formed() is not None

    eventually(beat)
    lease = claim(engine, formed() or 0, device_id)
    assert lease is not None
    return lease


def test_a_kernel_whose_builder_is_killed_is_built_by_the_next(
    engine: Engine, stored: Stored, start_program: Start, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit.hold(True)
    start_program(COORDINATOR)
    builder = start_program(FARM_WORKER, "--build", name="builder")
    eventually(lambda: len(toolkit.compiled()) == 2)
    builder.kill()
    with engine.begin() as connection:  # as if it had been silent for long
        kernels.take_back(connection, silent_after=-1, max_attempts=9)
    toolkit.hold(False)
    start_program(FARM_WORKER, "--build", name="builder")
    eventually(lambda: set(states(engine).values()) == {"built"})


def test_compile_errors_and_broken_hosts_end_differently(
    engine: Engine, stored: Stored, start_program: Start, toolkit: Toolkit
) -> None:
    toolkit.refuse("-DSTAGES=3")
    toolkit.spoil("-DSTAGES=2")
    start_program(COORDINATOR)
    start_program(FARM_WORKER, "--build", name="builder")
    eventually(lambda: set(states(engine).values()) == {"failed"})
    with engine.connect() as connection:
        found = {k["label"].split("stages ")[1][0]: k for k in kernels.listed(connection)}
        final = {row.id: row.final for row in connection.execute(text("SELECT id, final FROM kernels"))}
    assert 'static assertion failed with "it is refused"' in found["3"]["error"]
    assert final[found["3"]["kernel_id"]]
    assert "the compiler ended with 1" in found["2"]["error"]
    assert not final[found["2"]["kernel_id"]]
    assert len(toolkit.compiled()) == 1 + MAX_ATTEMPTS
    eventually(lambda: ended(engine, stored) == {"invalid": 6, "dead": 6})


def ended(engine: Engine, stored: Stored) -> dict[str, int]:
    """Jobs by state, in one statement: while a coordinator lets jobs go, two do not see the same."""
    with engine.connect() as connection:
        return {state: n for state, n in campaigns.counts(connection, stored.campaign_id).items() if n}


def test_a_host_that_cannot_compile_anything_blames_no_kernel(
    engine: Engine, stored: Stored, start_program: Start, toolkit: Toolkit
) -> None:
    toolkit.break_()
    builder = start_program(FARM_WORKER, "--build", name="builder")
    assert builder.wait() == 3
    assert "cannot compile here: nvcc fatal   : Could not open output file" in builder.log()
    assert set(states(engine).values()) == {"wanted"}


def test_a_builder_of_other_versions_does_not_start(start_program: Start, tmp_path: Path) -> None:
    other = Toolkit(tmp_path / "other", version="12.9.86")
    builder = start_program(FARM_WORKER, "--build", name="builder", **other.variables)
    assert builder.wait() == 3
    assert "cuda 12.9.86" in builder.log()
    assert "cuda 13.0.88" in builder.log()


TRITON = {"family": "triton", "tile_m": 64, "tile_k": 32, "stages": [2, 3]}


def test_jobs_whose_toolchain_no_builder_has_are_told_apart(engine: Engine, gpu: int, submit: Submit) -> None:
    both = submit(Campaign.from_document(ahead(kernels=[{"family": "cutlass", "tile_k": 32}, TRITON])))
    nvcc, triton = TOOLCHAINS_HERE

    def lacking() -> tuple[dict[int, tuple[int, list[str]]], list[str]]:
        with engine.connect() as connection:
            found = kernels.without_builder(connection, silent_after=20)
            awaited = kernels.awaited(connection, both.campaign_id, silent_after=20)
        return {lane: (one.jobs, one.toolchains) for lane, one in found.items()}, awaited.without_builder

    (lane,) = lacking()[0]
    assert lacking() == ({lane: (18, [nvcc, triton])}, [nvcc, triton])
    with engine.begin() as connection:
        kernels.announce(connection, "here:1", toolchains=[nvcc], slots=1)
    assert lacking() == ({lane: (12, [triton])}, [triton])
    with engine.begin() as connection:
        kernels.announce(connection, "there:1", toolchains=[triton], slots=1)
    assert lacking() == ({}, [])
    with engine.begin() as connection:
        connection.execute(text("UPDATE builders SET last_seen_at = last_seen_at - interval '1 minute'"))
    assert lacking() == ({lane: (18, [nvcc, triton])}, [nvcc, triton])


def states_by_toolchain(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        return sorted((k["toolchain"].split()[0], str(k["state"])) for k in kernels.listed(connection))


def test_a_builder_with_two_toolchains_builds_the_kernels_of_both(
    engine: Engine, gpu: int, submit: Submit, start_program: Start, toolkit: Toolkit, tmp_path: Path
) -> None:
    stored = submit(Campaign.from_document(ahead(kernels=[{"family": "cutlass", "tile_k": 32}, TRITON])))
    triton = TritonToolkit(tmp_path / "triton")
    path = os.pathsep.join((triton.variables["PYTHONPATH"], toolkit.variables["PYTHONPATH"]))
    start_program(COORDINATOR)
    builder = start_program(FARM_WORKER, "--build", name="builder", PYTHONPATH=path)
    eventually(lambda: states_by_toolchain(engine) == [("cutlass", "built"), *[("triton", "built")] * 2])
    eventually(lambda: awaited(engine, stored) == (0, 0, 0))
    with engine.connect() as connection:
        (announced,) = kernels.builders(connection, silent_after=60)
        listed = kernels.listed(connection)
    assert announced["toolchains"] == TOOLCHAINS_HERE
    assert sorted(k["toolchain"] for k in listed) == [TOOLCHAINS_HERE[0], *[TOOLCHAINS_HERE[1]] * 2]
    assert {k["record"]["registers"] for k in listed if k["toolchain"] == "triton 3.9.0"} == {168}
    assert len(triton.compiled()) == 3  # one to prove that it works
    assert builder.stop() == 0


def test_a_builder_of_one_toolchain_leaves_the_kernels_of_others(
    engine: Engine, gpu: int, submit: Submit, start_program: Start, tmp_path: Path
) -> None:
    submit(Campaign.from_document(ahead(kernels=[{"family": "cutlass", "tile_k": 32}, TRITON])))
    triton, other = TritonToolkit(tmp_path / "triton"), Toolkit(tmp_path / "other", version="12.9.86")
    path = os.pathsep.join((triton.variables["PYTHONPATH"], other.variables["PYTHONPATH"]))
    start_program(COORDINATOR)
    builder = start_program(FARM_WORKER, "--build", name="builder", PYTHONPATH=path)
    eventually(lambda: states_by_toolchain(engine) == [("cutlass", "wanted"), *[("triton", "built")] * 2])
    with engine.connect() as connection:
        assert [b["toolchains"] for b in kernels.builders(connection, silent_after=60)] == [["triton 3.9.0"]]
        (left,) = (k for k in kernels.listed(connection) if k["state"] == "wanted")
    assert left["toolchain"] == TOOLCHAINS_HERE[0]
    assert "This host has cutlass 4.2.0, cuda 12.9.86" in builder.log()
    assert builder.stop() == 0


CAMPAIGN = (
    "name: ahead\nproblems: {m: [64, 128], n: 64, k: 32, types: [f16]}\nkernels: [{family: cutlass, stages: [2, 3]}]\n"
)


def test_kernels_are_built_in_one_place_and_added_to_a_farm_in_another(
    engine: Engine, gpu: int, submit: Submit, database_url: str, toolkit: Toolkit, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    farm = farm_here(tmp_path, database_url)
    given = ("kernels", "build", "ahead.yaml", "--arch", "sm_90a", "-o", "out")
    built = farm(*given, "--json", **toolkit.variables)
    assert built.returncode == 0, built.stderr
    assert len(json.loads(built.stdout)["kernels"]) == 2
    again = farm(*given, **toolkit.variables)
    assert again.stdout.startswith("2 kernels of ")
    assert "0 were built now" in again.stdout
    assert len(toolkit.compiled()) == 2
    stored = submit(Campaign.from_document(ahead()))
    assert json.loads(farm("kernels", "add", "out", "--json").stdout) == {"added": 2, "known": 0, "refused": []}
    assert let_go(engine) == 12
    assert awaited(engine, stored) == (0, 0, 0)
    listed = json.loads(farm("kernels", "list", "--json").stdout)
    assert [kernel["state"] for kernel in listed["kernels"]] == ["built", "built"]
    refused(farm("kernels", "add", str(tmp_path)), 2, "holds no built kernels")


def test_people_are_told_what_is_waited_for_and_who_would_build_it(
    engine: Engine, gpu: int, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    farm = farm_here(tmp_path, database_url)
    assert "2 kernels are needed, built ahead of time." in farm("submit", "ahead.yaml", "--dry-run").stdout
    with engine.begin() as connection:
        devices.heartbeat(connection, gpu)
    told = farm("submit", "ahead.yaml")
    assert "4 of them wait for 2 kernels to be built." in told.stdout
    assert "No builder with cutlass 4.2.0, cuda 13.0.88 is running" in told.stderr
    assert "on a host with the extra build" in told.stderr
    status = json.loads(farm("status", "ahead", "--json").stdout)
    lacking = ["cutlass 4.2.0, cuda 13.0.88"]
    assert status["kernels_awaited"] == {"kernels": 2, "building": 0, "jobs": 4, "without_builder": lacking}
    assert "kernels: 4 jobs wait for 2 to be built (0 in progress)" in farm("status", "ahead").stdout
    listed = farm("kernels", "list", "ahead")
    assert listed.stdout.count("wanted") == 2
    assert "Builders: none" in listed.stderr
    assert "ahead waits for no kernels" in farm("kernels", "list", "ahead", "--state", "built").stdout


def test_a_run_that_nobody_can_build_for_ends_and_says_so(engine: Engine, stored: Stored, database_url: str) -> None:
    opened = Session(Settings(), ServiceUrls(database_url, None, "sqlite://"), engine)
    with engine.begin() as connection:
        kernels.announce(connection, "elsewhere", toolchains=TOOLCHAINS_HERE[1:], slots=1)
        with pytest.raises(
            NoBuilder, match=r"12 jobs need 2 kernels .* those of cutlass 4.2.0, cuda 13.0.88.*\[build\]"
        ):
            _require_builder(opened, connection, stored.campaign_id, [])
        _require_builder(opened, connection, stored.campaign_id, TOOLCHAINS_HERE[:1])
        kernels.announce(connection, "elsewhere", toolchains=TOOLCHAINS_HERE, slots=1)
        _require_builder(opened, connection, stored.campaign_id, [])


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("cutlass_library") is None, reason="the extra build is not installed")
def test_the_small_campaign_builds_with_the_real_compiler(database_url: str, tmp_path: Path) -> None:
    few = str(Path(__file__).parents[3] / "examples" / "campaigns" / "cutlass-few.yaml")
    built = farm_in(tmp_path, database_url, timeout_s=280)("kernels", "build", few, "--arch", "sm_90a", "-o", "out")
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("12 kernels of ")
    assert len(list(KernelCache(tmp_path / "out").records())) == 12


def test_kernels_build_says_what_does_not_compile_and_keeps_the_rest(
    database_url: str, toolkit: Toolkit, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    toolkit.refuse("-DSTAGES=3")
    given = ("kernels", "build", "ahead.yaml", "--arch", "sm_80", "--arch", "sm_90a", "-o", "out")
    built = farm_here(tmp_path, database_url)(*given, **toolkit.variables)
    assert built.returncode == 6
    assert built.stdout.count("it is refused") == 2
    assert len(list(KernelCache(tmp_path / "out").records())) == 2
    assert "2 of 4 kernels are not there" in built.stderr


def test_kernels_build_refuses_what_makes_no_sense(database_url: str, toolkit: Toolkit, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(
        "name: plain\nproblems: {m: 64, n: 64, k: 32, types: [f32]}\nkernels: [{family: tiled}]\n"
    )
    farm = farm_here(tmp_path, database_url)
    refused(farm("kernels", "build", "plain.yaml", "--arch", "sm_90a"), 2, "needs a kernel that is built ahead")
    refused(farm("kernels", "build", "plain.yaml", "--arch", "hopper"), 2, "Write it as nvcc does, as in sm_90a")
