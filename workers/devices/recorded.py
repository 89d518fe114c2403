"""A device that answers from a recording: for tests, load and demonstrations. Its rows are labelled `recorded`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from farm.devices import Backend, DeviceIdentity
from farm.errors import BadRecording, FarmError, InvalidOnDevice, UnknownDeviceSelection
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules, Source
from farm.recording import UNSTATED_IN_RECORDINGS, configuration_columns
from farm.schema.column import ColumnType
from farm.schema.results import RESULTS
from farm.vendors import RECORDED, device_type_of
from workers.devices import recording
from workers.devices.recording import DEVICE_COLUMN, ID_COLUMN, JSON_COLUMNS, RESULT_COLUMNS
from workers.measure.explain import Explanation

_RECORDINGS = uuid.UUID("0d2b7b0a-52f2-4b0e-8a54-6b7c1f1d7a10")  # the name space of recorded devices

CHECKED_IDS = 256
"""Ids stored in a file are compared with freshly made ones on this many rows, spread over the file."""


def find(word: str, selection: str) -> list[DeviceIdentity]:
    """The device of `recorded:FILE?scale=0.1&device=UUID`. Raises `UnknownDeviceSelection` and what `identify` does."""
    file, mark, query = word.removeprefix(RECORDED.word).partition("?")
    options = parse_qs(query, keep_blank_values=True, strict_parsing=False)
    unknown = sorted(set(options) - {"scale", "device"})
    if not file or unknown or (mark and not options):
        why = f"a recording has no option {', '.join(unknown)}" if unknown else "a recording is written recorded:FILE"
        raise UnknownDeviceSelection(value=selection, why=why)
    given = options.get("scale", ["0"])[-1]
    try:
        scale = float(given)
    except ValueError:
        scale = -1.0
    if not 0 <= scale <= 1000:
        raise UnknownDeviceSelection(value=selection, why=f"scale is {given!r}, and must be a number from 0 to 1000")
    return [identify(Path(file), scale, options.get("device", [None])[-1])]


def identify(path: Path, scale: float, device: str | None = None) -> DeviceIdentity:
    """The device of a recording, or of those of its rows that were measured on `device`.

    Raises `BadRecording`, `MissingColumns`.
    """
    path = path.absolute()
    if not path.is_file():
        raise BadRecording(path=path, why="there is no such file")
    recording.columns_of(path)
    origin = recording.provenance_of(path)
    of = str(recording.content_id(path)) + (f"?device={device}" if device else "")
    return DeviceIdentity(
        uuid=f"{RECORDED.uuid_prefixes[0]}{uuid.uuid5(_RECORDINGS, of)}",
        type=device_type_of(origin.device_type, Backend.RECORDED),
        name=f"recording of {origin.device_name}",
        backend=Backend.RECORDED,
        traits=origin.traits,
        facts={
            "recording": str(path),
            "scale": scale,
            "rows": recording.row_count(path) if device is None else _rows_of(path, device),
            "recorded_type": origin.device_type,
            **({} if device is None else {"recorded_device": device}),
            "provenance": origin.provenance,
        },
    )


def _rows_of(path: Path, device: str) -> int:
    found = recording.devices_in(path)
    if device not in found:
        raise BadRecording(path=path, why=f"it has no rows of {device}, but of {', '.join(found) or 'no named device'}")
    return found[device]


class RecordedDevice:
    """Looks configurations up by their id; `scale` times the recorded cost is slept, at once by default."""

    def __init__(self, identity: DeviceIdentity, sleep: Callable[[float], None] = time.sleep) -> None:
        self.identity = identity
        self._path = Path(identity.facts["recording"])
        self._scale = float(identity.facts.get("scale", 0.0))
        self._sleep = sleep

    def open(self) -> None:
        self._rows = _Rows(self._path, self.identity.facts.get("recorded_device"))
        self._environment = {
            "recording": self._path.name,
            "recorded_type": self.identity.facts.get("recorded_type"),
            "provenance": self.identity.facts.get("provenance"),
        }

    def close(self) -> None:
        del self._rows

    def canary(self) -> Configuration:
        """The first row of the recording. If this same object is measured, the response comes at once, independent of the scale."""
        return self._rows.first

    def sentinel(self) -> None:
        """A recording does not drift."""

    def prepare(self, configuration: Configuration) -> None:
        """There is nothing to prepare."""

    def soak(self, configuration: Configuration, rules: MeasuringRules, seconds: float) -> NoReturn:
        """Raises `InvalidOnDevice`."""
        raise InvalidOnDevice(why="a recording runs no kernel, so it cannot be put under load")

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        """The recorded row. The rules have no effect, because the row was measured before. Raises `InvalidOnDevice` without one.

        Its details, its versions and the device seconds that it took are those of the measurement that was recorded.
        """
        found = self._rows.find(configuration)
        if found is None:
            raise InvalidOnDevice(why=f"not in the recording {self._path.name}: {configuration}")
        runtime_ms = found["runtime_ms"]
        if self._scale and configuration is not self._rows.first:
            self._sleep(self._scale * (found.get("cost_s") or runtime_ms / 1e3))
        quartiles = dict.fromkeys(("runtime_q1_ms", "runtime_q3_ms", "runtime_min_ms"), runtime_ms)
        values: dict[str, Any] = {**UNSTATED_IN_RECORDINGS, **quartiles, **found, "stop_reason": "recorded"}
        environment = {**values.pop("environment", {}), **self._environment}
        return Measurement(**values, source=Source.RECORDED, environment=environment)


class _Rows:
    """The rows of a recording in columns, found by the 16 bytes of a configuration's id.

    Sorted halves of ids and NumPy columns take about 25 bytes a row in addition to the values; a dictionary of a million ids
    would take 200 MB. JSON columns stay Arrow text, and are read row by row.
    """

    def __init__(self, path: Path, device: str | None = None) -> None:
        present = recording.columns_of(path)
        wanted = [c for c in RESULT_COLUMNS if c in present]
        stored = ID_COLUMN in present and not recording.is_csv(path)
        objects = [c for c in JSON_COLUMNS if c in present]
        texts: dict[str, list[Any]] = {name: [] for name in objects}
        ids: list[bytes] = []
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in wanted}
        first: Configuration | None = None
        optional = [*([ID_COLUMN] if stored else []), *([DEVICE_COLUMN] if device else []), *objects]
        configured = configuration_columns(present)
        for whole in recording.batches(path, [*configured, *optional, *wanted]):
            batch = whole if device is None else whole.filter(pc.equal(whole.column(DEVICE_COLUMN), device))
            if first is None and batch.num_rows:
                first = _configuration(batch.slice(0, 1).select(configured).to_pylist()[0], path)
            ids.append(_ids_of(batch, path, stored=stored))
            for name in wanted:
                parts[name].append(_values_of(batch.column(name), name))
            for name in objects:
                texts[name].append(batch.column(name).cast(pa.large_string()))
        self._texts = {name: pa.concat_arrays(found) for name, found in texts.items() if found}
        keys = np.frombuffer(b"".join(ids), dtype=">u8").astype(np.uint64).reshape(-1, 2)
        self._order = np.argsort(keys[:, 0], kind="stable").astype(np.uint32)
        # Two arrays, each of one piece: searching a column of a table would copy it every time.
        self._high, self._low = (np.ascontiguousarray(keys[self._order, half]) for half in (0, 1))
        self._columns = {n: np.concatenate(found) for n, found in parts.items() if any(p.strides[0] for p in found)}
        runtime = self._columns.get("runtime_ms", np.empty(0))
        if first is None or not len(runtime):
            raise BadRecording(path=path, why="it has no rows")
        self.first = first
        if not (np.isfinite(runtime) & (runtime > 0)).all():
            raise BadRecording(path=path, why="a runtime_ms is missing, or not above 0")

    def find(self, configuration: Configuration) -> dict[str, Any] | None:
        """The recorded values of a configuration, without those that are missing; the last row wins."""
        high, low = (np.uint64(half) for half in divmod(configuration.id.int, 2**64))
        first = int(np.searchsorted(self._high, high, "left"))
        last = int(np.searchsorted(self._high, high, "right"))
        for position in range(last - 1, first - 1, -1):
            if self._low[position] == low:
                row = int(self._order[position])
                values = ((name, _plain(name, column[row])) for name, column in self._columns.items())
                objects = ((name, _object(column[row].as_py())) for name, column in self._texts.items())
                return {name: value for name, value in (*values, *objects) if value is not None}
        return None


def _object(text: str | None) -> dict[str, Any] | None:
    """A JSON object that a recording holds as text; None for anything else, which no row can carry."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _values_of(column: Any, name: str) -> NDArray[Any]:
    """A column as numbers (missing ones NaN), or as objects for text: equal texts are one object.

    A column without any value takes no memory: its stride is 0.
    """
    if column.null_count == len(column):
        return np.broadcast_to(np.array(np.nan), len(column))
    if RESULTS[name].type is ColumnType.TEXT:
        encoded = column.cast("string").dictionary_encode()
        words = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
        found: NDArray[Any] = words[_filled(encoded.indices, len(words) - 1)]
        return found
    return _filled(column.cast("float64"), np.nan)


