"""Products in groups of rows: what models learn of them, and that models without them stay what they were."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import kinds_learned
from farm.errors import NotPredictable, TestRowsInTraining, TooFewMeasurements
from farm.forest.choice import CONSTANTS, KERNELS, TILES, Choices
from farm.forest.choice import kinds as choice_kinds
from farm.forest.columns import types_columns, types_text
from farm.forest.completed_rows import Configurations
from farm.forest.features import loops_of, see
from farm.forest.group_sizes import MAX_GROUPS
from farm.forest.physics import Library, Tiling, Work
from farm.forest.predictor import Predictor
from farm.forest.reach import problems_of
from farm.forest.timing import LEVELS
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS
from farm.gpus import find_gpu
from farm.groups import MAX_GROUPS as MAX_GROUPS_OF_PROBLEMS
from farm.groups import Groups
from farm.kernels import FAMILIES, Configuration
from farm.registry import predict, recommend
from farm.registry.held_out import HeldOut, answers
from farm.registry.loaded_model import Model
from farm.scale import SCALES_OF_BOTH, Scale
from support.old_models import as_format
from support.training_tables import BATCHED_TYPE, DEVICE_TYPE, batched_table, grouped_table, tiled_table
from trainer import rounds
from trainer.acquire import PROBES, measuring_cost, with_probes
from trainer.cards import card_of_gpu
from trainer.choice import fit_choices
from trainer.folds import HEADLINE, by_shape
from trainer.forest import ForestSettings, fit
from trainer.held_out import FoldModelStore, kinds_of
from trainer.learn import Learned, TableFacts
from trainer.model_card import model_card
from trainer.packaging import signature
from trainer.promotion import unsound
from trainer.table import (
    check_training_table,
    configurations,
    held_out_together,
    types_of,
    vocabulary_of,
    with_parameter_columns,
)
from trainer.table_hash import table_hash
from trainer.test_set import check_apart

SMALL = ForestSettings(trees=16)
TABLE = grouped_table()
PLAIN_TABLE = batched_table((1,), shapes=30).assign(layout="nt", groups="none")
BOTH = pd.concat([TABLE, PLAIN_TABLE], ignore_index=True)
GPU = find_gpu(BATCHED_TYPE)
assert GPU is not None
H200 = card_of_gpu(BATCHED_TYPE, GPU)
F16 = "f16:f16:f32"

GROUPED = Configuration.parse("cublaslt() 131x256x64 f16 nt groups=16*8,3,0*4")
ALONE = Configuration.parse("cublaslt() 131x256x64 f16 nt")


@cache
def fitted() -> Predictor:
    """Fitted for the first test that needs it, because every process of the tests imports this module."""
    return fit(BATCHED_TYPE, configurations(BOTH), SMALL)


@cache
def fitted_without() -> Predictor:
    """The same, without those rows."""
    return fit(BATCHED_TYPE, configurations(PLAIN_TABLE), SMALL)


def raw(*configured: Configuration) -> pd.DataFrame:
    return with_parameter_columns(pd.DataFrame([each.columns() for each in configured]))


def completed(*configured: Configuration) -> Configurations:
    rows = raw(*configured)
    return vocabulary_of(rows.assign(power_w=np.nan)).read(rows)


def tiled(shape: str, rest: str = "", *, tile: int = 32) -> Configuration:
    return Configuration.parse(f"tiled(tile={tile}) {shape} f32 nn {rest}")


# --- groups ------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 600), min_size=1, max_size=40).filter(any), min_size=1, max_size=5))
def test_rows_have_the_groups_that_problems_have(every: list[list[int]]) -> None:
    groups = [Groups.of(sizes) for sizes in every]
    lines = [f"cublaslt() {each.rows}x8x8 f16 nt groups={each}" for each in groups]
    rows = completed(*map(Configuration.parse, lines), ALONE)
    assert rows["groups"].tolist() == [*(len(each.sizes) for each in groups), 1]
    assert rows["active_groups"].tolist() == [*(each.active for each in groups), 1]
    assert rows["largest_group"].tolist() == [*(each.largest for each in groups), 1]
    for edge in (1, 16, 100):
        expected = [*(each.tiles(edge) for each in groups), -(-131 // edge)]
        assert rows.row_tiles(edge).tolist() == expected
        assert np.concatenate([part.row_tiles(edge) for part in rows.parts(2)]).tolist() == expected


def test_traffic_counts_the_matrices_of_groups_with_rows() -> None:
    lines = [
        f"cublaslt() 300x200x257 f8e4m3 nt beta={beta} scale={scale} fused={fused} groups={groups}"
        for beta, scale, fused, groups in product((0, 1), SCALES_OF_BOTH, Fusion, ("none", "100*3", "299,0*5,1"))
        if (groups == "none" or scale is not Scale.BLOCK_GROUP) and not (beta and fused.gated)
    ]
    every = [Configuration.parse(line) for line in lines]
    work = Work.of(completed(*every), H200)
    assert work.bytes.tolist() == [each.problem.bytes for each in every]
    assert work.flops.tolist() == [each.problem.flops for each in every]


def test_a_tile_has_rows_of_one_group() -> None:
    """Of 8 groups of 17 rows each has a tile of 32 rows, where 136 rows are five: a column of them is a sixteenth of a wave."""
    rows = completed(tiled("136x64x64"), tiled("136x64x64", "groups=17*8"), tiled("136x64x64", "groups=136,0*7"))
    work = Work.of(rows, H200)
    tiling = Tiling.of(rows, work, H200)
    assert tiling.grid_rows.tolist() == [5, 8, 5]
    assert tiling.blocks.tolist() == [10, 16, 10]
    vocabulary = vocabulary_of(raw(tiled("136x64x64")).assign(power_w=np.nan))
    seen = see(rows, vocabulary, H200)
    assert seen.plain["padding_m"].tolist() == [160 / 136, 256 / 136, 160 / 136]
    assert seen.plain["padding_m_64"].tolist() == [192 / 136, 512 / 136, 192 / 136]
    assert (seen.plain["log2_waves_128"] * 132).tolist() == [2, 8, 2]
    assert (seen.efforts.busy * 132).tolist() == [10, 16, 10]
    assert loops_of(rows, vocabulary, H200)["blocks"].tolist() == [10, 16, 10]


def test_tiles_that_are_not_known_have_rows_of_one_group_too() -> None:
    """Of 3 x 20 tiles of 64 x 64 a wave is not full, and 8 x 20 are two waves."""
    rows = completed(*(Configuration.parse(f"cublaslt() 136x1280x64 f16 nt {each}") for each in ("", "groups=17*8")))
    library = Library.of(rows, Work.of(rows, H200), H200)
    assert (library.efficiency[0] * 132 * 64 * 64 / (136 * 1280)).tolist() == [1, 1 / 2]
    rows = completed(ALONE, GROUPED)
    efforts = see(rows, vocabulary_of(raw(ALONE, GROUPED).assign(power_w=np.nan)), H200).efforts
    assert (efforts.busy * 132).tolist() == [2 * 2, 9 * 2]


def test_features_say_how_rows_are_spread() -> None:
    rows = completed(ALONE, GROUPED)
    seen = see(rows, vocabulary_of(raw(ALONE, GROUPED).assign(power_w=np.nan)), H200).plain
    found = {name: values[1] for name, values in seen.items() if "group" in name}
    assert {name: found[name] for name in ("log2_groups", "log2_active_groups", "log2_largest_group")} == {
        "log2_groups": 13,
        "log2_active_groups": 9,
        "log2_largest_group": 16,
    }
    assert found["log2_rows_of_group"] == 131 / 9
    assert found["log2_group_skew"] == pytest.approx(16 * 9 / 131)
    assert [found[f"log2_group_tiles_{edge}"] for edge in (16, 64, 128)] == [9, 9, 9]
    assert found["group_padding_16"] == 144 / 131
    assert found["log2_group_waves_128"] == 1
    assert found["grouped"] == 1
    assert all(np.isnan(seen[name][0]) for name in found if name != "grouped")
    assert {"log2_active_groups", "group_padding_128", "log2_group_skew"} <= set(fitted().features)


def test_a_kernel_shares_its_constants_with_groups_and_a_library_is_not_known_to_choose_for_them() -> None:
    rows = completed(ALONE, GROUPED)
    keys = loops_of(rows, vocabulary_of(raw(ALONE, GROUPED).assign(power_w=np.nan)), H200).keys
    numbers = {name: len(set(level.tolist())) for name, level in zip(LEVELS, keys, strict=True)}
    assert numbers == dict.fromkeys(LEVELS, 1) | {"types": 2}
    kernels = np.full((1, len(TILES) + len(CONSTANTS), KERNELS), np.nan)
    kernels[0, :, 0] = [128, 128, 1, *CONSTANTS.values()]
    choices = Choices("cublaslt", np.unique(choice_kinds(rows)), kernels)
    assert np.isnan(choices.foretell(rows, Work.of(rows, H200), H200).time_ms).tolist() == [False, True]


def test_kernels_that_a_library_chose_for_groups_are_not_those_of_others() -> None:
    details = {"tile": "128x128", "split_k": 1, "algorithm_id": 66, "waves": 1}
    grouped = configurations(TABLE.assign(details=[details] * len(TABLE)))
    found = []
    for configured in (grouped, grouped.assign(groups="none")):
        rows = vocabulary_of(configured).complete(configured)
        found.append(bool(fit_choices(configured, rows, configured["runtime_ms"].to_numpy("float64"), H200)))
    assert found == [False, True]


# --- learning ----------------------------------------------------------------------------------------


def test_groups_of_new_weights_are_predicted_where_a_model_that_ignores_them_is_far_off() -> None:
    held_out = configurations(grouped_table(seed=1))
    found = fitted().predict(held_out)
    off = {name: float(np.median(np.abs(found[name] / held_out[name] - 1))) for name in ("runtime_ms", "power_w")}
    assert max(off.values()) < 0.1
    ignoring = fit(BATCHED_TYPE, configurations(TABLE.drop(columns="groups")), SMALL)
    without = ignoring.predict(held_out.drop(columns="groups"))["runtime_ms"]
    assert np.median(np.abs(without / held_out["runtime_ms"] - 1)) > 4 * off["runtime_ms"]


def test_a_stored_model_predicts_groups_as_the_fitted_one(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    rows = configurations(grouped_table(seed=2))
    pd.testing.assert_frame_equal(Predictor.load(tmp_path).predict(rows), fitted().predict(rows), check_exact=True)


def test_other_spellings_of_groups_are_the_same() -> None:
    rows = raw(GROUPED).drop(columns="groups")
    one, other = (fitted().predict(rows.assign(groups=text)) for text in ("16*8,3,0*4", "0*2, 16*3,3,16*5,0,0"))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_groups_far_from_every_measured_one_are_outside() -> None:
    configured = configurations(TABLE)
    near = configured.loc[[configured["groups"].map(lambda text: len(Groups.parse(text).sizes)).idxmax()]]
    m, groups = int(near["m"].iloc[0]), Groups.parse(near["groups"].iloc[0])
    assert groups is not None
    assert fitted().predict(near)["distance_octaves"].iloc[0] == 0
    far = fitted().predict(near.assign(m=16 * m, groups=",".join([str(groups)] * 16)))
    assert far["distance_octaves"].iloc[0] > 3
    assert "groups with rows" in far["outside"].iloc[0]
    assert problems_of(completed(ALONE, GROUPED))[:, -3:].tolist() == [[1, 1, 1], [1, 9, 16]]
    plain = fitted_without().reach(completed(ALONE)).distance
    assert fitted().reach(completed(ALONE)).distance.tolist() == plain.tolist()


# --- what was not learned ----------------------------------------------------------------------------


def test_a_model_without_groups_refuses_them_and_one_of_groups_alone_refuses_others() -> None:
    why = f"trained on cublaslt with {F16} in nt, not on {F16} grouped in nt; measure such configurations first"
    with pytest.raises(NotPredictable, match=re.escape(why)):
        predict(Model(fitted_without()), [ALONE, GROUPED])
    with pytest.raises(NotPredictable, match=re.escape(f"{F16} grouped nt was not measured: the model knows cublaslt")):
        recommend(Model(fitted_without()), GROUPED.problem)
    grouped = fit(BATCHED_TYPE, configurations(TABLE), SMALL)
    with pytest.raises(NotPredictable, match=f"with {F16} grouped in nt, not on {F16} in nt"):
        predict(Model(grouped), [ALONE])
    rows = raw(ALONE, GROUPED)
    assert [model.known(rows).tolist() for model in (fitted_without(), grouped, fitted())] == [
        [True, False],
        [False, True],
        [True, True],
    ]
    assert answers(fitted_without().predict, rows)["runtime_ms"].notna().tolist() == [True, False]


def test_kernels_are_recommended_for_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "cublaslt", replace(FAMILIES["cublaslt"], grouped=True))
    other = TABLE.head(8).assign(parameters=[{"algorithm": 3}] * 8)
    model = Model(fit(BATCHED_TYPE, configurations(pd.concat([BOTH, other])), SMALL))
    found = {each.canonical: recommend(model, each.problem).ranking for each in (ALONE, GROUPED)}
    assert {len(found[ALONE.canonical]), len(found[GROUPED.canonical])} == {1, 2}
    assert GROUPED.canonical in {one.configuration for one in found[GROUPED.canonical]}


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ("16,x", "groups is '16,x'; it must be numbers of rows, as in 16*8,3,0"),
        ("16*,3", "it must be numbers of rows"),
        ("", "it must be numbers of rows"),
        ("-1,132", "it must be numbers of rows"),
        ("131" + ",0" * MAX_GROUPS, "…'; it must be at most 4,096 groups"),
        ("130", "groups '130' do not work: they have 130 rows together, and m is 131"),
    ],
)
def test_groups_that_do_not_work_are_named(groups: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^row 1: .*{re.escape(why)}"):
        fitted().predict(raw(ALONE, ALONE).assign(groups=["none", groups]))


def test_groups_have_no_batch_and_rows_that_lie_together() -> None:
    rows = raw(GROUPED)
    with pytest.raises(ValueError, match=r"row 0: groups .* a batch has no groups, and batch is 2"):
        fitted().predict(rows.assign(batch=2))
    with pytest.raises(ValueError, match=r"row 0: groups .* the layout is nn or nt"):
        fitted().predict(rows.assign(layout="tn"))
    assert MAX_GROUPS == MAX_GROUPS_OF_PROBLEMS


# --- formats and tables ------------------------------------------------------------------------------


def test_tables_without_groups_make_the_same_model() -> None:
    before = tiled_table()
    now = before.assign(**ADDED_COLUMNS)
    assert table_hash(now) == table_hash(before) == table_hash(before.assign(groups=None))
    old, new = (fit(DEVICE_TYPE, configurations(table), SMALL) for table in (before, now))
    assert not [name for name in old.features if "group" in name]
    rows = configurations(before)
    pd.testing.assert_frame_equal(new.predict(rows), old.predict(rows.drop(columns="groups")), check_exact=True)
    assert table_hash(TABLE) != table_hash(TABLE.drop(columns="groups"))


@pytest.mark.parametrize("number", [6, 7])
def test_versions_of_before_answer_as_before_and_refuse_groups(tmp_path: Path, number: int) -> None:
    fitted_without().save(tmp_path)
    as_format(tmp_path, number)
    old, rows = Predictor.load(tmp_path), configurations(PLAIN_TABLE)
    pd.testing.assert_frame_equal(old.predict(rows), fitted_without().predict(rows), check_exact=True)
    with pytest.raises(ValueError, match=f"not on {F16} grouped in nt"):
        old.predict(raw(GROUPED))


def test_the_text_of_types_reads_back() -> None:
    columns = {"ab": "f16", "cd": "f16", "acc": "f32", "scale": "row", "fused": "bias", "groups": "64"}
    assert types_text(**columns) == f"{F16} scale=row fused=bias grouped"
    assert types_columns(types_text(**columns), 64) == columns


def test_the_types_of_a_table_are_those_of_its_rows() -> None:
    configured = configurations(pd.concat([BOTH, grouped_table(2, kind="fused=bias")]))
    rows = vocabulary_of(configured).complete(configured)
    expected = "cublaslt:" + types_of(configured) + ":" + configured["layout"]
    assert [rows.kinds.values[code] for code in rows.kinds.codes] == expected.tolist()
    assert set(types_of(configured)) == {F16, f"{F16} grouped", f"{F16} fused=bias grouped"}


# --- what is held out --------------------------------------------------------------------------------


def shapes(*lines: str) -> pd.DataFrame:
    return raw(*(Configuration.parse(f"cublaslt() {line}") for line in lines))


WEIGHTS = shapes(
    "64x256x128 f16 nt groups=8*8",
    "64x256x128 f16 nt groups=57,1*7",
    "61x256x128 f16 nt groups=8*7,5",
    "64x256x128 f16 nt",
    "4096x256x128 f16 nt",
    "64x256x64 f16 nt",
    "65x256x64 f16 nt",
    "64x128x64 f16 nt groups=64",
)


def test_weights_of_groups_are_held_out_with_all_their_rows_and_kinds() -> None:
    assert held_out_together(WEIGHTS).tolist() == [1, 1, 1, 1, 1, 2, 3, 0]
    plain = WEIGHTS.assign(groups="none")
    assert held_out_together(plain).tolist() == plain.groupby(["m", "n", "k"]).ngroup().tolist()
    for training, held_out in by_shape(configurations(BOTH)):
        configured = configurations(BOTH)
        keys = [
            set(map(tuple, configured.iloc[rows].query("groups != 'none'")[["n", "k"]].to_numpy().tolist()))
            for rows in (training, held_out)
        ]
        assert not keys[0] & keys[1]


def test_a_table_of_few_weights_is_too_small() -> None:
    few = grouped_table(3)
    assert len(few) >= 12
    with pytest.raises(TooFewMeasurements, match=r"over 3 shapes.* in groups are one shape for each n and k"):
        check_training_table(few, BATCHED_TYPE)
    check_training_table(grouped_table(4), BATCHED_TYPE)


def test_the_fold_of_groups_is_that_of_their_weights(tmp_path: Path) -> None:
    """Of n = 256 and k = 64, which the table has without groups, shapes are in different folds."""
    store = FoldModelStore(tmp_path)
    rest = WEIGHTS.drop(index=[2, 7])
    store.keep(fitted_without(), rest.iloc[5:], rest.iloc[:5])
    store.keep(fitted_without(), rest.iloc[:5], rest.iloc[5:])
    store.finish(rest)
    found = HeldOut(tmp_path)
    assert found.leak() is None
    assert found.fold_of(rest).tolist() == [0, 0, 0, 0, 0, 1]
    unknown = shapes(
        "60x256x128 f16 nt groups=60", "60x256x128 f16 nt", "9x256x64 f16 nt groups=9", "9x9x9 f16 nt groups=9"
    )
    assert found.fold_of(unknown).fillna(-1).tolist() == [0, -1, -1, -1]
    assert found.fold_of(rest.drop(columns="groups")).tolist() == [0, 0, 0, 0, 0, 1]


def test_other_groups_of_a_shape_are_its_problem_in_a_test_set() -> None:
    one, other, plain = WEIGHTS.iloc[:1], WEIGHTS.iloc[1:2], WEIGHTS.iloc[3:4]
    check_apart(plain, one)
    check_apart(WEIGHTS.iloc[2:3], one)
    with pytest.raises(TestRowsInTraining, match=r"1 problems .* such as 64x256x128 f16 nt groups=8\*8"):
        check_apart(other, one)
    problems = [
        Configuration.parse(f"cublaslt() 64x256x128 f16 nt {each}").problem for each in ("groups=8*8", "groups=64", "")
    ]
    assert [rounds._without_sizes(each) == rounds._without_sizes(problems[0]) for each in problems] == [
        True,
        True,
        False,
    ]


def test_groups_are_candidates_of_their_own() -> None:
    problems = [each.problem for each in (ALONE, GROUPED)]
    plain, grouped = rounds._candidates(problems, {problem: {} for problem in problems})
    assert grouped.kind == f"{plain.kind} grouped"
    assert (plain.extents, grouped.extents) == ((131, 256, 64, 1, 1, 131), (131, 256, 64, 1, 9, 16))
    measured = raw(*[ALONE] * PROBES)
    asked, error = raw(ALONE, GROUPED, ALONE), np.array([0.1, 0.2, 0.3])
    assert with_probes(error, measured, asked).tolist() == [0.1, 0.3, 0.3]
    others = [Configuration.parse(f"cublaslt() {m}x256x64 f16 nt groups={m},0") for m in range(1, PROBES + 1)]
    assert with_probes(error, pd.concat([measured, raw(*others)]), asked).tolist() == error.tolist()


def test_measuring_groups_costs_as_their_matrices_do() -> None:
    measured, new = configurations(TABLE), configurations(grouped_table(seed=1))
    counts, of_new = (vocabulary_of(each).complete(each)["groups"] for each in (measured, new))
    cost = measuring_cost(measured.assign(cost_s=counts), new)
    assert np.corrcoef(np.log(cost), np.log(of_new))[0, 1] > 0.95


def card_of_model(table: pd.DataFrame) -> str:
    learned = Learned(configurations(table), {HEADLINE: {}})
    return model_card(TableFacts.of(table, BATCHED_TYPE), table, learned, unsound("x"), code_version="1")


def test_the_card_and_the_interface_say_which_groups_a_model_knows() -> None:
    grouped, plain = card_of_model(BOTH), card_of_model(PLAIN_TABLE)
    assert f"- `cublaslt {F16} grouped nt`\n" in grouped
    assert re.search(r"k \d+ to [\d,]+, 4 to 64 groups\)", grouped)
    assert (
        f"groups and sparsity only as it has seen them: it has learned from cublaslt with {F16} (grouped)." in grouped
    )
    assert "groups and sparsity only as it has seen them: it has learned from none." in plain
    assert kinds_of(configurations(BOTH)) == [f"cublaslt {F16} grouped nt", f"cublaslt {F16} nt"]
    assert fitted().vocabulary.measured()["cublaslt"]["layouts"] == {F16: ["nt"], f"{F16} grouped": ["nt"]}
    types = {column.name: str(column.type) for column in signature(fitted().vocabulary).inputs}
    assert types["groups"] == "DataType.string"


def test_the_benchmark_of_kinds_has_groups() -> None:
    configured = configurations(pd.concat([BOTH, grouped_table(2, kind="fused=bias")]))
    groups = kinds_learned.groups_of(configured)
    assert [*groups] == ["plain", "fused=bias grouped", "grouped", "fused", "in groups"]
    assert groups["in groups"].sum() == groups["grouped"].sum() + groups["fused"].sum()
