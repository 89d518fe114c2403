"""GEMM tables for NVIDIA AIConfigurator: a system that `aiconfigurator-core` loads in addition to its own ones.

A system is a YAML file with the card's figures, and a folder of tables. `farm.importers.aiconfigurator` says what layers are. A
time is that of the product alone: where AIConfigurator's own tables have layers in FP8, they include quantising x.

Facts about version 0.12.0 of the package, from its sources and from loading tables with it:

- Tables lie in `<data_dir>/gemm/<backend>/<version>/gemm_perf.parquet`. Only the backends in `Backend` load. A version is
  answered without a switch if it is the current one of the backend in `query_versions.yaml`.
- `kernel_source` is free text, and other columns are not read. Of equal shapes the first row counts.
- Energy is latency times `power`. A row without power counts as 0 W, and pulls shapes between rows down.
- Fields of the section `node` are required. `.nan` is taken: what needs the network has no number then.
- Times below the card's roofline are raised to it.
- The grid of its own tables is `GRID_M` times `GRID_NK` times `GRID_NK` without the largest weight.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from farm import __version__
from farm.api import Farm, models
from farm.api.models import PredictQuery
from farm.api.results import Identity, OfRow, TypesOfPages, pages, traits_of
from farm.devices import DeviceKind
from farm.errors import BadInput, NothingToExport, NotPredictable, first_line
from farm.exporters.consumer import Consumer
from farm.exporters.exporter import Export, ExportedFile
from farm.exporters.timed_rows import TimedRow, timed_rows
from farm.formatting import some_of
from farm.gemm import ElementType, Layout, Shape
from farm.gpus import Gpu, find_gpu
from farm.importers.aiconfigurator import LAYER_TYPES
from farm.kernels import BASELINES, Configuration
from farm.protocols import Time

CONSUMER = Consumer("aiconfigurator-core", ("0.12.0",))


class Backend(StrEnum):
    """The serving framework under whose name the tables are found."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


@dataclass(frozen=True, slots=True)
class _Framework:
    name: str
    current: str


_FRAMEWORKS = {
    Backend.VLLM: _Framework("VLLM", "0.24.0"),
    Backend.SGLANG: _Framework("SGLang", "0.5.14"),
    Backend.TRTLLM: _Framework("TRTLLM", "1.3.0rc20"),
}
"""What the columns `framework` and `version` have in tables that are answered without a switch."""

GRID_M = (
    *range(1, 18), *(m + odd for m in (*range(32, 129, 16), 160, 192, 224, 256) for odd in (0, 1)),
    *(m + odd for m in (512, *range(768, 4353, 256)) for odd in (0, 1)), 8192, 16384, 32768,
)  # fmt: skip
GRID_NK = (
    32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384, 51200, 65536,
)  # fmt: skip

COLUMNS = (
    "framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n", "k", "latency", "power", "power_limit",
)  # fmt: skip
"""What the package reads of a table, and `power_limit`, which tables with power have. `power` is left out where no row has one."""

OWN_COLUMNS = ("time", "source", "power_source", "rows")
"""Columns of the farm: burst or settled; `measured`, `recorded`, `imported` or `predicted`; the same of the power; how many rows
the medians are of."""

AT_ONCE = 10_000
"""Configurations in one request for predictions."""

_CONDITIONS = ("clock_policy", "distribution")

