"""What a model must beat to be worth anything: predictions that know the shape or the family, but no kernel (pure)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from trainer.model.physics import Roofline
from trainer.promotion import TARGETS
from trainer.table import vocabulary_of

ROOFLINE = "the roofline time times a factor per family"
MEDIAN = "a median per family"


def baselines(configured: pd.DataFrame, fold: pd.Series) -> Mapping[str, pd.DataFrame]:
    """Predictions of the targets of each row, from the rows of other folds alone.

    Of the runtime, `ROOFLINE` says the roofline time times the family's median factor, and `MEDIAN` the family's median
    runtime: where runtimes have nothing to do with shapes, as in a table that was shuffled, the roofline is far off and
    the median is what to beat. Of the power, both say the family's median.
    """
    found = {name: pd.DataFrame(np.nan, configured.index, list(TARGETS)) for name in (ROOFLINE, MEDIAN)}
    for number in fold.dropna().unique():
        training, rows = configured[fold != number], configured[fold == number]
        for target in TARGETS:
            said = rows["family"].map(training.groupby("family")[target].median())
            for each in found.values():
                each.loc[rows.index, target] = said
        found[ROOFLINE].loc[rows.index, "runtime_ms"] = _roofline_times(training, rows)
    return found


def _roofline_times(training: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    element_bytes = vocabulary_of(training).element_bytes
    roofline = Roofline.of(training, training["runtime_ms"], element_bytes)
    factor = (training["runtime_ms"] / roofline.time_ms(training, element_bytes)).groupby(training["family"]).median()
    kinds = zip(rows["family"], rows["ab"], strict=True)
    rows = rows[[ab in roofline.flops_per_ms.get(family, {}) for family, ab in kinds]]
    times: pd.Series = rows["family"].map(factor) * roofline.time_ms(rows, element_bytes)
    return times
