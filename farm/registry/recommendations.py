"""Recommends kernels for a problem: a model ranks the measured kernels, or all combinations, that the card can run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadInput, NotPredictable
from farm.formatting import scalars_text
from farm.gemm import Problem, added_columns
from farm.gpus import traits_of_type
from farm.groups import NONE
from farm.kernels import Configuration, Kernel
from farm.protocols import Time
from farm.registry.loaded_model import Model
from farm.registry.predictions import Prediction, predict
from farm.vendors import kind_named_by

MAX_CANDIDATES = 200_000
"""Limit for the candidates of a family. A family with more is refused, not searched in part."""


class Objective(StrEnum):
    """The quantity to minimize."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    def of(self, prediction: Prediction, time: Time | None = None) -> float | None:
        """ms of that time, mJ, or their product; None without a learned power or time."""
        found = prediction.at(time)
        return None if found is None else self._of(found.ms, prediction.energy_mj)

    def at_most(self, prediction: Prediction, time: Time | None = None) -> float | None:
        """The same from the upper bounds; None without bounds."""
        found = prediction.at(time)
        return None if found is None or found.high is None else self._of(found.high, prediction.energy_mj_high)

    def _of(self, runtime_ms: float, energy_mj: float | None) -> float | None:
        if self is Objective.TIME:
            return runtime_ms
        if energy_mj is None:
            return None
        return energy_mj if self is Objective.ENERGY else energy_mj * runtime_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Kernels for a problem, best first."""

    problem: str
    objective: Objective
    # Which of both times the ranking is by. None: that of the model's own rows.
    time: Time | None
    # Number of kernels that the card can run; the ranking has the best of them.
    kernels: int
    ranking: tuple[Prediction, ...]
    # The best kernel by the upper bounds, and its predicted cost over the first of the ranking. None without bounds.
    safe: Prediction | None
    safe_costs_pct: float | None


def recommend(
    model: Model,
    problem: Problem,
    *,
    families: Sequence[str] = (),
    objective: Objective = Objective.TIME,
    time: Time | None = None,
    top: int = 10,
    unmeasured: bool = False,
) -> Recommendation:
    """Ranks the kernels of these families, or of all families of the model, that its card can run for a problem.

    Candidates are kernels that were measured in the problem's types on any problem. With `unmeasured` they are all
    combinations of measured parameter values; the first of many uncertain candidates is then likely a wrong prediction. Raises
    `NotPredictable` for a problem or a time that the model does not know, without candidates, and without a model of the objective.
    """
    model.require_time(time)
    known = model.families
    unknown = sorted(set(families) - set(known))
    if unknown:
        raise NotPredictable(why=f"the model has not seen {', '.join(unknown)}; it knows {', '.join(known)}")
    device_type, asked = model.device_type, list(families) or list(known)
    of_cpu = kind_named_by(device_type) is DeviceKind.CPU  # limits of CPUs are unknown
    device = None if of_cpu else traits_of_type(device_type)
    of_kind = [name for name in asked if _knows(known[name], problem)]
    fitting = [name for name in of_kind if problem.batch == 1 or _types(problem) in known[name]["batched"]]
    if of_kind and not fitting:
        raise NotPredictable(why=f"batch is {problem.batch}, and this version has learned from {model.batches}")
    if not fitting:
        seen = "; ".join(f"{name} with {_layouts_text(known[name])}" for name in asked)
        raise NotPredictable(why=f"{_types(problem)} {problem.layout} was not measured: the model knows {seen}")
    found = [c for name in fitting for c in _candidates(name, known[name], problem, device, unmeasured)]
    if not found:
        raise NotPredictable(
            why=f"no measured kernel can run {problem.shape}{scalars_text(problem.alpha, problem.beta, **added_columns(problem))} on the card"
        )
    timed = [one for one in predict(model, found) if one.at(time) is not None]
    if not timed:
        raise NotPredictable(why=f"no {time} time of such kernels was measured")
    predictions = [one for one in timed if objective.of(one, time) is not None]
    if not predictions:
        raise NotPredictable(why=f"no power of such kernels was measured, which ranking by {objective} needs")
    ranking = sorted(predictions, key=lambda one: objective.of(one, time) or math.inf)
    safe = min(ranking, key=lambda one: objective.at_most(one, time) or math.inf)
    bounded = objective.at_most(safe, time) is not None
    least, costs = objective.of(ranking[0], time), objective.of(safe, time)
    assert least is not None
    assert costs is not None
    return Recommendation(
        problem=str(Configuration(problem, Kernel.of(fitting[0]))).split(" ", 1)[1],
        objective=objective,
        time=time,
        kernels=len(ranking),
        ranking=tuple(ranking[:top]),
        safe=safe if bounded else None,
        safe_costs_pct=100 * (costs / least - 1) if bounded else None,
    )


def _knows(family: dict[str, Any], problem: Problem) -> bool:
    return str(problem.layout) in family["layouts"].get(_types(problem), ())


def _types(problem: Problem) -> str:
    """As models call the types of a problem, with its scale factors, fused operations and sparsity, and whether it has groups."""
    from farm.forest.columns import types_text

    types = problem.types
    groups = str(problem.groups or NONE)
    return types_text(types.ab, types.cd, types.acc, problem.scale, problem.fused, groups, problem.sparsity)


def _layouts_text(family: dict[str, Any]) -> str:
    return ", ".join(f"{types} in {' '.join(layouts)}" for types, layouts in family["layouts"].items())


def _candidates(
    name: str, known: dict[str, Any], problem: Problem, device: DeviceTraits | None, unmeasured: bool
) -> Iterator[Configuration]:
    """The candidates of a family for the problem. Raises `BadInput` where there are too many."""
    kernels = [tuple(kernel) for kernel in known["kernels"]]
    if not unmeasured:
        kernels = [kernels[which] for which in known["kernels_by_types"].get(_types(problem), ())]
    else:
        values = [sorted(set(each)) for each in zip(*kernels, strict=True)]
        count = math.prod(map(len, values))
        if count > MAX_CANDIDATES:
            raise BadInput(
                detail=f"{name} has {count:,} combinations of measured values, more than {MAX_CANDIDATES:,}."
            )
        kernels = list(product(*values))
    for kernel in kernels:
        configuration = Configuration(problem, Kernel.of(name, **dict(zip(known["parameters"], kernel, strict=True))))
        if device is None or configuration.why_invalid(device) is None:
            yield configuration
