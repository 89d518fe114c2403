"""What a model must beat to be worth anything: predictions that know the shape or the family, but no kernel (pure)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

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
        for time in TIMES:
            found[ROOFLINE].loc[rows.index, time] = _roofline_times(training, rows, time)
    return found


def _roofline_times(training: pd.DataFrame, rows: pd.DataFrame, time: str) -> pd.Series:
    """By the best rates of the training rows, which is all that a roofline of unknown hardware can be made of."""
    card = card_of("", training)
    rows = rows[rows["family"].isin(set(training["family"])) & rows["ab"].isin(set(training["ab"]))]

    def roofline(frame: pd.DataFrame) -> pd.Series:
        work = Work.of(vocabulary_of(training).read(frame), card)
        return pd.Series(np.maximum(work.compute_ms, work.memory_ms), frame.index)

    factor = (training[time] / roofline(training)).groupby(training["family"]).median()
    times: pd.Series = rows["family"].map(factor) * roofline(rows)
    return times
