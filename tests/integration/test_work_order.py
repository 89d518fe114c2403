"""In what order the work of a campaign is formed: what failed, what is fresh, and suspects."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db import batches
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from support.batch_steps import expire, land, leased
from support.samples import cpu, document


def test_what_failed_comes_before_what_is_fresh_and_suspects_come_last(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document()))
    suspected = leased(engine, device, size=3)
    with engine.begin() as connection:
        batches.mark(connection, suspected, suspected.jobs[0], lease_seconds=60)
    expire(engine, suspected)
    with engine.begin() as connection:
        batches.reap(connection)
    failing = leased(engine, device, size=4)
    land(engine, failing, {failing.jobs[0].id: Failure(FailureKind.FAILED, "a hiccup")})

    with engine.connect() as connection:
        waiting = batches.candidates(connection)
    assert [(work.solo, work.avoid_device_id) for work in waiting] == [(False, device), (False, None), (True, device)]
