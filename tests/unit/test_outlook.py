"""What is stuck, and why: said in plain words from how the farm stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farm.api.campaigns import LearningPoint, Progress
from farm.api.device_states import select
from farm.api.jobs import device_for
from farm.cli.progress import eta_text
from farm.coordinator.estimates import Cause, FarmState, Stuck, condition, what_is_stuck
from farm.db.kernels import AwaitedKernels, WithoutBuilder
from farm.db.liveness import DeviceNow, Presence
from farm.db.open_jobs import JobGroup, QueueNow, RefusedNow
from farm.db.states import CampaignState, DeviceState
from farm.db.throughput import Throughput
from farm.errors import AmbiguousDevice, UnknownDevice, UnknownHost
from support.learning_curves import point

NOTHING = AwaitedKernels(0, 0, 0)
LIVE = DeviceNow(
    device_id=1,
    uuid="GPU-1a",
    type="nvidia-h200",
    host="gpu01",
    state=DeviceState.ACTIVE,
    reason=None,
    state_s=7200,
    presence=Presence.LIVE,
    silent_s=1.0,
    vanished_s=None,
    batch_id=None,
)
SILENT = replace(LIVE, device_id=2, uuid="GPU-2b", presence=Presence.SILENT, silent_s=200.0)
STOPPED = replace(LIVE, device_id=3, uuid="GPU-3c", presence=Presence.STOPPED, silent_s=None)
GONE = replace(LIVE, device_id=4, uuid="GPU-4d", presence=Presence.GONE, silent_s=None, vanished_s=65.0)
HOT = replace(LIVE, device_id=5, uuid="GPU-5e", state=DeviceState.QUARANTINED, reason="hot (by ann)")
LANE = JobGroup(
    lane_id=1,
    campaign_id=1,
    campaign="sweep",
    owner="ann",
    priority=0,
    state=CampaignState.ACTIVE,
    target="type:nvidia-h200",
    device_types=("nvidia-h200",),
    device_uuid=None,
    jobs=100,
    done=20,
    invalid=1,
    dead=2,
    queued=0,
    running=0,
)


def farm(*groups: JobGroup, devices: tuple[DeviceNow, ...] = (LIVE,), **changes: object) -> FarmState:
    stands = FarmState(groups=groups, devices=devices, queues=(), coordinated=True, resend_after_s=15.0)
    return replace(stands, **changes)  # type: ignore[arg-type]


def only(stands: FarmState) -> Stuck:
    (stuck,) = what_is_stuck(stands)
    return stuck


def test_only_the_campaigns_that_are_asked_for_are_looked_at() -> None:
    stands = farm(LANE, replace(LANE, campaign_id=LANE.campaign_id + 1), devices=())
    assert [one.campaign_id for one in what_is_stuck(stands, of=[LANE.campaign_id])] == [LANE.campaign_id]
    assert len(what_is_stuck(stands)) == 2


def test_what_waits_for_a_live_device_is_not_stuck() -> None:
    assert LANE.open == LANE.waiting == 77
    assert what_is_stuck(farm(LANE)) == []
    assert what_is_stuck(farm(LANE, devices=(SILENT, LIVE))) == []


def test_what_is_over_or_in_hand_is_not_stuck_even_without_a_device() -> None:
    assert what_is_stuck(farm(replace(LANE, done=97), devices=())) == []
    assert what_is_stuck(farm(replace(LANE, done=90, running=7), devices=(SILENT,))) == []


def test_a_type_that_nobody_has_announced_is_named() -> None:
    stuck = only(farm(LANE, devices=(replace(LIVE, type="cpu-test"),)))
    assert (stuck.cause, stuck.jobs, stuck.target) == (Cause.NO_DEVICE, 77, "type:nvidia-h200")
    assert "no device of nvidia-h200 was ever announced" in stuck.why
    assert "farm-worker" in stuck.why


def test_a_device_that_was_never_announced_is_named() -> None:
    group = replace(LANE, device_types=None, device_uuid="GPU-9")
    assert only(farm(group)).why.startswith("the device GPU-9 was never announced")
    assert what_is_stuck(farm(replace(group, device_uuid="GPU-1a"))) == []


def test_devices_that_take_no_work_are_named_with_what_keeps_them_from_it() -> None:
    stuck = only(farm(replace(LANE, queued=7), devices=(SILENT, HOT, GONE, STOPPED)))
    assert stuck.jobs == 77
    assert stuck.why == (
        "no device takes them: GPU-2b on gpu01, silent for 3 min 20 s; "
        "GPU-5e on gpu01, quarantined 2 h 00 min ago: hot (by ann); "
        "GPU-4d on gpu01, gone from its host for 1 min 05 s and 1 more; "
        "farm devices resume GPU-5e puts it to work again"
    )


def test_what_the_working_devices_refused_waits_for_a_drained_one() -> None:
    drained = replace(HOT, state=DeviceState.DRAINED)
    refused = RefusedNow(lane_id=LANE.lane_id, refused_by=(LIVE.device_id,), jobs=3)
    stuck = only(farm(LANE, devices=(LIVE, drained), refused=(refused,)))
    assert (stuck.jobs, stuck.cause) == (3, Cause.REFUSED)
    assert stuck.why == (
        "the devices that take work refused them or failed them permanently, and the others do not take any: "
        "GPU-5e on gpu01, drained 2 h 00 min ago: hot (by ann); farm devices resume GPU-5e puts it to work again"
    )
    another = replace(LIVE, device_id=9, uuid="GPU-9")
    assert what_is_stuck(farm(LANE, devices=(LIVE, drained, another), refused=(refused,))) == []


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (LIVE, "live"),
        (STOPPED, "stopped"),
        (replace(HOT, presence=Presence.SILENT, silent_s=3.0), "silent for 3 s, quarantined 2 h 00 min ago: hot (by ann)"),
        (replace(LIVE, state=DeviceState.DRAINED), "drained 2 h 00 min ago: no reason given"),
    ],
)  # fmt: skip
def test_a_device_is_described_by_all_that_keeps_it_from_work(device: DeviceNow, words: str) -> None:
    assert condition(device) == words


def test_a_paused_campaign_is_not_stuck() -> None:
    paused = replace(LANE, state=CampaignState.PAUSED, queued=2, running=5)
    assert what_is_stuck(farm(paused, devices=())) == []
    assert len(what_is_stuck(farm(replace(paused, state=CampaignState.ACTIVE), devices=()))) == 1


def test_a_cancelled_campaign_is_not_stuck() -> None:
    assert what_is_stuck(farm(replace(LANE, state=CampaignState.CANCELLED), devices=())) == []


def test_without_a_coordinator_what_waits_is_stuck_and_what_was_sent_is_not() -> None:
    sent = replace(LANE, queued=7)
    assert (only(farm(sent, coordinated=False)).cause, only(farm(sent, coordinated=False)).jobs) == (
        Cause.NO_COORDINATOR,
        70,
    )
    assert what_is_stuck(farm(replace(LANE, done=90, queued=7), coordinated=False)) == []


def test_a_search_between_two_rounds_waits_for_a_coordinator() -> None:
    between = replace(LANE, done=97, later=5)
    assert what_is_stuck(farm(between)) == []
    stuck = only(farm(between, coordinated=False))
    assert (stuck.cause, stuck.jobs) == (Cause.NO_COORDINATOR, 5)
    assert "round 0 is over" in stuck.why
    assert what_is_stuck(farm(replace(between, done=96, running=1), coordinated=False)) == []
    assert what_is_stuck(farm(replace(between, state=CampaignState.PAUSED), coordinated=False)) == []


def test_a_learning_round_that_no_trainer_decides_on_is_stuck() -> None:
    undecided = replace(LANE, round=2, done=97, later=9, untrained_s=20.0)
    assert what_is_stuck(farm(undecided)) == []  # a trainer that waits for work takes some seconds to start
    stuck = only(farm(replace(undecided, untrained_s=125.0)))
    assert (stuck.cause, stuck.jobs) == (Cause.NO_TRAINER, 9)
    assert "round 2 is over, and for 2 min 05 s no trainer" in stuck.why
    assert "farm-trainer" in stuck.why
    assert what_is_stuck(farm(replace(undecided, untrained_s=125.0, done=90, running=7))) == []
    assert only(farm(replace(undecided, untrained_s=125.0), coordinated=False)).cause is Cause.NO_COORDINATOR


def test_work_waits_behind_a_campaign_of_higher_priority_on_the_same_devices() -> None:
    urgent = replace(LANE, lane_id=2, campaign_id=2, campaign="urgent", owner="bob", priority=5, queued=4)
    stuck = only(farm(LANE, urgent))
    assert (stuck.campaign_id, stuck.cause) == (1, Cause.BEHIND)
    assert "urgent (priority 5)" in stuck.why
    assert "this campaign has priority 0" in stuck.why
    elsewhere = replace(urgent, device_types=("nvidia-b200",))
    assert [s.campaign_id for s in what_is_stuck(farm(LANE, elsewhere))] == [2]
    assert what_is_stuck(farm(LANE, replace(urgent, done=93))) == []
    assert what_is_stuck(farm(replace(LANE, running=3), urgent)) == []


def test_campaigns_of_one_priority_take_turns_and_are_not_stuck() -> None:
    later = replace(LANE, lane_id=2, campaign_id=2, campaign="later")
    assert what_is_stuck(farm(LANE, later)) == []
    assert what_is_stuck(farm(LANE, replace(later, owner="bob"))) == []


def test_batches_that_no_worker_hears_of_are_stuck_where_a_device_idles() -> None:
    queue = QueueNow(lane_id=1, queue="gpu.nvidia-h200", oldest_s=65.0, sends=4)
    sent = replace(LANE, queued=7)
    stuck = only(farm(sent, queues=(queue,)))
    assert (stuck.cause, stuck.jobs) == (Cause.NOT_TAKEN, 77)
    assert "1 min 05 s" in stuck.why
    assert "sent 4 times" in stuck.why
    assert "FARM_BROKER_URL" in stuck.why
    assert "does not take their messages" in only(farm(sent, queues=(replace(queue, sends=0),))).why
    assert only(farm(sent, queues=(queue,), coordinated=False)).cause is Cause.NO_COORDINATOR
    assert what_is_stuck(farm(sent, queues=(queue,), devices=(replace(LIVE, batch_id=3),))) == []
    assert what_is_stuck(farm(sent, queues=(replace(queue, oldest_s=29.0),))) == []
    assert what_is_stuck(farm(sent, queues=(replace(queue, queue="device.GPU-7"),))) == []
    assert only(farm(sent, queues=(replace(queue, queue="device.GPU-1a"),))).cause is Cause.NOT_TAKEN


# --- how fast ----------------------------------------------------------------------------------------


def test_time_left_is_what_waits_at_the_pace_of_the_last_minutes() -> None:
    pace = Throughput(last_minute=30.0, lately=60.0, began_s=600.0)
    assert pace.seconds_for(90) == 90
    assert pace.overall(1000) == 100
    assert Throughput(last_minute=None, lately=None, began_s=600.0).seconds_for(90) is None
    assert Throughput().overall(0) is None


def test_progress_says_the_rate_the_time_left_and_what_is_stuck() -> None:
    stuck = Stuck(campaign_id=1, target="any", jobs=12, cause=Cause.NO_DEVICE, why="no device")
    assert eta_text(now(jobs_per_minute=1234.5, seconds_left=200.0)) == "1,234 jobs/min, 3 min 20 s left"
    assert eta_text(now(stuck=[stuck, stuck], stuck_jobs=24)) == "24 jobs are stuck: no device"
    assert eta_text(now(state=CampaignState.PAUSED)) == "paused; to continue: farm resume small"
    assert eta_text(now()) == "waiting for the first results"
    assert eta_text(now(kernels_awaited=AwaitedKernels(1112, 2, 16128))) == "1,112 kernels to be built (2 in progress)"


def test_progress_of_a_learning_campaign_says_its_error_on_the_test_set() -> None:
    learned = LearningPoint(pool="any", round=3, error=None, **point(3, all=8.04, blas=10.0))
    assert eta_text(now(learned=learned, jobs_per_minute=90.0)) == (
        "90 jobs/min, 8.0% mean error on the test set after 300 device s"
    )
    untested = LearningPoint(pool="any", round=1, error=None, **point(1))
    assert eta_text(now(learned=untested)) == "waiting for the first results"


def now(**known: Any) -> Progress:
    nothing = {
        "counts": {}, "percent": 0.0, "jobs_per_minute": None, "seconds_left": None, "stuck_jobs": 0, "name": "small",
        "digest": "0" * 64, "owner": "ann", "state": CampaignState.ACTIVE, "stuck": [], "kernels_awaited": NOTHING,
        "devices_live": 1,
    }  # fmt: skip
    return Progress(**{**nothing, **known})


def test_jobs_whose_kernels_nobody_builds_are_stuck() -> None:
    group = replace(LANE, jobs=10, done=0, queued=0, running=0)
    lacking = {group.lane_id: WithoutBuilder(7, ["triton 3.9.0"])}
    stuck = only(farm(group, without_builder=lacking))
    assert (stuck.cause, stuck.jobs) == (Cause.NO_BUILDER, 7)
    assert "no builder has triton 3.9.0; farm-worker --build on a host with the extra triton is one" in stuck.why
    assert what_is_stuck(farm(group)) == []


# --- naming devices ----------------------------------------------------------------------------------

ELSEWHERE = replace(LIVE, device_id=6, uuid="GPU-1ab", host="gpu02")
KNOWN = (LIVE, SILENT, ELSEWHERE)


def test_devices_are_named_by_uuid_a_beginning_of_it_or_their_host() -> None:
    assert select(KNOWN, ["GPU-1a"]) == [LIVE]
    assert select(KNOWN, ["gpu-2"]) == [SILENT]
    assert select(KNOWN, ["host:gpu01", "GPU-1ab", "GPU-2b"]) == [LIVE, SILENT, ELSEWHERE]


def test_a_name_that_fits_no_device_or_several_is_refused_with_the_candidates() -> None:
    with pytest.raises(AmbiguousDevice, match=r"GPU-1a on gpu01, GPU-2b on gpu01, GPU-1ab on gpu02") as several:
        select(KNOWN, ["GPU-"])
    assert several.value.exit_code == 2
    for nothing in ("GPU-7", ""):
        with pytest.raises(UnknownDevice, match=r"Known: GPU-1a, GPU-2b, GPU-1ab"):
            select(KNOWN, ["GPU-2b", nothing])
    with pytest.raises(UnknownHost, match=r"'gpu03'.*gpu01, gpu02"):
        select(KNOWN, ["host:gpu03"])


def test_a_job_that_never_ran_is_reproduced_on_a_live_device_of_its_target() -> None:
    assert device_for(LANE, (replace(LIVE, uuid="other", type="cpu-test"), SILENT, LIVE)) == "GPU-1a"
    assert device_for(LANE, (SILENT,)) == "GPU-2b"
    assert device_for(LANE, ()) is None
    assert device_for(replace(LANE, device_types=None, device_uuid="GPU-9"), KNOWN) == "GPU-9"
