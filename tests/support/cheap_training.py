"""Trainings that take a second, for tests of what becomes of their models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest

from trainer import evaluate, folds, learn, registry
from trainer.forest import ForestSettings
from trainer.learn import Learned, TableFacts

_LEARNED: dict[tuple[Any, ...], tuple[TemporaryDirectory[str], Learned]] = {}
"""What was learned in this process, with its files, by all that decides it."""


@contextmanager
def cheap_trainings() -> Iterator[None]:
    """Two kinds of folds instead of seven, three folds of the first and one of the second, no pictures, and nothing learned twice, inside the block.

    Decisions are by the first kind alone.
    """
    with pytest.MonkeyPatch.context() as patched:
        kinds = {kind: folds.FOLD_KINDS[kind] for kind in ("unseen_shapes", "random_rows")}
        patched.setattr(evaluate, "FOLD_KINDS", kinds)
        patched.setattr(folds, "FOLDS", 3)
        patched.setattr(evaluate, "ENOUGH_ROWS", 1)
        patched.setattr(learn, "plots", lambda *_: None)
        patched.setattr(learn, "importance_plot", lambda *_: None)
        patched.setattr(registry, "learn", _learn_once)
        yield


def _learn_once(
    table: pd.DataFrame, facts: TableFacts, settings: ForestSettings, folder: Path, progress: Any, test: Any
) -> Learned:
    if test is not None:
        return learn.learn(table, facts, settings, folder, progress, test)
    decides = (facts.device_type, facts.table_hash, settings, *evaluate.FOLD_KINDS.items())
    if decides not in _LEARNED:
        kept = TemporaryDirectory(prefix="farm-tests-learned-")
        _LEARNED[decides] = kept, learn.learn(table, facts, settings, Path(kept.name))
    kept, learned = _LEARNED[decides]
    shutil.copytree(kept.name, folder, dirs_exist_ok=True)
    return learned
