"""The energies of operations and bytes, and how they are found again in powers that they gave."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.forest.energy import Energies
from farm.forest.numeric import Floats
from farm.forest.predictor import Predictor
from farm.forest.timing import Timing
from support.timing_tables import H200, seen, table
from trainer.energy import MIN_ROWS, fit_energies
from trainer.forest import ForestSettings, fit

SHAPES = list(itertools.product((1, 20, 180, 1400, 4096), (33, 512, 3000), (16, 700, 4096)))
TRUE = Energies(card_w=90.0, busy_w=60.0, memory_pj=110.0, l2_pj={"tiled": 50.0}, operation_pj={"tiled, 4": 9.0})


def drawn(frame: pd.DataFrame, runtime_ms: Floats) -> Floats:
    return TRUE.power_w(seen(frame, Timing.none()).efforts, runtime_ms, replace(H200, power_w=np.inf))


def times(frame: pd.DataFrame) -> Floats:
    """Two to five times what physics asks for."""
    wanted = seen(frame, Timing.none()).reference_ms
    return wanted * np.random.default_rng(1).uniform(2.0, 5.0, len(frame))


def test_energies_are_found_again_in_the_powers_that_they_gave() -> None:
    frame = table(SHAPES)
    runtime_ms = times(frame)
    power_w = drawn(frame, runtime_ms)
    found = fit_energies(seen(frame, Timing.none()).efforts, runtime_ms, power_w, replace(H200, power_w=np.inf))
    assert found is not None
    assert found.card_w == pytest.approx(TRUE.card_w, rel=1e-6)
    assert found.busy_w == pytest.approx(TRUE.busy_w, rel=1e-6)
    assert found.memory_pj == pytest.approx(TRUE.memory_pj, rel=1e-6)
    assert found.l2_pj == pytest.approx(TRUE.l2_pj, rel=1e-6)
    assert found.operation_pj == pytest.approx(TRUE.operation_pj, rel=1e-6)


def test_a_card_at_its_limit_says_only_that_a_row_draws_that_much() -> None:
    frame = table(SHAPES)
    runtime_ms = times(frame)
    power_w = drawn(frame, runtime_ms)
    card = replace(H200, power_w=float(np.quantile(power_w, 0.7)))
    efforts = seen(frame, Timing.none()).efforts
    found = fit_energies(efforts, runtime_ms, np.minimum(power_w, card.power_w), card)
    assert found is not None
    assert found.operation_pj["tiled, 4"] == pytest.approx(9.0, rel=0.05)
    assert found.power_w(efforts, runtime_ms, card).max() == card.power_w


def test_few_rows_with_power_have_no_energies() -> None:
    frame = table(SHAPES)
    runtime_ms = times(frame)
    power_w = drawn(frame, runtime_ms)
    power_w[MIN_ROWS - 1 :] = np.nan
    assert fit_energies(seen(frame, Timing.none()).efforts, runtime_ms, power_w, H200) is None


def test_a_model_foretells_power_beyond_what_it_was_taught_and_keeps_its_energies(tmp_path: Path) -> None:
    frame = table(SHAPES)
    frame["runtime_ms"] = times(frame)
    frame["power_w"] = drawn(frame, frame["runtime_ms"].to_numpy())
    frame["energy_mj"] = frame["power_w"] * frame["runtime_ms"]
    light = frame[frame["power_w"] < frame["power_w"].quantile(0.9)]
    model = fit("nvidia-h200", light, ForestSettings(trees=4))
    model.save(tmp_path / "forest")
    stored = Predictor.load(tmp_path / "forest")
    assert stored.energies == model.energies
    heavy = frame[frame["power_w"] >= frame["power_w"].quantile(0.95)]
    asked = {name: heavy[name].to_numpy() for name in ("m", "n", "k", "ab", "family", "tile")}
    foretold = stored.predicted(asked)["power_w"]
    assert foretold.max() > light["power_w"].max()
    assert foretold.max() <= H200.power_w
