"""Reads the values of raw columns, from tables of pandas or mappings of lists. Errors name the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from .numeric import Array, Bools, Floats, stacked
from .text_columns import Text, single

if TYPE_CHECKING:
    import pandas as pd


def is_table(frame: Mapping[str, Any] | pd.DataFrame) -> TypeGuard[pd.DataFrame]:
    """Whether it is a table of pandas. Pandas is not imported for the check, because a caller with a table has imported it."""
    # Not by pandas' own type: another thread may be importing pandas at this moment.
    return not isinstance(frame, Mapping)


def labels_of(frame: Mapping[str, Any] | pd.DataFrame) -> Any:
    """What rows are called in messages; as many as there are."""
    return frame.index if is_table(frame) else range(len(frame["m"]))


def _given(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Any:
    """The unchanged column. Raises ValueError if it has more or fewer values than rows."""
    column = frame[name]
    if len(column) != len(labels):
        raise ValueError(f"{name} has {len(column)} values, for {len(labels)} rows")
    return column


def numbers_in(frame: Mapping[str, Any] | pd.DataFrame, names: Sequence[str], labels: Any) -> Floats:
    """The columns as numbers, [columns, rows]. Raises ValueError where a value is none."""
    if len(labels) == 1:
        # Usually all are numbers, which are found out to be so at once.
        given = np.array([_given(frame, name, labels) for name in names])
        if given.dtype.kind in "iuf":
            return given.astype("float64", copy=False)
    return stacked([_number(frame, name, labels) for name in names], len(labels))


def _number(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Array:
    """The column as numbers. Raises ValueError where a value is none."""
    given = np.asarray(_given(frame, name, labels))
    if given.dtype.kind in "iuf":
        return given
    import pandas as pd

    parsed: Any = pd.to_numeric(pd.Series(given), errors="coerce")
    values: Floats = parsed.to_numpy("float64", na_value=np.nan)
    refuse_where((np.isnan(values) & ~pd.isna(given))[None], frame, [name], labels, "a finite number")
    return values


def refuse_where(
    bad: Bools, frame: Mapping[str, Any] | pd.DataFrame, names: Sequence[str], labels: Any, must: str
) -> None:
    """Raises ValueError where a value is bad, [columns, rows], saying what it must be."""
    if bad.any():
        column, row = np.argwhere(bad)[0].tolist()
        value = np.asarray(frame[names[column]])[row]
        shown = quoted(str(value)) if isinstance(value, str) else value
        raise ValueError(f"row {labels[row]}: {names[column]} is {shown}; it must be {must}")


def quoted(text: str) -> str:
    """In quotes, with at most 60 characters of it: groups may have thousands."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def text_in(
    frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any, usual: Callable[[], Text] | None = None
) -> Text:
    """The column with gaps filled by what is usual."""
    if name not in frame:
        if usual is None:
            raise ValueError(f"row {labels[0]}: {name} is missing")
        return usual()
    given = _given(frame, name, labels)
    if not is_table(frame):
        given = given if isinstance(given, list) else np.asarray(given, dtype=object)
        if len(given) == 1 and isinstance(given[0], str):
            return single(str(given[0]))  # a tenth of the time that the general way takes
    import pandas as pd

    codes, found = pd.factorize(np.asarray(given, dtype=object) if isinstance(given, list) else given)
    values = tuple(str(value) for value in found)
    gaps = codes < 0
    if not gaps.any():
        return Text(codes, values)
    if usual is None:
        raise ValueError(f"row {labels[int(np.argmax(gaps))]}: {name} is missing")
    default = usual()
    return Text(np.where(gaps, default.codes + len(values), codes), (*values, *default.values))


def check_one_of(text: Text, known: Mapping[str, Any], name: str, labels: Any) -> None:
    """Raises ValueError where a text is none of those that the model knows."""
    if not known.keys() >= set(text.values):
        row = int(np.argmin(text.is_in(known)))
        raise ValueError(
            f"row {labels[row]}: {name} is {text.values[text.codes[row]]!r}, which the model has not seen; "
            f"it knows {', '.join(known)}"
        )
