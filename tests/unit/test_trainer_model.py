"""What a fitted model computes from raw columns, and what it refuses."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean
from sklearn.ensemble import ExtraTreesRegressor

import farm.forest
from farm.forest.columns import FROM_ONE, OUTPUTS
from farm.forest.physics import compulsory_bytes, flops_of
from farm.forest.predictor import BOUNDS, DISTANCE, OUTSIDE, ROWS_AT_ONCE, RUNTIME, Interval, Predictor
from farm.forest.reach import FAR, MAX_PROBLEMS, Measured, positions
from farm.forest.trees import Grove
from farm.forest.vocabulary import Vocabulary
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import FAMILIES
from support.training_tables import blas_table, tiled_table
from trainer import packaging
from trainer.forest import ForestSettings, as_arrays, fit
from trainer.table import configurations, representatives

DOMAIN = Path(__file__).parents[2] / "examples" / "datasets" / "nvidia-h200-domain.parquet"
SMALL = ForestSettings(trees=20)
CONFIGURED = configurations(tiled_table())


@cache
def fitted() -> Predictor:
    """Fitted for the first test that needs it, because every process of the tests imports this module."""
    return fit("test-device", CONFIGURED, SMALL)


def ask(**columns: object) -> pd.DataFrame:
    raw = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": 16} | columns
    return fitted().predict(pd.DataFrame([raw]))


def test_energy_and_rate_never_contradict_time_and_power() -> None:
    found = fitted().predict(CONFIGURED)
    np.testing.assert_allclose(found["energy_mj"], found["power_w"] * found["runtime_ms"])
    work = 2.0 * CONFIGURED["m"] * CONFIGURED["n"] * CONFIGURED["k"]
    np.testing.assert_allclose(found["tflops"] * found["runtime_ms"] * 1e9, work)


def test_predictions_of_trained_rows_are_close_to_what_was_measured() -> None:
    found = fitted().predict(CONFIGURED)
    for target in ("runtime_ms", "power_w"):
        assert np.median(np.abs(found[target] / CONFIGURED[target] - 1)) < 0.05


def test_the_same_table_gives_the_same_model() -> None:
    again = fit("test-device", CONFIGURED, SMALL)
    pd.testing.assert_frame_equal(again.predict(CONFIGURED), fitted().predict(CONFIGURED), check_exact=True)


def test_columns_that_are_left_out_take_the_defaults_of_the_farm() -> None:
    in_full = {"cd": "f32", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0, "threads": None}
    pd.testing.assert_frame_equal(ask(), ask(**in_full))


def test_a_parameter_that_is_left_out_takes_the_default_of_its_family() -> None:
    without = fitted().predict(pd.DataFrame([{"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled"}]))
    pd.testing.assert_frame_equal(without, ask(tile=16))


def test_whole_numbers_and_floats_are_the_same_input() -> None:
    pd.testing.assert_frame_equal(ask(m=512, tile=16), ask(m=512.0, tile=16.0))


def test_the_callers_index_is_kept() -> None:
    frame = pd.DataFrame({"m": [64, 65], "n": 64, "k": 64, "ab": "f32", "family": "tiled"}, index=["x", "y"])
    assert list(fitted().predict(frame).index) == ["x", "y"]


def test_an_empty_table_gives_an_empty_prediction() -> None:
    found = fitted().predict(CONFIGURED.head(0))
    assert list(found) == [*OUTPUTS, *BOUNDS, DISTANCE, OUTSIDE]
    assert found.empty


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"family": "cutlass"}, "family is 'cutlass', which the model has not seen; it knows tiled"),
        ({"ab": "f16"}, "trained on tiled with f32:f32:f32 in nn, not on f16:f16:f32 in nn"),
        ({"ab": "f31"}, "ab is 'f31', which the model has not seen"),
        ({"layout": "tn"}, "trained on tiled with f32:f32:f32 in nn, not on f32:f32:f32 in tn"),
        ({"m": 1.5}, "row 0: m is 1.5; it must be a whole number from 1"),
        ({"k": 0}, "row 0: k is 0; it must be a whole number from 1"),
        ({"n": None}, "row 0: n is None; it must be a whole number from 1"),
        ({"tile": 0}, "row 0: tile is 0; it must be a whole number from 1"),
        ({"tile": -8}, "row 0: tile is -8; it must be a whole number from 1"),
        ({"tile": 16.5}, "row 0: tile is 16.5; it must be a whole number from 1"),
        ({"tile": 1e300}, r"row 0: tile is 1e\+300; it must be a whole number from 1"),
        ({"tile": "-8"}, "row 0: tile is '-8'; it must be a whole number from 1"),
        ({"tile": "big"}, "row 0: tile is 'big'; it must be a finite number"),
        ({"beta": np.inf}, "row 0: beta is inf; it must be a finite number"),
        ({"threads": 0}, "tiled has no parameter threads, yet the row says 0; it has: tile"),
        ({"threads": 2}, "tiled has no parameter threads, yet the row says 2; it has: tile"),
        ({"family": None}, "row 0: family is missing"),
    ],
)
def test_a_row_that_the_model_cannot_know_is_refused_by_name(columns: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(**columns)


def test_a_kernel_parameter_that_cannot_exist_is_refused_in_the_row_that_has_it() -> None:
    rows = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": [16, None, 8.5]}
    with pytest.raises(ValueError, match=r"row c: tile is 8.5; it must be a whole number from 1 to 2147483647"):
        fitted().predict(pd.DataFrame(rows, index=["a", "b", "c"]))


def test_kernel_parameters_without_a_kernel_of_0_are_those_of_the_families() -> None:
    least = dict[str, int]()
    for parameter in (each for family in FAMILIES.values() for each in family.parameters):
        least[parameter.name] = min(parameter.values[0], least.get(parameter.name, parameter.values[0]))
    assert {name for name, value in least.items() if value > 0} == FROM_ONE


def test_missing_columns_are_named() -> None:
    with pytest.raises(ValueError, match="the columns k, family are missing"):
        fitted().predict(pd.DataFrame({"m": [1], "n": [1], "ab": ["f32"]}))


def test_a_model_without_power_predicts_none() -> None:
    model = fit("test-device", configurations(tiled_table((256, 512), power=False)), SMALL)
    found = model.predict(CONFIGURED)
    assert found[["power_w", "energy_mj"]].isna().all(axis=None)
    assert found[["runtime_ms", "tflops"]].notna().all(axis=None)


def test_power_is_learned_from_the_rows_that_have_it() -> None:
    some = CONFIGURED.copy()
    some.loc[some.index[::2], "power_w"] = np.nan
    model = fit("test-device", some, SMALL)
    assert set(model.forests) == {("runtime",), ("power", "slowdown")}
    found = model.predict(some)
    assert np.median(np.abs(found["power_w"] / CONFIGURED["power_w"] - 1)) < 0.1


HELD = CONFIGURED["power_w"] > CONFIGURED["power_w"].median()
SLOWED = CONFIGURED.assign(energy_mj=CONFIGURED["energy_mj"] * np.where(HELD, 1.04, 1.0))
"""As on a card whose limiter holds what draws much: that runs 4% longer while its power is read."""


@pytest.mark.parametrize("every_row_has_power", [True, False])
def test_a_card_that_slows_down_while_power_is_read_takes_more_energy(every_row_has_power: bool) -> None:
    table = SLOWED.copy()
    if not every_row_has_power:
        table.loc[table.index[::5], ["power_w", "energy_mj"]] = np.nan
    found = fit("test-device", table, SMALL).predict(CONFIGURED)
    slowdown = found["energy_mj"] / (found["power_w"] * found["runtime_ms"])
    assert slowdown.between(1 - 1e-6, 1.04 + 1e-6).all()
    assert slowdown[HELD].median() == pytest.approx(1.04, abs=0.004)
    assert slowdown[~HELD].median() == pytest.approx(1.0, abs=0.004)


def test_families_with_different_parameters_share_a_model() -> None:
    both = pd.concat([tiled_table((256, 512)), blas_table()], ignore_index=True)
    model = fit("test-device", configurations(both), SMALL)
    rows = pd.DataFrame(
        {
            "m": 256,
            "n": 256,
            "k": 256,
            "ab": "f32",
            "family": ["tiled", "blas"],
            "tile": [8, None],
            "threads": [None, 2],
        }
    )
    found = model.predict(rows)
    assert (found["runtime_ms"] > 0).all()
    assert found["runtime_ms"].nunique() == 2


def outside(model: Predictor, **columns: object) -> str:
    raw = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": 16} | columns
    return str(model.predict(pd.DataFrame([raw]))["outside"][0])


def test_a_row_far_from_every_measured_problem_is_outside() -> None:
    """Sizes from 256 to 2048 were measured, with a factor of two between them."""
    assert outside(fitted()) == outside(fitted(), m=300, n=2000) == outside(fitted(), m=128) == ""
    assert outside(fitted(), m=16) == "nearest measured problem is 4.0 octaves away (m 16 → 256)"
    assert outside(fitted(), m=64 * 1024, n=64 * 1024) == (
        "nearest measured problem is 7.1 octaves away (m 65536 → 2048, n 65536 → 2048)"
    )
    odd = outside(fitted(), n=2047, k=511)
    assert odd == (
        "nearest measured problem is 3.5 octaves away (alignment of A 1 → 16, alignment of B 1 → 16, alignment of C 1 → 16)"
    )
    assert outside(fitted(), tile=31) == outside(fitted(), tile=4) == "kernel never measured"
    assert outside(fitted(), m=16, tile=31).startswith("kernel never measured; nearest measured problem is 4.0 octaves")


def distance(model: Predictor, **columns: object) -> float:
    raw = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled", "tile": 16} | columns
    return float(model.predict(pd.DataFrame([raw]))["distance_octaves"][0])


def test_the_distance_is_in_octaves_to_the_nearest_measured_problem() -> None:
    assert distance(fitted()) == 0
    assert distance(fitted(), m=128) == pytest.approx(1)
    assert distance(fitted(), m=128, n=4096) == pytest.approx(2**0.5)
    assert distance(fitted(), m=64 * 11, k=4096 * 2) == pytest.approx((np.log2(704 / 512) ** 2 + 4) ** 0.5, abs=1e-5)


def test_the_distance_counts_problems_of_the_same_family_and_types_alone() -> None:
    """f32 was measured up to 2048, f64 only to 512."""
    small = tiled_table((256, 512)).assign(ab="f64", cd="f64", acc="f64")
    model = fit("test-device", configurations(pd.concat([tiled_table(), small], ignore_index=True)), SMALL)
    assert distance(model, m=2048) == 0
    assert distance(model, m=2048, ab="f64") == pytest.approx(2)


def test_a_kernel_of_other_types_is_said_to_be_unmeasured_in_these() -> None:
    other = tiled_table((256, 512), tiles=(8, 12)).assign(ab="f16", cd="f16", acc="f32")
    accurate = tiled_table((256, 512), tiles=(8,)).assign(ab="f16", cd="f32", acc="f32")
    tables = pd.concat([tiled_table((256, 512)), other, accurate], ignore_index=True)
    model = fit("test-device", configurations(tables), SMALL)
    assert outside(model, tile=12, ab="f16") == outside(model, tile=16) == ""
    assert outside(model, tile=12) == "kernel never measured in f32"
    assert outside(model, tile=12, ab="f16", cd="f32") == "kernel never measured in f16:f32:f32"
    assert outside(model, tile=13) == "kernel never measured"


def test_many_problems_are_represented_by_few_that_lie_near_them() -> None:
    random = np.random.default_rng(0)
    sizes = np.exp2(random.uniform(0, 14, size=(20_000, 3))).astype("int64")
    rest = np.exp2(random.integers(0, 7, size=(20_000, 4))).astype("int64")
    problems = np.hstack([sizes, rest, np.ones((20_000, 2), "int64")])
    kept = representatives(problems)
    assert len(kept) == MAX_PROBLEMS
    np.testing.assert_array_equal(kept, representatives(problems[random.permutation(len(problems))]))
    assert len(representatives(problems[:500])) == 500
    points = positions(kept)
    for at in positions(problems[:300]):
        assert np.sqrt(np.square(points - at).sum(axis=1)).min() < FAR


def two_kernels() -> pd.DataFrame:
    """128 x 32 and 32 x 128, whose values are all known of a 32 x 32 as well, which was never measured."""
    small = tiled_table((256, 512), tiles=(16,)).drop(columns="parameters")
    tiles = [{"tile_m": 128, "tile_n": 32}, {"tile_m": 32, "tile_n": 128}]
    return pd.concat(
        [small.assign(family="cutlass", parameters=[tile] * len(small)) for tile in tiles], ignore_index=True
    )


def test_a_kernel_of_known_values_that_was_never_measured_is_said_to_be_outside(tmp_path: Path) -> None:
    fit("test-device", configurations(two_kernels()), SMALL).save(tmp_path)
    model = Predictor.load(tmp_path)
    asked = {"family": "cutlass", "tile": None, "tile_m": 32}
    assert outside(model, **asked, tile_n=128) == ""
    assert outside(model, **asked, tile_n=32) == "kernel never measured"


def test_a_kernel_of_one_family_is_none_of_another_with_the_same_parameters() -> None:
    known = fitted().vocabulary.families["tiled"]
    families = {"tiled": known, "twin": replace(known, kernels=((31.0,),), kernels_by_types={"f32:f32:f32": (0,)})}
    problems = fitted().vocabulary.problems["tiled:f32:f32:f32"]
    of_both = {f"{name}:f32:f32:f32": problems for name in families}
    vocabulary = replace(fitted().vocabulary, families=families, problems=of_both)
    same = {"m": 512, "n": 512, "k": 512, "ab": "f32"}
    rows = vocabulary.read(pd.DataFrame(same | {"family": ["tiled", "twin", "twin"], "tile": [16, 16, 31]}))
    assert Measured.of(vocabulary).reach(rows, vocabulary).outside == ["", "kernel never measured", ""]


def test_power_is_predicted_only_of_families_and_types_of_which_it_was_measured() -> None:
    """What another family draws says nothing of this one."""
    unpowered = two_kernels().assign(power_w=np.nan, energy_mj=np.nan)
    model = fit(
        "test-device", configurations(pd.concat([tiled_table((256, 512)), unpowered], ignore_index=True)), SMALL
    )
    rows = {"m": 256, "n": 256, "k": 256, "ab": "f32", "family": ["tiled", "cutlass"], "tile_m": [None, 32]}
    found = model.predict(pd.DataFrame(rows | {"tile_n": [None, 128]}))
    assert found["power_w"].notna().tolist() == found["energy_mj"].notna().tolist() == [True, False]
    assert found["runtime_ms"].notna().all()


def test_types_and_layouts_are_known_together() -> None:
    """f32 in nn and f16 in nt were measured: not f32 in nt."""
    tables = [tiled_table((256, 512)), tiled_table((256, 512)).assign(ab="f64", cd="f64", acc="f64", layout="nt")]
    model = fit("test-device", configurations(pd.concat(tables, ignore_index=True)), SMALL)
    with pytest.raises(
        ValueError, match="trained on tiled with f32:f32:f32 in nn; f64:f64:f64 in nt, not on f32:f32:f32 in nt"
    ):
        model.predict(pd.DataFrame([{"m": 256, "n": 256, "k": 256, "ab": "f32", "family": "tiled", "layout": "nt"}]))


def test_no_power_above_the_limit_of_the_card_is_predicted() -> None:
    hot = CONFIGURED.assign(power_w=900.0, energy_mj=900.0 * CONFIGURED["runtime_ms"])
    assert (fit("nvidia-h200", hot, SMALL).predict(CONFIGURED)["power_w"] <= 700 * (1 + 1e-9)).all()


def test_bounds_are_around_the_prediction_and_nowhere_without_calibration() -> None:
    assert fitted().predict(CONFIGURED)[list(BOUNDS)].isna().all(axis=None)
    interval = Interval(0.01, {"0.9": 2.0})
    found = fit("test-device", CONFIGURED, SMALL, {"runtime_ms": interval}).predict(CONFIGURED)
    assert (found["runtime_ms_low"] <= found["runtime_ms"] * np.exp(-0.02 + 1e-9)).all()
    assert (found["runtime_ms_high"] >= found["runtime_ms"] * np.exp(0.02 - 1e-9)).all()
    assert found["power_w_low"].isna().all()


def test_bounds_are_wider_the_further_a_row_lies_from_what_was_measured() -> None:
    # A floor that leaves the spread of the trees no say.
    model = fit("test-device", CONFIGURED, SMALL, {"runtime_ms": Interval(1e3, {"0.9": 1e-4})})
    found = model.predicted({"m": [512, 8], "n": [512] * 2, "k": [512] * 2, "ab": ["f32"] * 2, "family": ["tiled"] * 2})
    near, far = np.log(found["runtime_ms_high"] / found["runtime_ms"])
    assert near == pytest.approx(0.1, rel=0.01)
    assert far == pytest.approx(0.1 * (1 + (5 / 4.5) ** 2), rel=0.01)


def test_a_mapping_of_columns_is_the_same_as_a_table_and_one_row_as_many() -> None:
    columns = {name: CONFIGURED[name].tolist() for name in ("m", "n", "k", "ab", "family", "tile", "layout", "beta")}
    whole = pd.DataFrame(fitted().predicted(columns))
    pd.testing.assert_frame_equal(whole, fitted().predict(CONFIGURED).reset_index(drop=True))
    for row in (0, 57):
        one = fitted().predicted({name: values[row : row + 1] for name, values in columns.items()})
        pd.testing.assert_frame_equal(pd.DataFrame(one), whole.iloc[[row]].reset_index(drop=True))


def of_several_families() -> pd.DataFrame:
    """Two families on the same types, one of which has no power, and a third with types and a layout of its own."""
    cutlass = two_kernels().assign(ab="f16", cd="f16", acc="f32", layout="tn")
    return configurations(pd.concat([tiled_table((256, 512)), blas_table(), cutlass], ignore_index=True))


def test_a_prediction_does_not_depend_on_the_rows_beside_it() -> None:
    """Many rows are taken in pieces, and a single one takes shortcuts."""
    table = of_several_families()
    bounds = {output: Interval(0.01, {"0.9": 2.0}) for output in ("runtime_ms", "power_w")}
    model = fit("test-device", table, SMALL, bounds)
    raw = table[list(model.vocabulary.raw_columns)]
    raw = raw.assign(m=raw["m"].where(raw.index % 7 > 0, 100_000), tile=raw["tile"].replace(16, 17))
    many = raw.sample(ROWS_AT_ONCE + 500, replace=True, random_state=0)
    whole = model.predict(many)
    reasons = " ".join(set(whole["outside"]))
    assert "" in set(whole["outside"])
    assert "kernel never measured; nearest measured problem is 7.6 octaves away (m 100000 → 512)" in reasons
    np.testing.assert_array_equal(whole["power_w"].isna(), many["family"] == "blas")
    pd.testing.assert_frame_equal(whole, model.predict(raw).loc[many.index], rtol=1e-12)
    as_lists = {name: many[name].tolist() for name in many}
    pd.testing.assert_frame_equal(pd.DataFrame(model.predicted(as_lists)), whole.reset_index(drop=True), rtol=1e-12)
    for _, row in raw.groupby("family").sample(3, random_state=0).iterrows():
        expected = model.predict(raw.loc[[row.name, row.name]])
        pd.testing.assert_frame_equal(model.predict(raw.loc[[row.name]]), expected.head(1), rtol=1e-12)
        given = {str(name): [value] for name, value in row.dropna().items()}
        pd.testing.assert_frame_equal(model.predict(given), expected.head(1).reset_index(drop=True), rtol=1e-12)


def test_one_row_is_predicted_as_within_a_table_of_every_family() -> None:
    """With all that is fitted: what a row has no use for is left out where it is alone."""
    measured = configurations(pd.read_parquet(DOMAIN)).groupby("family").sample(700, random_state=0)
    bounds = {output: Interval(0.01, {"0.9": 2.0}) for output in ("runtime_ms", "power_w", "energy_mj")}
    model = fit("nvidia-h200", measured, ForestSettings(trees=4), bounds)
    assert len(model.timing.keys)
    assert model.choices
    assert model.energies is not None
    raw = measured[list(model.vocabulary.raw_columns)].groupby(["family", "ab", "layout"]).sample(2, random_state=0)
    assert set(raw["family"]) == {"cublaslt", "cutlass", "cutlass3x", "tiled"}
    expected = model.predict(raw)
    for label, row in raw.iterrows():
        given = {str(name): [value] for name, value in row.dropna().items()}
        alone = pd.DataFrame(model.predicted(given), index=[label])
        pd.testing.assert_frame_equal(alone, expected.loc[[label]], rtol=1e-12)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="n has 1 values, for 2 rows"):
        fitted().predicted({"m": [512, 512], "n": [512], "k": [512, 512], "ab": ["f32"] * 2, "family": ["tiled"] * 2})


def test_a_stored_model_predicts_what_the_fitted_one_does(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    pd.testing.assert_frame_equal(Predictor.load(tmp_path).predict(CONFIGURED), fitted().predict(CONFIGURED))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000


def test_rows_of_a_large_table_are_dealt_out_to_the_trees() -> None:
    """Four trees of a quarter of the rows each: every row is a leaf of one of them, where nodes of two rows are split."""
    rows = len(CONFIGURED) // 4
    settings = ForestSettings(trees=4, max_rows_per_tree=rows)
    noise = np.random.default_rng(0).uniform(1, 1.1, 4 * rows)
    table = CONFIGURED.head(4 * rows).assign(runtime_ms=CONFIGURED["runtime_ms"].head(4 * rows) * noise)
    trees = fit("test-device", table, settings).forests[(RUNTIME,)]
    leaves = trees.left == np.arange(len(trees.left))
    assert [int(part.sum()) for part in np.split(leaves, trees.roots[1:])] == [rows] * 4
    assert len(np.unique(trees.value[leaves])) == 4 * rows
    models = [fit("test-device", table, settings) for _ in range(2)]
    pd.testing.assert_frame_equal(*(model.predict(table) for model in models), check_exact=True)


def middle(forest: ExtraTreesRegressor, x: np.ndarray) -> np.ndarray:
    """The mean of what the middle half of scikit-learn's trees say."""
    found: np.ndarray = trim_mean([tree.predict(x) for tree in forest.estimators_], 0.25, axis=0)
    return found


