"""`farm recommend --confirm`: the kernels that a model ranks first are measured, and ranked by that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.db import batches
from farm.devices import DeviceIdentity
from support.batch_steps import claim, form
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.compared import H200
from support.model_records import record_models
from support.samples import row
from support.serving import served
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

CARD = "nvidia-h200"
ASK = ("recommend", "700", "--type", CARD, "--confirm", "--timeout", "1")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> str:
    """A model of four tiles, of which it says that 32 is the fastest."""
    found = new_registry(tmp_path_factory.mktemp("home"))
    table = tiled_table((256, 512, 1024), tiles=(8, 16, 24, 32)).assign(device_type=CARD)
    with cheap_trainings():
        train_and_register(table, CARD, tracking_uri=found, code_version="1.0", settings=ForestSettings(trees=10))
    return found


@pytest.fixture
def farm(uri: str, database_url: str) -> Command:
    return farm_here(Path(uri.removeprefix("sqlite:///")).parent, database_url)


def measure(engine: Engine, device: int, runtimes_ms: dict[int, float]) -> int:
    """The open jobs land, with the time of their tile; how many they are."""
    batch = form(engine, 100, kind=CARD)
    if batch is None:
        return 0
    lease = claim(engine, batch, device)
    assert lease is not None
    results = [
        (job, row(runtime_ms=runtimes_ms[dict(job.configuration.kernel.parameters)["tile"]])) for job in lease.jobs
    ]
    with engine.begin() as connection:
        batches.land(connection, lease, results, {})
        batches.fold(connection)
    return len(results)


def test_the_first_three_are_measured_once_and_ranked_by_that(
    engine: Engine, farm: Command, announce: Callable[[DeviceIdentity], int]
) -> None:
    device = announce(H200)
    first = farm(*ASK)
    assert first.returncode == 0, first.stderr
    assert "Not over after 1 s" in first.stderr
    assert "None of these kernels has been measured yet" in first.stdout
    assert measure(engine, device, {32: 3.0, 24: 1.0, 16: 2.0, 8: 0.1}) == 3
    found = json.loads(farm(*ASK, "--json").stdout)
    assert [one["measured_ms"] for one in found["ranking"]] == [1.0, 2.0, 3.0, None]
    assert found["winner"].startswith("tiled(tile=24) 700x700x700")
    assert measure(engine, device, {}) == 0  # nothing is measured again
    shown = farm(*ASK).stdout
    assert "Fastest as measured: tiled(tile=24), 1 ms" in shown


def test_rows_under_other_rules_are_measured_again(
    engine: Engine, farm: Command, announce: Callable[[DeviceIdentity], int]
) -> None:
    device = announce(H200)
    farm(*ASK)
    assert measure(engine, device, dict.fromkeys((8, 16, 24, 32), 1.0)) == 3
    with engine.begin() as connection:
        connection.execute(text("UPDATE campaigns SET rules = jsonb_set(rules, '{power}', '\"all\"')"))
    found = json.loads(farm(*ASK, "--json").stdout)
    assert found["winner"] is None


def test_without_a_card_that_takes_work_nothing_is_submitted(engine: Engine, farm: Command) -> None:
    refused(farm(*ASK), 3, f"{CARD} cannot be measured now: no device of the type takes work")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM campaigns")).scalar_one() == 0


def test_it_is_the_same_through_the_api(
    engine: Engine, farm: Command, uri: str, announce: Callable[[DeviceIdentity], int], tmp_path: Path
) -> None:
    device = announce(H200)
    farm(*ASK)
    measure(engine, device, {32: 3.0, 24: 1.0, 16: 2.0, 8: 0.1})
    away = farm_here(tmp_path, "")
    record_models(uri, engine)
    with served(engine, tracking_uri=uri) as url:
        found = json.loads(away(*ASK, "--json", FARM_API_URL=url).stdout)
    assert found == json.loads(farm(*ASK, "--json").stdout)


def test_what_has_no_times_to_compare_is_refused(farm: Command) -> None:
    refused(farm("recommend", "700", "--confirm", "--objective", "energy"), 2, "--confirm compares settled times")
    refused(farm("recommend", "700", "--confirm", "--every-type"), 2, "--confirm compares settled times")
