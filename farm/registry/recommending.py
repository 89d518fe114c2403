"""Which kernel for a problem: a model ranks those that were measured and that the card can run, or every one it could."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadInput, NotPredictable
from farm.gemm import Problem
from farm.gpus import traits_of_type
from farm.kernels import Configuration, Kernel
from farm.registry.direct import Model
from farm.registry.predictions import Prediction, predict
from farm.vendors import kind_named_by

MOST_CANDIDATES = 200_000
"""Kernels that a family is looked through for; a family with more is refused rather than looked through in part."""


class Objective(StrEnum):
    """What the best kernel has least of."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    def of(self, prediction: Prediction) -> float | None:
        """ms, mJ, or their product; None where the model has learned no power."""
        return self._of(prediction.runtime_ms, prediction.energy_mj)

    def at_most(self, prediction: Prediction) -> float | None:
        """The same by the upper bounds; None where the model has none."""
        if prediction.runtime_ms_high is None:
            return None
        return self._of(prediction.runtime_ms_high, prediction.energy_mj_high)

    def _of(self, runtime_ms: float, energy_mj: float | None) -> float | None:
        if self is Objective.TIME:
            return runtime_ms
        if energy_mj is None:
            return None
        return energy_mj if self is Objective.ENERGY else energy_mj * runtime_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Kernels for a problem, the best first."""

    problem: str
    objective: Objective
    # How many kernels the card can run; the ranking has the first of them.
    kernels: int
    ranking: tuple[Prediction, ...]
    # The kernel that is best in the worst case (by the upper bounds), and how much more than the first it is said to take.
    # None where the model has no bounds.
    safe: Prediction | None
    safe_costs_pct: float | None


def recommend(
    model: Model,
    problem: Problem,
    *,
    families: Sequence[str] = (),
    objective: Objective = Objective.TIME,
    top: int = 10,
    unmeasured: bool = False,
) -> Recommendation:
    """Ranks the kernels of these families, or of all that the model knows, that its card can run for a problem.

    Kernels are those that were measured in the problem's types, on whatever problem; with `unmeasured` every combination of the
    values that their parameters have in any types. Of many kernels that a model is unsure of, the first is likely one that it is wrong about. Raises `NotPredictable` where the model knows no
    such problem, where no kernel is left, and where it has not learned what the objective needs.
    """
    known = model.families
    unknown = sorted(set(families) - set(known))
    if unknown:
        raise NotPredictable(why=f"the model has not seen {', '.join(unknown)}; it knows {', '.join(known)}")
    device_type, asked = model.device_type, list(families) or list(known)
    of_cpu = kind_named_by(device_type) is DeviceKind.CPU  # nothing is known of one
    device = None if of_cpu else traits_of_type(device_type)
    fitting = [name for name in asked if _knows(known[name], problem)]
    if not fitting:
        seen = "; ".join(f"{name} with {_said(known[name])}" for name in asked)
        raise NotPredictable(why=f"{problem.types} {problem.layout} was not measured: the model knows {seen}")
    found = [c for name in fitting for c in _candidates(name, known[name], problem, device, unmeasured)]
    if not found:
        raise NotPredictable(why=f"none of the kernels that were measured can run {problem.shape} on the card")
    predictions = predict(model, found)
    predictions = [one for one in predictions if objective.of(one) is not None]
    if not predictions:
        raise NotPredictable(why=f"no power was measured of such kernels, so that none can be ranked by {objective}")
    ranking = sorted(predictions, key=lambda one: objective.of(one) or math.inf)
    safe = min(ranking, key=lambda one: objective.at_most(one) or math.inf)
    bounded = objective.at_most(safe) is not None
    least, costs = objective.of(ranking[0]), objective.of(safe)
    assert least is not None
    assert costs is not None
    return Recommendation(
        problem=str(Configuration(problem, Kernel.of(fitting[0]))).split(" ", 1)[1],
        objective=objective,
        kernels=len(ranking),
        ranking=tuple(ranking[:top]),
        safe=safe if bounded else None,
        safe_costs_pct=100 * (costs / least - 1) if bounded else None,
    )


def _knows(family: dict[str, Any], problem: Problem) -> bool:
    return str(problem.layout) in family["layouts"].get(_types(problem), ())


def _types(problem: Problem) -> str:
    types = problem.types
    return f"{types.ab}:{types.cd}:{types.acc}"


def _said(family: dict[str, Any]) -> str:
    return ", ".join(f"{types} in {' '.join(layouts)}" for types, layouts in family["layouts"].items())


def _candidates(
    name: str, known: dict[str, Any], problem: Problem, device: DeviceTraits | None, unmeasured: bool
) -> Iterator[Configuration]:
    """Every such kernel that exists for the problem. Raises `BadInput` where they are too many to look through."""
    kernels = [tuple(kernel) for kernel in known["kernels"]]
    if not unmeasured:
        kernels = [kernels[which] for which in known["kernels_by_types"].get(_types(problem), ())]
    if unmeasured:
        values = [sorted(set(each)) for each in zip(*kernels, strict=True)]
        count = math.prod(map(len, values))
        if count > MOST_CANDIDATES:
            raise BadInput(
                detail=f"{name} has {count:,} combinations of measured values, more than {MOST_CANDIDATES:,}."
            )
        kernels = list(product(*values))
    for kernel in kernels:
        configuration = Configuration(problem, Kernel.of(name, **dict(zip(known["parameters"], kernel, strict=True))))
        if device is None or configuration.why_invalid(device) is None:
            yield configuration
