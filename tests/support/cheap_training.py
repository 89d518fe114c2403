"""Trainings that take a second, for tests of what becomes of their models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trainer import evaluate, folds, learn


@contextmanager
def cheap_trainings() -> Iterator[None]:
    """Two kinds of folds instead of seven and no pictures, inside the block. Decisions are by the first kind alone."""
    with pytest.MonkeyPatch.context() as patched:
        kinds = {kind: folds.FOLD_KINDS[kind] for kind in ("unseen_shapes", "random_rows")}
        patched.setattr(evaluate, "FOLD_KINDS", kinds)
        patched.setattr(learn, "plots", lambda *_: None)
        patched.setattr(learn, "importance_plot", lambda *_: None)
        yield
