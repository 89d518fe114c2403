"""Steps of the state machine of jobs and batches that tests take one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlalchemy import Engine, text

from farm.coordinator.schedule import LiveDevice, Schedule
from farm.db import batches, campaigns, devices, jobs
from farm.db.batches import Failure, Lease
from farm.devices import Backend, DeviceIdentity
from support.samples import cpu, row


def form(engine: Engine, size: int = 100, *, kind: str = "cpu-test") -> int | None:
    """The next batch that the coordinator would form for the live devices of that type."""
    with engine.begin() as connection:
        live = [LiveDevice(*device) for device in devices.live(connection, silent_after=60) if device[2] == kind]
        schedule = Schedule(live, batches.candidates(connection), batches.flights(connection), outstanding=100)
        while (next_one := schedule.next()) is not None:
            if batches.lock(connection, next_one.work.lane_id):
                batch_id = batches.form(connection, next_one.work, queue=next_one.queue, jobs=size)
            else:
                batch_id = None
            if batch_id is not None:
                return batch_id
            schedule.nothing_there(next_one)
    return None


def claim(engine: Engine, batch_id: int, device_id: int, lease_seconds: float = 60) -> Lease | None:
    with engine.begin() as connection:
        return batches.claim(connection, batch_id, device_id=device_id, lease_seconds=lease_seconds)


def leased(
    engine: Engine, device_id: int, size: int = 100, lease_seconds: float = 60, *, kind: str = "cpu-test"
) -> Lease:
    batch_id = form(engine, size, kind=kind)
    assert batch_id is not None
    lease = claim(engine, batch_id, device_id, lease_seconds)
    assert lease is not None
    return lease


def land(engine: Engine, lease: Lease, failures: dict[int, Failure] | None = None) -> None:
    failures = failures or {}
    results = [(job, row()) for job in lease.jobs if job.id not in failures]
    with engine.begin() as connection:
        batches.land(connection, lease, results, failures)


def counts(engine: Engine, campaign_id: int) -> dict[str, int]:
    """Jobs by state from the counters, which must agree with the jobs one by one, before and after folding."""
    with engine.begin() as connection:
        counted = campaigns.counts(connection, campaign_id)
        seen = Counter(job["state"] for job in jobs.listed(connection, campaign_id))
        assert {state: n for state, n in counted.items() if n} == seen
        batches.fold(connection)
        assert campaigns.counts(connection, campaign_id) == counted
    return dict(seen)


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM measurements")).scalar_one())


def expire(engine: Engine, lease: Lease) -> None:
    """As if the lease's time had gone by."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE batches SET lease_expires_at = clock_timestamp() - interval '1 second' "
                "WHERE id = :id AND state = 'leased'"
            ),
            {"id": lease.batch_id},
        )


def recording(number: int) -> DeviceIdentity:
    """One of several recordings of a type: each answers what it has, and refuses the rest."""
    return replace(cpu(number, kind="recorded-cpu-test"), uuid=f"REC-{number}", backend=Backend.RECORDED)
