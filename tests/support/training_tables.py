"""Training tables to test with: a synthetic device that behaves like physics, and made-up tables in published formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from farm import registry
from farm.fusion import Activation
from farm.groups import Groups
from farm.kernels import Configuration
from farm.sparsity import Sparsity

DEVICE_TYPE = "test-device"
GPPERF = Path(__file__).parents[1] / "data" / "gpperf"

_RAW = ["m", "n", "k", "tile"]


@contextmanager
def without_champion(uri: str, device_type: str) -> Iterator[None]:
    """Version 1 of a model is the challenger inside the block, and the champion again after it."""
    name = registry.model_name(device_type)
    with registry.registry_client(uri) as client:
        client.delete_registered_model_alias(name, registry.CHAMPION)
        client.set_registered_model_alias(name, registry.CHALLENGER, "1")
    try:
        yield
    finally:
        with registry.registry_client(uri) as client:
            client.delete_registered_model_alias(name, registry.CHALLENGER)
            client.set_registered_model_alias(name, registry.CHAMPION, "1")


TESTED = {
    "rows": 1200.0,
    **{"mean_error_pct": 6.5, "mean_error_low_pct": 5.9, "mean_error_high_pct": 7.25},
    **{"median_error_pct": 4.25, "p90_error_pct": 15.5},
    **{"coverage_50_pct": 51.5, "coverage_80_pct": 79.0, "coverage_pct": 88.5, "choose_share_pct": 93.5},
}


def log_test_set(uri: str, version: registry.ModelInfo, target: str = "runtime_ms") -> None:
    """The version was evaluated on an independent test set too, with the numbers `TESTED` of that target."""
    assert version.run_id is not None
    with registry.registry_client(uri) as client:
        for name, value in TESTED.items():
            client.log_metric(version.run_id, f"test_set.{target}.{name}", value)


def tiled_table(
    sizes: Sequence[int] = (256, 512, 1024, 2048), *, tiles: Sequence[int] = (8, 16, 32), power: bool = True
) -> pd.DataFrame:
    """A tiled kernel on a device of 10 TFLOP/s and 500 GB/s whose efficiency depends on tile, padding and size."""
    table = pd.DataFrame(list(product(sizes, sizes, sizes, tiles)), columns=_RAW)
    return as_training_table(table.assign(**_physics(table, power=power)))


def _physics(table: pd.DataFrame, *, power: bool) -> dict[str, pd.Series]:
    m, n, k, tile = (table[name] for name in _RAW)
    work, traffic = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
    padded = np.ceil(m / tile) * tile * np.ceil(n / tile) * tile / (m * n)
    efficiency = 0.8 * tile / (tile + 10) / padded
    runtime_ms = np.maximum(work / (1e10 * efficiency), traffic / 5e8) + 0.004
    power_w = 60 + 200 * work / runtime_ms / 1e10
    return {"runtime_ms": runtime_ms, "power_w": power_w if power else power_w * np.nan}


def blas_table(sizes: Sequence[int] = (64, 128, 256), *, threads: Sequence[int] = (1, 2)) -> pd.DataFrame:
    """A CPU at 50 GFLOP/s a thread, without power."""
    table = pd.DataFrame(list(product(sizes, sizes, sizes, threads)), columns=["m", "n", "k", "threads"])
    runtime_ms = 2.0 * table["m"] * table["n"] * table["k"] / (5e7 * table["threads"] ** 0.9) + 0.002
    return as_training_table(table.assign(runtime_ms=runtime_ms, power_w=np.nan), family="blas", parameter="threads")


BATCHED_TYPE = "nvidia-h200"


def batched_table(batches: Sequence[int], *, shapes: int = 60, seed: int = 0) -> pd.DataFrame:
    """cuBLASLt in f16: each of the batches on random small shapes.

    A product of a batch takes the longer of computing at 600 TFLOP/s and of memory at 4 TB/s; a launch of all of them 3 us.
    """
    draw = np.random.default_rng(seed)
    m, n, k = (8 * np.exp2(draw.uniform(3, 7, (3, shapes))).round()).astype("int64")
    of_shapes = pd.DataFrame({"m": m, "n": n, "k": k}).drop_duplicates()
    table = of_shapes.merge(pd.DataFrame({"batch": list(batches)}), how="cross")
    m, n, k, batch = (table[name].to_numpy("float64") for name in ("m", "n", "k", "batch"))
    one_ms = np.maximum(2 * m * n * k / 6e11, 2 * (m * k + k * n + m * n) / 4e9)
    table = table.assign(runtime_ms=0.003 + batch * one_ms, power_w=np.nan, algorithm=0)
    usual = {"device_type": BATCHED_TYPE, "ab": "f16", "cd": "f16", "acc": "f32"}
    return as_training_table(table, family="cublaslt", parameter="algorithm").assign(**usual)


def as_training_table(table: pd.DataFrame, *, family: str = "tiled", parameter: str = "tile") -> pd.DataFrame:
    """The columns that the trainer learns from, as the database gives them."""
    parameters = [{parameter: int(value)} for value in table[parameter]]
    if "energy_mj" not in table:
        table = table.assign(energy_mj=table["power_w"] * table["runtime_ms"])
    return table.drop(columns=[parameter]).assign(
        **{"device_type": DEVICE_TYPE, "source": "measured", "family": family, "parameters": parameters},
        **{"ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0},
    )


def foreign_tiled_table() -> pd.DataFrame:
    """A tiled kernel on an RTX 4070, made up in the format of GPPerf."""
    key = ["M", "N", "K", "Tile Size"]
    runtimes = pd.read_csv(GPPERF / "rtx4070_tiled_runtime.csv")
    both = runtimes.merge(pd.read_csv(GPPERF / "rtx4070_tiled_power.csv"), on=key, how="left")
    names = dict(
        zip([*key, "Execution Time", "Average Power Usage (W)"], [*_RAW, "runtime_ms", "power_w"], strict=True)
    )
    return as_training_table(both.rename(columns=names)).assign(source="imported")


KINDS = ("", "batch=8", "scale=tensor", "scale=row", "scale=1x128:128x128", "fused=bias", "fused=bias+gelu")
"""Kinds of problems, as the end of a configuration's line."""

