"""The vote on the bits of a result: who differs from the majority, and when nobody can tell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.corruption import CHANGING, ChangedResults, Corruption, DigestRows, corruptions

DAY = datetime(2026, 11, 22, tzinfo=UTC)


def rows(
    device: int, digest: str, *, configuration: int = 1, count: int = 1, work: object = None, day: int = 0
) -> DigestRows:
    at = DAY + timedelta(days=day)
    return DigestRows(
        device_id=device,
        configuration_id=UUID(int=configuration),
        work=(configuration, work),
        digest=digest,
        rows=count,
        first_at=at,
        last_at=at,
    )


def changed(
    device: int, configuration: int = 1, *, jobs: int = 1, day: int = 0, message: str = "one bit."
) -> ChangedResults:
    at = DAY + timedelta(days=day)
    return ChangedResults(
        device_id=device,
        configuration_id=UUID(int=configuration),
        jobs=jobs,
        last_message=message,
        first_at=at,
        last_at=at,
    )


def voted(*digests: DigestRows) -> dict[int, Corruption]:
    return corruptions([], digests)


def differing(found: dict[int, Corruption]) -> set[int]:
    return {device for device, one in found.items() if one.differing}


def disagreeing(found: dict[int, Corruption]) -> dict[int, set[int]]:
    return {device: set().union(*one.disagreeing.values()) for device, one in found.items() if one.disagreeing}


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ("1a 2a 3a", set()),
        ("1a 2a 3b", {3}),
        ("1b 2a 3a", {1}),
        ("1a 2a 3a 4b 5c", {4, 5}),
        ("1a 2a 2b", {2}),  # two devices, and a repeat
        ("1a 2a 3a 3b", {3}),  # now and then
        ("1a 1b 2a 2b 3a 3b", set()),  # both are everywhere, so something else decides
    ],
)
def test_who_has_other_bits_than_more_than_half_of_the_devices_differs(digests: str, expected: set[int]) -> None:
    found = voted(*(rows(int(one[0]), one[1]) for one in digests.split()))
    assert differing(found) == expected
    assert disagreeing(found) == {}


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ("1a 2b", {1: {2}, 2: {1}}),
        ("1a 2b 3c", {1: {2, 3}, 2: {1, 3}, 3: {1, 2}}),
        ("1a 2a 3b 4b", {1: {2, 3, 4}, 2: {1, 3, 4}, 3: {1, 2, 4}, 4: {1, 2, 3}}),
        ("1a 1b", {1: set()}),  # alone, and not even with itself
    ],
)
def test_without_a_majority_devices_disagree_and_none_is_accused(digests: str, expected: dict[int, set[int]]) -> None:
    found = voted(*(rows(int(one[0]), one[1]) for one in digests.split()))
    assert disagreeing(found) == expected
    assert differing(found) == set()
    assert not any(one.configurations for one in found.values())


def test_bits_that_change_at_every_launch_are_the_devices_fault_or_the_kernels() -> None:
    assert differing(voted(rows(1, "a"), rows(2, "a"), rows(3, CHANGING))) == {3}
    assert voted(rows(1, CHANGING), rows(2, CHANGING), rows(3, "a")) == {}
    assert disagreeing(voted(rows(1, "a"), rows(2, CHANGING))) == {1: {2}, 2: {1}}


def test_repeats_of_a_device_are_one_vote() -> None:
    assert differing(voted(rows(1, "b", count=1000), rows(2, "a"), rows(3, "a"))) == {1}


def test_only_equal_work_is_compared() -> None:
    assert voted(rows(1, "a", work="uniform"), rows(2, "b", work="zeros")) == {}
    assert voted(rows(1, "a", configuration=1), rows(2, "b", configuration=2)) == {}


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), min_size=1, max_size=20))
def test_nobody_is_accused_of_the_digest_of_most_devices(digests: Iterable[tuple[int, str]]) -> None:
    listed = [rows(device, digest) for device, digest in sorted(set(digests))]
    found = voted(*listed)
    devices = {one.device_id for one in listed}
    for device in differing(found):
        for one in found[device].differing:
            holders = {other.device_id for other in listed if other.digest == one.digest}
            assert 2 * len(holders) <= len(devices)
    assert not differing(found) or not disagreeing(found)


def test_a_result_that_changes_on_one_device_counts_against_it_and_on_two_against_the_kernel() -> None:
    found = corruptions([changed(1, 1), changed(1, 2), changed(2, 2)], [])
    assert {device: one.configurations for device, one in found.items()} == {1: {UUID(int=1)}}


def test_both_kinds_are_told_with_numbers_and_the_last_message() -> None:
    found = corruptions(
        [changed(3, 1, day=1, message="late."), changed(3, 2, jobs=2, message="early.")],
        [rows(1, "a", configuration=2), rows(2, "a", configuration=2), rows(3, "b", configuration=2, count=4, day=-1)],
    )[3]
    assert len(found.configurations) == 2
    assert found.first_at == DAY - timedelta(days=1)
    assert str(found) == (
        "it corrupted results of 2 configurations: the result of 3 jobs changed between launches, the last: late; "
        "4 rows have other bits than the same work on most devices of its type"
    )


def test_what_was_before_a_time_is_left_out() -> None:
    found = Corruption(
        changed=[changed(1, 1, day=1), changed(1, 2, day=3)], differing=[rows(1, "b", configuration=3, day=2)]
    )
    assert found.after(DAY + timedelta(days=2)).configurations == {UUID(int=2)}
