"""Campaigns and imports are deleted, restored and vacuumed: what is seen in between, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from farm.campaign import Campaign
from farm.db import archive, batches, campaigns, deletions, kernels, roles
from farm.db.campaigns import Stored
from farm.db.states import DeletionKind
from farm.devices import DeviceIdentity
from farm.errors import (
    CampaignHasOpenWork,
    CannotRestore,
    FarmError,
    LeaseLost,
    NoSuchCampaign,
    NoSuchDeletion,
    NoSuchImport,
)
from support.batch_steps import claim, counts, form, leased
from support.imported_rows import imported, land
from support.invariants import faults
from support.races import at_once
from support.samples import ahead, card, document, row

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
NOW = timedelta()


def finish(engine: Engine) -> None:
    with engine.begin() as connection:
        batches.fold(connection)
        campaigns.finish(connection)


def delete(engine: Engine, name: str = "small", *, cancel: bool = False) -> int:
    with engine.begin() as connection:
        return deletions.delete_campaign(connection, name, by="ann", cancel=cancel)


def restore(engine: Engine, name: str = "small") -> None:
    with engine.begin() as connection:
        archive.restore(connection, DeletionKind.CAMPAIGN, name)


def vacuum(engine: Engine) -> deletions.Vacuumed:
    with engine.begin() as connection:
        return deletions.vacuum(connection, older_than=NOW)


def contents(engine: Engine) -> dict[str, list[Any]]:
    """Every row of every table but those of the archive, and every row of every view."""
    with engine.connect() as connection:
        tables = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE 'delet%'")
        )
        names = [*tables.scalars(), *(view for view in roles.VIEWS if view != "v_device_health")]
        return {
            name: sorted(connection.execute(text(f"SELECT CAST(to_jsonb(t) AS text) FROM {name} t")).scalars())
            for name in names
        }


@pytest.fixture
def measured(engine: Engine, device: int, small: Stored) -> Stored:
    """The campaign `small`, measured to its end, with a sentinel."""
    lease = leased(engine, device)
    land(engine, lease)
    with engine.begin() as connection:
        connection.execute(
            text("""
INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, source, runtime_ms, runtime_q1_ms,
    runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details)
SELECT campaign_id, configuration_id, device_id, environment_id, 'sentinel', 0.1, 5e-324, 1e300, 0.30000000000000004,
    'NaN', 10, 'converged', 'cold', 'uniform', 0, 1, '{"a": [1.50, "\\u00e9"], "b": null}' FROM measurements LIMIT 1