_LIBRARY = BASELINES[DeviceKind.CUDA]
_PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the table. Times in ms, power in W."""

    gemm_dtype: str
    shape: Shape
    configuration: Configuration
    kernel: str
    latency: float
    power: float | None
    power_limit: float | None = None
    source: str
    power_source: str | None
    rows: int = 0


def export(
    farm: Farm,
    query: Mapping[str, Any],
    *,
    time: Time,
    backend: Backend,
    fill: bool,
    system_file: Path | None = None,
    consumer_version: str | None = None,
) -> Export:
    """A system of one device type, with its table.

    Args:
        query: The arguments of the operation `farm.api.results.rows`, with the device type.
        fill: Whether the champion predicts the rest of the package's grid, and power where rows have none.
        system_file: A system YAML of the package for this card, whose figures are taken. None: those of `farm/gpus.yaml`.

    Raises:
        OtherConsumerVersion: The files are for another version of the package.
        NothingToExport: No row can be in the table.
        NotPredictable: The model can fill nothing.
    """
    version = CONSUMER.checked(consumer_version)
    spec = None if system_file is None else system_of_file(system_file)
    where = [*query.get("where", ()), f"layout == '{Layout.NT}'"]
    sources = query.get("source") or [OfRow.MEASURED, OfRow.RECORDED]
    types, origin = TypesOfPages(), _Origin()
    rows = types.rows(pages(farm, None, **{**query, "where": where, "source": sources}))
    entries, remarks = entries_of(origin.of(rows), time=time, chosen=query.get("family"))
    model = None
    if fill:
        entries, model, notes = filled(farm, entries, device_type=query["type"], time=time, identity=types.identity)
        remarks += notes
    return files_of(
        entries, types.identity, origin, device_type=query["type"], time=time, backend=backend, spec=spec, version=version, model=model,
        remarks=remarks,
    )  # fmt: skip


# --- the entries of measured rows ------------------------------------------------------------------


def entries_of(
    rows: Iterable[Mapping[str, Any]], *, time: Time, chosen: str | None = None
) -> tuple[list[Entry], list[str]]:
    """One entry for each layer type and shape, and remarks on rows that are left out.

    The kernel is the vendor's library with its own choice, or the fastest one of a chosen family. Figures are medians over the
    kernel's rows.
    """

    def why_not(configuration: Configuration) -> str | None:
        if layer_type_of(configuration) is None:
            return f"are no linear layers in {', '.join(LAYER_TYPES)}"
        wanted = configuration.kernel == _LIBRARY if chosen is None else configuration.kernel.family == chosen
        return None if wanted else f"are of other kernels than {_LIBRARY.family}'s own choice; see --family"

    groups, remarks = timed_rows(rows, time, why_not, columns=("source", "power_w", "power_limit_w", *_CONDITIONS))
    taken = [row for kernels in groups.values() for timed in kernels.values() for row, _ in timed]
    remarks += _differences(taken)
    entries = [min((_entry(*one) for one in kernels.items()), key=_latency) for kernels in groups.values()]
    return entries, remarks


def layer_type_of(configuration: Configuration) -> str | None:
    """The `gemm_dtype` of a linear layer; None for any other problem."""
    problem = configuration.problem
    return next((name for name, one in LAYER_TYPES.items() if one.problem(problem.shape) == problem), None)


def _differences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Remarks on conditions that change times and power, and in which the rows differ."""
    for name in _CONDITIONS:
        values = sorted({str(row[name]) for row in rows})
        if len(values) > 1:
            yield f"Rows differ in {name} ({some_of(values)}), and medians are over all of them. Choose some with --where."


def _latency(entry: Entry) -> float:
    return entry.latency


def _entry(configuration: Configuration, rows: Sequence[TimedRow]) -> Entry:
    def middle(name: str) -> float | None:
        known = [row[name] for row, _ in rows if row[name] is not None]
        return median(known) if known else None

    sources = "+".join(sorted({str(row["source"]) for row, _ in rows}))
    power, gemm_dtype = middle("power_w"), layer_type_of(configuration)
    assert gemm_dtype is not None, "other rows are left out"
    return Entry(
        gemm_dtype=gemm_dtype,
        shape=configuration.problem.shape,
        configuration=configuration,
        kernel=str(configuration.kernel),
        latency=median(latency for _, latency in rows),
        power=power,
        power_limit=middle("power_limit_w"),
        source=sources,
        power_source=None if power is None else sources,
        rows=len(rows),
    )


# --- the entries of a model ------------------------------------------------------------------------


def filled(
    farm: Farm, entries: Sequence[Entry], *, device_type: str, time: Time, identity: Identity | None
) -> tuple[list[Entry], str | None, list[str]]:
    """Entries with the champion's predictions: of missing power, and of the rest of the grid. Also the model, and remarks.

    The types of layers are those of the entries, or bfloat16 where there are none. Raises `NotPredictable` if the model knows none.
    """
    table = {(entry.gemm_dtype, entry.shape): entry for entry in entries}
    model, remarks, errors = None, list[str](), list[NotPredictable]()
    for gemm_dtype in [name for name in LAYER_TYPES if any(name == known for known, _ in table)] or ["bfloat16"]:
        grid = (_unknown(gemm_dtype, one) for one in _grid(gemm_dtype, identity))
        new = [entry for entry in grid if (gemm_dtype, entry.shape) not in table]
        old = [entry for entry in table.values() if entry.gemm_dtype == gemm_dtype and entry.power is None]
        try:
            model, predicted = _predicted(farm, [*old, *new], device_type=device_type, time=time)
        except NotPredictable as error:
            errors.append(error)
            remarks.append(f"{gemm_dtype} is not filled. {error}")
            continue
        table |= {(gemm_dtype, entry.shape): entry for entry in predicted}
        remarks.append(
            f"{model} predicts {len(new):,} more shapes of {gemm_dtype}, and the power of {len(old):,} others."
        )
    if model is None and errors:
        raise errors[0]
    return list(table.values()), model, remarks