def test_the_arrays_of_a_forest_predict_what_scikit_learns_trees_do() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(3000, 4)).astype("float32")
    y = np.column_stack([x[:, 0] * x[:, 1], np.abs(x[:, 2])])
    forest = ExtraTreesRegressor(n_estimators=50, random_state=0).fit(x[:300], y[:300])
    mean, spread = Grove.of([as_arrays(forest, np.zeros(2), np.ones(2))]).predict(x)
    np.testing.assert_allclose(mean.T, middle(forest, x), rtol=1e-5, atol=1e-6)
    each = np.stack([tree.predict(x) for tree in forest.estimators_])
    np.testing.assert_allclose(spread.T, each.std(axis=0), rtol=1e-4, atol=1e-6)


def test_forests_that_are_walked_together_predict_what_each_does() -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(3000, 3)).astype("float32")
    forests = [
        as_arrays(
            ExtraTreesRegressor(trees, random_state=0).fit(x[:rows], y[:rows]), np.zeros(outputs), np.ones(outputs)
        )
        for trees, rows, outputs, y in ((5, 2000, 1, x[:, 0]), (9, 40, 2, x[:, 1:]))
    ]
    alone = [np.concatenate(each) for each in zip(*(Grove.of([one]).predict(x) for one in forests), strict=True)]
    for together, apart in zip(Grove.of(forests).predict(x), alone, strict=True):
        np.testing.assert_array_equal(together, apart)


