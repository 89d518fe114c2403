"""Scale factors and fused operations: what models learn of them, and that models without them stay what they were."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.errors import NotPredictable, TestRowsInTraining
from farm.forest.arrays import BadFiles
from farm.forest.choice import CONSTANTS, KERNELS, TILES, Choices
from farm.forest.choice import kinds as choice_kinds
from farm.forest.columns import REQUIRED, WITH_DEFAULT, types_columns, types_text
from farm.forest.completed_rows import Configurations
from farm.forest.described import FORMAT
from farm.forest.features import loops_of, see
from farm.forest.physics import Work
from farm.forest.predictor import DESCRIPTION, Predictor
from farm.forest.timing import LEVELS
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS
from farm.gpus import find_gpu
from farm.kernels import FAMILIES, Configuration
from farm.registry import predict, recommend
from farm.registry.held_out import answers
from farm.registry.loaded_model import Model
from farm.scale import SCALES_OF_BOTH
from support.old_models import as_format
from support.training_tables import BATCHED_TYPE, DEVICE_TYPE, KINDS, kinds_table, tiled_table
from trainer import rounds
from trainer.acquire import PROBES, with_probes
from trainer.cards import card_of_gpu
from trainer.evaluate import evaluate
from trainer.folds import FOLD_KINDS, HEADLINE
from trainer.forest import ForestSettings, fit
from trainer.held_out import kinds_of
from trainer.learn import Learned, TableFacts
from trainer.model_card import model_card
from trainer.packaging import signature
from trainer.promotion import unsound
from trainer.table import configurations, vocabulary_of, with_parameter_columns
from trainer.table_hash import table_hash
from trainer.test_set import check_apart, evaluate_on

SMALL = ForestSettings(trees=16)
TABLE = kinds_table()
GPU = find_gpu(BATCHED_TYPE)
assert GPU is not None
H200 = card_of_gpu(BATCHED_TYPE, GPU)
FP8 = "f8e4m3:bf16:f32"


@cache
def fitted() -> Predictor:
    """Fitted for the first test that needs it, because every process of the tests imports this module."""
    return fit(BATCHED_TYPE, configurations(TABLE), SMALL)


@cache
def fitted_without() -> Predictor:
    """The same, without those rows."""
    return fit(BATCHED_TYPE, configurations(kinds_table([""])), SMALL)


def one(kind: str, shape: str = "256x256x256") -> Configuration:
    return Configuration.parse(f"cublaslt() {shape} f8e4m3 nt {kind}")


def of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of a kind, as `KINDS` writes them."""
    wanted = ADDED_COLUMNS | dict(each.split("=", 1) for each in kind.split())
    rows: pd.DataFrame = table[(table[[*wanted]].astype(str) == [*map(str, wanted.values())]).all(axis="columns")]
    return rows


# --- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_predicted_on_new_shapes(kind: str) -> None:
    held_out = configurations(kinds_table([kind], seed=1))
    found = fitted().predict(held_out)
    for output, pct in {"runtime_ms": 10, "power_w": 10}.items():
        assert np.median(np.abs(found[output] / held_out[output] - 1)) < pct / 100, output


def test_a_model_that_ignores_the_columns_is_far_off() -> None:
    held_out = configurations(kinds_table(["scale=1x128:128x128"], seed=1)).query("m * n * k > 1e9")
    ignoring = fit(BATCHED_TYPE, configurations(TABLE.assign(scale="none", fused="none")), SMALL)
    off = [
        np.median(np.abs(model.predict(rows)["runtime_ms"] / rows["runtime_ms"] - 1))
        for model, rows in ((fitted(), held_out), (ignoring, held_out.assign(scale="none")))
    ]
    assert off[1] > 3 * off[0]


