"""A campaign before and after a change: measured again as its next repetition, compared, and a slowdown found or not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from sqlalchemy import Engine, text

from farm.campaign import Campaign, load
from farm.db import batches, campaigns, devices
from farm.kernels import Configuration
from support.batch_steps import counts, leased
from support.commands import Command, farm_here, refused
from support.samples import cpu, row

FILE = {
    "name": "nightly",
    "owner": "ann",
    "targets": "any",
    "problems": {"m": [64, 128, 256, 512], "n": [64, 128], "k": [32, 64], "types": ["f32", "f64"]},
    "kernels": [{"family": "blas", "threads": [1, 2]}],
}
BEFORE, AFTER = {"library": "1.0", "driver": "570.86"}, {"library": "1.0", "driver": "580.159"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.yaml"
    path.write_text(yaml.safe_dump(FILE))
    return path


@pytest.fixture
def command(tmp_path: Path, database_url: str, engine: Engine) -> Command:
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
    return farm_here(tmp_path, database_url)


def submitted(command: Command, file: Path, *options: str) -> dict[str, object]:
    done = command("submit", str(file), *options, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def measure(
    engine: Engine,
    environment: dict[str, str],
    *,
    slower: dict[str, float] | None = None,
    seed: int,
    noise: float = 0.005,
) -> None:
    """What waits, on the one device: about a GFLOP per ms, half a percent of noise or more, and times a factor by element type."""
    rng = np.random.default_rng(seed)

    def taken(one: Configuration) -> float:
        factor = (slower or {}).get(one.problem.types.ab, 1.0)
        return float(one.problem.flops / 1e9 * factor * math.exp(rng.normal(0, noise)))

    lease = leased(engine, 1, size=1000)
    rows = [(job, row(taken(job.configuration), environment=environment)) for job in lease.jobs]
    with engine.begin() as connection:
        batches.land(connection, lease, rows, {})
        batches.fold(connection)
        campaigns.finish(connection)


def check(command: Command, *options: str) -> tuple[int, list[dict[str, object]]]:
    done = command("compare", "driver=570.86", "driver=580.159", "-c", "nightly", *options, "--json")
    return done.returncode, json.loads(done.stdout)["slower"]


def test_again_measures_everything_once_more_under_the_same_name(engine: Engine, command: Command, file: Path) -> None:
    first = submitted(command, file)
    assert (first["repeat"], first["new_jobs"]) == (0, 64)
    measure(engine, BEFORE, seed=1)
    assert submitted(command, file)["new_jobs"] == 0
    second = submitted(command, file, "--again")
    assert (second["repeat"], second["new_jobs"], second["new"]) == (1, 64, True)
    # While it is not over, again is the same one.
    assert submitted(command, file, "--again")["new"] is False
    measure(engine, AFTER, seed=2)
    assert submitted(command, file, "--again")["repeat"] == 2
    with engine.connect() as connection:
        ids = campaigns.repetitions(connection, "nightly")
        assert len(ids) == 3
        assert campaigns.repetitions(connection, str(second["digest"])[:12]) == [ids[1]]
        assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() == 128
    assert counts(engine, ids[1])["done"] == 64


def test_a_campaign_that_nobody_submitted_is_its_first_repetition(command: Command, file: Path) -> None:
    assert submitted(command, file, "--again")["repeat"] == 0


def test_a_repetition_is_another_campaign_and_what_was_stored_before_keeps_its_digest(file: Path) -> None:
    plain = load(file, limit=1000)
    assert "repeat" not in plain.document
    file.write_text(yaml.safe_dump({**FILE, "repeat": 3}))
    third = load(file, limit=1000)
    assert third.digest != plain.digest
    assert Campaign.from_document(third.document) == third


def test_a_slowdown_after_a_new_driver_is_found_with_its_size(engine: Engine, command: Command, file: Path) -> None:
    submitted(command, file)
    measure(engine, BEFORE, seed=1)
    submitted(command, file, "--again")
    measure(engine, AFTER, slower={"f32": 1.06, "f64": 1.06}, seed=2)
    code, slower = check(command, "--check", "3")
    assert code == 7
    assert {one["of"] for one in slower} == {"all", "f32", "f64"}
    for one in slower:
        assert one["time"]["ratio"] == pytest.approx(1.06, abs=0.005)  # type: ignore[index]
        assert one["time"]["low"] < 1.06 < one["time"]["high"]  # type: ignore[index]
    assert check(command, "--check", "8") == (0, [])
    # The other way round it is faster.
    done = command("compare", "driver=580.159", "driver=570.86", "-c", "nightly", "--check", "3")
    assert done.returncode == 0
    refused_ = command("compare", "driver=570.86", "driver=580.159", "-c", "nightly", "--check", "3")
    assert refused_.returncode == 7
    assert "driver=580.159 by 1.06" in refused_.stderr
    assert "driver: driver=570.86 570.86; driver=580.159 580.159" in refused_.stdout


def test_a_slowdown_of_one_element_type_does_not_hide_among_the_others(
    engine: Engine, command: Command, file: Path
) -> None:
    submitted(command, file)
    measure(engine, BEFORE, seed=1)
    submitted(command, file, "--again")
    measure(engine, AFTER, slower={"f64": 1.05}, seed=2)
    code, slower = check(command, "--check", "3")
    assert code == 7
    assert [one["of"] for one in slower] == ["f64"]


def test_no_slowdown_is_found_where_none_is(engine: Engine, command: Command, file: Path) -> None:
    submitted(command, file)
    measure(engine, BEFORE, seed=1)
    submitted(command, file, "--again")
    measure(engine, AFTER, seed=2)
    assert check(command, "--check", "1") == (0, [])


def test_a_slowdown_that_noise_hides_is_not_claimed(engine: Engine, command: Command, file: Path) -> None:
    submitted(command, file)
    measure(engine, BEFORE, seed=1, noise=0.1)
    submitted(command, file, "--again")
    measure(engine, AFTER, slower={"f32": 1.06, "f64": 1.06}, seed=2, noise=0.1)
    (side,) = json.loads(command("compare", "driver=570.86", "driver=580.159", "--json").stdout)["sides"]
    measured = side["overall"]["time"]["ratio"]
    assert measured > 1.01
    assert check(command, "--check", f"{100 * (measured - 1) - 0.1:.2f}") == (0, [])


def test_a_check_that_cannot_tell_does_not_pass(engine: Engine, command: Command, file: Path) -> None:
    file.write_text(yaml.safe_dump({**FILE, "problems": {"m": 64, "n": 64, "k": [32, 64], "types": ["f32"]}}))
    submitted(command, file)
    measure(engine, BEFORE, seed=1)
    submitted(command, file, "--again")
    measure(engine, AFTER, slower={"f32": 2.0}, seed=2)
    done = command("compare", "driver=570.86", "driver=580.159", "--check", "3")
    refused(done, 2, "share 2 shapes, and it takes 5")
