"""A sparse B: what models learn of it, and that models without it stay what they were."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from farm.errors import NotPredictable
from farm.forest.columns import types_text
from farm.forest.physics import Work
from farm.forest.predictor import Predictor
from farm.gpus import find_gpu
from farm.kernels import Configuration
from farm.registry import predict
from farm.registry.loaded_model import Model
from support.old_models import as_format
from support.training_tables import BATCHED_TYPE, kinds_table
from trainer.cards import card_of, card_of_gpu
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, types_of, vocabulary_of
from trainer.table_hash import table_hash

SMALL = ForestSettings(trees=16)
SPARSE = "sparsity=2:4"
FP8 = "f8e4m3:bf16:f32"


def one(shape: str, kind: str) -> Configuration:
    return Configuration.parse(f"cublaslt() {shape} f8e4m3 nt {kind}")


def test_a_sparse_b_is_a_type_of_its_own_and_is_predicted() -> None:
    table = kinds_table(["", SPARSE])
    model = Model(fit(BATCHED_TYPE, configurations(table), SMALL))
    dense, sparse = (one("2048x4096x4096", kind) for kind in ("", SPARSE))
    plain, faster = predict(model, [dense, sparse])
    assert 0.4 < faster.runtime_ms / plain.runtime_ms < 0.7
    alone = Model(fit(BATCHED_TYPE, configurations(kinds_table([""])), SMALL))
    with pytest.raises(NotPredictable, match=f"not on {FP8} {SPARSE} in nt"):
        predict(alone, [sparse])
    assert set(types_of(configurations(table))) == {FP8, types_text("f8e4m3", "bf16", "f32", sparsity="2:4")}


def test_traffic_is_that_of_the_problem_and_computing_takes_half_as_long() -> None:
    gpu = find_gpu("nvidia-h100")
    assert gpu is not None
    lines = [one("127x129x67", SPARSE), one("127x129x67", ""), one("512x256x128", f"batch=3 fused=bias {SPARSE}")]
    rows = pd.DataFrame([line.columns() | {"runtime_ms": 1.0, "power_w": None} for line in lines])
    vocabulary = vocabulary_of(configurations(kinds_table(["", SPARSE, f"fused=bias {SPARSE}"], shapes=2)))
    work = Work.of(vocabulary.read(rows.drop(columns="parameters")), card_of_gpu(BATCHED_TYPE, gpu))
    assert work.bytes.tolist() == [float(line.problem.bytes) for line in lines]
    assert work.compute_ms[0] == work.compute_ms[1] / 2


def test_the_peak_that_rows_of_a_sparse_b_show_is_that_of_a_dense_one() -> None:
    lines = [one("2048x4096x4096", ""), one("2048x4096x4096", SPARSE)]
    rows = pd.DataFrame([line.columns() | {"runtime_ms": ms} for line, ms in zip(lines, (1.0, 0.5), strict=True)])
    vocabulary = vocabulary_of(configurations(kinds_table(["", SPARSE], shapes=2)))
    card = card_of("some-card", rows, vocabulary.read(rows.drop(columns="parameters")))
    assert card.flops_per_ms["f8e4m3"] == lines[0].problem.flops


def test_versions_of_before_answer_as_before_and_refuse_it(tmp_path: Path) -> None:
    table = kinds_table(["", "fused=bias"])
    assert table_hash(table.drop(columns="sparsity")) == table_hash(table)
    model = fit(BATCHED_TYPE, configurations(table), SMALL)
    assert "sparse_b" not in model.features
    model.save(tmp_path)
    as_format(tmp_path, 8)
    old, rows = Predictor.load(tmp_path), configurations(kinds_table(["", "fused=bias"], seed=4))
    pd.testing.assert_frame_equal(old.predict(rows), model.predict(rows), check_exact=True)
    with pytest.raises(ValueError, match=f"not on {FP8} .*{SPARSE} in nt"):
        old.predict(rows.iloc[:1].assign(sparsity="2:4"))