def _grid(gemm_dtype: str, identity: Identity | None) -> Iterator[Configuration]:
    """The package's own grid, less what the device cannot run."""
    for n, k, m in itertools.product(GRID_NK, GRID_NK, GRID_M):
        one = Configuration(LAYER_TYPES[gemm_dtype].problem(Shape(m, n, k)), _LIBRARY)
        if n * k < GRID_NK[-1] ** 2 and (identity is None or one.why_invalid(traits_of(identity)) is None):
            yield one


def _unknown(gemm_dtype: str, configuration: Configuration) -> Entry:
    return Entry(
        gemm_dtype=gemm_dtype, shape=configuration.problem.shape, configuration=configuration, kernel=str(configuration.kernel),
        latency=nan, power=None, source=_PREDICTED, power_source=None,
    )  # fmt: skip


def _roofline_ms(gpu: Gpu | None, entry: Entry) -> float:
    """No product takes less time; 0 for an unknown card. The package raises lower times itself, but not their energy."""
    problem = entry.configuration.problem
    peak = None if gpu is None else gpu.peak_tflops(problem.types.ab)
    if gpu is None or peak is None:
        return 0.0
    return max(problem.flops / (1e9 * peak), problem.bytes / (1e6 * gpu.memory_gb_per_s))


def _predicted(farm: Farm, entries: Sequence[Entry], *, device_type: str, time: Time) -> tuple[str | None, list[Entry]]:
    """The model that answers, and the entries with predicted power and, where none was measured, time."""
    model, result, gpu = None, list[Entry](), find_gpu(device_type)
    for first in range(0, len(entries), AT_ONCE):
        batch = entries[first : first + AT_ONCE]
        lines = [one.configuration.canonical for one in batch]
        answer = farm.ask(models.predict, PredictQuery(configurations=lines, time=time, device_type=device_type))
        model = f"{answer.model}/{answer.version}"
        for entry, found in zip(batch, answer.predictions, strict=True):
            at = found.at(time)
            result.append(
                replace(
                    entry,
                    latency=entry.latency
                    if entry.source != _PREDICTED or at is None
                    else max(at.ms, _roofline_ms(gpu, entry)),
                    power=found.power_w,
                    power_source=None if found.power_w is None else _PREDICTED,
                )
            )
    return model, result


# --- the files -------------------------------------------------------------------------------------


def files_of(
    entries: Sequence[Entry], identity: Identity | None, origin: _Origin, *, device_type: str, time: Time, backend: Backend, spec: Mapping[str, Any] | None = None,
    version: str = CONSUMER.versions[-1], model: str | None = None, remarks: Sequence[str] = (),
) -> Export:  # fmt: skip
    """The system, its table and the table's metadata. Raises `NothingToExport`."""
    notes = list(remarks)
    if any(entry.power is not None for entry in entries):
        kept = [entry for entry in entries if entry.power is not None]
        if len(kept) < len(entries):
            notes.append(
                f"{len(entries) - len(kept):,} shapes without power are left out, because {CONSUMER.package} counts them as 0 W: "
                "measure their power, or add --fill model."
            )
    else:
        kept = list(entries)
        notes.append(f"No row has power, so the energy of every answer of {CONSUMER.package} is 0.")
    if not kept:
        raise NothingToExport(
            tool=CONSUMER.package,
            why=" ".join(remarks)
            or f"no row of {device_type} in layout {Layout.NT} matches. Imported rows need --source imported.",
        )
    framework = _FRAMEWORKS[backend]
    name = f"{device_type}_farm".replace("-", "_")
    spec = _spec(device_type, identity, kept) if spec is None else spec
    kept.sort(
        key=lambda entry: (entry.source == _PREDICTED, entry.gemm_dtype, entry.shape.n, entry.shape.k, entry.shape.m)
    )
    folder = f"data/{name}/gemm/{backend}/{framework.current}"
    counts = {
        source: sum(entry.source == source for entry in kept) for source in sorted({entry.source for entry in kept})
    }
    about = {
        "written_by": f"gemm-farm {__version__}",
        "for": f"{CONSUMER.package} {version}",
        "device_type": device_type,
        "time": time,
        "shapes": counts,
        "model": model,
        "figures": "latency in ms of the product alone; power in W under load; power_limit in W",
        **origin.described(),
    }
    meta = {
        "schema_version": 1,
        "provenance": "gemm-farm",
        "runtime": {"framework": backend.value, "version": framework.current},
        "tables": {"gemm_perf": {"status": "partial"}},
        "gemm_farm": about,
    }
    head = f"# {name}: GEMMs of {device_type}, {time} times, written by gemm-farm {__version__} for {CONSUMER.package} {version}.\n"
    system = {**spec, "data_dir": f"data/{name}"}
    files = [
        ExportedFile(f"{name}.yaml", (head + _yaml(system)).encode(), 1, "system"),
        ExportedFile(f"{folder}/gemm_perf.parquet", _table(kept, identity, framework, time), len(kept), "shapes"),
        ExportedFile(f"{folder}/collection_meta.yaml", _yaml(meta).encode(), 1, "description"),
    ]
    return Export(files, notes)


