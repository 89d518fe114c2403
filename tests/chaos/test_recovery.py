"""How recovery times are read from the landings of devices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chaos.alone import Strike, findings_of
from chaos.farm import Farm
from chaos.plan import Kind
from chaos.recovery import (
    Landings,
    Struck,
    healthy_beside,
    histogram,
    overlap,
    recovered_after,
    recovered_among_others,
    too_slow,
)
from chaos.workload import Workload


def landings(*devices: list[float]) -> Landings:
    """Each batch takes half a second."""
    return Landings([[at - 0.5 for at in landed] for landed in devices], devices)


def every_second(since: int, until: int) -> list[float]:
    return [float(at) for at in range(since, until)]


@pytest.fixture
def farm() -> Farm:
    """With two hosts of two devices."""
    return Farm(Path("/nowhere"), Workload((), (), {}, {}, ()))


def test_a_device_that_goes_on_recovers_with_its_next_batch() -> None:
    assert recovered_after(landings(every_second(90, 130)), [0], 100.0, 129.5) == 1.0


def test_an_outage_that_begins_later_counts_until_its_end() -> None:
    stopped = [*every_second(90, 105), *every_second(117, 140)]
    assert recovered_after(landings(every_second(90, 140), stopped), [0, 1], 100.0, 139.5) == 17.0
    assert recovered_after(landings(every_second(90, 140), stopped), [0], 100.0, 139.5) == 1.0


def test_a_device_that_stands_still_has_not_recovered() -> None:
    assert recovered_after(landings(every_second(90, 105)), [0], 100.0, 120.0) is None
    assert recovered_after(landings([]), [0], 100.0, 120.0) is None


def test_a_batch_that_was_claimed_before_the_fault_shows_nothing() -> None:
    assert recovered_after(Landings([[99.0, 103.0]], [[101.0, 104.0]]), [0], 100.0, 104.5) == 4.0


def test_who_is_healthy_follows_from_what_a_fault_holds(farm: Farm) -> None:
    assert healthy_beside(Kind.CUT_HOST, 1, farm) == {0, 1}
    assert healthy_beside(Kind.PAUSE_WORKER, 1, farm) == {0, 2, 3}
    assert healthy_beside(Kind.KILL_COORDINATOR, 0, farm) == {0, 1, 2, 3}
    assert healthy_beside(Kind.STOP_REDIS, 0, farm) == {0, 1, 2, 3}


def test_a_fault_that_holds_everybody_is_timed_from_when_it_is_made_good() -> None:
    assert Struck(Kind.STOP_REDIS, 0, 100.0, 110.0).since == 110.0
    assert Struck(Kind.CUT_HOST, 0, 100.0, 110.0).since == 100.0


def test_among_others_a_fault_is_not_charged_with_what_they_held(farm: Farm) -> None:
    away = [*every_second(90, 101), *every_second(121, 150)]
    struck = [Struck(Kind.FLUSH_REDIS, 0, 100.6, None), Struck(Kind.STOP_REDIS, 0, 102.0, 119.0)]
    found = recovered_among_others(landings(*[away] * 4), struck, farm, until=149.0)
    assert found[Kind.STOP_REDIS] == [2.0]
    assert found[Kind.FLUSH_REDIS] == [pytest.approx(121.0 - 100.6 - 17.0)]


def test_a_device_that_never_lands_again_is_a_finding_once_the_bound_has_passed(farm: Farm) -> None:
    still, struck = every_second(90, 101), [Struck(Kind.FLUSH_REDIS, 0, 105.0, None)]
    others = [every_second(90, 350)] * 3
    assert recovered_among_others(landings(still, *others), struck, farm, until=120.0) == {}
    found = recovered_among_others(landings(still, *others), struck, farm, until=300.0)
    assert found == {Kind.FLUSH_REDIS: [195.0]}
    assert too_slow(found) == [
        "after 'Redis forgets everything' healthy devices measured again after 195.0 s, not 180 s",
    ]


def test_a_kind_that_mostly_takes_too_long_is_a_finding_once_it_struck_often_enough() -> None:
    assert too_slow({Kind.FLUSH_REDIS: [40.0] * 9, Kind.CUT_HOST: [5.0] * 6 + [60.0] * 5}) == []
    assert too_slow({Kind.FLUSH_REDIS: [40.0] * 10}) == [
        "after 'Redis forgets everything' healthy devices measured again after 40.0 s in the median, not 30 s",
    ]


def test_a_device_that_another_fault_holds_to_the_end_is_not_waited_for(farm: Farm) -> None:
    struck = [Struck(Kind.SICKEN_DEVICE, 3, 95.0, math.inf), Struck(Kind.FLUSH_REDIS, 0, 105.0, None)]
    for sick in ([], [100.0, 340.0]):  # the other batches are its trials
        found = recovered_among_others(landings(*[every_second(90, 400)] * 3, sick), struck, farm, until=350.0)
        assert found == {Kind.SICKEN_DEVICE: [1.0], Kind.FLUSH_REDIS: [1.0]}


def test_a_strike_that_took_too_long_or_gave_no_leader_is_a_finding() -> None:
    assert list(findings_of(Strike(Kind.CUT_LEADER, 9.0, 8.0))) == []
    assert list(findings_of(Strike(Kind.CUT_LEADER, 31.0, 15.2))) == [
        "after 'the leading coordinator is cut off from the database' healthy devices measured again after 31.0 s, not within 30 s",
        "after 'the leading coordinator is cut off from the database' another coordinator led after 15.2 s, not within 15 s",
    ]
    assert list(findings_of(Strike(Kind.FLUSH_REDIS, None))) == [
        "after 'Redis forgets everything' healthy devices measured again not at all, not within 30 s"
    ]
    assert len(list(findings_of(Strike(Kind.CUT_LEADER, 9.0, None)))) == 1


def test_intervals_that_overlap_are_counted_once() -> None:
    assert overlap([(5.0, 8.0), (0.0, 2.0), (6.0, 7.0), (7.5, 20.0)], 1.0, 10.0) == 6.0


def test_the_histogram_has_a_line_for_each_kind() -> None:
    lines = histogram({Kind.FLUSH_REDIS: [0.5, 1.5, 40.0], Kind.CUT_HOST: [1.2]}).splitlines()
    assert lines[1].split()[:3] == ["3", "1.5", "40.0"]
    assert lines[1].endswith(Kind.FLUSH_REDIS)
    assert len(lines) == 3
