"""The strategy learn on real Postgres: a test set that nobody learns from, and rounds that follow one another once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from farm.broker.queues import TRAIN_QUEUE, client_name
from farm.campaign import Campaign
from farm.db import batches, learning, measurements, open_jobs, trainings
from farm.db.campaigns import Stored
from farm.db.farm_key import farm_key
from farm.devices import DeviceIdentity
from farm.errors import TaskLost
from farm.measurement import TEST_ROW, is_test_row
from farm.services import ServiceUrls
from farm.services.urls import redis_client_url
from farm.tracing import Collected, ids_of_campaign, taking
from support import learning_curves
from support.commands import farm_here, refused
from support.learning_campaigns import begun, decided, learning_campaign, measure, requested, state
from support.samples import cpu, document, landed, row
from trainer import rounds
from trainer.reading import read_test_table, read_training_table

Submit = Callable[[Campaign], Stored]


def lanes(engine: Engine) -> list[tuple[int, str, int, bool]]:
    """Round, purpose, jobs, and whether it was decided."""
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT round, purpose, jobs, decided IS NOT NULL FROM lanes ORDER BY campaign_id, round")
        )
        return [tuple(each) for each in found]


def test_a_test_set_and_a_first_round_are_stored_apart(engine: Engine, device: int, submit: Submit) -> None:
    submit(learning_campaign())
    assert lanes(engine) == [(0, "test", 40, False), (1, "learn", 20, False)]


def test_rounds_follow_one_another_until_the_budget_is_used(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(learning_campaign(budget_seconds=0.75))
    assert measure(engine, device) == 60  # each costs 0.01 s
    (training,) = requested(engine)
    assert "20 jobs follow" in str(decided(engine, training))
    assert [lane[2:] for lane in lanes(engine)] == [(40, False), (20, True), (20, False)]
    assert state(engine) == "active"
    assert requested(engine) == []  # the round that follows is not over
    assert measure(engine, device) == 20
    assert state(engine) == "active"  # though no job is open: it is not decided yet
    (training,) = requested(engine)
    assert "it ends, as the budget of 0.75 device seconds is used" in str(decided(engine, training))
    assert state(engine) == "done"
    with engine.connect() as connection:
        first, second = learning.curve(connection, stored.campaign_id)
        assert learning.curve(connection, stored.campaign_id, device_type="cpu-test") == [first, second]
        assert learning.curve(connection, stored.campaign_id, device_type="another") == []
    assert (first["round"], first["device_seconds"], first["rows"], first["next_jobs"]) == (
        1,
        pytest.approx(0.6),
        20,
        20,
    )
    assert (second["rows"], second["stop"]) == (40, "the budget of 0.75 device seconds is used")
    assert second["test"]["all"]["rows"] == 40
    assert second["test"]["all"]["low"] <= second["test"]["all"]["mean_error_pct"] <= second["test"]["all"]["high"]


def test_the_next_round_is_requested_while_the_last_jobs_are_measured(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(learning_campaign())
    measure(engine, device, jobs=40)
    assert requested(engine) == []
    measure(engine, device, jobs=17)
    assert len(requested(engine)) == 1
    assert requested(engine) == []


def test_a_target_that_is_reached_ends_the_campaign(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(learning_campaign(target={"blas": 900}))
    measure(engine, device)
    (training,) = requested(engine)
    with taking(Collected(2)) as recorder:
        assert "it ends, as the target is reached" in str(decided(engine, training))
    (span,) = recorder.take()
    campaign = ids_of_campaign(str(farm_key(engine)), stored.campaign_id)
    assert (span.name, span.links) == ("decide round", (campaign,))
    assert span.attributes == {"gemm_farm.campaign.id": stored.campaign_id}


def test_a_domain_without_a_further_problem_ends_the_campaign(engine: Engine, device: int, submit: Submit) -> None:
    domain = {"domain": {"m": "1..32", "n": 16, "k": 16, "align": [1]}, "types": ["f32"]}
    search = {"strategy": "learn", "problems": 12, "kernels": 2, "test_problems": 20, "target": 0.001}
    small = learning_campaign().document | {"problems": domain, "search": search}
    stored = submit(Campaign.from_document(small))
    assert measure(engine, device) == 64
    (training,) = requested(engine)
    assert "it ends, as the domain has no further problem that can be measured" in str(decided(engine, training))
    with engine.connect() as connection:
        (last,) = learning.curve(connection, stored.campaign_id)
    assert re.fullmatch(
        r"the domain has no further problem that can be measured before the target was reached: "
        r"all \d+\.\d% \(target 0\.001%\)",
        last["stop"],
    )
    assert state(engine) == "done"


def test_nothing_of_the_test_set_is_learned_from(engine: Engine, device: int, submit: Submit) -> None:
    submit(learning_campaign())
    measure(engine, device)
    with engine.connect() as connection:
        learned, tested = read_training_table(engine, "cpu-test"), read_test_table(engine, "cpu-test")
    problem = ["m", "n", "k", "ab", "layout"]
    assert (len(learned), len(tested)) == (20, 40)
    assert not set(map(tuple, learned[problem].to_numpy())) & set(map(tuple, tested[problem].to_numpy()))
    # Exports label the rows of the test set, so that no other farm learns from them.
    with engine.connect() as connection:
        for short_rounds in (False, True):
            exported = measurements.read(connection, short_rounds=short_rounds)
            assert [row["round"] == 0 for row in exported] == [is_test_row(row["details"]) for row in exported]
            assert sum(row["round"] == 0 for row in exported) == 40
    # Another campaign that measures such a problem teaches no model either.
    m, n, k = (int(tested.iloc[0][name]) for name in "mnk")
    submit(Campaign.from_document(document(problems={"shapes": f"{m}x{n}x{k}", "types": ["f32"]})))
    assert measure(engine, device) == 2
    with engine.connect() as connection:
        assert len(read_training_table(engine, "cpu-test")) == 20
        assert sum(is_test_row(row["details"]) for row in measurements.read(connection)) == 40


@pytest.mark.parametrize(
    ("column", "values"),
    [("batch", [1, 4, 8]), ("scale", ["none", "row", "tensor"]), ("fused", ["none", "bias", "relu"])],
)
def test_a_test_row_of_one_kind_leaves_the_others_to_learn_from(
    engine: Engine, device: int, column: str, values: list[object]
) -> None:
    lines = [f"blas() 64x64x64 f32 {column}={value}" for value in values]
    labelled = row(1.0, source="recorded", details={"purpose": TEST_ROW["purpose"]})
    landed(engine, device, [*((line, row(1.0)) for line in lines), (lines[1], labelled)])
    learned = read_training_table(engine, "cpu-test")
    tested = read_test_table(engine, "cpu-test", any_source=True)
    assert learned[column].tolist() == [values[0], values[2]]
    assert tested[column].tolist() == [values[1]]


def test_a_test_row_in_groups_is_not_learned_from_in_other_groups(engine: Engine, device: int) -> None:
    """They are nearly the same problem. The product without groups and other rows are not."""
    lines = [f"blas() 64x64x64 f32 groups={groups}" for groups in ("none", "32*2", "60,4", "16*4")]
    labelled = row(1.0, source="recorded", details={"purpose": TEST_ROW["purpose"]})
    more = "blas() 65x64x64 f32 groups=33,32"
    landed(engine, device, [*((line, row(1.0)) for line in (*lines, more)), (lines[1], labelled)])
    learned = read_training_table(engine, "cpu-test")
    tested = read_test_table(engine, "cpu-test", any_source=True)
    assert learned["groups"].tolist() == ["none", "33,32"]
    assert tested["groups"].tolist() == ["32*2"]


def test_the_database_refuses_jobs_that_would_learn_from_the_test_set(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(learning_campaign())
    move = text("""
        INSERT INTO jobs (lane_id, configuration_id)
        SELECT l.id, j.configuration_id FROM lanes l, jobs j JOIN lanes t ON t.id = j.lane_id AND t.purpose = 'test'
        WHERE l.purpose = 'learn' LIMIT 1
    """)
    with pytest.raises(IntegrityError, match="is in the test set of its campaign"), engine.begin() as connection:
        connection.execute(move)
    other_batch = text("""
        WITH one AS (
            SELECT c.* FROM configurations c JOIN jobs j ON j.configuration_id = c.id
            JOIN lanes l ON l.id = j.lane_id AND l.purpose = 'test' LIMIT 1
        ), batched AS (
            INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, batch, family, parameters)
            SELECT gen_random_uuid(), m, n, k, ab, cd, acc, layout, alpha, beta, 4, family, parameters FROM one
            RETURNING id
        )
        INSERT INTO jobs (lane_id, configuration_id) SELECT l.id, b.id FROM lanes l, batched b WHERE l.purpose = 'learn'
    """)
    with engine.begin() as connection:
        assert connection.execute(other_batch).rowcount == 1


def test_a_trainer_that_lost_its_training_decides_nothing(engine: Engine, device: int, submit: Submit) -> None:
    submit(learning_campaign())
    measure(engine, device)
    (training,) = requested(engine)
    late = begun(engine, training)
    with engine.begin() as connection:
        connection.execute(text("UPDATE trainings SET heard_of_at = now() - interval '1 hour'"))
        trainings.take_back(connection, silent_after=60, max_attempts=3)
    before = lanes(engine)
    with pytest.raises(TaskLost):
        rounds.decide(engine.execution_options(isolation_level="AUTOCOMMIT"), late)
    assert lanes(engine) == before
    assert "jobs follow" in str(decided(engine, training))


def test_a_round_that_cannot_be_decided_ends_the_campaign_with_the_reason(
    engine: Engine, device: int, submit: Submit
) -> None:
    stored = submit(learning_campaign())
    measure(engine, device)
    (training,) = requested(engine)
    with engine.begin() as connection:
        started = trainings.start(connection, training)
        assert started is not None
        trainings.finish(connection, started, error="no memory")
        assert learning.abandon(connection) == {stored.campaign_id: "no memory"}
        assert learning.abandon(connection) == {}
        assert learning.curve(connection, stored.campaign_id)[0]["error"] == "no memory"
    assert state(engine) == "done"


DOMAIN = {"m": "1..512", "n": "16..512", "k": "16..512"}


def drawn(source: object, types: str = "f32") -> dict[str, Any]:
    return {"problems": {"domain": source, "types": types}}


def asked(**search: Any) -> dict[str, Any]:
    return {"search": {"strategy": "learn", "test_problems": 20, **search}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (drawn(DOMAIN, "f16"), "none of its kernels runs a problem of its domain on the devices of its targets; for example, blas("),
        ({"kernels": {"family": "blas", "threads": 64}}, "none of its kernels runs a problem of its domain"),
        ({"constraints": "m > 512"}, "its constraints (m > 512) leave none of the configurations that were drawn from its domain"),
        (drawn({**DOMAIN, "m": ""}), "problems.domain.m: '' is not a range; write for example 16..32768, or one number"),
        (drawn({**DOMAIN, "m": []}), "problems.domain.m: a list is not a range; write for example 16..32768, or one number"),
        (drawn({**DOMAIN, "k": "512..16"}), "problems.domain.k: the range 512..16 counts down; write 16..512"),
        (
            drawn({"shapes": ["8x8x8", "16x16x16"]}),
            "the domain has 2 problems that its constraints keep and a kernel runs, and all are in the test set",
        ),
        (asked(random_share=0), "search.random_share: 0 is too small; write a number from 0.05 up to 1"),
        (asked(random_share=1.5), "search.random_share: 1.5 is too large; write a number from 0.05 up to 1"),
        (asked(test_problems=0), "search.test_problems: 0 is too small; write a whole number from 20 up to 1,000,000"),
        (asked(test_problems=1), "search.test_problems: 1 is too small; write a whole number from 20 up to 1,000,000"),
        (asked(test_share=1), "search.test_share: there is no such field here; did you mean test_problems?"),
        (
            asked(rounds=3),
            "search.rounds: there is no such field here; the fields are strategy, kernels, seed, problems, test_problems, "
            "random_share, budget_seconds, target\n",
        ),
        (asked(keep=0.5), "search.keep: learn does not read it; remove it, or use halving"),
        (asked(budget_seconds=0), "search.budget_seconds: 0 is too small; write a number above 0"),
        (asked(target=0), "search.target: 0 is not an error in percent; write a number above 0 up to 1,000, such as 3"),
        (asked(target={}), "search.target: it is empty; write an error in percent, such as 3, or {cutlass: 3, cublaslt: 6}"),
        (asked(target={"blass": 3}), "search.target: there is no kernel family 'blass'; the families are blas,"),
        (asked(target={"tiled": 3}), "search.target: the campaign has no kernel of tiled, only of blas; remove it, or add one"),
    ],
)  # fmt: skip
def test_a_learning_campaign_that_cannot_be_is_refused_in_one_line(
    device: int, tmp_path: Path, database_url: str, changes: dict[str, Any], why: str
) -> None:
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(learning_campaign().document | changes))
    result = farm_here(tmp_path, database_url)("submit", "--dry-run", "bad.yaml")
    refused(result, 2, why)
    assert len(result.stderr.splitlines()) == 1


def test_a_small_domain_is_said_to_have_fewer_problems_than_test_set_and_round_ask_for(
    device: int, tmp_path: Path, database_url: str
) -> None:
    small = drawn({"m": "1..25", "n": 16, "k": 16})
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(learning_campaign().document | small))
    result = farm_here(tmp_path, database_url)("submit", "--dry-run", "small.yaml")
    assert result.returncode == 0, result.stderr
    assert "30 problems were requested: the domain has no more" in result.stdout + result.stderr


def test_status_shows_a_curve_for_each_pool_of_a_campaign(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Submit, tmp_path: Path, database_url: str
) -> None:
    for number, kind in enumerate(("cpu-one", "cpu-two")):
        announce(cpu(number, kind=kind))
    stored = submit(learning_campaign())
    learning_curves.decided(engine, stored.campaign_id, pool="type:cpu-one", device_type="cpu-one")
    later = [learning_curves.point(1, all=33.0), learning_curves.point(2, all=22.0)]
    learning_curves.decided(engine, stored.campaign_id, later, pool="type:cpu-two", device_type="cpu-two")
    shown = farm_here(tmp_path, database_url)("status", "learning").stdout
    before, one, two = re.split(r"learning curve of type:cpu-(?:one|two), on the test set", shown)
    assert "20.0" not in before
    errors = [re.findall(r"^ *\d +\d+ .*?(\d+\.\d) +\d+\.\d to", part, re.MULTILINE) for part in (one, two)]
    assert errors == [["20.0", "10.0", "8.0"], ["33.0", "22.0"]]


def test_submitting_says_that_no_trainer_is_up(
    engine: Engine, device: int, tmp_path: Path, farm_services: ServiceUrls, database_url: str
) -> None:
    (tmp_path / "learning.yaml").write_text(yaml.safe_dump(learning_campaign().document))
    farm, broker = farm_here(tmp_path, database_url), str(farm_services.broker_url)
    note = "No trainer is running"
    assert note in farm("submit", "learning.yaml", FARM_BROKER_URL=broker).stderr
    assert note not in farm("submit", "learning.yaml").stderr  # the farm's broker is not known here
    with redis.Redis.from_url(redis_client_url(broker), client_name=client_name([TRAIN_QUEUE])) as trainer:
        trainer.ping()
        assert note not in farm("submit", "learning.yaml", FARM_BROKER_URL=broker).stderr
    plain = document(name="plain")
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(plain))
    assert note not in farm("submit", "plain.yaml", FARM_BROKER_URL=broker).stderr


def waits(engine: Engine) -> float | None:
    """For how long the decision on a round has waited for a trainer."""
    with engine.connect() as connection:
        return next(
            (group.untrained_s for group in open_jobs.groups(connection) if group.untrained_s is not None), None
        )


def test_a_round_waits_for_a_trainer_since_one_was_last_heard_of(engine: Engine, device: int, submit: Submit) -> None:
    submit(learning_campaign())
    measure(engine, device)
    assert waits(engine) is None
    (training,) = requested(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE trainings SET requested_at = now() - interval '1 hour'"))
    assert 3600 <= (waits(engine) or 0) < 3700
    # A trainer that is busy with another training is one.
    with engine.begin() as connection:
        other = trainings.request(connection, device_type="cpu-test")
    begun(engine, other)
    assert 0 <= (waits(engine) or 0) < 1000
    begun(engine, training)
    assert waits(engine) is None


def test_a_cancelled_campaign_gets_no_further_round(engine: Engine, device: int, submit: Submit) -> None:
    stored = submit(learning_campaign())
    measure(engine, device)
    (training,) = requested(engine)
    started = begun(engine, training)
    with engine.begin() as connection:
        batches.cancel(connection, stored.campaign_id)
    rounds.decide(engine.execution_options(isolation_level="AUTOCOMMIT"), started)
    assert [lane[:2] for lane in lanes(engine)] == [(0, "test"), (1, "learn")]
    assert state(engine) == "cancelled"


@pytest.mark.parametrize("number", [1, 2])
def test_a_round_is_chosen_from_seed_and_rows_alone(engine: Engine, device: int, submit: Submit, number: int) -> None:
    """Whichever trainer decides, and however often it was begun, the same jobs follow."""
    submit(learning_campaign())
    measure(engine, device)
    (training,) = requested(engine)
    decided(engine, training)
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT j.configuration_id::text FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE l.round = 2 ORDER BY 1"
            )
        ).scalars()
        chosen = list(found)
    assert len(chosen) == 20
    _CHOSEN.append(chosen)
    assert all(each == chosen for each in _CHOSEN)


_CHOSEN: list[list[str]] = []
