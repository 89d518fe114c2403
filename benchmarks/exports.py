"""Do the tools that read the farm's exports answer with its rows?

    pip install datasets torch==2.13.0
    pip download --no-deps aiconfigurator-core==0.12.0 vllm==0.33.0 sglang==0.5.23; unzip each of them into the folder consumers
    python -m benchmarks.exports --consumers consumers [FILE.parquet …]
    python -m benchmarks.exports --card

Each file is a recording (by default those in `examples/datasets` that have burst times), exported as `farm export` does, and read by the
real consumer. Needs no GPU. Tuned kernels are those of made-up rows, because their files hold no times.

  aiconfigurator   a table of measured rows, at both times; and one whose grid a model of the same rows fills. The compiled engine of the
                   package evaluates a GEMM for each row. The largest difference of time and of energy (latency times power), and the
                   smallest energy
  datasets         Hugging Face's library loads the folder by its card: columns and rows as in the recording
  vllm, sglang     the function of the package that reads a weight's file, with the name of a card in place of a card's. It gives every
                   kernel that was written, and the default of the package is the one that the farm knows
  torch            `LookupTableChoices` of Inductor finds every kernel by the inputs of a product, and a product that is not in the table misses
  torch, --card    the same on a card: products are compiled with the table, and compared with the library's results. Alone, and written
                   as `exports_card`
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pandas as pd
import pyarrow.parquet as pq

from benchmarks.common import markdown, write
from farm import registry, shipped
from farm.api import models
from farm.api.results import Identity, Results
from farm.exporters import TUNED, aiconfigurator, block_linears, dataset, inductor
from farm.exporters.exporter import Export, contents
from farm.exporters.tuned import Proof, TunedChoice
from farm.kernels import Configuration
from farm.paired import PairedResult, Verdict
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
    for name, content in contents(export).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


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
    rows = pq.read_table(folder / table.name).to_pylist()
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


# --- tuned kernels ---------------------------------------------------------------------------------

CARD = "NVIDIA H200"
TOKENS = (1, 8, 64, 512, 4096)
WEIGHTS = ((2112, 7168), (7168, 2048), (4096, 512))


class MadeUpFarm:
    """A farm whose rows are those of all tiles of a list, for each problem of `TOKENS` and `WEIGHTS`."""

    rows_at_once = sys.maxsize
    device_type = "nvidia-h200"

    def __init__(self, types: str) -> None:
        kernels = (
            f"triton(tile_m={m},tile_n={n},tile_k=64,stages=4)" for m, n in itertools.product((16, 64), (32, 128))
        )
        lines = (f"{one} {m}x{n}x{k} {types}" for one in kernels for m in TOKENS for n, k in WEIGHTS)
        self.configurations = [Configuration.parse(line) for line in lines]

    def ask(self, *_: Any, **__: Any) -> Any:
        known = {"protocol": "farm", "measured_at": pd.Timestamp("2026-11-26", tz="UTC")}
        times = ({"runtime_ms": ms, "runtime_settled_ms": ms} for ms in range(1, len(self.configurations) + 1))
        rows = [
            {**dict.fromkeys(EXPORTED), **one.columns(), **known, **time}
            for one, time in zip(self.configurations, times, strict=True)
        ]
        identity = Identity(
            uuid="-", type=self.device_type, name=CARD, backend="cuda", traits={"kind": "cuda", "memory_bytes": 1}
        )
        return Results.model_construct(rows=rows, identity=identity, commands=None, next=None)


def tuned(name: str, types: str, card: str = CARD) -> tuple[Export, list[TunedChoice]]:
    """The files of a tool, in which every second winner counts as proven, and the choices."""
    tool, farm = TUNED[name], MadeUpFarm(types)
    choices, _ = tool.choices(farm.ask().rows, time="settled")
    faster = PairedResult(0.9, (0.88, 0.92), 8, Verdict.FASTER)
    proofs = [Proof(one.default, one.winner, faster) for one in choices[::2]]
    choices, _ = tool.choices(farm.ask().rows, time="settled", proofs=proofs)
    return Export(tool.files(choices, card)), choices


def function_of(path: Path, name: str, **given: Any) -> Any:
    """A function of a module that cannot be imported without a GPU, with these names in place of the module's."""
    (node,) = (
        one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef) and one.name == name
    )
    future = ast.parse("from __future__ import annotations").body
    scope: dict[str, Any] = {**given, "functools": functools, "json": json, "os": os}
    exec(compile(ast.Module([*future, node], []), str(path), "exec"), scope)
    return scope[name]


