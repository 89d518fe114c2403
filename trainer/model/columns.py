"""The raw columns that a model takes, what a model knows about their values, and how gaps are filled.

One row is one configuration. `m, n, k, ab, family` are required. `cd, acc, layout, alpha, beta` have the defaults of
the farm's own configurations. Every kernel parameter is a column; a gap means the default of the row's family, or
nothing where the family has no such parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

REQUIRED = ("m", "n", "k", "ab", "family")
WITH_DEFAULT = ("cd", "acc", "layout", "alpha", "beta")
OUTPUTS = ("runtime_ms", "power_w", "energy_mj", "tflops")

_EXTENTS = ("m", "n", "k")
_TEXTS = ("ab", "family", "cd", "acc", "layout")
_LARGEST_EXTENT = 2**31 - 1


@dataclass(frozen=True)
class FamilyKnowledge:
    """What the training table holds of one kernel family."""

    # Parameter -> the value that stands for a gap.
    parameters: Mapping[str, float]
    # Element types as "ab:cd:acc", and layouts, that were measured.
    types: tuple[str, ...]
    layouts: tuple[str, ...]


@dataclass(frozen=True)
class Vocabulary:
    """Every value of a text column that a model can be asked about, and the columns of its interface."""

    families: Mapping[str, FamilyKnowledge]
    # Every kernel parameter of every family, trained or not: the columns of the interface.
    parameters: tuple[str, ...]
    element_bytes: Mapping[str, int]
    # ab -> (cd, acc) that usually go with it: the defaults of those columns.
    usual_output: Mapping[str, tuple[str, str]]

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Every column that a model reads, in the order of its signature."""
        return (*REQUIRED, *WITH_DEFAULT, *self.parameters)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vocabulary:
        families = {
            name: FamilyKnowledge(known["parameters"], tuple(known["types"]), tuple(known["layouts"]))
            for name, known in data["families"].items()
        }
        usual = {ab: (cd, acc) for ab, (cd, acc) in data["usual_output"].items()}
        return cls(families, tuple(data["parameters"]), data["element_bytes"], usual)

    def known(self, frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of a completed frame have only values of family, types and layout that were measured together."""
        types = _types(frame)
        known = np.zeros(len(frame), dtype=bool)
        for name, family in self.families.items():
            known |= (frame["family"] == name) & types.isin(family.types) & frame["layout"].isin(family.layouts)
        return known

    def complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The raw columns of `frame`, checked, with gaps filled: numbers as float64, texts as str.

        Raises ValueError naming the row, the column, and what the model knows.
        """
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            raise ValueError(f"the columns {', '.join(missing)} are missing; the model needs {', '.join(REQUIRED)}")
        done = pd.DataFrame(index=frame.index)
        for name in _EXTENTS:
            done[name] = _extent(frame, name)
        for name in ("ab", "family"):
            done[name] = _text(frame, name, None)
        _check_one_of(done["family"], tuple(self.families), "family")
        _check_one_of(done["ab"], tuple(self.usual_output), "ab")
        for position, name in enumerate(("cd", "acc")):
            default = done["ab"].map({ab: outputs[position] for ab, outputs in self.usual_output.items()})
            done[name] = _text(frame, name, default)
        done["layout"] = _text(frame, "layout", pd.Series("nn", index=frame.index))
        for name, number in (("alpha", 1.0), ("beta", 0.0)):
            done[name] = _number(frame, name).fillna(number)
        for name in self.parameters:
            done[name] = self._parameter(frame, done["family"], name)
        self._check_known(done)
        return done[list(self.raw_columns)]

    def _parameter(self, frame: pd.DataFrame, families: pd.Series, name: str) -> pd.Series:
        given = _number(frame, name)
        defaults = {family: known.parameters.get(name, np.nan) for family, known in self.families.items()}
        default = families.map(defaults).astype("float64")
        idle = given.notna() & default.isna()
        if idle.any():
            row, family = _first(idle), families[idle].iloc[0]
            has = ", ".join(self.families[family].parameters) or "none"
            raise ValueError(
                f"row {row}: {family} has no parameter {name}, yet the row says {given[idle].iloc[0]:g}; it has: {has}"
            )
        return given.fillna(default)

    def _check_known(self, frame: pd.DataFrame) -> None:
        strange = ~self.known(frame)
        if not strange.any():
            return
        row = frame[strange].iloc[0]
        family = self.families[row["family"]]
        raise ValueError(
            f"row {row.name}: the model was trained on {row['family']} with types {', '.join(family.types)} "
            f"and layouts {', '.join(family.layouts)}, not on {row['ab']}:{row['cd']}:{row['acc']} {row['layout']}; "
            "measure such configurations first"
        )


def _types(frame: pd.DataFrame) -> pd.Series:
    return frame["ab"] + ":" + frame["cd"] + ":" + frame["acc"]


def _first(mask: pd.Series) -> Any:
    return mask.index[mask.to_numpy()][0]


def _number(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column as float64, all NaN where it is absent. Raises ValueError where a value is no number."""
    if name not in frame:
        return pd.Series(np.nan, index=frame.index, dtype="float64")
    values = pd.to_numeric(frame[name], errors="coerce").astype("float64")
    bad = (values.isna() & frame[name].notna()) | np.isinf(values)
    if bad.any():
        value = frame[name][bad].iloc[0]
        shown = repr(value) if isinstance(value, str) else value
        raise ValueError(f"row {_first(bad)}: {name} is {shown}; it must be a finite number")
    return values


def _extent(frame: pd.DataFrame, name: str) -> pd.Series:
    values = _number(frame, name)
    bad = ~((values >= 1) & (values <= _LARGEST_EXTENT) & (values == np.floor(values)))
    if bad.any():
        value = frame[name][bad].iloc[0]
        raise ValueError(f"row {_first(bad)}: {name} is {value}; it must be a whole number from 1 to {_LARGEST_EXTENT}")
    return values


def _text(frame: pd.DataFrame, name: str, default: pd.Series | None) -> pd.Series:
    values = frame[name] if name in frame else pd.Series(None, index=frame.index)
    values = values.astype("object")
    gaps = values.isna()
    if default is not None:
        values = values.where(~gaps, default)
    elif gaps.any():
        raise ValueError(f"row {_first(gaps)}: {name} is missing")
    return values.astype(str)


def _check_one_of(values: pd.Series, known: tuple[str, ...], name: str) -> None:
    strange = ~values.isin(known)
    if strange.any():
        value = values[strange].iloc[0]
        raise ValueError(
            f"row {_first(strange)}: {name} is {value!r}, which the model has not seen; it knows {', '.join(known)}"
        )
