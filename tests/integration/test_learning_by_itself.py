"""The coordinator asks for a model when campaigns ended, and when many rows landed; and not more often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from farm.broker.celery_app import make_app
from farm.campaign import Campaign
from farm.coordinator.loop import Coordinator
from farm.coordinator.retraining import Retraining
from farm.db import batches, campaigns, trainings
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.settings import Settings
from support.batch_steps import land, leased
from support.samples import cpu, document

Submit = Callable[[Campaign], Stored]


def looked(engine: Engine, new_rows: int) -> list[str]:
    """The device types of all trainings, after a look of the coordinator."""
    with engine.begin() as connection:
        batches.fold(connection)
        campaigns.finish(connection)
    Retraining(engine, Settings(train_new_rows=new_rows)).reconcile()
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT device_type FROM trainings ORDER BY id")).scalars())


def trained(engine: Engine) -> None:
    """Every training that is open began just now, and is over."""
    with engine.begin() as connection:
        for training_id in connection.execute(text("SELECT id FROM trainings WHERE state = 'requested'")).scalars():
            started = trainings.start(connection, training_id)
            assert started is not None
            assert trainings.finish(connection, started, outcome={})


def another(name: str, m: int) -> Campaign:
    """Twelve configurations that no other campaign has."""
    return Campaign.from_document(
        document(name=name, problems={"m": [m, m + 1, m + 2], "n": 64, "k": [32, 64], "types": ["f32"]})
    )


def test_a_model_is_asked_for_when_a_campaign_has_ended(engine: Engine, device: int, small: Stored) -> None:
    land(engine, leased(engine, device, size=11))
    assert looked(engine, 12) == []
    land(engine, leased(engine, device))
    assert looked(engine, 12) == ["cpu-test"]


def test_a_coordinator_looks_in_its_turns_and_not_in_each(engine: Engine, device: int, submit: Submit) -> None:
    with make_app("redis://127.0.0.1:1/0") as nowhere:
        coordinator = Coordinator(engine, nowhere, Settings(train_new_rows=12))
        coordinator.turn()
        submit(Campaign.from_document(document()))
        land(engine, leased(engine, device))
        coordinator.turn()
        assert looked(engine, 0) == []
        Coordinator(engine, nowhere, Settings(train_new_rows=12)).turn()
    assert looked(engine, 0) == ["cpu-test"]


def test_a_campaign_that_brought_less_asks_for_nothing_and_zero_turns_it_off(
    engine: Engine, device: int, small: Stored
) -> None:
    land(engine, leased(engine, device))
    assert looked(engine, 13) == []
    assert looked(engine, 0) == []
    assert looked(engine, 12) == ["cpu-test"]


def test_ten_times_as_many_rows_ask_for_a_model_while_the_campaign_runs(
    engine: Engine, device: int, small: Stored
) -> None:
    land(engine, leased(engine, device, size=9))
    assert looked(engine, 1) == []
    land(engine, leased(engine, device, size=1))
    assert looked(engine, 1) == ["cpu-test"]


def test_no_model_is_asked_for_while_one_is_open_nor_twice_for_the_same_rows(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    land(engine, leased(engine, device))
    assert looked(engine, 5) == ["cpu-test"]
    submit(another("meanwhile", 200))
    land(engine, leased(engine, device))
    assert looked(engine, 5) == ["cpu-test"]
    trained(engine)
    assert looked(engine, 5) == ["cpu-test"]
    submit(another("more", 300))
    land(engine, leased(engine, device, size=8))
    assert looked(engine, 5) == ["cpu-test"]
    land(engine, leased(engine, device))
    assert looked(engine, 5) == ["cpu-test"] * 2


def test_rows_that_farm_run_has_trained_on_already_ask_for_nothing(engine: Engine, device: int, small: Stored) -> None:
    land(engine, leased(engine, device))
    with engine.begin() as connection:
        trainings.request(connection, device_type="cpu-test")
    trained(engine)
    assert looked(engine, 5) == ["cpu-test"]


def test_a_training_that_failed_is_not_asked_for_again_without_new_rows(
    engine: Engine, device: int, small: Stored
) -> None:
    land(engine, leased(engine, device))
    assert looked(engine, 5) == ["cpu-test"]
    with engine.begin() as connection:
        (training_id,) = connection.execute(text("SELECT id FROM trainings")).scalars()
        started = trainings.start(connection, training_id)
        assert started is not None
        assert trainings.finish(connection, started, error="too few measurements")
    assert looked(engine, 5) == ["cpu-test"]


def test_each_device_type_has_rows_of_its_own_and_those_of_recordings_do_not_count(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Submit
) -> None:
    kinds = ("cpu-a", "cpu-b", "cpu-c")
    ids = {kind: announce(cpu(number, kind=kind)) for number, kind in enumerate(kinds)}
    submit(Campaign.from_document(document(targets=[{"type": kind} for kind in kinds])))
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET backend = 'recorded' WHERE type = 'cpu-c'"))
    announce(cpu(9, kind="cpu-c"))  # it could measure, and has not
    for kind in ("cpu-a", "cpu-c"):
        land(engine, leased(engine, ids[kind], kind=kind))
    assert looked(engine, 1) == ["cpu-a"]


@pytest.mark.parametrize("rules", ["null", '{"min_samples": 3}'])
def test_what_a_short_round_of_a_search_measured_counts_for_nothing(
    engine: Engine, device: int, small: Stored, rules: str
) -> None:
    land(engine, leased(engine, device))
    with engine.begin() as connection:
        # SQL's null, and not JSON's.
        connection.execute(text("UPDATE lanes SET rules = NULLIF(CAST(:rules AS jsonb), 'null')"), {"rules": rules})
    assert looked(engine, 1) == (["cpu-test"] if rules == "null" else [])
