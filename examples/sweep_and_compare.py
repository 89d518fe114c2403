"""Submits a campaign from Python, waits for it, and reads its results.

python examples/sweep_and_compare.py     on the farm of this machine (start it with farm up), or of FARM_API_URL
"""

import farm

SWEEP = {
    "name": "from-python",
    "targets": "any",
    "problems": {"m": [128, 256], "n": 256, "k": 256, "types": "f32"},
    "kernels": [{"family": "blas", "threads": [1, 2]}],
}

with farm.connect() as client:
    campaign = client.submit(SWEEP)
    end = campaign.wait(timeout=300, progress=lambda now: print(dict(now.counts)))
    rows = campaign.results(where="runtime_rse < 0.05", sort="-tflops")
    print(rows.to_pandas()[["device_type", "m", "parameters", "runtime_ms", "tflops"]])
    print(rows.to_arrow().schema.field("runtime_ms"))
