"""Weights of fewer bits: what models learn of them, and that models without them stay what they were."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from farm.errors import NotPredictable
from farm.forest.physics import Work, load_bytes
from farm.forest.predictor import Predictor
from farm.gpus import find_gpu
from farm.kernels import Configuration
from farm.registry import predict
from farm.registry.loaded_model import Model
from support.old_models import as_format
from support.training_tables import BATCHED_TYPE, kinds_table
from trainer.cards import card_of_gpu
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, vocabulary_of

SMALL = ForestSettings(trees=16)
KIND = "scale=none:1x128"


def one(shape: str, types: str, kind: str = "") -> Configuration:
    return Configuration.parse(f"cublaslt() {shape} {types} nt {kind}")


def both_tables() -> pd.DataFrame:
    return pd.concat([kinds_table([""], types="f16"), kinds_table([KIND], types="f16i4")], ignore_index=True)


def test_they_are_types_of_their_own_and_are_predicted_by_their_bytes() -> None:
    model = Model(fit(BATCHED_TYPE, configurations(both_tables()), SMALL))
    wide, narrow = predict(model, [one("64x2048x2048", "f16"), one("64x2048x2048", "f16i4", KIND)])
    assert narrow.runtime_ms < wide.runtime_ms
    alone = Model(fit(BATCHED_TYPE, configurations(kinds_table([""], types="f16")), SMALL))
    with pytest.raises(NotPredictable, match=f"not on f16i4:f16:f32 {KIND} in nt"):
        predict(alone, [one("64x2048x2048", "f16i4", KIND)])


def test_traffic_is_that_of_the_problem_and_computing_that_of_a(tmp_path: Path) -> None:
    gpu = find_gpu("nvidia-h100")
    assert gpu is not None
    lines = [
        one("127x130x66", "f16"),
        one("127x130x66", "f16i4", KIND),
        one("127x130x66", "bf16i8", "scale=none:row"),
        one("512x256x128", "bf16f4", "batch=3 fused=bias scale=none:1x32"),
        one("100x256x128", "f16f4", "groups=60,0,40 scale=none:1x64"),
    ]
    rows = pd.DataFrame([line.columns() | {"runtime_ms": 1.0, "power_w": None} for line in lines])
    vocabulary = vocabulary_of(configurations(both_tables()))
    read = vocabulary.read(rows.drop(columns="parameters"))
    work = Work.of(read, card_of_gpu(BATCHED_TYPE, gpu))
    assert work.bytes.tolist() == [float(line.problem.bytes) for line in lines]
    assert work.compute_ms[0] == work.compute_ms[1]
    assert load_bytes(read)[:2, :2].tolist() == [[4, 4], [4, 1]]


def test_versions_of_before_answer_as_before_and_refuse_them(tmp_path: Path) -> None:
    model = fit(BATCHED_TYPE, configurations(kinds_table([""], types="f16")), SMALL)
    assert "fewer_bytes_b" not in model.features
    model.save(tmp_path)
    rows = configurations(kinds_table([""], types="f16", seed=4))
    for number in (9, 8):
        as_format(tmp_path, number)
        old = Predictor.load(tmp_path)
        pd.testing.assert_frame_equal(old.predict(rows), model.predict(rows), check_exact=True)
    with pytest.raises(ValueError, match="f16i4"):
        old.predict(rows.iloc[:1].assign(ab="f16i4"))