def default_in(path: Path, name: str) -> dict[str, int]:
    """The kernel that a function of a module runs where there is no file: the only dictionary in it with a BLOCK_SIZE_M."""
    (node,) = (
        one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef) and one.name == name
    )
    literals = (one for one in ast.walk(node) if isinstance(one, ast.Dict))
    (found,) = (
        one
        for one in literals
        if any(isinstance(key, ast.Constant) and key.value == "BLOCK_SIZE_M" for key in one.keys)
    )
    code = compile(ast.Expression(found), str(path), "eval")
    return dict(eval(code, {"block_size": [128, 128]}))


def of_block_linears(package: str, module: str, reader: str, matmul: str, consumers: Path) -> list[dict[str, Any]]:
    """What a package reads of its files."""
    path = consumers / module
    export, choices = tuned(package, "f8e4m3 nt scale=1x128:128x128")
    quiet = Mock()
    names = {
        "get_device_name_as_file_name": lambda: CARD.replace(" ", "_"), "get_device_name": lambda: CARD, "logger": quiet,
        "log_info_on_rank0": quiet, "_is_cuda": True, "torch": Mock(**{"_dynamo.is_compiling.return_value": False}),
    }  # fmt: skip
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        written(export, Path(folder) / "configs")
        read = function_of(path, reader, **names, __file__=f"{folder}/module.py")
        for choice in choices:
            shape = choice.problem.shape
            found = read(shape.n, shape.k, 128, 128) or {}
            wrong += found.get(shape.m) != block_linears.entry_of(choice.written)
        wrong += read(128, 128, 128, 128) is not None
    wrong += default_in(path, matmul) != block_linears.entry_of(choices[0].default)
    return [{"rows": len(choices), "wrong": wrong, "proven": sum(one.proven for one in choices)}]


def of_inductor() -> list[dict[str, Any]]:
    """What the lookup table of PyTorch finds."""
    import torch
    from torch._inductor import config
    from torch._inductor.kernel_inputs import MMKernelInputs
    from torch._inductor.lookup_table import LookupTableChoices
    from torch._inductor.virtualized import V

    export, choices = tuned("inductor", "bf16 nt")
    config.lookup_table.table = json.loads(next(iter(contents(export).values())))
    graph = Mock(**{"sizevars.optimization_hints": tuple})

    def matrix(size: list[int], stride: list[int]) -> Mock:
        device = torch.device("cuda", 0)
        found = {"get_size": size, "get_stride": stride, "get_dtype": torch.bfloat16, "get_device": device}
        return Mock(**{f"{name}.return_value": value for name, value in found.items()})

    def look(m: int, n: int, k: int) -> dict[str, Any]:
        inputs = MMKernelInputs([matrix([m, k], [k, 1]), matrix([k, n], [1, k])])
        with V.set_graph_handler(graph):
            return dict(LookupTableChoices().lookup_template_configs(inputs, "mm", ["aten::mm", "triton::mm"]))

    wrong = 0
    with (
        patch.object(torch.cuda, "is_available", return_value=True),
        patch.object(LookupTableChoices, "_get_device_key", Mock(return_value=CARD)),
    ):
        for choice in choices:
            entry = dict(inductor.entry_of(choice.written))
            wrong += look(*astuple(choice.problem.shape)) != {entry.pop("template_id"): [entry]}
        wrong += look(3, 5, 7) != {}
    return [{"rows": len(choices), "wrong": wrong, "proven": sum(one.proven for one in choices)}]


