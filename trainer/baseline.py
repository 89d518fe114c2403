"""What a model must beat to be worth anything: predictions that know the shape or the family, but no kernel (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from farm.forest.completed_rows import Configurations
from farm.forest.physics import Work
from trainer.cards import card_of
from trainer.promotion import TARGETS
from trainer.table import vocabulary_of

ROOFLINE = "the roofline time times a factor per family"
MEDIAN = "a median per family"

TIMES = ("runtime_ms", "runtime_burst_ms")


def baselines(configured: pd.DataFrame, fold: pd.Series) -> Mapping[str, pd.DataFrame]:
    """Predictions of the targets of each row, from the rows of other folds alone.

    For both times, `ROOFLINE` predicts the roofline time times the family's median factor, and `MEDIAN` the family's median
    time: where runtimes have nothing to do with shapes, as in a table that was shuffled, the roofline is far off and
    the median is what to beat. Of the power, both say the family's median.
    """
    found = {name: pd.DataFrame(np.nan, configured.index, list(TARGETS)) for name in (ROOFLINE, MEDIAN)}
    for number in fold.dropna().unique():
        training, rows = configured[fold != number], configured[fold == number]
        for target in TARGETS:
            medians = rows["family"].map(training.groupby("family")[target].median())
            for each in found.values():
                each.loc[rows.index, target] = medians
        for time, predicted in _roofline_times(training, rows).items():
            found[ROOFLINE].loc[rows.index, time] = predicted
    return found


def _roofline_times(training: pd.DataFrame, rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Both times, by the best rates of the training rows, which is all that a roofline of unknown hardware can be made of."""
    vocabulary = vocabulary_of(training)
    known = vocabulary.complete(training)
    card = card_of("", training, known)

    def roofline(completed: Configurations, index: pd.Index[Any]) -> pd.Series:
        work = Work.of(completed, card)
        return pd.Series(np.maximum(work.compute_ms, work.memory_ms), index)

    of_training = roofline(known, training.index)
    rows = rows[rows["family"].isin(set(training["family"])) & rows["ab"].isin(set(training["ab"]))]
    of_rows = roofline(vocabulary.read(rows), rows.index)
    factors = {time: (training[time] / of_training).groupby(training["family"]).median() for time in TIMES}
    return {time: rows["family"].map(factor) * of_rows for time, factor in factors.items()}