def test_a_stored_model_predicts_as_the_fitted_one(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    rows = configurations(kinds_table(seed=2))
    pd.testing.assert_frame_equal(Predictor.load(tmp_path).predict(rows), fitted().predict(rows), check_exact=True)


def test_errors_on_a_test_set_are_of_all_kinds_that_the_model_knows() -> None:
    test = configurations(kinds_table(["", "scale=row"], shapes=20, seed=3))
    found, predicted = evaluate_on(fitted_without(), test)
    assert found["runtime_ms"]["rows"] == (test["scale"] == "none").sum()
    assert predicted["runtime_ms"].isna().tolist() == (test["scale"] == "row").tolist()


# --- work and features -------------------------------------------------------------------------------


def completed(table: pd.DataFrame) -> Configurations:
    configured = configurations(table)
    return vocabulary_of(configured).complete(configured)


def test_traffic_counts_factors_and_bias_as_a_problem_does() -> None:
    """Of shapes whose last blocks are smaller, in each combination."""
    lines = [
        f"cublaslt() 300x200x257 f8e4m3 nt beta={beta} batch={batch} scale={scale} fused={fused}"
        for beta, batch, scale, fused in product((0, 1), (1, 3), SCALES_OF_BOTH, Fusion)
        if not (beta and fused.gated)
    ]
    every = [Configuration.parse(line) for line in lines]
    table = pd.DataFrame([{**each.columns(), "row": row} for row, each in enumerate(every)])
    rows = vocabulary_of(with_parameter_columns(table.assign(power_w=np.nan))).read(with_parameter_columns(table))
    work = Work.of(rows, H200)
    assert work.bytes.tolist() == [each.problem.bytes for each in every]
    assert work.flops.tolist() == [each.problem.flops for each in every]


def test_each_kind_of_factors_and_each_operation_is_a_feature() -> None:
    configured = configurations(kinds_table(shapes=1).assign(m=256, n=512, k=1024))
    vocabulary = vocabulary_of(configured)
    seen = see(vocabulary.complete(configured), vocabulary, H200).plain
    row = {kind: of_kind(configured, kind).index[0] for kind in KINDS}
    assert {scale: np.flatnonzero(seen[f"scale_is_{scale}"]).tolist() for scale in ("row", "1x128")} == {
        "row": [row["scale=row"]],
        "1x128": [],
    }
    assert np.flatnonzero(seen["fuses_bias"]).tolist() == sorted([row["fused=bias"], row["fused=bias+gelu"]])
    assert np.flatnonzero(seen["fuses_gelu"]).tolist() == [row["fused=bias+gelu"]]
    added = seen["log2_scale_and_bias_bytes"]
    assert np.isnan(added[row[""]])
    assert added[row["scale=row"]] == 4 * (256 + 512)
    assert added[row["fused=bias"]] == 2 * 512
    assert {"scale_is_row", "fuses_gelu", "log2_scale_and_bias_bytes"} <= set(fitted().features)


def test_a_kernel_has_a_part_of_its_constants_for_other_factors_and_operations() -> None:
    """The level `types` is another one; the level of the kernel is the same."""
    kinds = ("", "scale=row", "scale=tensor", "fused=bias", "fused=relu")
    configured = configurations(kinds_table(kinds, shapes=1).assign(m=256, n=512, k=1024))
    vocabulary = vocabulary_of(configured)
    keys = loops_of(vocabulary.complete(configured), vocabulary, H200).keys
    numbers = {name: len(set(level.tolist())) for name, level in zip(LEVELS, keys, strict=True)}
    assert numbers == dict.fromkeys(LEVELS, 1) | {"types": len(kinds)}


def test_a_library_has_other_kernels_for_factors_where_enough_of_them_were_measured() -> None:
    rows = completed(kinds_table(["", "scale=row", "fused=relu"], shapes=1).assign(m=256, n=512, k=1024))
    kinds = choice_kinds(rows)
    of = dict(zip(zip(rows.scales.tolist(), rows.fusions.tolist(), strict=True), kinds.tolist(), strict=True))
    assert len(set(of.values())) == 2
    assert of[0, 0] == of[0, rows.fusions.max()]
    kernels = np.full((2, len(TILES) + len(CONSTANTS), KERNELS), np.nan)
    kernels[0, :, 0] = [128, 128, 1, *CONSTANTS.values()]
    kernels[1, :, 0] = [64, 256, 1, *CONSTANTS.values()]
    both = Choices("cublaslt", np.unique(kinds), kernels).foretell(rows, Work.of(rows, H200), H200)
    assert both.kernel[1].tolist() == np.where(rows.scales > 0, 64, 128).tolist()
    alone = Choices("cublaslt", np.unique(kinds)[:1], kernels[:1]).foretell(rows, Work.of(rows, H200), H200)
    assert alone.kernel[1].tolist() == [128, 128, 128]


# --- what was not learned ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scale=row", "fused=bias", "scale=row fused=bias"])
def test_a_model_of_plain_products_refuses_others(kind: str) -> None:
    why = f"trained on cublaslt with {FP8} in nt, not on {FP8} {kind} in nt; measure such configurations first"
    with pytest.raises(NotPredictable, match=re.escape(why)):
        predict(Model(fitted_without()), [one(""), one(kind)])
    with pytest.raises(NotPredictable, match=re.escape(f"{FP8} {kind} nt was not measured: the model knows cublaslt")):
        recommend(Model(fitted_without()), one(kind).problem)
    assert len(predict(Model(fitted_without()), [one("")])) == 1


def test_only_what_was_measured_together_is_known() -> None:
    kinds = ["", "scale=row", "fused=bias", "batch=8 scale=tensor"]
    model = fit(BATCHED_TYPE, configurations(kinds_table(kinds)), SMALL)
    asked = [*kinds, "scale=row fused=bias", "scale=tensor", "batch=8", "batch=8 scale=row", "scale=none fused=none"]
    rows = pd.DataFrame([one(kind).columns() for kind in asked]).drop(columns="parameters")
    assert model.known(rows).tolist() == [True, True, True, True, False, True, False, False, True]
    with pytest.raises(NotPredictable, match=f"batch is 8, .* batches of cublaslt with {FP8} scale=tensor alone"):
        predict(Model(model), [one("batch=8 scale=row")])
    found = answers(model.predict, rows)["runtime_ms"]
    assert found.notna().tolist() == model.known(rows).tolist()


def test_a_model_of_scaled_products_alone_refuses_plain_ones() -> None:
    model = fit(BATCHED_TYPE, configurations(kinds_table(["scale=row"])), SMALL)
    with pytest.raises(NotPredictable, match=f"with {FP8} scale=row in nt, not on {FP8} in nt"):
        predict(Model(model), [one("")])


def test_values_that_no_farm_has_are_refused_and_gaps_are_plain() -> None:
    rows = configurations(kinds_table([""])).head(2)
    strange = rows.assign(scale=["none", "2x128"])
    assert fitted().known(strange).tolist() == [True, False]
    with pytest.raises(ValueError, match=r"row 1: .* not on f8e4m3:bf16:f32 scale=2x128 in nt"):
        fitted().predict(strange)
    plain = fitted().predict(rows)
    for gaps in (rows.drop(columns=["scale", "fused"]), rows.assign(scale=None, fused=[np.nan, "none"])):
        pd.testing.assert_frame_equal(fitted().predict(gaps), plain, check_exact=True)


def test_the_columns_and_defaults_are_those_of_problems() -> None:
    assert {*ADDED_COLUMNS} <= {*WITH_DEFAULT}
    needed = fitted_without().vocabulary.read(
        {name: [1024] for name in ("m", "n", "k")} | {"ab": ["f8e4m3"], "family": ["cublaslt"]}
    )
    assert {*REQUIRED} == {"m", "n", "k", "ab", "family"}
    found = {name: needed.texts[name].values[0] if name in needed.texts else needed[name][0] for name in ADDED_COLUMNS}
    assert found == ADDED_COLUMNS


def test_power_and_burst_times_are_of_the_kinds_that_have_them() -> None:
    parts = [kinds_table([""]), kinds_table(["scale=row"], power=False), kinds_table(["scale=tensor"])]
    parts = [
        part.assign(runtime_burst_ms=0.9 * part["runtime_ms"] if place < 2 else np.nan)
        for place, part in enumerate(parts)
    ]
    model = fit(BATCHED_TYPE, configurations(pd.concat(parts)), SMALL)
    rows = pd.DataFrame([one(kind).columns() for kind in ("", "scale=row", "scale=tensor")]).drop(columns="parameters")
    found = model.predict(rows)
    assert found["power_w"].notna().tolist() == [True, False, True]
    assert found["runtime_burst_ms"].notna().tolist() == [True, True, False]


def test_problems_and_kernels_are_near_those_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large product was measured without factors alone, and an algorithm with factors alone."""
    monkeypatch.setitem(FAMILIES, "cublaslt", replace(FAMILIES["cublaslt"], scales=SCALES_OF_BOTH))
    large = kinds_table([""], shapes=1).assign(m=2**15, n=2**15, k=2**15)
    other = kinds_table(["scale=row"], shapes=1).assign(parameters=[{"algorithm": 3}])
    model = fit(BATCHED_TYPE, configurations(pd.concat([TABLE, large, other])), SMALL)
    rows = pd.DataFrame([one(kind, "32768").columns() for kind in ("", "scale=row")]).drop(columns="parameters")
    near, far = model.predict(rows)["distance_octaves"]
    assert near == 0
    assert far > 3
    found = {kind: recommend(Model(model), one(kind).problem).ranking for kind in ("", "scale=row")}
    assert {kind: sorted(each.configuration for each in ranking) for kind, ranking in found.items()} == {
        "": [one("").canonical],
        "scale=row": sorted(
            f"cublaslt(algorithm={rank}) 256x256x256 {FP8} nt alpha=1 beta=0 scale=row" for rank in (0, 3)
        ),
    }
    unmeasured = predict(Model(model), [Configuration.parse("cublaslt(algorithm=3) 256 f8e4m3 nt")])[0]
    assert unmeasured.outside == "kernel never measured in f8e4m3"
    scaled = Configuration.parse("cublaslt(algorithm=3) 256 f8e4m3 nt scale=tensor")
    assert predict(Model(model), [scaled])[0].outside == "kernel never measured in f8e4m3 scale=tensor"


def test_a_kind_has_intervals_of_its_own_where_enough_of_it_was_held_out() -> None:
    """Times with factors vary by a fifth, and those without are exact."""
    plain, scaled = kinds_table([""], shapes=120), kinds_table(["scale=row"], shapes=120)
    scaled["runtime_ms"] *= np.exp(0.2 * np.random.default_rng(0).normal(size=len(scaled)))
    configured = configurations(pd.concat([plain, scaled]))
    (found,) = evaluate(BATCHED_TYPE, configured, SMALL, kinds={HEADLINE: FOLD_KINDS[HEADLINE]})
    assert {f"runtime_ms cublaslt:{FP8}", f"runtime_ms cublaslt:{FP8} scale=row"} <= set(found.intervals)
    model = fit(BATCHED_TYPE, configured, SMALL, found.intervals)
    rows = configurations(kinds_table(["", "scale=row"], shapes=20, seed=5))
    bounds = model.predict(rows)
    width = np.log(bounds["runtime_ms_high"] / bounds["runtime_ms_low"]).groupby(rows["scale"]).median()
    assert width["row"] > 3 * width["none"]


# --- formats -----------------------------------------------------------------------------------------


def test_tables_without_the_columns_make_the_same_model() -> None:
    before = tiled_table()
    now = before.assign(**ADDED_COLUMNS)
    assert table_hash(now) == table_hash(before) == table_hash(before.assign(scale=None, fused=None))
    old, new = (fit(DEVICE_TYPE, configurations(table), SMALL) for table in (before, now))
    assert not [name for name in old.features if name.startswith(("scale_", "fuses_", "log2_scale"))]
    rows = configurations(before)
    pd.testing.assert_frame_equal(new.predict(rows), old.predict(rows[[*old.vocabulary.raw_columns]]), check_exact=True)


def test_versions_of_before_answer_as_before_and_refuse_factors(tmp_path: Path) -> None:
    model = fit(BATCHED_TYPE, configurations(kinds_table(["", "batch=8"])), SMALL)
    model.save(tmp_path)
    as_format(tmp_path, 7)
    old = Predictor.load(tmp_path)
    rows = configurations(kinds_table(["", "batch=8"], seed=4))
    pd.testing.assert_frame_equal(old.predict(rows), model.predict(rows), check_exact=True)
    assert old.known(configurations(kinds_table(["scale=row", "fused=bias"], shapes=1))).tolist() == [False, False]
    with pytest.raises(ValueError, match=f"not on {FP8} scale=row in nt"):
        old.predict(rows.assign(scale="row"))


def test_files_of_one_format_are_not_read_as_those_of_another(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    described = tmp_path / DESCRIPTION
    text = described.read_text()
    described.write_text(text.replace(f'"format": {FORMAT}', '"format": 7'))
    with pytest.raises(BadFiles, match="vocabulary must have element_bytes, families, parameters, usual_output"):
        Predictor.load(tmp_path)
    described.write_text(re.sub(r'("row": \[\s+)1.0', r"\g<1>0.0", text))
    with pytest.raises(BadFiles, match="scale factors of no block"):
        Predictor.load(tmp_path)
    many = json.loads(text)
    many["vocabulary"]["fusions"] = {f"bias+{number}": ["bias", str(number)] for number in range(128)}
    described.write_text(json.dumps(many))
    with pytest.raises(BadFiles, match="too many fusions"):
        Predictor.load(tmp_path)
    described.write_text(text.replace(f'"{FP8}"', f'"{FP8} scale"'))
    with pytest.raises(BadFiles, match="the model cannot predict what it knows"):
        Predictor.load(tmp_path)


def test_the_text_of_types_reads_back() -> None:
    columns = {"ab": "f8e4m3", "cd": "bf16", "acc": "f32", "scale": "1x128:128x128", "fused": "bias+gelu"}
    assert types_text(**columns) == f"{FP8} scale=1x128:128x128 fused=bias+gelu"
    assert types_columns(types_text(**columns), 64) == columns
    assert types_columns(FP8, 64) == {"ab": "f8e4m3", "cd": "bf16", "acc": "f32"}


# --- tables ------------------------------------------------------------------------------------------


def test_the_hash_of_a_table_covers_them() -> None:
    plain = kinds_table([""], shapes=2)
    tables = (
        plain,
        plain.assign(scale="row"),
        plain.assign(fused="relu"),
        plain.assign(batch=2),
        plain.assign(scale="tensor"),
    )
    assert len({table_hash(table) for table in tables}) == len(tables)


def test_other_kinds_are_other_problems_of_a_test_set() -> None:
    plain, row, bias = (kinds_table([kind], shapes=5) for kind in ("", "scale=row", "fused=bias"))
    check_apart(pd.concat([plain, row]), bias)
    check_apart(plain.drop(columns=[*ADDED_COLUMNS]), row)
    with pytest.raises(TestRowsInTraining, match=r"5 problems .* such as \d+x\d+x\d+ f8e4m3 nt scale=row"):
        check_apart(pd.concat([plain, row]), row)


def test_kernels_are_chosen_within_a_kind() -> None:
    parts = [
        kinds_table(["", "scale=row"], shapes=20).assign(parameters=[{"algorithm": number}] * 40) for number in range(4)
    ]
    configured = configurations(pd.concat(parts))
    found, _ = evaluate_on(fit(BATCHED_TYPE, configured, SMALL), configured)
    assert found["runtime_ms"]["choose_problems"] == 40


def test_a_kernel_needs_probes_of_each_kind() -> None:
    measured = with_parameter_columns(kinds_table([""], shapes=PROBES))
    candidates = with_parameter_columns(kinds_table(["", "scale=row", "fused=bias"], shapes=1))
    assert with_probes(np.array([0.1, 0.2, 0.3]), measured, candidates).tolist() == [0.1, 0.3, 0.3]


def test_problems_of_other_kinds_are_no_near_duplicates() -> None:
    problems = [one(kind).problem for kind in KINDS]
    found = rounds._candidates(problems, {problem: {} for problem in problems})
    # A batch is another extent, and not another kind.
    assert [candidate.kind for candidate in found][:4] == [f"{FP8} nt"] * 2 + [
        f"{FP8} nt scale={s}" for s in ("tensor", "row")
    ]
    assert len({(candidate.kind, candidate.extents) for candidate in found}) == len(KINDS)


def card_of_model(table: pd.DataFrame) -> str:
    learned = Learned(configurations(table), {HEADLINE: {}})
    return model_card(TableFacts.of(table, BATCHED_TYPE), table, learned, unsound("x"), code_version="1")


def test_the_card_and_the_interface_say_what_a_model_knows() -> None:
    configured, card = configurations(TABLE), card_of_model(TABLE)
    assert f"- `cublaslt {FP8} scale=1x128:128x128 nt`\n" in card
    assert f"- `cublaslt {FP8} fused=bias+gelu nt`\n" in card
    assert (
        "refuses families, types, scale factors, fused operations, groups, sparsity and layouts that it has not seen together"
        in card
    )
    assert f"learned from cublaslt with {FP8} ({', '.join(sorted(KINDS[2:]))})." in card
    assert (
        "scale factors, fused operations, groups and sparsity only as it has seen them: it has learned from none."
        in card_of_model(kinds_table(["", "batch=8"]))
    )
    assert kinds_of(configured)[0] == f"cublaslt {FP8} fused=bias nt"
    known = fitted().vocabulary.measured()["cublaslt"]
    assert known["layouts"] == {types: ["nt"] for types in (FP8, *(f"{FP8} {kind}" for kind in sorted(KINDS[2:])))}
    assert known["batched"] == [FP8]
    types = {column.name: str(column.type) for column in signature(fitted().vocabulary).inputs}
    assert types["scale"] == types["fused"] == types["layout"] == "DataType.string"
