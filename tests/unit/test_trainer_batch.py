"""Batches of products: what models learn of them, and that models without them stay what they were."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.errors import NotPredictable, TestRowsInTraining
from farm.forest.arrays import BadFiles
from farm.forest.choice import CONSTANTS, KERNELS, TILES, Choices, kinds, time_ms
from farm.forest.completed_rows import Configurations
from farm.forest.features import Seen, loops_of, see
from farm.forest.physics import LIBRARY_TILES, Library, Tiling, Work
from farm.forest.predictor import DESCRIPTION, Predictor
from farm.forest.timing import Timing
from farm.gpus import find_gpu
from farm.kernels import Configuration
from farm.registry import predict, recommend
from farm.registry.held_out import answers
from farm.registry.loaded_model import Model
from support.old_models import as_format
from support.training_tables import BATCHED_TYPE, DEVICE_TYPE, batched_table, tiled_table
from trainer.acquire import measuring_cost
from trainer.cards import card_of_gpu
from trainer.choice import MIN_ROWS, fit_choices
from trainer.evaluate import measured_outputs
from trainer.folds import HEADLINE, by_size
from trainer.forest import ForestSettings, fit
from trainer.learn import Learned, TableFacts
from trainer.model_card import model_card
from trainer.promotion import unsound
from trainer.table import configurations, vocabulary_of
from trainer.table_hash import table_hash
from trainer.test_set import check_apart, evaluate_on

SMALL = ForestSettings(trees=16)
BATCHES = (1, 4, 16, 64)
TABLE = batched_table(BATCHES)
GPU = find_gpu(BATCHED_TYPE)
assert GPU is not None
H200 = card_of_gpu(BATCHED_TYPE, GPU)

EIGHT = Configuration.parse("cublaslt() 256x256x256 f16 batch=8")
OF_ONE_ROW = "cb4398b600b9025bcb824cfc54a81369ef4de481d4ea238fcc817450fbd89b7a"
"""Of a table of one row, from before tables had batches."""

WITHOUT = "batch is 8, and this version has learned from no batches"


@cache
def fitted() -> Predictor:
    """Fitted for the first test that needs it, because every process of the tests imports this module."""
    return fit(BATCHED_TYPE, configurations(TABLE), SMALL)


def error(model: Predictor, rows: pd.DataFrame) -> float:
    """The median error of the runtime, as a share."""
    found = model.predict(rows)["runtime_ms"]
    return float(np.median(np.abs(found / rows["runtime_ms"] - 1)))


# --- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [(2, 8, 32), (256, 512)], ids=["between", "beyond"])
def test_batches_that_were_held_out_are_predicted_where_a_model_without_them_is_far_off(
    batches: tuple[int, ...],
) -> None:
    """Of new shapes, between and beyond the batches that were learned."""
    held_out = configurations(batched_table(batches, seed=1))
    ignoring = fit(BATCHED_TYPE, configurations(TABLE.drop(columns="batch")), SMALL)
    without = held_out.drop(columns="batch")
    assert error(fitted(), held_out) < 0.15
    assert error(ignoring, without) > 5 * error(fitted(), held_out)


def test_the_rate_counts_every_product_of_a_batch() -> None:
    found = predict(Model(fitted()), [EIGHT])[0]
    assert found.tflops * found.runtime_ms * 1e9 == pytest.approx(8 * 2 * 256**3)
    rows = configurations(TABLE)
    work = 2.0 * rows["m"] * rows["n"] * rows["k"] * rows["batch"]
    np.testing.assert_allclose(measured_outputs(rows)["tflops"], work / rows["runtime_ms"] / 1e9)


def test_a_batch_far_from_every_measured_one_is_outside() -> None:
    shape = configurations(TABLE).iloc[[0]]
    near, far = (fitted().predict(shape.assign(batch=batch)) for batch in (64, 64 * 16))
    assert (near["distance_octaves"][0], near["outside"][0]) == (0, "")
    assert far["outside"][0] == "nearest measured problem is 4.0 octaves away (batch 1024 → 64)"


def test_a_stored_model_predicts_batches_as_the_fitted_one(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    rows = configurations(batched_table((1, 8, 32), seed=2))
    pd.testing.assert_frame_equal(Predictor.load(tmp_path).predict(rows), fitted().predict(rows), check_exact=True)


def test_kernels_are_recommended_for_a_batch() -> None:
    found = recommend(Model(fitted()), EIGHT.problem)
    assert found.problem == "256x256x256 f16:f16:f32 nn alpha=1 beta=0 batch=8"
    assert [one.configuration for one in found.ranking] == [EIGHT.canonical]
    assert found.ranking[0].runtime_ms > recommend(Model(fitted()), one_of(EIGHT).problem).ranking[0].runtime_ms


def one_of(configuration: Configuration) -> Configuration:
    """The same without a batch."""
    return Configuration.parse(configuration.canonical.split(" batch=")[0])


# --- features ----------------------------------------------------------------------------------------


def completed(table: pd.DataFrame) -> tuple[Configurations, Seen]:
    configured = configurations(table)
    vocabulary = vocabulary_of(configured)
    rows = vocabulary.complete(configured)
    return rows, see(rows, vocabulary, H200, Timing.none())


def test_products_of_a_batch_fill_the_multiprocessors_together() -> None:
    """A product has 4 blocks of 32 x 32: 33 of them are one wave of 132 multiprocessors, and 34 are two."""
    table = tiled_table((64,), tiles=(32,))
    rows, seen = completed(pd.concat([table.assign(batch=batch) for batch in (1, 33, 34)]))
    work = Work.of(rows, H200)
    tiling = Tiling.of(rows, work, H200)
    assert tiling.blocks.tolist() == [4, 4 * 33, 4 * 34]
    assert tiling.grid_rows.tolist() == [2, 2, 2]
    assert (tiling.compute_ms / tiling.compute_ms[0]).tolist() == [1, 1, 2]
    assert seen.plain["log2_waves"].tolist() == [4 / 132, 1, 4 * 34 / 132]
    assert seen.plain["log2_batch"].tolist() == [1, 33, 34]
    assert seen.plain["log2_m"].tolist() == [64, 64, 64]
    np.testing.assert_allclose(seen.plain["log2_l2_a"] / seen.plain["log2_l2_a"][0], [1, 33, 34])
    assert (seen.efforts.busy / seen.efforts.busy[0]).tolist() == [1, 33, 33]
    assert loops_of(rows, vocabulary_of(configurations(table)), H200)["blocks"].tolist() == tiling.blocks.tolist()
    np.testing.assert_allclose(seen.efforts.l2_bytes / seen.efforts.l2_bytes[0], [1, 33, 34])


def test_a_library_is_thought_to_fill_the_card_with_a_batch() -> None:
    """Of a product that is one tile of 128 x 128, 132 fill a wave."""
    rows, seen = completed(batched_table((1, 132, 133), shapes=1).assign(m=128, n=128, k=64))
    assert seen.plain["log2_waves_128"].tolist() == [1 / 132, 1, 133 / 132]
    assert seen.efforts.busy.tolist() == [1 / 132, 1, 1]
    library = Library.of(rows, Work.of(rows, H200), H200)
    np.testing.assert_allclose(library.efficiency[LIBRARY_TILES.index((128, 128))], [1 / 132, 1, 133 / 264])
    assert library.compute_ms[2] > library.compute_ms[1] > library.compute_ms[0]


def test_a_kernel_that_a_library_chooses_takes_as_long_for_a_batch_as_for_a_product_of_as_many_blocks() -> None:
    of = np.array([128, 128, 1, *CONSTANTS.values()])[:, None]
    batch, tall = np.array([[128, 256, 512, 100, 3e6, 6e11], [12800, 256, 512, 1, 3e6, 6e11]])[..., None]
    for slices in (1, 8):
        assert time_ms(of, batch, np.array([slices]), H200) == time_ms(of, tall, np.array([slices]), H200)


def test_k_is_cut_so_that_the_blocks_of_a_batch_fill_the_card() -> None:
    """33 tiles with k in 4 pieces are one block for each multiprocessor."""
    kernels = np.full((1, len(TILES) + len(CONSTANTS), KERNELS), np.nan)
    kernels[0, :, 0] = [128, 128, 1, *CONSTANTS.values()]
    rows, _ = completed(batched_table((33,), shapes=1).assign(m=128, n=128, k=8192))
    found = Choices("cublaslt", kinds(rows), kernels).foretell(rows, Work.of(rows, H200), H200)
    assert found.kernel[3].tolist() == [4]


def test_the_waves_that_a_library_names_are_of_the_whole_batch_or_of_one_product() -> None:
    """A product has 4 x 4 tiles: 132 of them are 16 waves of one block for each multiprocessor, and 8 of two.

    Hopper kernels count one product.
    """
    table = batched_table((132,), shapes=MIN_ROWS).assign(m=512, n=512)
    table = table.assign(k=64 * np.arange(1, len(table) + 1))
    for waves, resident, algorithm in ((16, 1, 21), (8, 2, 21), (16 / 132, 1, 66), (8 / 132, 2, 66)):
        details = {"tile": "128x128", "split_k": 1, "algorithm_id": algorithm, "waves": waves}
        configured = configurations(table.assign(details=[details] * len(table)))
        rows = vocabulary_of(configured).complete(configured)
        found = fit_choices(configured, rows, configured["runtime_ms"].to_numpy("float64"), H200)
        assert found.kernels[0, : len(TILES), 0].tolist() == [128, 128, resident]


# --- what was not learned ----------------------------------------------------------------------------


def test_a_model_without_batches_is_what_it_was_and_refuses_them() -> None:
    """Tables had no such column, and have 1 in it now."""
    before = tiled_table()
    now = before.assign(batch=1)
    assert table_hash(now) == table_hash(before)
    old, new = (fit(DEVICE_TYPE, configurations(table), SMALL) for table in (before, now))
    assert "log2_batch" not in old.features
    assert "log2_batch" in fitted().features
    rows = configurations(before)
    pd.testing.assert_frame_equal(new.predict(rows), old.predict(rows.drop(columns="batch")), check_exact=True)
    with pytest.raises(ValueError, match=f"row 1: {WITHOUT}; measure such batches first, or ask for batch 1"):
        old.predict(rows.head(2).assign(batch=[1, 8]))
    assert old.known(rows.head(3).assign(batch=[1, 8, None])).tolist() == [True, False, True]


def test_versions_of_before_batches_answer_as_before_and_refuse_batches(tmp_path: Path) -> None:
    model = fit(DEVICE_TYPE, configurations(tiled_table()), SMALL)
    model.save(tmp_path)
    as_format(tmp_path, 6)
    old = Predictor.load(tmp_path)
    rows = configurations(tiled_table((256, 700), tiles=(8, 13)))
    pd.testing.assert_frame_equal(old.predict(rows), model.predict(rows), check_exact=True)
    with pytest.raises(ValueError, match=WITHOUT):
        old.predict(rows.assign(batch=8))


def test_files_of_one_format_are_not_read_as_those_of_another(tmp_path: Path) -> None:
    fitted().save(tmp_path)
    as_format(tmp_path, 6)
    described = tmp_path / DESCRIPTION
    described.write_text(described.read_text().replace('"format": 6', '"format": 7'))
    with pytest.raises(BadFiles, match="must have batched, kernels"):
        Predictor.load(tmp_path)


def of_both() -> Predictor:
    """f16 was measured in batches, and f32 was not."""
    f32 = batched_table((1,)).assign(ab="f32", cd="f32", acc="f32")
    return fit(BATCHED_TYPE, configurations(pd.concat([TABLE, f32])), SMALL)


def test_batches_are_refused_of_types_that_were_not_measured_in_any() -> None:
    model = of_both()
    rows = pd.DataFrame(
        {"m": 256, "n": 256, "k": 256, "family": "cublaslt", "ab": ["f16", "f32", "f32"], "batch": [8, 1, 8]}
    )
    assert model.known(rows).tolist() == [True, True, False]
    learned = r"has learned from batches of cublaslt with f16:f16:f32 alone"
    with pytest.raises(ValueError, match=f"row 2: batch is 8, and this version {learned}"):
        model.predict(rows)
    assert answers(model.predict, rows.assign(cd=["f16", "f32", "f32"], acc="f32", layout="nn"))[
        "runtime_ms"
    ].notna().tolist() == [True, True, False]
    with pytest.raises(NotPredictable, match=learned):
        recommend(Model(model), Configuration.parse("cublaslt() 256 f32 batch=8").problem)


def test_a_batch_that_no_model_learned_is_refused_in_one_sentence() -> None:
    model = Model(fit(BATCHED_TYPE, configurations(TABLE[TABLE["batch"] == 1]), SMALL))
    with pytest.raises(NotPredictable, match=WITHOUT):
        predict(model, [EIGHT])
    with pytest.raises(NotPredictable, match=f"{WITHOUT}$"):
        recommend(model, EIGHT.problem)
    assert len(predict(model, [one_of(EIGHT)])) == 1


@pytest.mark.parametrize("batch", [0, -1, 1.5, 2**31])
def test_a_batch_is_a_whole_number(batch: float) -> None:
    rows = configurations(TABLE).head(1)
    with pytest.raises(ValueError, match=r"row 0: batch is .*; it must be a whole number from 1 to 2147483647"):
        fitted().predict(rows.assign(batch=batch))


# --- tables ------------------------------------------------------------------------------------------


def test_the_hash_of_a_table_covers_batches() -> None:
    hashes = {table_hash(table) for table in (TABLE, TABLE.drop(columns="batch"), TABLE.assign(batch=4))}
    assert len(hashes) == 3


def test_tables_without_batches_keep_their_hash() -> None:
    rows = tiled_table((256,), tiles=(8,)).assign(runtime_ms=1.0, power_w=100.0, energy_mj=100.0)
    assert table_hash(rows) == table_hash(rows.assign(batch=1)) == table_hash(rows.assign(batch=None)) == OF_ONE_ROW


def test_other_batches_are_other_configurations() -> None:
    assert len(configurations(TABLE)) == len(TABLE)
    mixed = TABLE.assign(batch=TABLE["batch"].where(TABLE["batch"] > 1))
    pd.testing.assert_frame_equal(configurations(mixed), configurations(TABLE))


def test_another_batch_is_another_problem_of_a_test_set() -> None:
    one, four = (TABLE[TABLE["batch"] == batch] for batch in (1, 4))
    check_apart(one, four)
    check_apart(one.drop(columns="batch"), four)
    with pytest.raises(TestRowsInTraining, match=r"60 problems .* such as \d+x\d+x\d+ f16 nn batch=4"):
        check_apart(TABLE, four)
    with pytest.raises(TestRowsInTraining, match=r"60 problems .* f16 nn\. A model"):
        check_apart(TABLE, one.drop(columns="batch"))


def test_kernels_are_chosen_within_a_batch() -> None:
    """Each batch of a shape is a problem with four kernels, and not all are one with eight."""
    parts = [batched_table((1, 8), shapes=20).assign(parameters=[{"algorithm": number}] * 40) for number in range(4)]
    configured = configurations(pd.concat(parts))
    found, _ = evaluate_on(fit(BATCHED_TYPE, configured, SMALL), configured)
    assert found["runtime_ms"]["choose_problems"] == 40


def test_the_largest_tenth_is_by_the_operations_of_whole_batches() -> None:
    rows = pd.DataFrame({"m": 64, "n": 64, "k": 64, "batch": range(1, 21)})
    ((_, held_out),) = by_size(rows)
    assert rows["batch"][held_out].tolist() == [19, 20]


def test_measuring_a_batch_costs_as_its_operations_do() -> None:
    measured = configurations(TABLE)
    cost = measuring_cost(measured.assign(cost_s=measured["batch"].astype("float64")), measured)
    assert np.corrcoef(np.log(cost), np.log(measured["batch"]))[0, 1] > 0.5


def card(table: pd.DataFrame) -> str:
    learned = Learned(configurations(table), {HEADLINE: {}})
    return model_card(TableFacts.of(table, BATCHED_TYPE), table, learned, unsound("x"), code_version="1")


def test_the_card_of_a_model_says_which_batches_it_knows() -> None:
    batched, alone = card(TABLE), card(TABLE[TABLE["batch"] == 1])
    assert re.search(r"k \d+ to [\d,]+, batch 1 to 64\)", batched)
    assert "in batches: it has learned from batches of cublaslt with f16:f16:f32 alone." in batched
    assert ", batch" not in alone
    assert "in batches: it has learned from no batches." in alone
