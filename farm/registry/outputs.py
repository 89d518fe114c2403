"""The predicted columns of a model, with their units and definitions (pure)."""

from __future__ import annotations

from collections.abc import Mapping

_SETTLED = "under continued load, at the clocks that the card holds"
_BURST = "in the first milliseconds after a rest, before a power limiter answers"

UNITS: Mapping[str, str] = {
    "runtime_ms": "ms",
    "runtime_burst_ms": "ms",
    "power_w": "W",
    "energy_mj": "mJ",
    "tflops": "TFLOP/s",
}
"""The predicted columns, with their units."""

OUTPUTS = tuple(UNITS)
"""Their names. Power, energy and burst time are NaN where they were never measured."""


def definitions(protocol: str, time: str | None) -> dict[str, str]:
    """What each column is, in a model of rows of that protocol.

    Args:
        time: which of both times the protocol measures; None: neither, or not known.
    """
    of_time = {"settled": f"settled time of one GEMM: {_SETTLED}", "burst": f"burst time of one GEMM: {_BURST}"}
    own = of_time.get(time or "", f"time of one GEMM by the protocol {protocol}")
    return {
        "runtime_ms": own,
        "runtime_burst_ms": f"burst time of one GEMM: {_BURST}",
        "power_w": "mean power while nothing but this GEMM runs",
        "energy_mj": "energy of one GEMM: power times settled time, or times `runtime_ms` where no settled time was measured",
        "tflops": "operations over `runtime_ms`",
    }
