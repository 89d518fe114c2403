"""A device that takes no work leaves the messages of its type to the others: real processes, Postgres and Redis."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign, load, plan
from farm.db import campaigns, devices
from farm.db.states import DeviceState
from farm.services import ServiceUrls
from support.homes import eventually
from support.programs import COORDINATOR, FARM_WORKER, programs

EXAMPLES = Path(farm.__file__).parent.parent / "examples"
RECORDING = EXAMPLES / "datasets" / "nvidia-h200-paper-tiled.parquet"


@pytest.fixture
def two_devices(tmp_path: Path) -> str:
    """A recording twice, its rows in another order the second time: two devices of one type."""
    words = []
    for name, rows in (("one", pq.read_table(RECORDING)), ("two", pq.read_table(RECORDING).sort_by("runtime_ms"))):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        words.append(f"recorded:{tmp_path / name}.parquet?scale=0.01")
    return ",".join(words)


def submit(engine: Engine, campaign: Campaign) -> int:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        made = plan(campaign, known, allow_missing=False)
        return campaigns.store(connection, campaign, made.jobs()).campaign_id


@pytest.mark.long
def test_a_drained_device_takes_no_message_and_a_resumed_one_does_again(
    engine: Engine, database_url: str, farm_services: ServiceUrls, tmp_path: Path, two_devices: str
) -> None:
    def live() -> list[int]:
        with engine.connect() as connection:
            return [device_id for device_id, _, _ in devices.live(connection, silent_after=60)]

    def done(campaign_id: int) -> bool:
        with engine.connect() as connection:
            counts = campaigns.counts(connection, campaign_id)
        return counts["done"] == sum(counts.values()) > 0

    def set_state(device_id: int, state: DeviceState) -> None:
        with engine.begin() as connection:
            devices.set_state(connection, device_id, state, "a test")

    def measured_by(device_id: int) -> int:
        with engine.connect() as connection:
            statement = text("SELECT count(*) FROM measurements WHERE device_id = :id")
            return int(connection.execute(statement, {"id": device_id}).scalar_one())

    # Nothing is sent a second time: a message that the drained device took would be missed for ever.
    variables = {
        "FARM_DATABASE_URL": database_url,
        "FARM_BROKER_URL": str(farm_services.broker_url),
        "FARM_RESEND_AFTER_SECONDS": "10000",
        "FARM_HEARTBEAT_SECONDS": "0.3",
        "FARM_BATCH_SECONDS": "0.2",
    }
    with programs(tmp_path, **variables) as start:
        worker = start(FARM_WORKER, "--devices", two_devices, name="worker")
        eventually(lambda: len(live()) == 2)
        drained, other = live()
        set_state(drained, DeviceState.DRAINED)
        eventually(lambda: "leaves its queues to other workers" in worker.log())
        coordinator = start(COORDINATOR, name="coordinator")
        first = load(EXAMPLES / "campaigns" / "paper-tiled.yaml", limit=1000)
        first_id = submit(engine, first)
        eventually(lambda: done(first_id))
        assert (measured_by(drained), measured_by(other)) == (0, 270)
        set_state(other, DeviceState.DRAINED)
        set_state(drained, DeviceState.ACTIVE)
        eventually(lambda: worker.log().count("leaves its queues to other workers") == 2)
        eventually(lambda: "consumes its queues again" in worker.log())
        second_id = submit(engine, Campaign.from_document({**first.document, "name": "again"}))
        eventually(lambda: done(second_id))
        assert measured_by(drained) > 0
        assert coordinator.stop() == 0
        assert worker.stop() == 0
