"""Turns of owners and campaigns, kept in Postgres; urgent work; and failed jobs that hold nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from farm.broker.queues import queue_of_device, queue_of_type
from farm.campaign import Campaign
from farm.coordinator.dispatch import form_batches, make_way, read_schedule
from farm.coordinator.job_costs import CostBook
from farm.db import batches, devices, fair_shares
from farm.db.batches import Failure, Lease
from farm.db.campaigns import Stored
from farm.db.fair_shares import ShareKey
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.settings import Settings
from support.batch_steps import claim, counts, land, leased
from support.samples import cpu, document, row

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
QUEUE = queue_of_type("cpu-test")
ONE_JOB = Settings(outstanding_batches=1, batch_max_jobs=1)

_TOOK = text("UPDATE batches SET claimed_at = finished_at - make_interval(secs => :seconds) WHERE id = :id")
_OWNER = text(
    "SELECT c.owner FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id WHERE b.id = :id"
)
_NAME = text(
    "SELECT c.name FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id WHERE b.id = :id"
)
_QUEUED = text("SELECT id FROM batches WHERE state = 'queued' ORDER BY id")


def turn(engine: Engine, settings: Settings = ONE_JOB) -> list[int]:
    """What a coordinator that knows only the database forms; the ids of all queued batches then."""
    schedule = read_schedule(engine, settings)
    make_way(engine, schedule)
    form_batches(engine, schedule, CostBook(), settings)
    with engine.connect() as connection:
        return list(connection.execute(_QUEUED).scalars())


def measure(
    engine: Engine, batch_id: int, device: int, *, seconds: float = 4.0, weights: dict[str, float] | None = None
) -> Lease:
    """A batch is claimed, takes that many seconds, lands and is counted."""
    lease = claim(engine, batch_id, device)
    assert lease is not None
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, row()) for job in lease.jobs], {})
        connection.execute(_TOOK, {"seconds": seconds, "id": batch_id})
    with engine.begin() as connection:
        assert batches.fold(connection, weights=weights) == 1
    return lease


def stored(engine: Engine) -> dict[ShareKey, float]:
    with engine.connect() as connection:
        return fair_shares.stored(connection)


def one(engine: Engine, statement: object, **parameters: object) -> str:
    with engine.connect() as connection:
        return str(connection.execute(statement, parameters).scalar_one())  # type: ignore[call-overload]


def test_every_owner_has_its_turn_though_no_coordinator_lives_for_longer_than_one_batch(
    engine: Engine, device: int, submit: Submit
) -> None:
    owners = [f"owner-{n}" for n in range(6)]
    for name in owners:
        submit(Campaign.from_document(document(name=name, owner=name)))
    order = []
    for _ in range(3 * len(owners)):
        (batch_id,) = turn(engine)
        order.append(one(engine, _OWNER, id=batch_id))
        measure(engine, batch_id, device)
    assert [sorted(order[n : n + 6]) for n in (0, 6, 12)] == [owners] * 3


def test_campaigns_of_one_owner_take_turns_and_a_small_one_does_not_wait_for_a_large_one(
    engine: Engine, device: int, submit: Submit
) -> None:
    submit(Campaign.from_document(document(name="large")))
    for _ in range(4):
        measure(engine, turn(engine)[0], device)
    submit(Campaign.from_document(document(name="small")))
    names = []
    for _ in range(4):
        (batch_id,) = turn(engine)
        names.append(one(engine, _NAME, id=batch_id))
        measure(engine, batch_id, device)
    assert sorted(names[:2]) == sorted(names[2:]) == ["large", "small"]


def test_a_batch_that_is_over_is_charged_once_with_what_it_took_over_the_owners_weight(
    engine: Engine, device: int, submit: Submit
) -> None:
    campaign = submit(Campaign.from_document(document())).campaign_id
    owner = ShareKey(QUEUE, 0, "ann")
    (batch_id,) = turn(engine)
    assert stored(engine) == {owner: 0.0, owner._replace(campaign_id=campaign): 0.0}
    measure(engine, batch_id, device, seconds=8.0, weights={"ann": 2.0, "nobody": 9.0})
    expected = {owner: pytest.approx(4.0), owner._replace(campaign_id=campaign): pytest.approx(8.0)}
    assert stored(engine) == expected
    with engine.begin() as connection:
        assert batches.fold(connection) == 0
    assert stored(engine) == expected


def test_what_ended_counts_before_it_is_folded(engine: Engine, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document(name="a", owner="ann")))
    submit(Campaign.from_document(document(name="b", owner="bob")))
    (first,) = turn(engine)
    lease = claim(engine, first, device)
    assert lease is not None
    land(engine, lease)
    with engine.begin() as connection:
        connection.execute(text("UPDATE batches SET folded = false"))
    (second,) = turn(engine)
    assert {one(engine, _OWNER, id=i) for i in (first, second)} == {"ann", "bob"}


def test_nothing_is_kept_of_campaigns_that_are_over(engine: Engine, device: int, submit: Submit) -> None:
    submit(
        Campaign.from_document(
            document(kernels=[{"family": "blas", "threads": 1}], problems={"m": 64, "n": 64, "k": 64, "types": "f32"})
        )
    )
    measure(engine, turn(engine)[0], device)
    assert stored(engine) != {}
    assert turn(engine) == []  # it finds that the lane is empty
    assert turn(engine) == []
    assert stored(engine) == {}


def test_status_knows_with_whom_a_campaign_shares_and_who_goes_first(
    engine: Engine, device: int, submit: Submit
) -> None:
    mine = submit(Campaign.from_document(document(name="mine", owner="ann"))).campaign_id
    measure(engine, turn(engine)[0], device)
    submit(Campaign.from_document(document(name="other", owner="bob")))
    submit(Campaign.from_document(document(name="same", owner="ann")))
    measure(engine, turn(engine)[0], device)
    with engine.connect() as connection:
        (found,) = fair_shares.turns(connection, mine)
    assert (found.resource, found.owners, found.campaigns) == (QUEUE, 2, 2)
    assert (found.owners_before, found.campaigns_before) == (1, 1), "the others started where it stood"


# --- urgent ------------------------------------------------------------------------------------------


def test_an_urgent_campaign_goes_before_batches_that_nobody_has_claimed(
    engine: Engine, device: int, submit: Submit
) -> None:
    settings = Settings(outstanding_batches=3, batch_max_jobs=2)
    slow = submit(Campaign.from_document(document(name="slow"))).campaign_id
    before = turn(engine, settings)
    assert len(before) == 3
    held = claim(engine, before[0], device)
    assert held is not None
    urgent = submit(Campaign.from_document(document(name="urgent", owner="bob", priority=5)))
    after = turn(engine, settings)
    assert not {*before} & {*after}
    assert {one(engine, _NAME, id=i) for i in after} == {"urgent"}
    assert claim(engine, before[1], device) is None, "its message is still there"
    assert counts(engine, slow) == {"running": len(held.jobs), "pending": 12 - len(held.jobs)}
    assert turn(engine, settings) == after, "once: what is urgent is in the queue now"
    land(engine, held)
    assert counts(engine, urgent.campaign_id)["pending"] > 0


# --- failed jobs ---------------------------------------------------------------------------------------

_ALL_FAILED = text("""
WITH gone AS (UPDATE lanes SET fresh = false WHERE campaign_id = :campaign RETURNING id)
INSERT INTO returned_jobs (job_id, lane_id, solo, avoid_device_id)
SELECT j.id, j.lane_id, false, :device FROM jobs j JOIN gone g ON g.id = j.lane_id
""")


def test_failed_jobs_of_an_absent_type_do_not_starve_those_of_another_campaign(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    absent = announce(cpu(9, kind="cpu-absent"))
    problems = {"m": "1..1052", "n": 64, "k": 64, "types": "f32"}
    stuck = submit(Campaign.from_document(document(name="many", problems=problems)))
    assert stuck.jobs == 2104
    with engine.begin() as connection:
        connection.execute(_ALL_FAILED, {"campaign": stuck.campaign_id, "device": absent})
        connection.execute(text("UPDATE devices SET last_seen_at = '-infinity'"))
    first, second = announce(cpu(1)), announce(cpu(2))
    submit(Campaign.from_document(document(name="mine", owner="bob")))
    lease = leased(engine, first, size=3)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "a hiccup")})
    with engine.connect() as connection:
        waiting = batches.candidates(connection)
    assert len([work for work in waiting if work.retry]) == 2, "one for each lane, device and refusals"
    turn(engine)
    with engine.connect() as connection:
        (retry,) = connection.execute(
            text("SELECT job_ids FROM batches WHERE state = 'queued' AND queue = :queue"),
            {"queue": queue_of_device(cpu(2).uuid)},
        ).scalars()
    assert retry == [lease.jobs[0].id]
    assert second


def test_the_groups_of_failed_jobs_are_found_whatever_a_lane_holds(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    ids = [announce(cpu(n)) for n in (1, 2, 3)]
    small = submit(Campaign.from_document(document()))
    rows = [
        (False, None, []), (False, None, []), (False, ids[0], []), (False, ids[0], []), (False, ids[0], [ids[0]]),
        (False, ids[1], []), (False, ids[1], [ids[0], ids[1]]), (True, None, []), (True, None, [ids[2]]), (True, ids[2], []),
    ]  # fmt: skip
    with engine.begin() as connection:
        connection.execute(text("UPDATE lanes SET fresh = false"))
        jobs = list(connection.execute(text("SELECT id, lane_id FROM jobs ORDER BY id")))
        for (job_id, lane_id), (solo, avoid, refused_by) in zip(jobs, rows, strict=False):
            connection.execute(
                text("INSERT INTO returned_jobs VALUES (:job, :lane, :solo, :avoid, :refused_by)"),
                {"job": job_id, "lane": lane_id, "solo": solo, "avoid": avoid, "refused_by": refused_by},
            )
    with engine.begin() as connection:
        found = batches.candidates(connection)
        groups = {(work.solo, work.avoid_device_id, work.refused_by) for work in found}
        assert groups == {(solo, avoid, tuple(refused_by)) for solo, avoid, refused_by in rows}
        assert len(found) == len(groups)
        formed = {}
        for work in found:
            assert batches.lock(connection, work.lane_id)
            batch_id = batches.form(connection, work, queue=QUEUE, jobs=100)
            statement = text("SELECT job_ids FROM batches WHERE id = :id")
            formed[work.solo, work.avoid_device_id, work.refused_by] = connection.execute(
                statement, {"id": batch_id}
            ).scalar_one()
    for group, job_ids in formed.items():
        of_group = [job_id for (job_id, _), (s, a, r) in zip(jobs, rows, strict=False) if (s, a, tuple(r)) == group]
        assert set(job_ids) <= set(of_group)
        assert len(job_ids) == (1 if group[0] else len(of_group)), "suspects go alone"
    assert small.jobs == 12


def test_one_group_costs_one_look_however_many_jobs_it_has(engine: Engine, device: int, submit: Submit) -> None:
    """Postgres reads a row of each group and not the group."""
    many = submit(Campaign.from_document(document(problems={"m": "1..1000", "n": 64, "k": 64, "types": "f32"})))
    with engine.begin() as connection:
        connection.execute(_ALL_FAILED, {"campaign": many.campaign_id, "device": device})
        connection.execute(text("UPDATE returned_jobs SET solo = true WHERE job_id % 2 = 0"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE returned_jobs"))
    read = text(
        "SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'returned_jobs'"
    )
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        before = connection.execute(read).scalar_one()
        assert len([work for work in batches.candidates(connection) if work.retry]) == 2
        assert connection.execute(read).scalar_one() - before <= 20


def test_refused_jobs_that_wait_for_another_device_do_not_hold_up_those_that_nobody_may_take(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    first, _ = announce(cpu(1, threads=2)), announce(cpu(2, threads=4))
    problems = {"m": "1..1052", "n": 64, "k": 64, "types": "f32"}
    many = submit(Campaign.from_document(document(name="many", problems=problems)))
    alone = announce(cpu(3, kind="cpu-alone"))
    mine = submit(Campaign.from_document(document(name="mine", owner="bob", targets={"type": "cpu-alone"})))
    with engine.begin() as connection:
        for campaign, refuser in ((many, first), (mine, alone)):
            connection.execute(_ALL_FAILED, {"campaign": campaign.campaign_id, "device": refuser})
        connection.execute(text("UPDATE returned_jobs SET refused_by = ARRAY[avoid_device_id]"))
        connection.execute(
            text("""
