"""Builders as programs: several at a time, killed ones, and ones that lack a toolchain."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm import signing_keys
from farm.builds.cache import KernelCache
from farm.builds.stores import DatabaseStore
from farm.campaign import Campaign
from farm.db import batches, campaigns, devices, kernels
from farm.db.campaigns import Stored
from farm.db.farm_key import farm_key
from farm.db.task_rows import MAX_ATTEMPTS
from farm.kernels.toolchains import BUILT_WITH
from farm.services import ServiceUrls
from farm.settings import Settings
from farm.signing import Purpose
from farm.tracing import ids_of_kernel
from support.batch_steps import claim
from support.homes import eventually
from support.kernel_builds import TOOLCHAINS_HERE, TRITON, Submit, awaited, binary_of, states
from support.otlp_collector import Collector, collecting
from support.programs import COORDINATOR, FARM_WORKER, Start
from support.samples import ahead
from support.toolkit import Toolkit
from support.triton_toolkit import TritonToolkit
from workers.kernels.sources import FarmKernels


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
    with collecting() as collector:
        builder = start_program(FARM_WORKER, "--build", name="builder", FARM_OTEL_ENDPOINT=collector.url)
        eventually(lambda: set(states(engine).values()) == {"failed"})
        assert builder.stop() == 0
    attempts = collector.named("run build")
    assert all(one.failed and not one.parent for one in attempts)
    assert len({one.trace for one in attempts}) == 2
    assert sorted(one.attributes["gemm_farm.kernel.attempt"] for one in attempts) == [1, 1, 2, 3]
    assert len(collector.named("compile kernel")) == len(attempts)
    assert not collector.named("store kernel")
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
    with collecting() as collector:
        variables = {"PYTHONPATH": path, "FARM_OTEL_ENDPOINT": collector.url}
        builder = start_program(FARM_WORKER, "--build", name="builder", **variables)
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
    for kernel in listed:
        check_spans(collector, engine, kernel)


def check_spans(collector: Collector, engine: Engine, kernel: Mapping[str, object]) -> None:
    """The build of a kernel is one trace, from its request to the end."""
    trace = f"{ids_of_kernel(str(farm_key(engine)), kernel['kernel_id']).trace:032x}"
    (built,) = collector.named("run build", kernel_id=kernel["kernel_id"])
    assert (built.program, built.trace, built.parent, built.failed) == ("gemm-farm-builder", trace, "", False)
    assert built.attributes["gemm_farm.kernel.hash"] == kernel["hash"]
    parts = [one for one in collector.spans if one.parent == built.span]
    assert [(one.name, one.trace) for one in parts] == [
        (name, trace) for name in ("wait for builder", "compile kernel", "store kernel")
    ]
    waited, *_, last = parts
    assert waited.began_ns == built.began_ns
    assert last.ended_ns <= built.ended_ns
    waited_s = (kernel["started_at"] - kernel["wanted_at"]).total_seconds()
    assert 1e-9 * (waited.ended_ns - waited.began_ns) == pytest.approx(waited_s, abs=1e-5)


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