def system_of_file(path: Path) -> dict[str, Any]:
    """A system of the package, from its YAML file. Raises `BadInput`."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(detail=f"{path} cannot be read as YAML: {first_line(error)}") from None
    if not isinstance(found, dict) or not {"data_dir", "gpu", "node"} <= found.keys():
        raise BadInput(detail=f"{path} is no system of {CONSUMER.package}: it needs data_dir, gpu and node.")
    return found


def _spec(device_type: str, identity: Identity | None, entries: Iterable[Entry]) -> dict[str, Any]:
    """The card's figures from `farm/gpus.yaml`. What the farm does not know of the network is not a number."""
    gpu = find_gpu(device_type)
    if gpu is None:
        raise BadInput(
            detail=f"farm/gpus.yaml has no {device_type}: name a system file of {CONSUMER.package} with --system."
        )
    limits = [entry.power_limit for entry in entries if entry.power_limit is not None]
    flops = {"bfloat16": ElementType.BF16, "fp8": ElementType.F8E4M3, "int8": ElementType.I8}
    peaks = {f"{name}_tc_flops": gpu.peak_tflops(inputs) for name, inputs in flops.items()}
    major, minor = gpu.compute_capability
    return {
        "gpu": {
            "mem_bw": gpu.memory_gb_per_s * 1e9,
            "mem_capacity": int(gpu.memory_gb * 1e9) if identity is None else traits_of(identity).memory_bytes,
            **{name: peak * 1e12 for name, peak in peaks.items() if peak is not None},
            "power": median(limits) if limits else gpu.power_w,
            "sm_version": 10 * major + minor,
        },
        "node": {
            "num_gpus_per_node": 1,
            **dict.fromkeys(("inter_node_bw", "intra_node_bw", "pcie_bw", "p2p_latency"), nan),
        },
    }


class _Origin:
    """Where rows come from: campaigns, hosts, protocols, and days."""

    def __init__(self) -> None:
        self._values = {name: set[str]() for name in ("campaign", "host", "protocol", "clock_policy")}
        self._days = set[str]()

    def of(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The rows, which it reads while they pass."""
        for row in rows:
            for name, values in self._values.items():
                if row[name] is not None:
                    values.add(str(row[name]))
            if row["measured_at"] is not None:
                self._days.add(f"{row['measured_at']:%Y-%m-%d}")
            yield row

    def described(self) -> dict[str, Any]:
        values = {name: sorted(found) for name, found in self._values.items()}
        return {**values, "measured": [min(self._days), max(self._days)] if self._days else []}


def _table(entries: Sequence[Entry], identity: Identity | None, framework: _Framework, time: Time) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, number, real = pa.string(), pa.int64(), pa.float64()
    kinds = {
        **dict.fromkeys((*COLUMNS, *OWN_COLUMNS), text),
        **dict.fromkeys(("m", "n", "k", "rows"), number),
        **dict.fromkeys(("latency", "power", "power_limit"), real),
    }
    without = () if any(entry.power is not None for entry in entries) else ("power", "power_limit", "power_source")
    device = "" if identity is None else identity.name
    lines = [
        {
            "framework": framework.name, "version": framework.current, "device": device, "op_name": "gemm",
            "kernel_source": f"gemm_farm:{entry.source}:{entry.kernel}", "gemm_dtype": entry.gemm_dtype,
            "m": entry.shape.m, "n": entry.shape.n, "k": entry.shape.k, "latency": entry.latency,
            "power": entry.power, "power_limit": entry.power_limit,
            "time": time, "source": entry.source, "power_source": entry.power_source, "rows": entry.rows,
        }
        for entry in entries
    ]  # fmt: skip
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if name not in without])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), file, compression="zstd")
    return file.getvalue()


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