def _filled(array: Any, missing: float) -> NDArray[Any]:
    """An Arrow array of numbers, with `missing` where it has none.

    `to_numpy` would import pandas, which takes as long as half of a worker's start.
    """
    there = np.from_dlpack(array.drop_null())
    numbers = np.full(len(array), missing, there.dtype)
    numbers[np.from_dlpack(array.is_valid().cast("uint8")).view(bool)] = there
    return numbers


_PYTHON_TYPES: Mapping[ColumnType, Callable[[Any], Any]] = {
    ColumnType.BOOLEAN: bool,
    ColumnType.BIGINT: int,
    ColumnType.DOUBLE: float,
}


def _plain(name: str, value: Any) -> Any:
    """A Python value of the column's type; None for what is missing."""
    if value is None or isinstance(value, str):
        return value
    if np.isnan(value):  # also in a text column, where a whole batch had none
        return None
    return _PYTHON_TYPES[RESULTS[name].type](value)


def _ids_of(batch: Any, path: Path, *, stored: bool) -> bytes:
    """The ids of a batch's rows, from the file where it has them and they are this version's, otherwise made."""
    given = batch.column(ID_COLUMN).to_pylist() if stored else None
    step = max(1, batch.num_rows // CHECKED_IDS)
    names = batch.select(configuration_columns(batch.schema.names))
    if given is not None and None not in given:
        # Not `take` of a list, which would import pandas.
        rows = np.arange(0, batch.num_rows, step)
        sample = names.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])).to_pylist()
        if [_id(row, path) for row in sample] == given[::step]:
            return b"".join(given)
    return b"".join(_id(row, path) for row in names.to_pylist())


def _id(row: dict[str, Any], path: Path) -> bytes:
    return _configuration(row, path).id.bytes


def _configuration(row: dict[str, Any], path: Path) -> Configuration:
    try:
        return recording.configuration_of(row)
    except (FarmError, ValueError, TypeError) as error:
        raise BadRecording(path=path, why=f"a row is not a configuration: {error}") from None
