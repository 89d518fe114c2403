"""The raw columns that a model takes, what a model knows about their values, and how gaps are filled.

One row is one configuration. `m, n, k, ab, family` are required. `cd, acc, layout, alpha, beta` have the defaults of
the farm's own configurations. Every kernel parameter is a column; a gap means the default of the row's family, or
nothing where the family has no such parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

REQUIRED = ("m", "n", "k", "ab", "family")
WITH_DEFAULT = ("cd", "acc", "layout", "alpha", "beta")
OUTPUTS = ("runtime_ms", "power_w", "energy_mj", "tflops")

EXTENTS = ("m", "n", "k")
_TEXTS = ("ab", "family", "cd", "acc", "layout")
_LARGEST_EXTENT = 2**31 - 1

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Text:
    """A column of few different texts: `values[codes[row]]`."""

    codes: Array
    values: tuple[str, ...]

    def map(self, of: Callable[[str], float]) -> Floats:
        """A number for each row, by its text."""
        return np.array([of(value) for value in self.values], "float64")[self.codes]

    def is_in(self, wanted: Sequence[str]) -> Bools:
        return np.array([value in wanted for value in self.values], bool)[self.codes]

    def __add__(self, other: Text | str) -> Text:
        if isinstance(other, str):
            return Text(self.codes, tuple(value + other for value in self.values))
        if len(self.codes) == 1:
            return _single(self.values[self.codes[0]] + other.values[other.codes[0]])
        width = max(1, len(other.values))
        codes, both = pd.factorize(self.codes * width + other.codes)
        return Text(codes, tuple(self.values[pair // width] + other.values[pair % width] for pair in both.tolist()))


def _single(value: str) -> Text:
    """A column of one row."""
    return Text(np.zeros(1, "int64"), (value,))


@dataclass(frozen=True)
class Configurations:
    """Completed rows: numbers as float64 [rows], NaN where a family has no such parameter; texts without gaps."""

    numbers: Mapping[str, Floats]
    texts: Mapping[str, Text]

    def __len__(self) -> int:
        return len(self.numbers["m"])

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def parameter(self, name: str) -> Floats:
        """A kernel parameter, all NaN where no row can have it."""
        return self.numbers[name] if name in self.numbers else np.full(len(self), np.nan)


@dataclass(frozen=True)
class FamilyKnowledge:
    """What the training table holds of one kernel family."""

    # Parameter -> the value that stands for a gap.
    parameters: Mapping[str, float]
    # Element types that were measured, as "ab:cd:acc" -> the layouts that they were measured in.
    layouts: Mapping[str, tuple[str, ...]]
    # Number column, or `flops` -> its least and its greatest value.
    ranges: Mapping[str, tuple[float, float]]
    # The kernels that were measured: values in the order of `parameters`.
    kernels: tuple[tuple[float, ...], ...]
    # The types of which power was measured.
    powered: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(f"{types} in {', '.join(layouts)}" for types, layouts in self.layouts.items())


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
            name: FamilyKnowledge(
                known["parameters"],
                {types: tuple(layouts) for types, layouts in known["layouts"].items()},
                {column: (low, high) for column, (low, high) in known["ranges"].items()},
                tuple(tuple(kernel) for kernel in known["kernels"]),
                tuple(known["powered"]),
            )
            for name, known in data["families"].items()
        }
        usual = {ab: (cd, acc) for ab, (cd, acc) in data["usual_output"].items()}
        return cls(families, tuple(data["parameters"]), data["element_bytes"], usual)

    def known(self, rows: Configurations) -> Bools:
        """Which rows have only values of family, types and layout that were measured together."""
        kinds, known = types_of(rows) + " " + rows.texts["layout"], np.zeros(len(rows), dtype=bool)
        for name, family in self.families.items():
            measured = [f"{types} {layout}" for types, layouts in family.layouts.items() for layout in layouts]
            known |= rows.texts["family"].is_in([name]) & kinds.is_in(measured)
        return known

    def powered(self, rows: Configurations) -> Bools:
        """Which rows have a family and types of which power was measured."""
        types, found = types_of(rows), np.zeros(len(rows), dtype=bool)
        for name, family in self.families.items():
            found |= rows.texts["family"].is_in([name]) & types.is_in(family.powered)
        return found

    def outside(self, rows: Configurations, flops: Floats) -> list[str]:
        """For each row what lies outside of what was measured of its family: columns, as in `m, tile`, and `kernel` where no
        kernel with all these values was; or nothing."""
        columns = (*EXTENTS, "flops", *self.parameters, "kernel")
        code = np.zeros(len(rows), dtype="int64")
        for name, family in self.families.items():
            here = rows.texts["family"].is_in([name])
            kernels = _keys(np.array(family.kernels, "float64").reshape(len(family.kernels), -1))
            own = _keys(np.column_stack([rows[parameter] for parameter in family.parameters]))
            code |= (here & ~np.isin(own, kernels)).astype("int64") << (len(columns) - 1)
            for bit, column in enumerate(columns):
                if column not in family.ranges:
                    continue
                low, high = family.ranges[column]
                value = flops if column == "flops" else rows[column]
                code |= (here & ((value < low) | (value > high))).astype("int64") << bit
        distinct, which = np.unique(code, return_inverse=True)
        said = [
            ", ".join(column for bit, column in enumerate(columns) if value >> bit & 1) for value in distinct.tolist()
        ]
        return [said[index] for index in which.tolist()]

    def complete(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """The raw columns of `frame`, checked, with gaps filled.

        Raises ValueError naming the row, the column, and what the model knows.
        """
        rows = self.read(frame)
        self._check_known(rows, _labels(frame, len(rows)))
        return rows

    def read(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """As `complete`, of rows whose family, types and layout need not have been measured together."""
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            raise ValueError(f"the columns {', '.join(missing)} are missing; the model needs {', '.join(REQUIRED)}")
        labels = _labels(frame, len(frame["m"]))
        numbers = {name: _extent(frame, name, labels) for name in EXTENTS}
        texts = {name: _text(frame, name, labels, None) for name in ("ab", "family")}
        _check_one_of(texts["family"], tuple(self.families), "family", labels)
        _check_one_of(texts["ab"], tuple(self.usual_output), "ab", labels)
        for position, name in enumerate(("cd", "acc")):
            usual = Text(texts["ab"].codes, tuple(self.usual_output[ab][position] for ab in texts["ab"].values))
            texts[name] = _text(frame, name, labels, usual)
        texts["layout"] = _text(frame, "layout", labels, Text(np.zeros(len(labels), "int64"), ("nn",)))
        for name, number in (("alpha", 1.0), ("beta", 0.0)):
            given = _number(frame, name, labels)
            numbers[name] = np.where(np.isnan(given), number, given)
        for name in self.parameters:
            numbers[name] = self._parameter(frame, texts["family"], name, labels)
        return Configurations(numbers, texts)

    def _parameter(self, frame: Mapping[str, Any] | pd.DataFrame, family: Text, name: str, labels: Any) -> Floats:
        default = family.map(lambda value: self.families[value].parameters.get(name, np.nan))
        if name not in frame:
            return default
        given = _number(frame, name, labels)
        idle = ~np.isnan(given) & np.isnan(default)
        if idle.any():
            row = int(np.argmax(idle))
            which = family.values[family.codes[row]]
            has = ", ".join(self.families[which].parameters) or "none"
            raise ValueError(
                f"row {labels[row]}: {which} has no parameter {name}, yet the row says {given[row]:g}; it has: {has}"
            )
        return np.where(np.isnan(given), default, given)

    def _check_known(self, rows: Configurations, labels: Any) -> None:
        strange = ~self.known(rows)
        if not strange.any():
            return
        row = int(np.argmax(strange))
        said = {name: text.values[text.codes[row]] for name, text in rows.texts.items()}
        family = self.families[said["family"]]
        raise ValueError(
            f"row {labels[row]}: the model was trained on {said['family']} with {family}, "
            f"not on {said['ab']}:{said['cd']}:{said['acc']} in {said['layout']}; measure such configurations first"
        )


def _keys(parameters: Floats) -> Array:
    """One number for each row of whole numbers, different for different rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        key = np.zeros(len(parameters), "uint64")
        for column in parameters.T:
            key = key * np.uint64(_KEY) + np.nan_to_num(column, nan=-1.0).astype("int64").astype("uint64")
    return key