def test_a_row_goes_the_same_way_at_a_threshold_itself() -> None:
    """scikit-learn compares float32 with float64 thresholds, the arrays with float32 ones: a value beside one must not cross it."""
    random = np.random.default_rng(2)
    x = random.normal(size=(200, 1)).astype("float32")
    forest = ExtraTreesRegressor(n_estimators=8, random_state=0).fit(x, np.arange(200.0))
    exact = np.concatenate([tree.tree_.threshold for tree in forest.estimators_])
    near = exact.astype("float32")
    asked = np.concatenate([near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9))])[:, None]
    arrays = Grove.of([as_arrays(forest, np.zeros(1), np.ones(1))])
    np.testing.assert_allclose(arrays.predict(asked)[0][0], middle(forest, asked), rtol=1e-5)


@given(
    shape=st.tuples(*[st.integers(1, 20_000)] * 3),
    types=st.sampled_from(["f64", "f32", "f16", "f8e4m3", "i8", "f16:f32:f32"]),
    beta=st.sampled_from([0.0, 0.5]),
    batch=st.sampled_from([1, 3, 64]),
)
@settings(max_examples=50)
def test_work_and_traffic_are_those_of_the_domain(
    shape: tuple[int, int, int], types: str, beta: float, batch: int
) -> None:
    problem = Problem(Shape(*shape), ElementTypes.parse(types), Layout.NN, 1.0, beta, batch)
    known = problem.types
    row = pd.DataFrame(
        [
            dict(zip("mnk", map(float, shape), strict=True))
            | {"ab": known.ab, "cd": known.cd, "beta": beta, "batch": batch}
        ]
    )
    rows = fitted().vocabulary.read(row.assign(family="tiled"))
    assert flops_of(rows)[0] == problem.flops
    assert compulsory_bytes(rows)[0] == problem.bytes


def test_time_grows_with_work_beyond_the_largest_trained_shape() -> None:
    largest, beyond = ask(m=2048, n=2048, k=2048), ask(m=16384, n=16384, k=16384)
    assert beyond["runtime_ms"][0] / largest["runtime_ms"][0] == pytest.approx(512, rel=0.1)


def test_a_vocabulary_survives_json() -> None:
    as_text = json.dumps(fitted().vocabulary.to_json())
    assert Vocabulary.from_json(json.loads(as_text), {}) == fitted().vocabulary


def test_the_code_that_ships_with_a_model_needs_only_numpy_pandas_and_mlflow() -> None:
    allowed = {"__future__", "collections", "dataclasses", "functools", "hashlib", "importlib", "itertools", "json"}
    allowed |= {"io", "math", "pathlib", "sys", "tokenize", "types", "zipfile", "zlib"}
    for path in [*Path(farm.forest.__path__[0]).glob("*.py"), packaging.ENTRY_POINT]:
        more = {"mlflow"} if path == packaging.ENTRY_POINT else set()
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            assert {n.split(".")[0] for n in names} <= allowed | more | {"typing", "numpy", "pandas"}, path
