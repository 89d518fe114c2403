"""Predictions of a loaded model for configurations or a table of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import BadInput, BadKernelParameter, MissingColumns, NotPredictable, TooManyColumns
from farm.kernels import FAMILIES, Configuration
from farm.memory_limit import READING_BYTES, MemoryBound
from farm.registry.loaded_model import Model
from farm.registry.mlflow_client import first_line
from farm.registry.outputs import OUTPUTS

if TYPE_CHECKING:
    import pandas as pd

    from farm.protocols import Time

BOUNDS = tuple(f"{output}_{bound}" for output in OUTPUTS for bound in ("low", "high"))
"""Bounds of a measurement in nine of ten cases; NaN where a model had too few rows to calibrate."""

OUTSIDE = "outside"
"""The reason why a configuration is outside the measured range; empty inside."""

DISTANCE = "distance_octaves"
"""Distance from a configuration's problem to the nearest measured one of its family and types."""

TIME_COLUMNS: Mapping[str | None, str] = {None: "runtime_ms", "settled": "runtime_ms", "burst": "runtime_burst_ms"}
"""The predicted column of a time, in models that know it: see `Model.require_time`."""

ANSWERS = (*OUTPUTS, *BOUNDS, DISTANCE, OUTSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A prediction for one configuration. Power and energy are None without a learned power, the burst time without a learned one,
    and bounds without calibration; see `BOUNDS`, `DISTANCE` and `OUTSIDE`. `farm.registry.outputs` defines each."""

    configuration: str
    runtime_ms: float
    power_w: float | None
    energy_mj: float | None
    tflops: float
    runtime_burst_ms: float | None = None
    runtime_ms_low: float | None = None
    runtime_ms_high: float | None = None
    power_w_low: float | None = None
    power_w_high: float | None = None
    energy_mj_low: float | None = None
    energy_mj_high: float | None = None
    tflops_low: float | None = None
    tflops_high: float | None = None
    runtime_burst_ms_low: float | None = None
    runtime_burst_ms_high: float | None = None
    distance_octaves: float | None = None
    outside: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def at(self, time: Time | None) -> PredictedTime | None:
        """One of both times with its bounds and rate; None where it is not known. Without a time, that of the model's own rows."""
        name = TIME_COLUMNS[time]
        ms = getattr(self, name)
        if ms is None:
            return None
        low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
        return PredictedTime(ms=ms, low=low, high=high, tflops=self.tflops * self.runtime_ms / ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
    """A predicted time in ms, and the rate that follows from it."""

    ms: float
    low: float | None
    high: float | None
    tflops: float


def predict(model: Model, configurations: Sequence[Configuration], *, time: Time | None = None) -> list[Prediction]:
    """Predicts each configuration. Raises `NotPredictable` with what the model knows of the family, and where it does not know that
    time."""
    model.require_time(time)
    if not configurations:
        return []
    rows = [raw_columns(each) for each in configurations]
    columns = model.answers(rows)
    for row, ms in zip(rows, columns[TIME_COLUMNS[time]], strict=True):
        if math.isnan(ms):
            raise NotPredictable(why=_unknown_time(time, row))
    outputs = [{name: columns[name][i] for name in ANSWERS} for i in range(len(rows))]
    return [
        Prediction(configuration=each.canonical, **_without_gaps(row))
        for each, row in zip(configurations, outputs, strict=True)
    ]


def _unknown_time(time: Time | None, row: Mapping[Any, Any]) -> str:
    types = ":".join(str(row.get(name)) for name in ("ab", "cd", "acc"))
    return f"no {time} time of {row['family']} with {types} was measured"


def predict_table(
    model: Model, table: pd.DataFrame, *, path: str = "the table", time: Time | None = None
) -> pd.DataFrame:
    """The columns of `table` that the model reads, and those of `ANSWERS`.

    Kernel parameters are separate columns, or one column `parameters` of JSON text as in exported results.
    Raises `MissingColumns`, and `NotPredictable` for values that the model has not learned, and where it does not know that time.
    """
    from farm.forest.columns import REQUIRED

    model.require_time(time)

    wide = _spread_parameters(table, path)
    missing = [name for name in REQUIRED if name not in wide]
    if missing:
        raise MissingColumns(path=path, missing=", ".join(missing), found=", ".join(map(str, table.columns)))
    raw = wide[[name for name in model.raw_columns if name in wide]].dropna(axis="columns", how="all")
    _require_single_values(raw, path)
    _check_parameters(raw, path)
    predicted = model.predict(raw)[list(ANSWERS)]
    unknown = predicted.index[predicted[TIME_COLUMNS[time]].isna()]
    if len(unknown):
        why = _unknown_time(time, raw.loc[unknown[0]].to_dict())
        raise NotPredictable(why=f"{path}, row {unknown[0]}: {why}")
    return raw.join(predicted)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as mappings for JSON: missing values are None, never NaN."""
    import pandas as pd

    rows = table.to_dict("records")
    return [{str(name): None if pd.isna(value) else value for name, value in row.items()} for row in rows]


def read_configurations(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file of configurations. Raises `BadInput`."""
    import pandas as pd

    try:
        with MemoryBound():
            if path.suffix.lower() == ".csv":
                return pd.read_csv(path)
            if path.suffix.lower() == ".parquet":
                return pd.read_parquet(path)
    except MemoryError:
        detail = f"{path} cannot be read: it takes more than {READING_BYTES // 2**20:,} MiB of memory"
        raise BadInput(detail=detail) from None
    except (OSError, ValueError) as error:
        raise BadInput(detail=f"{path} cannot be read: {first_line(error)}") from None
    raise BadInput(detail=f"{path} is neither .csv nor .parquet.")


def raw_columns(configuration: Configuration) -> dict[str, Any]:
    """The columns of a configuration that a model reads."""
    columns = configuration.columns()
    parameters = columns.pop("parameters")
    return {**columns, **parameters}


MAX_COLUMNS = 200
"""Limit for the columns of a table to predict. The widest model reads some 60."""


def require_few_columns(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Raises `TooManyColumns`. A table has a column for each key of any row, so differing keys make it huge."""
    names = set[str]()
    for row in rows:
        names.update(row)
        if len(names) > MAX_COLUMNS:
            raise TooManyColumns(path=path, limit=MAX_COLUMNS)


def _spread_parameters(table: pd.DataFrame, path: str) -> pd.DataFrame:
    if "parameters" not in table:
        return table
    import pandas as pd

    try:
        given = [json.loads(value) if isinstance(value, str) else dict(value) for value in table["parameters"]]
    except (ValueError, TypeError) as error:
        raise BadInput(detail=f"{path}: the column parameters contains invalid JSON: {error}") from None
    for row, each in zip(table.index, given, strict=True):
        if not isinstance(each, dict):
            raise BadInput(detail=f'{path}, row {row}: parameters is {each!r}; write an object, as in {{"tile": 16}}.')
    require_few_columns(given, path)
    columns = pd.DataFrame.from_records(given, index=table.index)
    return table.drop(columns=["parameters", *(name for name in columns if name in table)]).join(columns)


def _require_single_values(raw: pd.DataFrame, path: str) -> None:
    """Raises `BadInput` for a list or an object where a number or a text must be."""
    import pandas as pd

    for name in (each for each in raw if pd.api.types.is_object_dtype(raw[each])):
        for row, value in raw[name].items():
            if not pd.api.types.is_scalar(value):
                raise BadInput(detail=f"{path}, row {row}: {name} is {value!r}; it must be a number or a text.")


def _check_parameters(raw: pd.DataFrame, path: str) -> None:
    """Raises `BadKernelParameter` for a value that no kernel of the family has, such as a tile of 0."""
    if "family" not in raw:
        return
    for family, rows in raw.groupby("family", sort=False):
        name = str(family)
        # A family that only the model knows cannot be checked.
        known = FAMILIES[name].parameters if name in FAMILIES else ()
        for parameter in (each for each in known if each.name in rows):
            for row, given in rows[parameter.name].dropna().drop_duplicates().items():
                value = _whole(given)
                if (why := parameter.why_bad(value)) is not None:
                    raise BadKernelParameter(
                        family=name, name=parameter.name, value=value, why=f"{why} ({path}, row {row})"
                    )


def _whole(value: Any) -> object:
    """Whole numbers as int: a column with missing values holds them as floats."""
    return int(float(value)) if isinstance(value, Real) and float(value).is_integer() else value


def _without_gaps(answer: Mapping[Any, Any]) -> dict[str, Any]:
    """Output columns as fields of a `Prediction`: missing numbers are None."""
    return {name: value if name == OUTSIDE else _or_none(value) for name, value in answer.items()}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
