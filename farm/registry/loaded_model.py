"""A loaded model: its arrays, read by the predictor that is installed with the farm.

The code stored with a model is for programs without the farm. This module neither imports it nor unpickles anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from farm.errors import ModelUnreadable, NotPredictable, first_line

if TYPE_CHECKING:
    import pandas as pd

    from farm.forest.numeric import Bools
    from farm.forest.predictor import Predictor
    from farm.protocols import Time
    from farm.registry.models import ModelInfo


class Model:
    """A loaded version, for `predict`, `predict_table` and `recommend`."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    @property
    def device_type(self) -> str:
        return self._predictor.device_type

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns that the model reads."""
        return self._predictor.vocabulary.raw_columns

    @cached_property
    def families(self) -> dict[str, Any]:
        """The measured types, layouts, batches and kernels of each family: see `Vocabulary.measured`."""
        return self._predictor.vocabulary.measured()

    @property
    def batches(self) -> str:
        """Of what the model has learned batches, as the end of a sentence."""
        return self._predictor.vocabulary.batches

    def known(self, table: pd.DataFrame) -> Bools:
        """Which rows of a table of raw columns have a family, types, a layout, a batch, scale factors, fused operations, groups and sparsity
        that the model can predict."""
        return self._predictor.known(table)

    def require_time(self, time: Time | None) -> None:
        """Raises `NotPredictable` unless the model knows that time; None is the time of its own rows."""
        predictor = self._predictor
        # Models of older versions do not say which time theirs is.
        own = time in (None, predictor.time) or (time == "settled" and predictor.both_times is None)
        if own or (time == "burst" and predictor.bursts is not None):
            return
        again = f"`farm train {predictor.device_type}`"
        if predictor.both_times is None:
            why = f"an older version of the farm trained it. Train it again: {again}"
        elif predictor.time != "settled":
            why = f"it learned from rows of the protocol {predictor.protocol}, whose times are {predictor.time or 'neither burst nor settled times'}"
        else:
            from farm.forest.burst import BURST_ROWS

            why = (
                f"{predictor.both_times:,} of the configurations that it learned from have a burst time "
                f"(the column runtime_burst_ms), and a model needs {BURST_ROWS}. Measure more by the protocol farm, then run {again}"
            )
        raise NotPredictable(why=f"the model does not know {time} times: {why}.")

    def answers(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        """Output columns of rows of raw columns. Raises `NotPredictable`."""
        # Only the model's columns, in its order.
        names = [name for name in self.raw_columns if any(name in row for row in rows)]
        columns = {name: [row.get(name, math.nan) for row in rows] for name in names}
        try:
            return self._predictor.predicted(columns)
        except ValueError as error:
            raise NotPredictable(why=first_line(error)) from error

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Output columns of a table of raw columns. Raises `NotPredictable`."""
        try:
            return self._predictor.predict(table)
        except ValueError as error:
            raise NotPredictable(why=first_line(error)) from error


def predictor_of(model: ModelInfo, files: Mapping[str, bytes]) -> Predictor:
    """The predictor of a version's arrays. Raises `ModelUnreadable`."""
    from farm.forest.arrays import BadFiles
    from farm.forest.described import READABLE, format_of
    from farm.forest.predictor import DESCRIPTION, Predictor

    try:
        found = format_of(files.get(DESCRIPTION, b""))
        if found not in READABLE:
            formats = f"{READABLE[0]} to {READABLE[-1]}"
            raise BadFiles(
                f"its arrays are of format {found}, and this version of the farm reads the formats {formats}"
            )
        return Predictor.read(files)
    except BadFiles as error:
        made_by = f"version {model.code_version}" if model.code_version else "an unknown version"
        raise ModelUnreadable(name=model.name, version=model.version, made_by=made_by, why=str(error)) from error
