"""Kernels that are built ahead of time: wanted once, waited for, shared by campaigns, and missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.builds.cache import KernelCache
from farm.campaign import Campaign, plan
from farm.db import batches, campaigns, jobs, kernels
from farm.db.campaigns import Stored
from farm.db.states import JobState
from farm.db.task_rows import MAX_ATTEMPTS
from farm.errors import KernelMissing
from farm.kernels import Configuration
from farm.measurement import Measurement
from support.batch_steps import counts, form, land, leased
from support.kernel_builds import (
    Announce,
    Submit,
    awaited,
    began,
    binary_of,
    build,
    fail,
    leased_of,
    let_go,
    source,
    states,
    wanted,
)
from support.samples import ahead, card, cpu, document, row
from support.scripted_device import Scripted
from workers.runner import Runner


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
