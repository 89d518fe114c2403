"""Training tables with both times: cuBLASLt in f16 on a card of 700 W whose limiter acts by a known law."""

from __future__ import annotations

import numpy as np
import pandas as pd

DEVICE_TYPE = "nvidia-h200"
LIMIT_W = 700.0

EXPONENT = 0.47
"""By how much ln(time) grows where ln(power) falls by 1 at fixed work: as measured on an H100 and an H200 at their limits."""

_FLOPS_PER_MS, _BYTES_PER_MS = 8e11, 4e9


def burst_table(rows: int, *, seed: int = 0, noise: float = 0.003) -> pd.DataFrame:
    """Random shapes, as the database gives them. About half would draw more than the limit.

    At the clocks of a burst, the power is a constant, and energy for each operation and byte over the burst time. What would
    draw more than the limit takes longer by (power / limit) to the power of `EXPONENT` where it has settled.
    """
    draw = np.random.default_rng(seed)
    m, n, k = (8 * np.exp2(draw.uniform(5, 10, (3, rows))).round()).astype("int64")
    flops, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    burst_ms = 0.003 + flops / _FLOPS_PER_MS + moved / _BYTES_PER_MS
    power_w = 150 + (1.4e-9 * flops + 40e-9 * moved) / burst_ms
    settled_ms = burst_ms * np.maximum(1.0, power_w / LIMIT_W) ** EXPONENT
    around = np.exp(noise * draw.standard_normal((3, rows)))
    table = pd.DataFrame({"m": m, "n": n, "k": k, "runtime_ms": settled_ms * around[0]})
    return table.assign(
        runtime_burst_ms=burst_ms * around[1],
        power_w=np.minimum(power_w, LIMIT_W) * around[2],
        energy_mj=lambda t: t["power_w"] * t["runtime_ms"],
        **{"device_type": DEVICE_TYPE, "source": "measured", "family": "cublaslt", "parameters": "{}"},
        **{"ab": "f16", "cd": "f16", "acc": "f32", "layout": "nn", "alpha": 1.0, "beta": 0.0, "protocol": "farm"},
    )
