"""The health of made-up fleets: what is planted is found, named and dated; what is equal, or nobody can tell, is no alarm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.compare.health import DeviceHealth, Finding, FleetReport, HealthQuery, HealthVerdict, fleet_rows, history
from farm.compare.health.assessment import Member
from farm.compare.health.diagnosis import diagnose
from farm.compare.health.fleet_rows import Fleet, FleetRows, latest, positions
from farm.compare.health.peers import medians_of_others
from farm.compare.health.rules.throttled import SLOWED
from farm.compare.health.samples import (
    ENERGY,
    PAST,
    SENTINEL,
    TIME,
    Comparison,
    Sample,
    binomial_tail,
    estimate,
    levels,
)
from farm.corruption import ChangedResults, Corruption
from farm.vendors.nvidia import events_named

UNTIL = datetime(2026, 11, 22, 12, tzinfo=UTC)
SINCE = UNTIL - timedelta(days=7)
SHAPES, KERNELS = 20, 2
CELLS = SHAPES * KERNELS


def night(
    device: int,
    *,
    slower: float = 1.0,
    days_ago: float = 1.0,
    environment: int = 0,
    clocks: int = 0,
    cells: Sequence[int] = range(CELLS),
    noise: float = 0.003,
    seed: int = 0,
    watts: float = 300.0,
    warm_c: float = 60.0,
    limit_w: float = 700.0,
    reasons: int | Sequence[int] = 0,
    limited: int = -1,
) -> FleetRows:
    """What a device took in one night, once for each cell, within minutes."""
    rng = np.random.default_rng([device, seed, int(days_ago * 24)])
    which, count = np.array(list(cells)), len(cells)
    usual = 0.1 * (1 + which)
    return FleetRows(
        device=np.full(count, device),
        cell=which,
        clocks=np.full(count, clocks),
        environment=np.full(count, environment),
        when=(UNTIL - timedelta(days=days_ago)).timestamp() + np.arange(count, dtype=np.float64),
        runtime_ms=usual * slower * np.exp(rng.normal(0, noise, count)),
        power_w=np.full(count, watts),
        runtime_settled_ms=np.full(count, np.nan),
        temperature_c=warm_c + rng.integers(-1, 2, count).astype(np.float64),
        power_limit_w=np.full(count, limit_w),
        reasons=np.broadcast_to(reasons, count).astype(np.int64),
        power_limited=np.full(count, limited),
    )


def together(parts: Sequence[FleetRows]) -> FleetRows:
    return FleetRows(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in FleetRows.__dataclass_fields__}
    )


NONE = night(0, cells=[])


def check(
    *parts: FleetRows,
    sentinels: FleetRows = NONE,
    members: Sequence[Member] | None = None,
    question: HealthQuery | None = None,
    environments: Sequence[dict[str, str]] = ({"driver": "570.86"}, {"driver": "580.159"}),
    clocks: Sequence[str] = ("default", "locked:1200"),
) -> FleetReport:
    held = together(parts)
    count = int(max(held.device.max(initial=-1), sentinels.device.max(initial=-1))) + 1
    cells = max(CELLS, int(held.cell.max(initial=0)) + 1)
    fleet = Fleet(
        rows=held,
        sentinels=sentinels,
        shapes=np.arange(cells) % CELLS // KERNELS,
        configurations=np.arange(cells) % CELLS,
        environments=environments,
        clocks=clocks,
    )
    known = members or [card(number) for number in range(count)]
    return diagnose(known, fleet, question or HealthQuery(), since=SINCE, until=UNTIL)


def card(number: int, device_type: str = "nvidia-h200", **more: object) -> Member:
    return Member(id=number + 1, uuid=f"GPU-{number}", type=device_type, host="gpu01", **more)  # type: ignore[arg-type]


def verdicts(found: FleetReport) -> list[str]:
    return [one.verdict.value for one in found.devices]


def finding(device: DeviceHealth, verdict: HealthVerdict) -> Finding:
    (one,) = [one for one in device.findings if one.verdict is verdict]
    return one


# --- compared with peers -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5)), max_size=40))
def test_the_median_of_the_others_leaves_the_value_itself_out(pairs: list[tuple[int, int]]) -> None:
    groups, values = np.array([g for g, _ in pairs], np.int64), np.array([float(v) for _, v in pairs])
    found, others = medians_of_others(values, groups)
    for at, group in enumerate(groups):
        rest = [v for n, v in enumerate(values) if groups[n] == group and n != at]
        assert others[at] == len(rest)
        assert found[at] == pytest.approx(np.median(rest) if rest else np.nan, nan_ok=True)


def test_equal_cards_are_well() -> None:
    found = check(*(night(device) for device in range(4)))
    assert verdicts(found) == ["healthy"] * 4
    assert found.unwell == 0
    assert found.devices[0].time is not None
    assert found.devices[0].time.shapes == SHAPES
    assert found.devices[0].time.against == "3 peers"


def test_a_card_that_is_slower_by_more_than_the_tolerance_is_named_with_its_size() -> None:
    found = check(*(night(device, slower=1.05 if device == 2 else 1.0) for device in range(4)))
    assert verdicts(found) == ["healthy", "healthy", "slow", "healthy"]
    told = finding(found.devices[2], HealthVerdict.SLOW)
    assert told.estimate is not None
    assert told.estimate.low is not None
    assert told.estimate.high is not None
    assert told.estimate.low < 1.05 < told.estimate.high
    assert told.estimate.value == pytest.approx(1.05, abs=0.003)
    assert "GPU-2" in told.advice


def test_a_difference_within_the_tolerance_is_none_however_sure_it_is() -> None:
    cards = [night(device, slower=1.02 if device == 2 else 1.0, noise=0.0001) for device in range(4)]
    assert verdicts(check(*cards)) == ["healthy"] * 4
    assert verdicts(check(*cards, question=HealthQuery(tolerance=0.01)))[2] == "slow"


def test_a_faster_card_is_no_alarm_and_makes_no_other_one_slow() -> None:
    assert (
        verdicts(check(*(night(device, slower=0.9 if device == 0 else 1.0) for device in range(4)))) == ["healthy"] * 4
    )
    assert (
        verdicts(check(*(night(device, slower=0.9 if device == 0 else 1.0) for device in range(3)))) == ["healthy"] * 3
    )


def test_of_two_cards_nobody_can_tell_which_is_wrong() -> None:
    found = check(night(0), night(1, slower=1.06))
    assert verdicts(found) == ["differs", "differs"]
    assert "GPU-0" in found.devices[1].findings[0].evidence
    assert "no third device shows which one is wrong" in found.devices[1].findings[0].evidence


def test_of_three_cards_the_one_apart_from_both_is_named() -> None:
    assert verdicts(check(night(0), night(1, slower=1.06), night(2))) == ["healthy", "slow", "healthy"]
    # All three apart: the slowest is slower than both; of the other two nobody can tell.
    assert verdicts(check(night(0), night(1, slower=1.06), night(2, slower=1.12))) == ["healthy", "differs", "slow"]


def test_a_few_configurations_with_a_majority_do_not_decide_where_two_cards_share_many() -> None:
    few = range(4)
    found = check(night(0), night(1, slower=1.06), night(2, cells=few), night(3, cells=few))
    assert verdicts(found)[:2] == ["differs", "differs"]
    assert verdicts(found)[2:] == ["unknown", "unknown"]


def test_a_card_that_has_only_a_slow_one_beside_it_is_not_blamed_for_the_difference() -> None:
    half = CELLS // 2
    found = check(night(0, slower=1.06), night(1, cells=range(half)), night(2, cells=range(half, CELLS)))
    assert verdicts(found) == ["slow", "healthy", "healthy"]


def test_types_are_not_compared() -> None:
    members = [card(0), card(1), *(replace(card(n), type="nvidia-l40s") for n in (2, 3))]
    parts = [night(0), night(1), night(2, slower=3.0), night(3, slower=3.0)]
    assert verdicts(check(*parts, members=members)) == ["healthy"] * 4
    only = check(*parts, members=members, question=HealthQuery(device_type="nvidia-l40s"))
    assert [one.uuid for one in only.devices] == ["GPU-2", "GPU-3"]


def test_one_device_is_judged_beside_all_its_peers() -> None:
    parts = [night(device, slower=1.05 if device == 2 else 1.0) for device in range(4)]
    found = check(*parts, question=HealthQuery(device="GPU-2"))
    assert verdicts(found) == ["slow"]
    # Fewer tests: each may be wrong more often.
    every = check(*parts).devices[2].time
    assert every is not None
    assert found.devices[0].time is not None
    assert found.devices[0].time.confidence < every.confidence


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ({}, "Measure the same configurations"),
        ({"silent": True}, "Start farm-worker on gpu01. Measure the same configurations"),
        ({"stopped": True}, "Start farm-worker on gpu01. Measure the same configurations"),
        ({"vanished_at": SINCE - timedelta(days=9)}, "Nothing can be measured on it until gpu01 shows it again."),
        ({"foreign": True}, ""),
    ],
    ids=["there", "silent", "stopped", "gone", "imported"],
)
def test_nobody_is_told_to_measure_on_a_card_that_is_not_there(state: dict[str, object], advice: str) -> None:
    found = check(
        *(night(device, cells=range(4)) for device in range(4)), members=[card(number, **state) for number in range(4)]
    )
    assert verdicts(found) == ["unknown"] * 4
    (told,) = found.devices[0].findings
    assert told.advice[: len(advice) or None] == advice


def test_too_little_is_unknown_and_says_what_it_takes() -> None:
    found = check(*(night(device, cells=range(4)) for device in range(4)))
    assert verdicts(found) == ["unknown"] * 4
    assert "2 shapes shared with 3 peers are too few" in found.devices[0].findings[0].evidence
    assert "each: nvidia-h200" in found.devices[0].findings[0].advice
    apart = check(night(0, cells=range(10)), night(1, cells=range(20, 30)))
    assert "none of its 10 rows has a configuration that a peer" in apart.devices[0].findings[0].evidence
    old = check(night(0, days_ago=20), night(1, days_ago=20))
    assert "nothing was measured on it since 2026-11-15" in old.devices[0].findings[0].evidence


def test_a_large_difference_that_is_not_shown_is_unknown_and_not_well() -> None:
    cards = [night(device, slower=1.07 if device == 1 else 1.0, noise=0.1) for device in range(4)]
    found = check(*cards)
    assert found.devices[1].verdict is HealthVerdict.UNKNOWN
    assert "perhaps more than 3%, but not significant" in found.devices[1].findings[0].evidence


def test_the_last_row_of_a_configuration_counts() -> None:
    slow_once = night(2, slower=1.2, days_ago=3)
    assert verdicts(check(slow_once, *(night(device) for device in range(4)))) == ["healthy"] * 4
    found = check(*(night(device, days_ago=3) for device in range(4)), night(2, slower=1.2, days_ago=1))
    assert verdicts(found)[2] == "slow"


def test_governors_of_processors_are_no_locked_clocks() -> None:
    nights = [night(device, clocks=int(device == 3)) for device in range(4)]
    assert verdicts(check(*nights))[3] == "differs"
    processors = check(*nights, members=[card(number, "cpu-amd-epyc-9575f") for number in range(4)])
    assert "differs" not in verdicts(processors)


def test_other_conditions_are_left_out_and_said() -> None:
    # Cells from CELLS on are the same configurations under another condition.
    other = night(3, slower=2.0, cells=range(CELLS, 2 * CELLS), clocks=1)
    found = check(*(night(device) for device in range(3)), other)
    assert verdicts(found)[:3] == ["healthy"] * 3
    assert (
        found.devices[3].notes[0].startswith("40 configurations are left out: its peers have them only at other clocks")
    )
    assert "its clocks are locked:1200, those of 3 of its peers default" in found.devices[3].findings[0].evidence


# --- beside the past -----------------------------------------------------------------------------------


def test_a_card_that_got_slower_drifts_since_then() -> None:
    nights = [night(0, days_ago=days, slower=1.06 if days < 5 else 1.0, seed=days) for days in range(1, 21)]
    found = check(*nights)
    assert verdicts(found) == ["drifting"]
    told = finding(found.devices[0], HealthVerdict.DRIFTING)
    assert told.since is not None
    assert told.since.at == UNTIL - timedelta(days=4)
    assert told.since.after is not None
    assert told.since.after.date() == (UNTIL - timedelta(days=5)).date()
    assert told.since.confidence is not None
    assert told.since.confidence > 0.95
    assert told.estimate is not None
    assert told.estimate.value == pytest.approx(1.06, abs=0.004)


def test_slower_under_a_new_driver_is_a_regression_and_named_as_one() -> None:
    nights = [
        night(device, days_ago=days, slower=1.05 if days < 3 else 1.0, environment=int(days < 3), seed=days)
        for device in range(2)
        for days in (1, 2, 5, 12)
    ]
    found = check(*nights)
    assert verdicts(found) == ["regressed", "regressed"]
    told = finding(found.devices[0], HealthVerdict.REGRESSED)
    assert "since driver 570.86 → 580.159" in told.evidence
    assert told.since is not None
    assert told.since.at == UNTIL - timedelta(days=2)
    assert "until=2026-11-20T12:00 since=2026-11-20T12:00" in told.advice


def test_a_driver_that_came_before_the_window_is_what_a_card_is_compared_under() -> None:
    nights = [
        night(0, days_ago=days, slower=1.05 if days < 15 else 1.0, environment=int(days < 15)) for days in (1, 9, 20)
    ]
    assert verdicts(check(*nights)) == ["healthy"]


def test_sentinels_show_a_drift_where_no_configuration_was_measured_twice() -> None:
    hours = [
        night(0, cells=[0], days_ago=hour / 24, slower=1.05 if hour < 40 else 1.0, seed=hour)
        for hour in range(1, 24 * 14, 3)
    ]
    found = check(night(0), sentinels=together(hours), question=HealthQuery(tolerance=0.02))
    assert verdicts(found) == ["healthy"]  # it was healthy for most of the window
    daily = [
        night(0, cells=[0], days_ago=hour / 24, slower=1.05 if hour < 24 * 7 else 1.0, seed=hour)
        for hour in range(1, 24 * 14, 3)
    ]
    found = check(night(0), sentinels=together(daily))
    assert verdicts(found) == ["drifting"]
    told = finding(found.devices[0], HealthVerdict.DRIFTING)
    assert "its sentinel takes 1.05" in told.evidence
    assert told.since is not None
    assert abs(told.since.at - SINCE) < timedelta(hours=4)


# --- condition -----------------------------------------------------------------------------------------


def test_a_hot_card_is_hotter_than_its_peers_at_the_same_work() -> None:
    found = check(*(night(device, warm_c=75.0 if device == 1 else 60.0) for device in range(4)))
    assert verdicts(found) == ["healthy", "hot", "healthy", "healthy"]
    assert "+15.0 °C" in found.devices[1].findings[0].evidence
    assert (
        verdicts(check(*(night(device, warm_c=66.0 if device == 1 else 60.0) for device in range(4))))
        == ["healthy"] * 4
    )


def test_a_card_near_its_slowdown_is_hot_whatever_its_peers_are() -> None:
    members = [card(number, slowdown_c=92.0) for number in range(4)]
    found = check(*(night(device, warm_c=90.0) for device in range(4)), members=members)
    assert verdicts(found) == ["hot"] * 4
    assert "reached 91 °C; it slows down at 92 °C" in found.devices[0].findings[0].evidence


def test_heat_and_brakes_throttle_and_the_power_limit_that_holds_all_does_not() -> None:
    capped, brake = events_named("sw_power_cap"), events_named("sw_power_cap,hw_power_brake")
    found = check(*(night(device, reasons=brake if device == 3 else capped) for device in range(4)))
    assert verdicts(found) == ["healthy", "healthy", "healthy", "throttled"]
    assert "20 of 20 shapes by hw_power_brake (40 rows)" in found.devices[3].findings[0].evidence
    once = [brake, *[capped] * (CELLS - 1)]
    assert (
        verdicts(check(*(night(device, reasons=once if device == 3 else capped) for device in range(4))))
        == ["healthy"] * 4
    )


def test_a_card_that_its_power_limit_holds_where_its_peers_are_not_is_throttled() -> None:
    capped = events_named("sw_power_cap")
    found = check(*(night(device, reasons=capped if device == 0 else 0) for device in range(4)))
    assert verdicts(found) == ["throttled", "healthy", "healthy", "healthy"]
    evidence = found.devices[0].findings[0].evidence
    assert "power-limited on 20 of 20 shapes where 3 peers are not (by the clock event sw_power_cap)" in evidence


def test_the_clock_event_of_the_power_limit_does_not_count_where_rows_say_whether_it_slows_them() -> None:
    """The event is set for short kernels too, which the limiter does not slow down."""
    capped = events_named("sw_power_cap")
    assert verdicts(check(*(night(n, reasons=capped if n == 0 else 0, limited=0) for n in range(4)))) == ["healthy"] * 4
    found = check(*(night(n, reasons=capped, limited=int(n == 0)) for n in range(4)))
    assert verdicts(found) == ["throttled", "healthy", "healthy", "healthy"]
    assert "where 3 peers are not (by power_limited)" in found.devices[0].findings[0].evidence


def test_a_lower_power_limit_than_that_of_its_peers_is_told_since_when() -> None:
    nights = [
        night(
            device,
            days_ago=days,
            limit_w=500.0 if device == 2 and days < 4 else 700.0,
            slower=1.05 if device == 2 else 1,
        )
        for device in range(4)
        for days in (2, 3, 10, 11)
    ]
    found = check(*nights)
    assert found.devices[2].verdict is HealthVerdict.POWER_CAPPED
    told = finding(found.devices[2], HealthVerdict.POWER_CAPPED)
    assert "its power limit is 500 W, its 3 peers have 700 W" in told.evidence
    assert told.since is not None
    assert told.since.at == UNTIL - timedelta(days=3)
    assert finding(found.devices[2], HealthVerdict.SLOW).since is not None


def test_a_limit_that_all_have_is_a_remark_and_a_lone_card_below_its_default_an_alarm() -> None:
    found = check(*(night(device, limit_w=500.0) for device in range(4)))
    assert verdicts(found) == ["healthy"] * 4
    assert found.notes == ("Every nvidia-h200 is limited to 500 W or less; its maker says 700 W.",)
    assert verdicts(check(night(0, limit_w=500.0))) == ["power-capped"]


def test_energy_is_its_own_matter() -> None:
    found = check(*(night(device, watts=360.0 if device == 1 else 300.0) for device in range(4)))
    assert verdicts(found) == ["healthy", "differs", "healthy", "healthy"]
    assert "1.2" in found.devices[1].findings[0].evidence
    assert "the energy of the median of 3 peers" in found.devices[1].findings[0].evidence


def test_devices_that_fail_stand_still_or_are_gone_are_unwell_without_a_row() -> None:
    yesterday, long_ago = UNTIL - timedelta(days=1), UNTIL - timedelta(days=90)
    members = [
        card(0, state="quarantined", state_reason="it could not be opened", state_changed_at=yesterday),
        card(1, vanished_at=yesterday),
        card(2, silent=True, last_seen_at=yesterday),
        card(3, silent=True, last_seen_at=long_ago),
        card(4, done=100, refuted=20, last_failure="illegal address"),
        card(5, done=100_000, refuted=20),
        card(6, state="drained", state_reason="new fans"),
    ]
    found = check(night(6), members=members)
    assert verdicts(found) == ["quarantined", "gone", "silent", "unknown", "failing", "unknown", "unknown"]
    assert found.devices[0].findings[0].since is not None
    assert found.devices[0].findings[0].since.at == yesterday
    assert "illegal address" in found.devices[4].findings[0].evidence
    assert found.devices[6].notes == ("drained: new fans",)
    assert found.unwell == 4


def test_a_device_that_corrupts_results_is_named_with_the_rows_that_may_be_affected() -> None:
    at, configuration = UNTIL - timedelta(days=2), UUID(int=1)
    change = ChangedResults(
        device_id=2,
        configuration_id=configuration,
        jobs=1,
        last_message="bit 3 of element (0, 7)",
        first_at=at,
        last_at=at,
    )
    members = [card(0), card(1, corruption=Corruption(changed=[change])), card(2), card(3)]
    found = check(*(night(device) for device in range(4)), members=members)
    assert verdicts(found) == ["healthy", "corrupting", "healthy", "healthy"]
    told = finding(found.devices[1], HealthVerdict.CORRUPTING)
    assert "the result of 1 job changed between launches, the last: bit 3 of element (0, 7)" in told.evidence
    assert told.since is not None
    assert told.since.at == at
    assert "40 rows of it since 2026-11-15 12:00 UTC may be affected" in told.advice
    assert "farm results --where \"device_uuid == 'GPU-1'\" --since 2026-11-15T12:00" in told.advice
    assert "farm devices drain GPU-1" in told.advice
    shut_out = [replace(member, state="quarantined") for member in members]
    assert "drain" not in finding(check(night(0), members=shut_out).devices[1], HealthVerdict.CORRUPTING).advice


def test_two_devices_that_disagree_about_bits_both_differ() -> None:
    members = [
        card(number, corruption=Corruption(disagreeing={UUID(int=5): {2 - number}, UUID(int=6): {2 - number}}))
        for number in range(2)
    ]
    found = check(night(0), night(1), members=members)
    assert verdicts(found) == ["differs", "differs"]
    told = finding(found.devices[0], HealthVerdict.DIFFERS)
    assert told.evidence == "2 devices disagree about the bits of 2 configurations: it and GPU-1"
    assert "No majority shows which one is right" in told.advice
    alone = [card(0, corruption=Corruption(disagreeing={UUID(int=5): set()}))]
    told = finding(check(night(0), members=alone).devices[0], HealthVerdict.DIFFERS)
    assert (
        told.evidence
        == "its rows of 1 configuration have different bits from one to another, and no other device has them"
    )


def test_environments_that_differ_within_a_type_are_noted() -> None:
    found = check(night(0), night(1, environment=1))
    assert found.notes == ("Not every nvidia-h200 has the same environment: driver 570.86 → 580.159.",)


# --- since when ----------------------------------------------------------------------------------------


@given(st.integers(3, 30), st.integers(3, 30))
def test_a_step_is_found_where_it_is(before: int, after: int) -> None:
    rng = np.random.default_rng(before * 100 + after)
    found = history.change_point(np.concatenate([rng.normal(0, 1, before), rng.normal(20, 1, after)]))
    assert found is not None
    assert found.index == before


def test_a_series_without_a_change_has_one_as_seldom_as_it_says() -> None:
    rng = np.random.default_rng(3)
    sure = [one.confidence for _ in range(300) if (one := history.change_point(rng.normal(0, 1, 30))) is not None]
    assert len(sure) == 300
    assert np.mean([confidence > 0.9 for confidence in sure]) == pytest.approx(0.1, abs=0.06)
    assert history.change_point(np.zeros(3)) is None
    constant = history.change_point(np.zeros(10))
    assert constant is not None
    assert constant.confidence < 0.1


def test_what_was_always_so_began_with_its_first_row() -> None:
    when = np.arange(20) * 7200.0
    rng = np.random.default_rng(0)
    always = history.onset(0.05 + rng.normal(0, 0.001, 20), when, half=0.025)
    assert always == history.Onset(at=0.0, after=None, confidence=None)
    lately = history.onset(np.array([0.0, 0.05, 0.05]), when[:3], half=0.025)  # too few for a change point
    assert lately == history.Onset(at=7200.0, after=0.0, confidence=None)
    assert history.onset(np.zeros(0), np.zeros(0), half=1) is None


# --- what they rest on ---------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60), st.booleans()
)
def test_the_latest_row_of_each_device_and_cell_is_found(triples: list[tuple[int, int, int]], dense: bool) -> None:
    held = together([replace(night(d, cells=[c]), when=np.array([float(w)])) for d, c, w in triples])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_rows, "TABLE_SLOTS_PER_ROW", 8 if dense else 0)
        found = latest(held)
        keys = found.cell * 4 + found.device
        assert positions(keys, np.arange(30)).tolist() == [
            list(keys).index(key) if key in keys else -1 for key in range(30)
        ]
    assert keys.tolist() == sorted({c * 4 + d for d, c, _ in triples})
    expected = {(d, c): max(w for x, y, w in triples if (x, y) == (d, c)) for d, c, _ in triples}
    assert {(d, c): w for d, c, w in zip(found.device, found.cell, found.when, strict=True)} == expected


def test_all_tests_together_are_wrong_as_often_as_one_may_be() -> None:
    def samples(comparison: Comparison, count: int) -> list[Sample]:
        return [Sample(comparison=comparison, device=n, by_shape=np.zeros(9), rows=9, against="") for n in range(count)]

    counts = {TIME: 4, PAST: 3, SENTINEL: 2, ENERGY: 5, SLOWED: 6}
    level = levels([one for asked, count in counts.items() for one in samples(asked, count)], 0.05)
    assert sum(level[asked] * count for asked, count in counts.items()) == pytest.approx(0.05)


def test_an_interval_of_two_series_holds_their_difference() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(500):
        one = Sample(
            comparison=SENTINEL, device=0, by_shape=rng.normal(0.05, 0.02, 20), earlier=rng.normal(0, 0.02, 15), rows=0, against=""
        )  # fmt: skip
        found = estimate(one, 0.05, logarithm=True)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.exp(0.05) <= found.high
    assert held / 500 > 0.9


@pytest.mark.parametrize(
    ("happened", "tries", "share"), [(0, 5, 0.5), (3, 5, 0.5), (5, 5, 0.01), (1, 200, 0.01), (40, 1000, 0.01)]
)
def test_the_tail_of_a_binomial(happened: int, tries: int, share: float) -> None:
    expected = sum(math.comb(tries, n) * share**n * (1 - share) ** (tries - n) for n in range(happened, tries + 1))
    assert binomial_tail(happened, tries, share) == pytest.approx(expected)
