"""`farm results --format t4`: a campaign's jobs for autotuners, those that failed among them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.errors import BuildFailed, WrongResult
from support.batch_steps import claim, form, land, leased
from support.commands import Command, farm_here, refused
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
ONCE = {"max_attempts": 1}
KERNELS = [{"family": "blas", "threads": [1, 2, 4]}]  # 4 threads are more than the device has


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def stored(engine: Engine, announce: Announce, submit: Submit) -> Stored:
    """18 jobs: 6 are refused at once, 2 wait, and of the 10 that were tried one was invalid, one wrong and one killed."""
    device = announce(cpu())
    campaign = submit(Campaign.from_document(document(kernels=KERNELS, measure=ONCE)))
    lease = leased(engine, device, size=10)
    invalid, wrong, killed = (job.id for job in lease.jobs[:3])
    failures = {
        invalid: Failure(FailureKind.INVALID, "no such thread"),
        wrong: Failure(FailureKind.FAILED, str(WrongResult(row=1, column=2, error=0.5, bound=0.1))),
        killed: Failure(FailureKind.KILLED, "its process died"),
    }
    land(engine, lease, failures)
    return campaign


def invalidities(made: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(result["invalidity"] for result in made["results"]))


def test_every_job_that_ended_is_a_result(command: Command, stored: Stored) -> None:
    done = command("results", "--campaign", "small", "--format", "t4")
    assert (done.returncode, done.stderr) == (0, "2 jobs of small have not ended and are not in it.\n")
    made = json.loads(done.stdout)
    assert invalidities(made) == {"correct": 7, "constraints": 7, "correctness": 1, "runtime": 1}
    configurations = {json.dumps(result["configuration"]) for result in made["results"]}
    assert len(configurations) == 16
    refused_at_once = [r for r in made["results"] if r["configuration"]["threads"] == 4]
    assert {result["invalidity"] for result in refused_at_once} == {"constraints"}
    assert len(refused_at_once) == 6
    assert made["metadata"]["measuring_rules"]["max_attempts"] == 1
    (device,) = made["metadata"]["hardware"]["hardware_description"]
    assert (device["uuid"], device["host"]) == ("CPU-1", "here")


def test_a_job_that_failed_and_was_measured_later_is_correct(engine: Engine, command: Command, small: Stored) -> None:
    with engine.connect() as connection:
        device = connection.exec_driver_sql("SELECT id FROM devices").scalar_one()
    lease = leased(engine, device)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "once")})
    waiting = json.loads(command("results", "-c", "small", "--format", "t4").stdout)
    assert invalidities(waiting) == {"correct": 11}
    land(engine, leased(engine, device))
    done = command("results", "-c", "small", "--format", "t4")
    assert done.stderr == ""
    assert invalidities(json.loads(done.stdout)) == {"correct": 12}


def test_a_job_that_died_is_what_its_last_attempt_was_on_the_type_where_that_was(
    engine: Engine, command: Command, announce: Announce, submit: Submit, tmp_path: Path
) -> None:
    first, second = announce(cpu()), announce(cpu(2, kind="cpu-other"))
    submit(Campaign.from_document(document(measure={"max_attempts": 2})))
    lease = leased(engine, first)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "once")})
    batch = form(engine, kind="cpu-other")
    assert batch is not None
    again = claim(engine, batch, second)
    assert again is not None
    land(engine, again, {again.jobs[0].id: Failure(FailureKind.FAILED, str(BuildFailed(why="no", binary="b")))})
    assert command("results", "-c", "small", "--format", "t4", "-o", "made").returncode == 0
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "made").iterdir()}
    assert {name: invalidities(made) for name, made in found.items()} == {
        "blas-cpu-test.json": {"correct": 11},
        "blas-cpu-other.json": {"compile": 1},
    }


def test_a_folder_gets_a_file_for_each_device_type(
    engine: Engine, command: Command, announce: Announce, submit: Submit, tmp_path: Path
) -> None:
    first, second = announce(cpu()), announce(cpu(2, kind="cpu-other", threads=1))
    # Only cpu-test has two threads; four are refused on both.
    submit(Campaign.from_document(document(kernels=KERNELS, targets=["any", {"device": "CPU-2"}])))
    for device, kind in ((first, "cpu-test"), (second, "cpu-other")):
        while (batch := form(engine, kind=kind)) is not None:
            lease = claim(engine, batch, device)
            assert lease is not None
            land(engine, lease)
    done = command("results", "-c", "small", "--format", "t4", "-o", "made/here")
    assert (done.returncode, done.stdout) == (0, "")
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "made" / "here").iterdir()}
    assert found.keys() == {"blas-cpu-test.json", "blas-cpu-other.json", "blas-cpu-other-CPU-2.json"}
    assert invalidities(found["blas-cpu-other-CPU-2.json"]) == {"correct": 6, "constraints": 12}
    both = [found[name] for name in ("blas-cpu-test.json", "blas-cpu-other.json")]
    assert sum((Counter(invalidities(made)) for made in both), Counter()) == {"correct": 12, "constraints": 12}
    assert all(invalidities(made)["constraints"] == 6 for made in both)

    refused(
        command("results", "-c", "small", "--format", "t4", "-o", "all.json"),
        2,
        "about one kernel on one device",
        "blas on cpu-other CPU-2",
        "--output FOLDER",
    )
    assert not (tmp_path / "all.json").exists()
    one = command("results", "-c", "small", "--format", "t4", "--type", "cpu-test", "-o", "one.json")
    assert (one.returncode, one.stdout) == (0, "")
    assert f"{len(found['blas-cpu-test.json']['results'])} results of blas on cpu-test in one.json" in one.stderr
    assert json.loads((tmp_path / "one.json").read_text()) == found["blas-cpu-test.json"]


@pytest.mark.parametrize("options", [[], ["-c", "small", "--limit", "3"], ["-c", "small", "--sort", "-tflops"]])
def test_it_is_all_of_one_campaign(command: Command, small: Stored, options: list[str]) -> None:
    refused(command("results", "--format", "t4", *options), 2, "the jobs of one campaign, all of them")


def test_a_campaign_of_which_nothing_has_ended_is_an_error(command: Command, small: Stored) -> None:
    refused(command("results", "-c", "small", "--format", "t4"), 2, "Of small no job that matches has ended yet")
    refused(command("results", "-c", "smal", "--format", "t4"), 4, "There is no campaign 'smal'")


def test_a_place_that_cannot_be_written_is_an_error(command: Command, stored: Stored, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    t4 = ("results", "-c", "small", "--format", "t4", "-o")
    refused(command(*t4, "no/such.json"), 2, "no/such.json cannot be written")
    refused(command(*t4, "file/folder"), 2, "file/folder cannot be written")
    refused(command(*t4, "file"), 2, "file cannot be written")
