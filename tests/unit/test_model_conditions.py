"""How rows were measured, as it is stored with a model; which models may be ranked together; what would make a champion."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pandas as pd

from farm.registry import Conditions, PromotionTest, PromotionVerdict, protocol_groups, remedy
from farm.registry.conditions import MAX_LISTED
from support.training_tables import tiled_table
from trainer.conditions import conditions_of

PUBLISHED = {
    "source": "imported",
    "l2": "unknown",
    "protocol": "unknown",
    "distribution": "unknown",
    "clock_policy": None,
    "power_source": None,
    "driver": None,
    "file": "cards.parquet",
    "provenance": "somebody's tables",
    "device_uuid": "IMP-1",
    "measured_at": datetime(2026, 11, 22, tzinfo=UTC),
}
MEASURED = {
    "source": "measured",
    "l2": "cold",
    "protocol": "farm",
    "distribution": "uniform",
    "clock_policy": "default",
    "power_source": "nvml-samples",
    "driver": "580.1",
    "file": None,
    "provenance": None,
    "device_uuid": "GPU-1",
}


def measured(rows: int = 4) -> pd.DataFrame:
    return pd.DataFrame([{**MEASURED, "measured_at": datetime(2026, 11, 1 + at, tzinfo=UTC)} for at in range(rows)])


def published(rows: int = 3, **changes: object) -> pd.DataFrame:
    return pd.DataFrame([{**PUBLISHED, **changes}] * rows)


def test_rows_of_the_farm_tell_protocol_power_driver_and_dates() -> None:
    assert conditions_of(measured()).lines() == [
        "rows: 4 measured",
        "protocol: farm, cold L2, uniform operands, clocks default",
        "power: nvml-samples",
        "driver: 580.1",
        "measured: 2026-11-01 to 2026-11-04",
    ]


def test_rows_of_published_tables_name_their_file_and_what_they_do_not_tell() -> None:
    assert conditions_of(published()).lines() == [
        "rows: 3 imported from cards.parquet (somebody's tables)",
        "protocol: unknown: protocol, L2, operands, clocks",
        "power: none",
        "driver: unknown",
        "measured: 3 rows without a date",
    ]


def test_exports_of_the_farm_that_are_recorded_or_imported_keep_its_protocol() -> None:
    exported = measured().assign(source="recorded", file="h200.parquet", provenance="measured by gemm-farm 0.1.0 on vm")
    assert protocol_groups([conditions_of(measured()), conditions_of(exported)]) == [0, 0]


def test_a_table_that_tells_nothing_is_unknown_throughout() -> None:
    found = conditions_of(tiled_table((64, 128)).assign(source="imported"))
    assert [str(one) for one in found.protocols] == ["unknown: protocol, L2, operands, clocks"]
    assert found.dates == f"{found.undated_rows:,} rows without a date"


def test_conditions_survive_a_tag_and_what_is_no_tag_is_unknown() -> None:
    found = conditions_of(pd.concat([measured(), published()]))
    assert Conditions.from_tag(found.to_tag()) == found
    for broken in (None, "", "{", "[]", "{}", '{"sources": 1}'):
        assert Conditions.from_tag(broken) is None


def test_tags_of_before_protocols_had_names_are_the_farms_where_they_say_burst() -> None:
    found = conditions_of(pd.concat([measured(), published()]))
    stored = json.loads(found.to_tag())
    for one in stored["protocols"]:
        one["time"] = "burst" if one.pop("name") == "farm" else "unknown"
    assert Conditions.from_tag(json.dumps(stored)) == found


def test_many_files_drivers_and_long_texts_fit_into_a_tag() -> None:
    parts = [
        published(2, file=f"table-{number}.parquet", provenance=f"{number} " + "x" * 900, driver=f"{number}")
        for number in range(40)
    ]
    found = conditions_of(pd.concat(parts))
    assert len(found.to_tag()) < 5000
    assert sum(one.rows for one in found.sources) == sum(found.drivers.values()) == 80
    assert len(found.drivers) == MAX_LISTED + 1


def test_models_of_other_protocols_or_unknown_ones_are_not_ranked_together() -> None:
    own, tables = conditions_of(measured()), conditions_of(published())
    warm = conditions_of(measured().assign(l2="warm"))
    others = conditions_of(published(provenance="other tables"))
    nvbench = conditions_of(measured().assign(protocol="nvbench"))
    assert protocol_groups([own, nvbench, own]) == [0, 1, 0]
    assert protocol_groups([own, tables, warm, own, tables, others]) == [0, 1, 2, 0, 1, 3]
    nobody = conditions_of(published(provenance=None))
    assert protocol_groups([None, own, None, nobody, nobody]) == [0, 1, 2, 3, 4]
    # A CPU does not tell its clocks, and is measured as another CPU is.
    cpu = conditions_of(measured().assign(clock_policy=None))
    assert protocol_groups([cpu, cpu, own]) == [0, 0, 1]


def test_a_verdict_says_against_what_it_failed_by_how_much_and_what_to_do() -> None:
    verdict = PromotionVerdict(
        promoted=False,
        test=PromotionTest.BASELINE,
        score=0.5,
        against="the baseline, a median per family",
        against_score=0.5,
        needed_score=0.45,
        better_in=0.4,
        needed_in=0.95,
    )
    assert str(verdict) == (
        "It failed the test against the baseline, a median per family: it scores 0.5, and that 0.5. "
        "It must score below 0.45 (10% less than now) and be better in 95% of resamples over shapes (now 40%)."
    )
    assert PromotionVerdict.from_tag(verdict.to_tag()) == verdict
    assert PromotionVerdict.from_tag(None) is None
    said = remedy(name="gemm-forest-x", version="3", device_type="x", sound=False, verdict=verdict)
    assert "Measure more shapes on x" in said
    assert "`farm models promote gemm-forest-x 3 --force --reason TEXT`" in said
    assert "--force" not in remedy(name="a", version="1", device_type="x", sound=True, verdict=None)
