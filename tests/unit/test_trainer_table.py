"""The training table: what its hash covers, how repeats collapse, and when there is too little of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import MissingColumns, TooFewMeasurements
from farm.forest.columns import OUTPUTS
from farm.gemm import INPUT_TYPES
from farm.kernels import FAMILIES
from support.training_tables import tiled_table
from trainer.table import UNTRUSTED, check_training_table, configurations, parameter_names, vocabulary_of
from trainer.table_hash import table_hash

TABLE = tiled_table((64, 96), tiles=(8, 16))
REPEATED = pd.concat([TABLE, TABLE.assign(runtime_ms=0.9 * TABLE["runtime_ms"])], ignore_index=True)
"""Two rows of each configuration, which differ in time."""


def chosen_table() -> pd.DataFrame:
    """Rows with each optional column that the hash covers, some of which do not say it."""
    details = [None, {"tile": "128x64", "split_k": 2, "waves": 0.5, "algorithm_id": 66}, '{"tile": "64x64"}', {}]
    return TABLE.assign(
        family=["tiled", "cublaslt"] * (len(TABLE) // 2),
        details=details * (len(TABLE) // 4),
        runtime_burst_ms=[0.01, None] * (len(TABLE) // 2),
        protocol=["farm", "triton", None, "unknown"] * (len(TABLE) // 4),
        batch=[1, 2] * (len(TABLE) // 2),
        scale=["none", "tensor", None, "none"] * (len(TABLE) // 4),
        device_uuid=["GPU-b", "GPU-a", None, "GPU-b"] * (len(TABLE) // 4),
    )


def as_read(table: pd.DataFrame) -> pd.DataFrame:
    """The table with categories in the order in which they first occur, as `trainer.reading` has it."""
    texts = [name for name in table if table[name].map(lambda value: isinstance(value, str)).any()]
    given = {name: table[name] for name in texts if name not in ("parameters", "details")}
    return table.assign(**{name: pd.Categorical(of, list(dict.fromkeys(of.dropna()))) for name, of in given.items()})


@given(order=st.permutations(range(len(REPEATED))))
@settings(max_examples=20, deadline=None)
def test_the_hash_does_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    assert table_hash(REPEATED.iloc[order]) == table_hash(REPEATED)


@pytest.mark.parametrize(
    ("column", "value"),
    [("runtime_ms", 9.0), ("power_w", None), ("energy_mj", 9.0), ("m", 65), ("parameters", {"tile": 9})],
)
def test_the_hash_changes_with_whatever_a_model_learns_from(column: str, value: object) -> None:
    changed = TABLE.copy()
    changed.at[0, column] = value
    assert table_hash(changed) != table_hash(TABLE)


@pytest.mark.parametrize("part_rows", [1, 5, 50_000])
@pytest.mark.parametrize(
    ("table", "digest"),
    [
        (TABLE, "3f2b6541cf0be32a97e33ac2e4eabff7b37ee4b343a6eafd60113814e0ee1b47"),
        (REPEATED, "87d7c898ee3e4555055b6c40389d096bc2964974aebfd0a06e89871887e0df66"),
        (chosen_table(), "4dd55784870e8bfce4b177d9d3dc3b0b69b8c5a36bfb8bf500a07215b58e07fe"),
    ],
    ids=["plain", "repeated", "with every optional column"],
)
def test_the_hash_is_that_of_earlier_versions_of_the_farm_however_many_rows_are_taken_at_a_time(
    monkeypatch: pytest.MonkeyPatch, part_rows: int, table: pd.DataFrame, digest: str
) -> None:
    monkeypatch.setattr("trainer.table_hash._PART_ROWS", part_rows)
    assert table_hash(table) == digest
    assert table_hash(as_read(table)) == digest


def test_a_table_as_it_is_read_from_postgres_has_the_same_configurations_as_one_of_plain_texts() -> None:
    for table in (TABLE, chosen_table(), repeats_of(1.0, 1.02, 1.9, 2.0, device_uuid=["a", "b", "b", None])):
        pd.testing.assert_frame_equal(configurations(as_read(table)), configurations(table))


def test_the_hash_is_the_same_whether_parameters_are_mappings_or_json() -> None:
    as_text = TABLE.assign(parameters=[json.dumps(each) for each in TABLE["parameters"]])
    assert table_hash(as_text) == table_hash(TABLE)


def test_a_row_measured_twice_counts_in_the_hash() -> None:
    assert table_hash(pd.concat([TABLE, TABLE.head(1)])) != table_hash(TABLE)


def test_repeats_collapse_to_their_median() -> None:
    one = TABLE.head(1)
    values = ((1.0, 50.0, 52.0), (1.05, None, None), (1.1, 70.0, 77.0))
    repeats = pd.concat([one.assign(runtime_ms=t, power_w=p, energy_mj=e) for t, p, e in values])
    row = configurations(repeats).squeeze()
    assert (row["runtime_ms"], row["power_w"], row["energy_mj"], row["repeats"]) == (1.05, 60.0, 64.5, 3)


def repeats_of(*times: float, **columns: object) -> pd.DataFrame:
    """Repeats of one configuration, whose power is lower the slower they are."""
    parts = [TABLE.head(1).assign(runtime_ms=t, power_w=100.0 / t, energy_mj=100.0 + t) for t in times]
    return pd.concat(parts).assign(**columns)


def test_repeats_of_a_throttled_card_are_left_out_with_their_power_and_energy() -> None:
    """Most of them were measured while the card was throttled: their median would be the throttled time."""
    row = configurations(repeats_of(1.0, 1.02, 1.9, 2.0, 2.1)).squeeze()
    assert (row["runtime_ms"], row["repeats"]) == (1.01, 2)
    assert row["power_w"] == pytest.approx((100 / 1.0 + 100 / 1.02) / 2)
    assert row["energy_mj"] == pytest.approx(101.01)


@pytest.mark.parametrize("differing", [("device_uuid", "a", "b"), ("l2", "cold", "warm")])
def test_repeats_of_other_cards_and_other_conditions_are_no_throttled_ones(differing: tuple[str, str, str]) -> None:
    name, one, other = differing
    both = pd.concat([repeats_of(1.0, 1.0, **{name: one}), repeats_of(2.0, 2.0, **{name: other})])
    row = configurations(both).squeeze()
    assert (row["runtime_ms"], row["repeats"]) == (1.5, 4)


def test_each_kernel_parameter_becomes_a_column_that_is_empty_where_it_does_not_apply() -> None:
    configured = configurations(TABLE)
    assert set(parameter_names()) <= set(configured)
    assert sorted(configured["tile"].unique()) == [8.0, 16.0]
    assert configured["threads"].isna().all()


def test_configurations_come_in_the_same_order_however_the_table_is_ordered() -> None:
    pd.testing.assert_frame_equal(configurations(TABLE.sample(frac=1, random_state=1)), configurations(TABLE))


def test_too_few_configurations_are_refused_with_what_is_needed() -> None:
    with pytest.raises(TooFewMeasurements, match="test-device has 3 measured configurations over 2 shapes"):
        check_training_table(TABLE.head(3), "test-device")


def test_too_few_shapes_are_refused_however_many_rows_there_are() -> None:
    one_shape = tiled_table((64,), tiles=tuple(range(1, 33)))
    with pytest.raises(TooFewMeasurements, match="32 measured configurations over 1 shapes"):
        check_training_table(one_shape, "test-device")


def test_repeats_of_few_configurations_are_still_too_few() -> None:
    with pytest.raises(TooFewMeasurements):
        check_training_table(pd.concat([TABLE.head(6)] * 10), "test-device")


def test_a_table_without_a_needed_column_is_refused_by_name() -> None:
    with pytest.raises(MissingColumns, match="lacks the columns layout, runtime_ms"):
        check_training_table(TABLE.drop(columns=["runtime_ms", "layout"]), "test-device")


def test_the_documentation_names_every_column_of_the_models_interface() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    interface = page.split("## Inputs")[1].split("## How a model is made")[0]
    named = set(re.findall(r"`(\w+)`", interface))
    assert {*vocabulary_of(configurations(TABLE)).raw_columns, *OUTPUTS} <= named
    assert {str(element) for element in INPUT_TYPES} | (set(FAMILIES) - set(UNTRUSTED)) <= named