INSERT INTO failures (job_id, lane_id, device_id, kind, message)
SELECT job_id, lane_id, avoid_device_id, 'invalid', 'too large' FROM returned_jobs
""")
        )
    with engine.begin() as connection:
        assert batches.give_up(connection) == mine.jobs
        assert batches.give_up(connection) == 0
    assert counts(engine, mine.campaign_id) == {"invalid": mine.jobs}
    assert counts(engine, many.campaign_id) == {"pending": 2104}


def test_a_device_that_refused_a_job_is_remembered_with_the_job(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    first, second, _ = announce(cpu(1)), announce(cpu(2, threads=4)), announce(cpu(3, threads=8))
    submit(Campaign.from_document(document()))
    lease = leased(engine, first, size=1)
    (job,) = lease.jobs
    land(engine, lease, {job.id: Failure(FailureKind.INVALID, "too large")})
    refused = text("SELECT avoid_device_id, refused_by FROM returned_jobs WHERE job_id = :job")
    with engine.connect() as connection:
        assert tuple(connection.execute(refused, {"job": job.id}).one()) == (first, [first])
        (retry,) = [work for work in batches.candidates(connection) if work.retry]
    with engine.begin() as connection:
        assert batches.lock(connection, retry.lane_id)
        batch_id = batches.form(connection, retry, queue=queue_of_device(cpu(2).uuid), jobs=1)
    assert batch_id is not None
    again = claim(engine, batch_id, second)
    assert again is not None
    land(engine, again, {job.id: Failure(FailureKind.INVALID, "too large")})
    with engine.connect() as connection:
        assert tuple(connection.execute(refused, {"job": job.id}).one()) == (second, [first, second])
        assert devices.live(connection, silent_after=60)
