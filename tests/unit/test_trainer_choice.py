"""The kernel that a library chooses: what measurements say of it, and how it is foretold of other products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.forest.choice import CONSTANTS, Choices, sizes_of, time_ms
from farm.forest.features import Seen, see
from farm.forest.numeric import Floats
from farm.forest.physics import Work
from farm.forest.predictor import Predictor
from farm.gpus import find_gpu
from farm.measurement import is_test_row
from trainer.cards import card_of_gpu
from trainer.choice import CHOSEN, chosen, fit_choices
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, vocabulary_of
from trainer.table_hash import table_hash

DATASETS = Path(__file__).parents[2] / "examples" / "datasets"
GPU = find_gpu("nvidia-h200")
assert GPU is not None
H200 = card_of_gpu("nvidia-h200", GPU)
# Rows and columns of a tile, and blocks that a multiprocessor holds.
TILES = np.array([(64, 8, 4), (128, 64, 2), (256, 128, 1)], "float64").T[:, :, None]
# Far from what is supposed: a step takes five times as long, and issuing twice.
TRUE = np.array(list(CONSTANTS.values()))[:, None, None] * np.array([5, 2, 3, 1.2, 2, 2, 1])[:, None, None]


def library(seed: int, rows: int = 400) -> pd.DataFrame:
    """Measurements of a library that takes the fastest of three kernels, with k whole or cut so that the blocks fill the card."""
    draw = np.random.default_rng(seed)
    m, n, k = (2 ** draw.uniform(5, 12, (3, rows))).astype("int64") // 8 * 8
    usual = {"ab": "f16", "cd": "f16", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0, "family": "cublaslt"}
    usual |= {"device_type": "nvidia-h200", "source": "measured"}
    table = pd.DataFrame({"m": m, "n": n, "k": k, "parameters": [{"algorithm": 0}] * rows}).assign(**usual)
    table = table.drop_duplicates(["m", "n", "k"]).assign(runtime_ms=1.0, power_w=np.nan, energy_mj=np.nan)
    sizes = _sizes(table)[:, None]
    of = np.vstack([np.broadcast_to(part, (len(part), 3, len(table))) for part in (TILES, TRUE)])
    blocks = np.ceil(sizes[0] / TILES[0]) * np.ceil(sizes[1] / TILES[1])
    filling = np.clip(np.floor(H200.multiprocessors * TILES[2] / blocks), 1, np.maximum(sizes[2] // 32, 1))
    every = np.array([np.ones_like(filling), filling]).reshape(6, -1)
    times = np.array([time_ms(of, sizes, cut, H200) for cut in every.reshape(2, 3, -1)]).reshape(6, -1)
    best = times.argmin(axis=0)
    details = []
    for row, which in enumerate(best):
        tile_m, tile_n, resident = TILES[:, which % 3, 0]
        waves = blocks[which % 3, row] * every[which, row] / (H200.multiprocessors * resident)
        # The library's matrices lie the other way round.
        kernel = {"tile": f"{tile_n:.0f}x{tile_m:.0f}", "split_k": int(every[which, row]), "algorithm_id": 66}
        details.append({**kernel, "waves": waves, "power_samples_w": 500.0 + row})
    return table.assign(runtime_ms=times.min(axis=0), details=details)


def _sizes(table: pd.DataFrame) -> Floats:
    rows = vocabulary_of(configurations(table)).complete(table.drop(columns="parameters"))
    return sizes_of(rows, Work.of(rows, H200))


def learned(table: pd.DataFrame) -> Choices:
    configured = configurations(table)
    rows = vocabulary_of(configured).complete(configured)
    return fit_choices(configured, rows, configured["runtime_ms"].to_numpy("float64"), H200)


def seen(table: pd.DataFrame, choices: Choices) -> Seen:
    configured = configurations(table)
    vocabulary = vocabulary_of(configured)
    return see(vocabulary.complete(configured), vocabulary, H200, choices=choices)


def off(table: pd.DataFrame, choices: Choices) -> float:
    measured = configurations(table)["runtime_ms"].to_numpy("float64")
    return float(np.abs(np.log(seen(table, choices).reference_ms / measured)).mean())


def test_the_time_of_the_kernel_that_a_library_chooses_is_foretold_of_other_shapes() -> None:
    measured, asked = library(1), library(2)
    assert off(asked, learned(measured)) < 0.02
    assert off(asked, Choices.none()) > 0.3
    foretold = seen(asked, learned(measured)).plain
    told = np.array([chosen(each)[0] for each in configurations(asked).merge(asked, on=["m", "n", "k"])["details"]])
    assert np.mean(foretold["log2_choice_columns"] == told) > 0.95


def test_without_what_was_chosen_the_roofline_stands() -> None:
    measured = library(1)
    for silent in (measured.drop(columns="details"), measured.assign(details=None), measured.head(20)):
        assert not learned(silent)
    assert np.isnan(seen(measured, Choices.none()).plain["log2_choice_time"]).all()


def test_rows_that_do_not_say_what_was_chosen_are_learned_from_with_those_that_do() -> None:
    measured = library(1)
    half = measured.assign(details=[each if row % 2 else None for row, each in enumerate(measured["details"])])
    model = fit("nvidia-h200", configurations(half), ForestSettings(trees=6))
    assert model.choices
    asked = library(3, 100)
    predicted = model.predict(asked.drop(columns=["parameters", "details"]))["runtime_ms"]
    assert np.median(np.abs(np.log(predicted / asked["runtime_ms"]))) < 0.1


@pytest.mark.parametrize(
    ("details", "says"),
    [
        ({"tile": "64x72", "split_k": 3, "waves": 0.5, "algorithm_id": 66}, (64, 72, 3, 0.5, 66)),
        ('{"tile": "64x72", "split_k": 3, "waves": 0.5, "algorithm_id": 66}', (64, 72, 3, 0.5, 66)),
        ({"tile": "undefined", "split_k": 1, "algorithm_id": 13}, (np.nan, np.nan, 1, np.nan, 13)),
        (None, (np.nan,) * 5),
        (np.nan, (np.nan,) * 5),
        ("", (np.nan,) * 5),
    ],
)
def test_what_details_say(details: Any, says: tuple[float, ...]) -> None:
    assert np.array_equal(chosen(details), says, equal_nan=True)


def test_the_hash_covers_the_choice_and_no_other_details() -> None:
    table = library(1, 5)
    as_text = table.assign(details=[json.dumps(each) for each in table["details"]])
    cooler = table.assign(details=[{**each, "power_samples_w": 1.0} for each in table["details"]])
    other = table.assign(details=[{**each, "split_k": 2} for each in table["details"]])
    silent = table.drop(columns="details")
    assert table_hash(table) == table_hash(as_text) == table_hash(cooler)
    assert len({table_hash(each) for each in (table, other, silent)}) == 3
    assert table_hash(silent) == table_hash(table.assign(details=None))


def test_a_stored_model_foretells_as_before(tmp_path: Path) -> None:
    measured = library(1)
    model = fit("nvidia-h200", configurations(measured), ForestSettings(trees=3))
    model.save(tmp_path)
    again = Predictor.load(tmp_path)
    assert again.choices
    asked = measured.drop(columns=["parameters", "details"]).head(9)
    assert again.predict(asked).equals(model.predict(asked))


def test_the_first_repeat_says_what_was_chosen() -> None:
    table = library(1, 3)
    row = configurations(pd.concat([table.head(1).assign(details=None), table.head(1), table.head(1)]))
    assert row["repeats"].tolist() == [3]
    assert tuple(row[list(CHOSEN)].to_numpy()[0]) == chosen(table["details"].iloc[0])


def test_one_more_row_of_a_does_not_make_the_library_much_faster() -> None:
    """Of m = 1000 and 1001 in f32. Where A is transposed, m is how far its columns lie apart: single problems scatter more there."""
    datasets = (DATASETS / f"nvidia-h200-{name}.parquet" for name in ("domain", "learn-quickstart", "learn-domain"))
    only = [("family", "==", "cublaslt"), ("ab", "==", "f32")]
    measured = pd.concat([pd.read_parquet(path, filters=only) for path in datasets])
    learned = measured[[not is_test_row(json.loads(details)) for details in measured["details"]]]
    model = fit("nvidia-h200", configurations(learned), ForestSettings())
    asked = pd.DataFrame(
        [
            {"m": m, "n": n, "k": k, "ab": "f32", "family": "cublaslt", "layout": layout}
            for layout in ("nn", "nt", "tn", "tt")
            for n in (256, 512, 1000, 1024, 2048, 4096, 8192, 11008, 14336)
            for k in (256, 512, 1024, 2048, 4096, 8192, 16384)
            for m in (1000, 1001)
        ]
    )
    before, after = model.predict(asked)["runtime_ms"].to_numpy().reshape(4, -1, 2).transpose(2, 0, 1)
    change = after / before - 1
    assert change[:2].min() > -0.05
    assert change.mean(axis=1).min() > -0.05