def on_card() -> dict[str, Any]:
    """Products that PyTorch compiles with the table, from 64 rows: it computes fewer without a product."""
    import torch
    from torch._inductor import config
    from torch._inductor.lookup_table import LookupTableChoices
    from torch._inductor.virtualized import V

    seen = list[dict[str, Any]]()

    class Recorded(LookupTableChoices):  # type: ignore[misc]
        def lookup_template_configs(self, *arguments: Any, **named: Any) -> Any:
            found = super().lookup_template_configs(*arguments, **named)
            seen.append(dict(found))
            return found

    export, choices = tuned("inductor", "bf16 nt", torch.cuda.get_device_name())
    config.lookup_table.table = json.loads(next(iter(contents(export).values())))
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    compiled = [choice for choice in choices if choice.problem.shape.m >= 64]
    missed, differs = list[str](), list[str]()
    with V.set_choices_handler(Recorded()):
        for choice in compiled:
            shape, entry = choice.problem.shape, dict(inductor.entry_of(choice.written))
            x, weight = (
                torch.randn(lines, shape.k, device="cuda", dtype=torch.bfloat16) for lines in (shape.m, shape.n)
            )
            torch._dynamo.reset()
            seen.clear()
            result = torch.compile(lambda a, b: a @ b.t(), options=options, dynamic=False)(x, weight)
            if {entry.pop("template_id"): [entry]} not in seen:
                missed.append(str(choice.problem.shape))
            if not torch.allclose(result, x @ weight.t(), rtol=0.02, atol=0.02 * shape.k**0.5):
                differs.append(str(choice.problem.shape))
    return {
        "consumer": "torch", "version": str(torch.__version__), "recording": "made-up rows", "rows": len(compiled),
        "wrong": len({*missed, *differs}), "missed": missed, "differs": differs, "proven": sum(one.proven for one in compiled),
    }  # fmt: skip


def of_tuned(consumers: Path) -> Iterator[dict[str, Any]]:
    readers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "vllm": lambda: of_block_linears(
            "vllm", "vllm/model_executor/layers/quantization/utils/fp8_utils.py", "get_w8a8_block_fp8_configs",
            "w8a8_triton_block_scaled_mm", consumers,
        ),
        "sglang": lambda: of_block_linears(
            "sglang", "sglang/kernels/ops/gemm/fp8_kernel.py", "get_w8a8_block_fp8_configs", "w8a8_block_fp8_matmul_triton", consumers,
        ),
        "torch": of_inductor,
    }  # fmt: skip
    for package, read in readers.items():
        for figures in read():
            yield {"consumer": package, "version": version_of(package), "recording": "made-up rows", **figures}


def version_of(package: str) -> str:
    """The version of an installed package, or of one in a folder of `sys.path`."""
    return next(one.version for one in distributions() if one.metadata["Name"] == package)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.parquet")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--consumers", type=Path, metavar="FOLDER", help="unpacked wheels of the consumers")
    what.add_argument("--card", action="store_true", help="compile products with Inductor's table on a card")
    asked = parser.parse_args(given)
    if asked.card:
        written_as("exports_card", [on_card()])
        return
    sys.path.append(str(asked.consumers))
    recordings = shipped.folder("datasets") or parser.error("this installation has no datasets: name a file")
    files = asked.files or [recordings / f"{name}.parquet" for name in DATASETS]
    consumers = {aiconfigurator.CONSUMER.package: of_aiconfigurator, "datasets": of_datasets}
    found = [
        {"consumer": package, "version": version_of(package), "recording": path.name, **figures}
        for package, read in consumers.items()
        for path in files
        for figures in read(RecordedFarm(path))
    ]
    written_as("exports", [*found, *of_tuned(asked.consumers)])


def written_as(name: str, found: Sequence[dict[str, Any]]) -> None:
    columns = {
        "consumer": "consumer", "version": "version", "recording": "recording", "time": "time", "rows": "rows loaded",
        "predicted": "predicted rows", "max_difference_pct": "largest difference %", "above_0_1_pct": "rows off by over 0.1%", "wrong": "wrong kernels",
        "min_energy_mj": "least energy mJ",
    }  # fmt: skip
    table = markdown(list(columns.values()), [[one.get(column, "") for column in columns] for one in found])
    write(name, {"consumers": found}, table, repetitions=1)


if __name__ == "__main__":
    main()
