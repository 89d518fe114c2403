"""Chooses a kernel for each layer of a model, by time and by energy, with a registered model.

python examples/choose_a_kernel.py nvidia-h200     of the registry of this farm, or of MLFLOW_TRACKING_URI
"""

import sys

from farm import registry
from farm.gemm import ElementTypes, Problem, Shape
from farm.settings import settings

model = registry.pull(settings().tracking_uri, sys.argv[1])
for shape in ("2048x4096x4096", "2048x14336x4096", "2048x4096x14336"):
    problem = Problem(Shape.parse(shape), ElementTypes.parse("f32"))
    for objective in (registry.Objective.TIME, registry.Objective.ENERGY):
        best = registry.recommend(model, problem, objective=objective, top=1)
        first = best.ranking[0]
        energy = "no power known" if first.energy_mj is None else f"{first.energy_mj:.0f} mJ"
        print(f"{shape} by {objective}: {first.configuration.split(' ')[0]}, {first.runtime_ms:.3f} ms, {energy}")
