"""A device, a campaign and a row of results to test with."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Engine, text

from farm.db import measurements
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits, traits_of_capability
from farm.gemm import PROBLEM_COLUMNS
from farm.kernels import Configuration
from farm.measurement import Measurement


def cpu(number: int = 1, *, kind: str = "cpu-test", threads: int = 2) -> DeviceIdentity:
    return DeviceIdentity(
        uuid=f"CPU-{number}",
        type=kind,
        name=f"Test CPU {number}",
        backend=Backend.CPU,
        traits=DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=threads),
    )


def card(number: int = 1, *, kind: str = "nvidia-test", capability: tuple[int, int] = (9, 0)) -> DeviceIdentity:
    return DeviceIdentity(
        uuid=f"GPU-{number}",
        type=kind,
        name=f"Test card {number}",
        backend=Backend.CUDA,
        traits=traits_of_capability(capability),
    )


def ahead(**changes: object) -> dict[str, object]:
    """A campaign of 12 configurations that need 2 kernels, which are built ahead of time."""
    return {
        "name": "ahead",
        "owner": "ann",
        "targets": "any",
        "problems": {"m": [64, 128, 256], "n": 64, "k": [32, 64], "types": ["f16"]},
        "kernels": [{"family": "cutlass", "stages": [2, 3]}],
        **changes,
    }


def document(**changes: object) -> dict[str, object]:
    """A small campaign of blas configurations, as a campaign file would be read."""
    return {
        "name": "small",
        "owner": "ann",
        "targets": "any",
        "problems": {"m": [64, 128, 256], "n": 64, "k": [32, 64], "types": ["f32"]},
        "kernels": [{"family": "blas", "threads": [1, 2]}],
        **changes,
    }


def row(runtime_ms: float = 1.0, **changes: object) -> Measurement:
    columns: dict[str, object] = {
        "runtime_ms": runtime_ms,
        "runtime_q1_ms": runtime_ms,
        "runtime_q3_ms": runtime_ms,
        "runtime_min_ms": runtime_ms,
        "runtime_rse": 0.001,
        "samples": 10,
        "stop_reason": "converged",
        "l2": "cold",
        "cost_s": 0.01,
        "environment": {"library": "1.0"},
    }
    return Measurement(**(columns | changes))  # type: ignore[arg-type]


_CONFIGURATION = text(f"""
INSERT INTO configurations (id, {", ".join(PROBLEM_COLUMNS)}, family, parameters)
VALUES (:id, {", ".join(f":{name}" for name in PROBLEM_COLUMNS)}, :family, CAST(:parameters AS jsonb))
ON CONFLICT DO NOTHING
""")


def landed(
    engine: Engine, device_id: int, rows: Sequence[tuple[str, Measurement]], *, campaign_id: int | None = None
) -> None:
    """Rows of these configurations on a device, without jobs."""
    configurations = [Configuration.parse(written) for written, _ in rows]
    with engine.begin() as connection:
        for one in configurations:
            columns = {**one.columns(), "id": one.id, "parameters": json.dumps(one.columns()["parameters"])}
            connection.execute(_CONFIGURATION, columns)
        measurements.insert(
            connection,
            [(None, campaign_id, one.id, device_id, row) for one, (_, row) in zip(configurations, rows, strict=True)],
        )
