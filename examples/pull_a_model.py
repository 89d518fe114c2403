"""Predicts the cost of a GEMM with a registered model. You don't need GEMM Farm for this: pip install mlflow.

python examples/pull_a_model.py models:/gemm-forest-nvidia-h200@champion     with MLFLOW_TRACKING_URI set
python examples/pull_a_model.py FOLDER                                       that farm models pull made
"""

import sys

import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model(sys.argv[1])
shapes = pd.DataFrame({"m": [512, 2048, 8192]}).assign(n=4096, k=4096, ab="f32")
kernels = pd.DataFrame({"family": ["tiled", "cutlass"], "tile": [32, None], "tile_k": [None, 8], "warp_m": [None, 32]})
queries = shapes.merge(kernels.assign(warp_n=[None, 64], stages=[None, 4]), how="cross")

predictions = queries[["m", "n", "k", "family"]].join(model.predict(queries))
print(
    predictions[
        ["m", "n", "k", "family", "runtime_ms", "runtime_ms_low", "runtime_ms_high", "power_w", "outside"]
    ].to_string()
)
