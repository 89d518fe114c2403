"""Do the tools that read the farm's exports answer with its rows?

    pip install datasets && pip download --no-deps aiconfigurator-core==0.12.0 && unzip -q aiconfigurator_core-*.whl -d consumers
    python -m benchmarks.exports [--consumers consumers] [FILE.parquet …]

Each file is a recording (by default those in `examples/datasets` that have burst times), exported as `farm export` does, and read by the
real consumer. Needs no GPU.

  aiconfigurator   a table of measured rows, at both times; and one whose grid a model of the same rows fills. The compiled engine of the
                   package evaluates a GEMM for each row. The largest difference of time and of energy (latency times power), and the
                   smallest energy
  datasets         Hugging Face's library loads the folder by its card: columns and rows as in the recording
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from benchmarks.common import markdown, write
from farm import registry
from farm.api import models
from farm.api.results import Identity, Results
from farm.datasets import folders
from farm.exporters import aiconfigurator, dataset
from farm.exporters.exporter import Export
from farm.kernels import Configuration
from farm.protocols import ProtocolName, Time
from farm.provenance import METADATA_KEY, Provenance
from farm.registry import Model
from farm.schema.results import EXPORTED
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, of_one_protocol

DATASETS = ("nvidia-h200-both-times", "nvidia-h100-80gb-hbm3-both-times", "nvidia-h100-80gb-hbm3-problem-kinds")
_OBJECTS = ("parameters", "environment", "details")


class RecordedFarm:
    """A farm that has the rows of a recording, and a model of them as champion."""

    rows_at_once = sys.maxsize

    def __init__(self, path: Path) -> None:
        table = pq.read_table(path)
        origin = Provenance.from_json(json.loads(table.schema.metadata[METADATA_KEY]))
        self.device_type = origin.device_type
        traits = origin.traits.to_json()
        identity = Identity(
            uuid=origin.device_type, type=origin.device_type, name=origin.device_name, backend="cuda", traits=traits
        )
        rows = [{**dict.fromkeys(EXPORTED), **row} for row in table.to_pylist()]
        for row in rows:
            row.update({name: json.loads(row[name]) for name in _OBJECTS if isinstance(row[name], str)})
            row["measured_at"] = pd.Timestamp(row["measured_at"])
        self.rows = Results.model_construct(rows=rows, identity=identity, commands=None, next=None)
        self._path = path
        self._model: Model | None = None

    def ask(self, operation: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if operation is not models.predict:
            return self.rows
        (query,) = args
        lines = [Configuration.parse(line) for line in query.configurations]
        found = registry.predict(self._champion(), lines, time=query.time)
        return models.Predicted.model_construct(model=f"forest of {self._path.stem}", version="1", predictions=found)

    def _champion(self) -> Model:
        if self._model is None:
            table, _ = of_one_protocol(pd.read_parquet(self._path), ProtocolName.FARM)
            self._model = Model(fit(self.device_type, configurations(table), ForestSettings()))
        return self._model


def written(export: Export, folder: Path) -> None:
    for file in export.files:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)


def loaded_by_aiconfigurator(export: Export, folder: Path) -> dict[str, Any]:
    """Writes a system, loads it with the package and asks for each row."""
    from aiconfigurator_core.sdk.common import GEMMQuantMode  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.operations import GEMM  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.perf_database import get_database  # type: ignore[import-not-found]

    written(export, folder)
    system, table, _ = export.files
    _, _, _, backend, version, _ = Path(table.name).parts
    database = get_database(
        Path(system.name).stem, backend, version, systems_paths=[str(folder)], strict_provenance=True
    )
    rows = pq.read_table(io.BytesIO(table.content)).to_pylist()
    off, off_energy, energies, sources = list[float](), list[float](), list[float](), set[str]()
    for row in rows:
        operation = GEMM("one", 1.0, row["n"], row["k"], GEMMQuantMode[row["gemm_dtype"]])
        answer = operation._engine_query(database, x=row["m"])
        off.append(abs(float(answer) / row["latency"] - 1))
        off_energy.append(abs(answer.energy / (row["latency"] * row["power"]) - 1))
        energies.append(answer.energy)
        sources.add(answer.source)
    return {
        "rows": len(rows),
        "types": sorted({row["gemm_dtype"] for row in rows}),
        "predicted": sum(row["source"] == "predicted" for row in rows),
        "max_difference_pct": 100 * max(off),
        "max_energy_difference_pct": 100 * max(off_energy),
        "above_0_1_pct": sum(one > 0.001 for one in off),
        "min_energy_mj": min(energies),
        "answered_as": sorted(sources),
    }


def of_aiconfigurator(farm: RecordedFarm) -> list[dict[str, Any]]:
    times: tuple[Time, ...] = ("burst", "settled")
    found = []
    for time, fill in [*((time, False) for time in times), ("burst", True)]:
        export = aiconfigurator.export(
            farm, {"type": farm.device_type}, time=time, backend=aiconfigurator.Backend.VLLM, fill=fill
        )
        with tempfile.TemporaryDirectory() as folder:
            figures = loaded_by_aiconfigurator(export, Path(folder))
        found.append({"time": time, "filled": fill, **figures, "remarks": list(export.remarks)})
    return found


def of_datasets(farm: RecordedFarm) -> list[dict[str, Any]]:
    """The dataset of a recording, loaded by its card."""
    from datasets import load_dataset  # type: ignore[import-not-found]

    export = dataset.export(farm, {"type": farm.device_type}, name="rows", license_id="apache-2.0")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        written(export, Path(folder))
        loaded = load_dataset(folder, split="train", cache_dir=cache)
        times = loaded["runtime_ms"]
    own = [row["runtime_ms"] for row in farm.rows.rows]
    if loaded.column_names != list(EXPORTED) or len(times) != len(own):
        raise SystemExit(f"datasets loads {len(times)} rows with the columns {loaded.column_names}")
    off = [abs(theirs / ours - 1) for theirs, ours in zip(times, own, strict=True)]
    return [
        {
            "rows": len(own),
            "predicted": 0,
            "max_difference_pct": 100 * max(off),
            "above_0_1_pct": sum(one > 0.001 for one in off),
        }
    ]


def version_of(package: str) -> str:
    """The version of an installed package, or of one in a folder of `sys.path`."""
    return next(one.version for one in distributions() if one.metadata["Name"] == package)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.parquet")
    parser.add_argument("--consumers", type=Path, metavar="FOLDER", help="unpacked wheels of the consumers")
    asked = parser.parse_args(given)
    if asked.consumers is not None:
        sys.path.append(str(asked.consumers))
    recordings, _ = folders() or parser.error("this installation has no datasets: name a file")
    files = asked.files or [recordings / f"{name}.parquet" for name in DATASETS]
    consumers = {aiconfigurator.CONSUMER.package: of_aiconfigurator, "datasets": of_datasets}
    found = [
        {"consumer": package, "version": version_of(package), "recording": path.name, **figures}
        for package, read in consumers.items()
        for path in files
        for figures in read(RecordedFarm(path))
    ]
    columns = {
        "consumer": "consumer", "version": "version", "recording": "recording", "time": "time", "rows": "rows loaded",
        "predicted": "predicted rows", "max_difference_pct": "largest difference %", "above_0_1_pct": "rows off by over 0.1%",
        "min_energy_mj": "least energy mJ",
    }  # fmt: skip
    table = markdown(list(columns.values()), [[one.get(name, "") for name in columns] for one in found])
    write("exports", {"consumers": found}, table, repetitions=1)


if __name__ == "__main__":
    main()