_RATES = {"none": 1.0, "tensor": 1.0, "row": 0.9, "1x128:128x128": 0.6}
"""The share of the peak rate with which products with these scale factors are computed."""


def kinds_table(
    kinds: Sequence[str] = KINDS, *, types: str = "f8e4m3", shapes: int = 60, seed: int = 0, power: bool = True
) -> pd.DataFrame:
    """cuBLASLt, in FP8 by default: each of the kinds on random shapes.

    A problem takes the longer of computing at 1000 TFLOP/s, less with `scale` or twice as much with `sparsity`, and of memory at 4 TB/s; a launch 3 us. GELU
    takes another 1 ps of each element.
    """
    draw = np.random.default_rng(seed)
    extents = (16 * np.exp2(draw.uniform(2, 7, (shapes, 3))).round()).astype("int64")
    return pd.DataFrame([_of_kind(*shape, types, kind, power=power) for shape in extents.tolist() for kind in kinds])


def _of_kind(m: int, n: int, k: int, types: str, kind: str, *, power: bool) -> dict[str, object]:
    one = Configuration.parse(f"cublaslt() {m}x{n}x{k} {types} nt {kind}")
    problem = one.problem
    rate = 1e12 * _RATES.get(problem.scale, 1.0) * (2 if problem.sparsity is Sparsity.TWO_OF_FOUR else 1)
    computing_ms = problem.flops / rate
    activating_ms = 1e-9 * m * n * problem.batch * (problem.fused.activation is Activation.GELU)
    runtime_ms = 0.003 + max(computing_ms, problem.bytes / 4e9) + activating_ms
    power_w = 150 + 450 * computing_ms / runtime_ms if power else np.nan
    measured = {"runtime_ms": runtime_ms, "power_w": power_w, "energy_mj": power_w * runtime_ms}
    return {"device_type": BATCHED_TYPE, "source": "measured", **one.columns(), **measured}


def grouped_table(weights: int = 24, *, seed: int = 0, kind: str = "") -> pd.DataFrame:
    """cuBLASLt in f16: products in groups of 4 to 64, each of random weights with two numbers of rows, spread evenly and unevenly.

    A problem takes the longer of computing whole tiles of 128 rows of a group at 600 TFLOP/s, and of memory at 4 TB/s; a launch 3 us.
    """
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(weights):
        n, k = (128 * np.exp2(draw.uniform(1, 4, 2)).round()).astype("int64").tolist()
        groups = int(2 ** draw.integers(2, 7))
        for each in (groups * 2 ** draw.integers(2, 9, 2)).tolist():
            uneven = draw.multinomial(each, draw.dirichlet(np.full(groups, 0.3))).tolist()
            found += [_of_groups(Groups.of(sizes), n, k, kind) for sizes in ([each // groups] * groups, uneven)]
    return pd.DataFrame(found)


def _of_groups(groups: Groups, n: int, k: int, kind: str) -> dict[str, object]:
    one = Configuration.parse(f"cublaslt() {groups.rows}x{n}x{k} f16 nt {kind} groups={groups}")
    computing_ms = 2 * groups.tiles(128) * 128 * n * k / 6e11
    runtime_ms = 0.003 + max(computing_ms, one.problem.bytes / 4e9)
    power_w = 150 + 450 * computing_ms / runtime_ms
    measured = {"runtime_ms": runtime_ms, "power_w": power_w, "energy_mj": power_w * runtime_ms}
    return {"device_type": BATCHED_TYPE, "source": "measured", **one.columns(), **measured}