_KEY = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


def types_of(rows: Configurations) -> Text:
    """The element types of each row, as "ab:cd:acc"."""
    return rows.texts["ab"] + ":" + rows.texts["cd"] + ":" + rows.texts["acc"]


def _labels(frame: Mapping[str, Any] | pd.DataFrame, rows: int) -> Any:
    """What rows are called in messages."""
    return frame.index if isinstance(frame, pd.DataFrame) else range(rows)


def _given(frame: Mapping[str, Any] | pd.DataFrame, name: str) -> Array:
    column = frame[name]
    return column.to_numpy() if isinstance(column, pd.Series) else np.asarray(column)


def _number(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Floats:
    """The column as float64, all NaN where it is absent. Raises ValueError where a value is no number."""
    if name not in frame:
        return np.full(len(labels), np.nan)
    given = _given(frame, name)
    if given.dtype.kind in "iuf":
        values = given.astype("float64")
        bad = np.isinf(values)
    else:
        parsed: Any = pd.to_numeric(pd.Series(given), errors="coerce")
        values = parsed.to_numpy("float64", na_value=np.nan)
        bad = (np.isnan(values) & ~pd.isna(given)) | np.isinf(values)
    if bad.any():
        row = int(np.argmax(bad))
        shown = repr(given[row]) if isinstance(given[row], str) else given[row]
        raise ValueError(f"row {labels[row]}: {name} is {shown}; it must be a finite number")
    return values


def _extent(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Floats:
    values = _number(frame, name, labels)
    with np.errstate(invalid="ignore"):
        bad = ~((values >= 1) & (values <= _LARGEST_EXTENT) & (values == np.floor(values)))
    if bad.any():
        row = int(np.argmax(bad))
        value = _given(frame, name)[row]
        raise ValueError(f"row {labels[row]}: {name} is {value}; it must be a whole number from 1 to {_LARGEST_EXTENT}")
    return values


def _text(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any, default: Text | None) -> Text:
    if name not in frame:
        if default is None:
            raise ValueError(f"row {labels[0]}: {name} is missing")
        return default
    given = _given(frame, name)
    if len(given) == 1 and isinstance(given[0], str):
        return _single(str(given[0]))  # a tenth of the time that the general way takes
    codes, found = pd.factorize(np.asarray(given, dtype=object))
    values = tuple(str(value) for value in found)
    gaps = codes < 0
    if not gaps.any():
        return Text(codes, values)
    if default is None:
        raise ValueError(f"row {labels[int(np.argmax(gaps))]}: {name} is missing")
    return Text(np.where(gaps, default.codes + len(values), codes), (*values, *default.values))


def _check_one_of(text: Text, known: tuple[str, ...], name: str, labels: Any) -> None:
    strange = ~text.is_in(known)
    if strange.any():
        row = int(np.argmax(strange))
        raise ValueError(
            f"row {labels[row]}: {name} is {text.values[text.codes[row]]!r}, which the model has not seen; "
            f"it knows {', '.join(known)}"
        )
