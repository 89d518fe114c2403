"""What a farm has whose pages are looked at: devices, a campaign of somebody malicious, and an import."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Engine, text

from farm.campaign import Campaign, plan
from farm.db import batches, campaigns, devices, imports
from farm.db.batches import Failure
from farm.db.states import FailureKind
from farm.measurement import Source
from support.samples import card, cpu, document, landed, row

NASTY = "<script>alert('x')</script>"

RIGHT = """\
name: right
owner: ann
targets: any
problems: {m: 64, n: [64, 128], k: 64, types: f32}
kernels: [{family: blas, threads: 1}]
"""
"""A campaign file without mistakes."""


def filled_farm(engine: Engine) -> int:
    """A device and a campaign of twelve jobs, of which some were measured and one failed for good; the device's id."""
    with engine.begin() as connection:
        device_id = devices.register(connection, host="here", host_facts={}, device=cpu())
    stored = submitted(engine, description=NASTY, owner=NASTY)
    failed: int | None = None
    for _ in range(3):
        with engine.begin() as connection:
            lane = next(one for one in batches.candidates(connection) if one.campaign_id == stored.campaign_id)
            assert batches.lock(connection, lane.lane_id)
            batch_id = batches.form(connection, lane, queue="gpu.cpu-test", jobs=3)
            assert batch_id
            lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
            assert lease is not None
            failed = failed or lease.jobs[0].id
            rest = [(job, row()) for job in lease.jobs if job.id != failed]
            batches.land(connection, lease, rest, {failed: Failure(FailureKind.FAILED, f"out of {NASTY}")})
            batches.fold(connection)
    return device_id


def submitted(engine: Engine, **changes: object) -> campaigns.Stored:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        campaign = Campaign.from_document(document(**changes))
        return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())


def imported(engine: Engine, *, content: str, file: str, rows: int, source: Source = Source.IMPORTED) -> None:
    """An import of one card, which `farm import` would leave drained and never heard of."""
    found = replace(card(7, kind="nvidia-h200"), uuid=imports.uuid_of(content, "GPU-elsewhere"))
    with engine.begin() as connection:
        device_id = devices.register(connection, host="imported:elsewhere", host_facts={}, device=found)
        connection.execute(
            text("""
UPDATE devices SET state = 'drained', last_seen_at = '-infinity', first_seen_at = '2020-01-01',
    facts = jsonb_build_object('imported_from', CAST(:file AS text)) WHERE id = :id
"""),
            {"file": file, "id": device_id},
        )
    written = [f"tiled(tile=16) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, rows + 1)]
    landed(engine, device_id, [(one, row(source=source)) for one in written])