""")
        )
    finish(engine)
    return small


def test_a_deleted_campaign_is_nowhere_and_comes_back_as_it_was(engine: Engine, measured: Stored) -> None:
    before = contents(engine)
    delete(engine)
    gone = contents(engine)
    for name in ("campaigns", "lanes", "jobs", "batches", "v_measurements", "v_best_kernels", "v_campaign_progress"):
        assert gone[name] == [], name
    assert '"campaign": null' in gone["v_sentinels"][0], "a sentinel tells of the device, and stays"
    with engine.connect() as connection:
        assert connection.execute(text("SELECT measured FROM devices")).scalar_one() == 0
        with pytest.raises(NoSuchCampaign):
            campaigns.find(connection, "small")
        (kept,) = archive.listed(connection)
    assert (kept.name, kept.deleted_by, kept.jobs, kept.rows) == ("small", "ann", 12, 12)
    assert kept.bytes > 0
    restore(engine)
    assert contents(engine) == before
    with engine.connect() as connection:
        assert archive.listed(connection) == []


def test_numbers_come_back_to_the_last_bit(engine: Engine, device: int, small: Stored) -> None:
    lease = leased(engine, device)
    odd = row(
        0.1 + 0.2, runtime_q1_ms=5e-324, runtime_q3_ms=1.7976931348623157e308, details={"é": [1.5, None, "\u2028"]}
    )
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, odd) for job in lease.jobs], {})
    finish(engine)
    before = contents(engine)
    delete(engine)
    restore(engine)
    assert contents(engine) == before


def test_more_rows_than_one_part_holds_come_back(
    engine: Engine, measured: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PART_ROWS", 5)
    before = contents(engine)
    delete(engine)
    with engine.connect() as connection:
        parts = "SELECT count(*) FROM deleted_rows WHERE source_table = 'measurements'"
        assert connection.execute(text(parts)).scalar_one() == 3
    restore(engine)
    assert contents(engine) == before


def test_results_stay_append_only_after_a_deletion(engine: Engine, measured: Stored) -> None:
    with engine.connect() as connection:
        deletions.delete_campaign(connection, "small", by="ann")
        with pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text("DELETE FROM measurements"))


def test_open_work_is_not_deleted_unless_it_is_cancelled(engine: Engine, device: int, small: Stored) -> None:
    with pytest.raises(CampaignHasOpenWork, match="12 open jobs"):
        delete(engine)
    delete(engine, cancel=True)
    restore(engine)
    assert counts(engine, small.campaign_id) == {"cancelled": 12}


def test_a_worker_whose_campaign_is_deleted_loses_its_lease_and_lands_nothing(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    lease, queued = leased(engine, device, size=5), form(engine, size=5)
    assert queued is not None
    delete(engine, cancel=True)
    with engine.begin() as connection, pytest.raises(LeaseLost):
        batches.mark(connection, lease, lease.jobs[0], lease_seconds=60)
    with pytest.raises(LeaseLost):
        land(engine, lease)
    assert claim(engine, queued, device) is None
    with engine.begin() as connection:
        assert batches.renew(connection, lease.batch_id, device_id=device, lease_seconds=60) is None
        assert not batches.release(connection, lease.batch_id, device_id=device, reason="it died", suspect=True)
    restore(engine)
    assert counts(engine, small.campaign_id) == {"cancelled": 12}, "no job counts an attempt"
    with engine.connect() as connection:
        assert faults(connection) == []
    with pytest.raises(LeaseLost):  # it cannot land in what was restored either
        land(engine, lease)
    again = submit(Campaign.from_document(document()))
    assert again == Stored(small.campaign_id, False, 0, 0)
    land(engine, leased(engine, device))
    assert counts(engine, small.campaign_id) == {"done": 12}


def test_submitting_a_deleted_campaign_restores_it_and_goes_on(
    engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    land(engine, leased(engine, device), leave=4)
    delete(engine, cancel=True)
    again = submit(Campaign.from_document(document()))
    assert again == Stored(small.campaign_id, False, 0, 0, restored=True)
    assert counts(engine, small.campaign_id) == {"done": 8, "pending": 4}
    land(engine, leased(engine, device))
    assert counts(engine, small.campaign_id) == {"done": 12}


def test_measuring_once_more_does_not_restore_a_deleted_repetition(engine: Engine, measured: Stored) -> None:
    campaign = Campaign.from_document(document())
    delete(engine)
    with engine.connect() as connection:
        following = campaigns.again(connection, campaign)
    assert following.repeat == 1
    assert following.digest != campaign.digest


def test_the_newest_campaign_of_a_name_is_deleted_and_an_older_one_by_its_digest(
    engine: Engine, device: int, submit: Submit
) -> None:
    documents = [document(), document(priority=1, measure={"max_attempts": 1})]
    first, second = (submit(Campaign.from_document(one)) for one in documents)
    with engine.connect() as connection:
        assert deletions.dependents_of_campaign(connection, "small").same_name == 1
    delete(engine, cancel=True)
    with engine.connect() as connection:
        digest = campaigns.find(connection, "small")["digest"]
        assert campaigns.find(connection, "small")["id"] == first.campaign_id
    delete(engine, digest[:8], cancel=True)
    restore(engine, digest[:8])
    with engine.connect() as connection:
        assert campaigns.find(connection, "small")["id"] == first.campaign_id
    assert second.campaign_id != first.campaign_id


def test_vacuum_removes_for_good_what_is_old_enough(engine: Engine, measured: Stored, submit: Submit) -> None:
    delete(engine)
    with engine.begin() as connection:
        assert deletions.vacuum(connection, older_than=timedelta(days=7)).deletions == ()
        dry = deletions.vacuum(connection, older_than=NOW, dry_run=True)
        assert [one.name for one in dry.deletions] == ["small"]
        assert len(archive.listed(connection)) == 1
    vacuum(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM deleted_rows")).scalar_one() == 0
    with pytest.raises(NoSuchDeletion, match="Deleted: none"):
        restore(engine)
    assert submit(Campaign.from_document(document())).new


def test_a_column_that_came_since_has_its_default_after_a_restore(engine: Engine, measured: Stored) -> None:
    delete(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN colour text NOT NULL DEFAULT 'red'"))
    restore(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT DISTINCT colour FROM jobs")).scalars().all() == ["red"]


# --- at the same moment --------------------------------------------------------------------------------


def outcome(action: Callable[[], object]) -> Callable[[], str]:
    """What became of an action: `done`, or the error of the farm that it raised."""

    def run() -> str:
        try:
            action()
        except FarmError as error:
            return type(error).__name__
        return "done"

    return run


def whole(engine: Engine) -> dict[str, list[Any]]:
    with engine.connect() as connection:
        assert faults(connection) == []
    return contents(engine)


def test_of_two_deletes_at_once_one_finds_nothing(engine: Engine, device: int, submit: Submit) -> None:
    for number in range(4):
        name = f"round-{number}"
        submit(Campaign.from_document(document(name=name)))
        found = at_once(*[outcome(lambda name=name: delete(engine, name, cancel=True))] * 2)
        assert sorted(map(str, found)) == ["NoSuchCampaign", "done"]
        restore(engine, name)
        whole(engine)


def test_deleting_against_landing_forming_folding_and_reaping(engine: Engine, device: int, submit: Submit) -> None:
    for number in range(6):
        name = f"round-{number}"
        stored = submit(Campaign.from_document(document(name=name)))
        land(engine, leased(engine, device, size=4))
        second = leased(engine, device, size=4)
        deleted, landed, *_ = at_once(
            outcome(lambda name=name: delete(engine, name, cancel=True)),
            outcome(lambda lease=second: land(engine, lease)),
            outcome(lambda: finish(engine)),
            outcome(lambda: form(engine, size=4)),
        )
        assert deleted == "done"
        assert landed in ("done", "LeaseLost")
        with engine.connect() as connection:
            (kept,) = archive.listed(connection)
            assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() == 0
            assert kept.rows == (8 if landed == "done" else 4)
        restore(engine, name)
        whole(engine)
        assert counts(engine, stored.campaign_id)["done"] == kept.rows
        delete(engine, name)
        vacuum(engine)


def test_submitting_against_deleting_ends_with_the_campaign_whole_or_deleted(
    engine: Engine, device: int, submit: Submit
) -> None:
    campaign = Campaign.from_document(document())
    first = submit(campaign)
    for _ in range(4):
        at_once(outcome(lambda: delete(engine, cancel=True)), outcome(lambda: submit(campaign)))
        whole(engine)
        again = submit(campaign)
        assert again.campaign_id == first.campaign_id
        assert counts(engine, first.campaign_id) == {"pending": 12}


def test_of_a_restore_and_a_vacuum_at_once_one_wins_and_nothing_is_half(
    engine: Engine, device: int, submit: Submit
) -> None:
    for number in range(4):
        name = f"round-{number}"
        submit(Campaign.from_document(document(name=name)))
        delete(engine, name, cancel=True)
        restored, _ = at_once(outcome(lambda name=name: restore(engine, name)), outcome(lambda: vacuum(engine)))
        there = whole(engine)
        with engine.connect() as connection:
            assert archive.listed(connection) == []
            assert connection.execute(text("SELECT count(*) FROM deleted_rows")).scalar_one() == 0
        assert any(f'"{name}"' in one for one in there["campaigns"]) is (restored == "done")
        assert restored in ("done", "NoSuchDeletion")


def test_of_two_restores_at_once_one_finds_nothing(engine: Engine, measured: Stored) -> None:
    before = contents(engine)
    for _ in range(3):
        delete(engine)
        found = at_once(*[outcome(lambda: restore(engine))] * 2)
        assert sorted(map(str, found)) == ["NoSuchDeletion", "done"]
        assert whole(engine) == before


def test_steering_against_deleting_changes_nothing_or_finds_nothing(
    engine: Engine, device: int, submit: Submit
) -> None:
    for number in range(4):
        stored = submit(Campaign.from_document(document(name=f"round-{number}")))
        at_once(
            outcome(lambda name=f"round-{number}": delete(engine, name, cancel=True)),
            *[
                outcome(lambda one=one, stored=stored: steer(engine, one, stored))
                for one in (batches.pause, batches.retry)
            ],
        )
        whole(engine)


def steer(engine: Engine, transition: Callable[[Connection, int], object], stored: Stored) -> None:
    with engine.begin() as connection:
        transition(connection, stored.campaign_id)


# --- kernels -------------------------------------------------------------------------------------------


def test_kernels_go_at_the_vacuum_where_nothing_else_uses_them(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    announce(card())
    submit(Campaign.from_document(ahead()))
    other = ahead(name="other", kernels=[{"family": "cutlass", "stages": 3}])
    submit(Campaign.from_document(other))
    with engine.connect() as connection:
        found = deletions.dependents_of_campaign(connection, "ahead")
        assert (len(found.kernels), found.kernels_alone) == (2, 1)
    delete(engine, "ahead", cancel=True)
    with engine.connect() as connection:
        assert len(kernels.listed(connection)) == 2, "they stay for as long as it can be restored"
    removed = vacuum(engine).kernels
    with engine.connect() as connection:
        (left,) = kernels.listed(connection)
    assert len(removed) == 1
    assert left["hash"] not in removed


def test_a_kernel_that_an_open_job_may_need_stays(engine: Engine, announce: Announce, submit: Submit) -> None:
    announce(card())
    submit(Campaign.from_document(ahead()))
    with engine.begin() as connection:
        for one in kernels.listed(connection):
            connection.execute(
                text("UPDATE kernels SET state = 'built', signature = '' WHERE id = :id"), {"id": one["kernel_id"]}
            )
    submit(Campaign.from_document(ahead(name="other", problems={"m": 64, "n": 64, "k": 64, "types": ["f16"]})))
    delete(engine, "ahead", cancel=True)
    assert vacuum(engine).kernels == ()


# --- imports -------------------------------------------------------------------------------------------


def delete_import(engine: Engine, name: str = "h200.parquet") -> None:
    with engine.begin() as connection:
        deletions.delete_import(connection, name, by="ann")


def restore_import(engine: Engine, name: str = "h200.parquet") -> None:
    with engine.begin() as connection:
        archive.restore(connection, DeletionKind.IMPORT, name)


@pytest.mark.parametrize("name", ["h200.parquet", "3fa94c0e", "IMP-3fa94c0e11d2ab47", "IMP-3fa94c0e11d2ab47-GPU-1"])
def test_a_deleted_import_is_gone_with_its_devices_and_comes_back(engine: Engine, name: str) -> None:
    imported(engine)
    other = "b" * 16
    imported(engine, content=other, file="other.parquet")
    before = contents(engine)
    delete_import(engine, name)
    gone = contents(engine)
    assert len(gone["v_measurements"]) == 12
    assert all(f"IMP-{other}" in one for one in (*gone["v_measurements"], *gone["devices"]))
    restore_import(engine)
    assert contents(engine) == before


def test_a_file_can_be_imported_again_after_it_was_deleted(engine: Engine) -> None:
    imported(engine)
    delete_import(engine)
    imported(engine)  # its devices have the same UUIDs
    with pytest.raises(CannotRestore, match="imported again since"):
        restore_import(engine)
    delete_import(engine)
    restore_import(engine)
    with engine.connect() as connection:
        assert len(archive.listed(connection)) == 1


def test_an_import_that_is_not_there_is_refused_with_those_that_are(engine: Engine) -> None:
    imported(engine)
    with pytest.raises(NoSuchImport, match=r"h200\.parquet \(IMP-3fa94c0e11d2ab47\)"):
        delete_import(engine, "nothing.csv")
