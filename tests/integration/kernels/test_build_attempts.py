"""Attempts at building a kernel: which builder gets it, and what follows one that fails or falls silent."""

from __future__ import annotations

from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.db import kernels
from farm.db.campaigns import Stored
from farm.db.states import KernelState
from farm.db.task_rows import MAX_ATTEMPTS
from support.kernel_builds import TOOLCHAINS_HERE, TRITON, Submit, began, fail, start, wanted
from support.samples import ahead


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
