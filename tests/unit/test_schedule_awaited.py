"""Where a job goes that failed: elsewhere, and not back while another device may soon be there."""

from __future__ import annotations

from farm.broker import queue_of_device
from farm.coordinator.schedule import LiveDevice, Schedule
from farm.db.batches import Work

BAD, GOOD, OTHER = LiveDevice(1, "GPU-bad", "h200"), LiveDevice(2, "GPU-good", "h200"), LiveDevice(3, "GPU-other", "l4")


def failed_on(device: LiveDevice, **changes: object) -> Work:
    work = {
        "lane_id": 1,
        "campaign_id": 1,
        "owner": "ann",
        "priority": 0,
        "device_types": ("h200",),
        "device_uuid": None,
    }
    return Work(**{**work, "avoid_device_id": device.id, **changes})  # type: ignore[arg-type]


def queue_of(work: Work, *, live: list[LiveDevice], awaited: list[LiveDevice]) -> str | None:
    assignment = Schedule(live, [work], [], outstanding=2, awaited=awaited).next()
    return assignment.queue if assignment else None


def test_it_goes_to_another_device() -> None:
    assert queue_of(failed_on(BAD), live=[BAD, GOOD], awaited=[]) == queue_of_device(GOOD.uuid)


def test_it_goes_back_where_there_is_no_other() -> None:
    assert queue_of(failed_on(BAD), live=[BAD], awaited=[]) == queue_of_device(BAD.uuid)


def test_it_waits_for_a_device_that_fell_silent_lately() -> None:
    assert queue_of(failed_on(BAD), live=[BAD], awaited=[GOOD]) is None
    assert queue_of(failed_on(BAD, solo=True), live=[BAD], awaited=[GOOD]) is None


def test_it_waits_for_none_that_could_not_take_it() -> None:
    assert queue_of(failed_on(BAD), live=[BAD], awaited=[OTHER]) == queue_of_device(BAD.uuid)
    assert queue_of(failed_on(BAD), live=[BAD], awaited=[BAD]) == queue_of_device(BAD.uuid)
    pinned = failed_on(BAD, device_types=None, device_uuid=BAD.uuid)
    assert queue_of(pinned, live=[BAD], awaited=[GOOD]) == queue_of_device(BAD.uuid)
