"""Groups of a comparison: their syntax, the rows that belong to them, and which groups may be compared."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from farm.compare.compatibility import difference_notes, require_compatible
from farm.compare.groups import (
    ComparedDevice,
    Group,
    RowKind,
    check_environment,
    groups_by,
    includes,
    parse,
    parse_prices,
    resolve,
    times_of,
)
from farm.errors import AmbiguousDevice, BadInput, BadSide, NotComparable, NothingOfThat, TooManySides

DEVICES = [
    ComparedDevice(1, "GPU-aa11", "nvidia-h200", "gpu01"),
    ComparedDevice(2, "GPU-aa22", "nvidia-h200", "gpu02"),
    ComparedDevice(3, "GPU-bb33", "nvidia-a100", "gpu02"),
]


def kind(device: int = 1, **changes: Any) -> RowKind:
    given: dict[str, Any] = {
        "device": DEVICES[device - 1],
        "environment_id": uuid.uuid5(uuid.NAMESPACE_OID, str(changes.get("environment"))),
        "environment": {"driver": "580"},
        "source": "measured",
        "clocks": "default",
        "distribution": "uniform",
        "l2": "cold",
        "protocol": "farm",
        "rows": 1,
    }
    return RowKind(**{**given, **changes})


def test_conditions_are_read_and_times_are_utc():
    side = parse("type=nvidia-h200, since=2026-05-01,until=2026-05-02T08:30+02:00,driver=580.1")
    assert side == Group(
        name="type=nvidia-h200, since=2026-05-01,until=2026-05-02T08:30+02:00,driver=580.1",
        type="nvidia-h200",
        since=datetime(2026, 5, 1, tzinfo=UTC),
        until=datetime(2026, 5, 2, 8, 30, tzinfo=timezone(timedelta(hours=2))),
        environment=(("driver", "580.1"),),
    )
    assert parse("gpu01").word == "gpu01"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither"),
        ("type=", "neither"),
        ("=h200", "neither"),
        ("type=a,,host=b", "neither"),
        ("type=a,type=b", "type is given twice"),
        ("a,b", "two words"),
        ("source=sentinel", "measured, recorded, imported"),
        ("since=yesterday", "not a time"),
        ("since=2026-05-02,until=2026-05-02", "not before"),
    ],
)
def test_what_is_no_side_is_refused_with_the_reason(text, why):
    with pytest.raises(BadSide, match=why):
        parse(text)


def test_a_bare_word_is_a_type_or_else_a_host_or_else_the_beginning_of_a_uuid():
    assert resolve(parse("nvidia-a100"), DEVICES).type == "nvidia-a100"
    assert resolve(parse("gpu02,driver=580"), DEVICES).host == "gpu02"
    assert resolve(parse("gpu-B"), DEVICES).device == "GPU-bb33"
    assert resolve(parse("device=GPU-aa1"), DEVICES).device == "GPU-aa11"
    with pytest.raises(AmbiguousDevice, match="GPU-aa11 on gpu01, GPU-aa22 on gpu02"):
        resolve(parse("GPU-a"), DEVICES)
    with pytest.raises(BadSide, match="host is given twice"):
        resolve(parse("gpu01,host=gpu02"), DEVICES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("b200", "Types: nvidia-a100, nvidia-h200. Hosts: gpu01, gpu02. Devices: GPU-aa11"),
        ("type=b200", "Types: nvidia-a100, nvidia-h200"),
        ("host=gpu03", "Hosts: gpu01, gpu02"),
        ("device=GPU-c", "Devices: GPU-aa11"),
    ],
)
def test_what_the_farm_does_not_know_is_answered_with_what_it_knows(text, says):
    with pytest.raises(NothingOfThat, match=says) as error:
        resolve(parse(text), DEVICES)
    assert error.value.exit_code == 4


def test_keys_and_versions_of_no_environment_are_answered_with_those_there_are():
    environments = [{"driver": "580"}, {"driver": "570", "cupy": 14}]
    check_environment(parse("driver=570,cupy=14"), environments)
    with pytest.raises(NothingOfThat, match=r"no driver '550'. Known values: 570, 580"):
        check_environment(parse("driver=550"), environments)
    with pytest.raises(NothingOfThat, match="of environments: cupy, driver"):
        check_environment(parse("drivr=550"), environments)


def chosen(text: str, found: RowKind, **options: Any) -> bool:
    side = resolve(parse(text), DEVICES)
    return includes(side, found, times=times_of([side]), campaigns={"big": 7}, **options)


def test_a_side_takes_the_rows_that_meet_every_condition():
    for text in (
        "nvidia-h200",
        "gpu01",
        "GPU-aa11",
        "driver=580",
        "clocks=default",
        "distribution=uniform",
        "protocol=farm",
    ):
        assert chosen(text, kind()), text
    for text in (
        "nvidia-a100",
        "gpu02",
        "GPU-aa22",
        "driver=570",
        "cupy=14",
        "clocks=unknown",
        "distribution=zeros",
        "protocol=server",
    ):
        assert not chosen(text, kind()), text
    assert chosen("clocks=unknown", kind(clocks=None))
    assert chosen("campaign=big", kind(campaign_id=7))
    assert not chosen("campaign=big", kind(campaign_id=8))
    assert not chosen("gpu01,driver=570", kind())


def test_rows_of_other_sources_belong_only_where_they_are_asked_for():
    imported = kind(source="imported")
    assert not chosen("gpu01", imported)
    assert chosen("gpu01", imported, any_source=True)
    assert chosen("gpu01,source=imported", imported)
    assert not chosen("gpu01,source=imported", kind(), any_source=True)


def test_since_is_included_and_until_is_not():
    text = "since=2026-05-01,until=2026-05-03"
    assert [chosen(text, kind(epoch=epoch)) for epoch in (0, 1, 2)] == [False, True, False]


def test_by_makes_sides_of_the_values_that_are_there_the_largest_first():
    kinds = [kind(1, rows=5), kind(2, rows=7), kind(3, rows=10), kind(3, rows=2, environment={})]
    names, of, without = groups_by("host", kinds)
    assert (names, without) == (["gpu02", "gpu01"], 0)
    assert [len(of[name]) for name in names] == [3, 1]
    assert groups_by("driver", kinds)[::2] == (["580"], 2)
    with pytest.raises(NothingOfThat, match="type, host, device, day, protocol; driver"):
        groups_by("color", kinds)


def test_more_than_twelve_sides_are_refused():
    kinds = [kind(environment={"driver": str(n)}) for n in range(13)]
    with pytest.raises(TooManySides, match="13 groups"):
        groups_by("driver", kinds)
    assert len(groups_by("driver", kinds[1:])[0]) == 12


def test_prices_belong_to_sides_whose_names_may_have_equal_signs():
    assert parse_prices(["a=2.5", "type=b=3"], ["a", "type=b"]) == {"a": 2.5, "type=b": 3.0}
    for bad in ("a", "a=", "a=-1", "a=nan", "a=inf", "=3", "c=3"):
        with pytest.raises(BadInput, match=r"^price "):
            parse_prices([bad], ["a", "type=b"])


# --- what compares -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clocks": "locked:1200"}, r"a has default \(9 rows\); b has locked:1200 \(4 rows\).*clocks=default"),
        ({"clocks": None}, "b has unknown"),
        ({"distribution": "zeros"}, "b has zeros .*distribution=uniform or distribution=zeros"),
        ({"protocol": "do-bench"}, "b has do-bench .*protocol=do-bench or protocol=farm"),
    ],
)
def test_other_clocks_and_operands_are_refused_unless_mixed_and_then_labelled(changes, says):
    held = {"a": [(kind(1), 9)], "b": [(kind(2, **changes), 4)]}
    with pytest.raises(NotComparable, match=says) as error:
        require_compatible(held, mixed=False)
    assert error.value.exit_code == 2
    (note,) = require_compatible(held, mixed=True)
    assert note.startswith("MIXED")
    # Within one side just as well.
    with pytest.raises(NotComparable):
        require_compatible({"a": held["a"] + held["b"], "b": held["a"]}, mixed=False)
    assert require_compatible({"a": held["a"], "b": held["a"]}, mixed=False) == []


def test_other_protocols_are_accepted_where_a_time_of_all_rows_is_compared():
    held = {"a": [(kind(1), 9)], "b": [(kind(2, protocol="fixed-power"), 4)]}
    assert require_compatible(held, mixed=False, common_time=True) == []


def test_sources_the_l2_and_versions_that_differ_are_labelled():
    held = {
        "a": [(kind(1, environment={"driver": "580", "cupy": "14"}), 9)],
        "b": [(kind(2, environment={"driver": "570", "cupy": "14"}, source="imported", l2="unknown"), 4)],
    }
    assert difference_notes(held) == (
        [
            "Not all rows were measured by this farm: a measured; b imported",
            "L2 before each sample: a cold; b unknown",
            "driver: a 580; b 570",
        ],
        [],
    )
    assert difference_notes({"a": held["a"], "b": held["a"]}) == ([], [])


def test_versions_that_rows_do_not_tell_or_that_compute_nothing_are_minor():
    held = {
        "a": [(kind(1, environment={"driver": "580", "numpy": "2.4"}), 9)],
        "b": [(kind(2, environment={"numpy": "2.5"}), 4)],
    }
    assert difference_notes(held) == ([], ["driver: a 580; b unknown", "numpy: a 2.4; b 2.5"])


def test_everything_that_is_refused_is_named_at_once():
    held = {"a": [(kind(1), 9)], "b": [(kind(2, clocks="locked:1200", distribution="zeros"), 4)]}
    with pytest.raises(NotComparable) as error:
        require_compatible(held, mixed=False)
    for said in ("Clock policy differs", "Operand distribution differs", "clocks=locked:1200", "distribution=zeros"):
        assert said in str(error.value)
