"""What GEMMs cost on a type of card: measured rows where the farm has them, predictions of the type's model elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm import registry
from farm.errors import NotPredictable
from farm.formatting import problem_text
from farm.gemm import Problem
from farm.kernels.configuration import problem_columns
from farm.language_models.layer_gemm import LayerGemm
from farm.model_plans.amounts import Estimate
from farm.model_plans.fastest_kernel import FastestKernel
from farm.model_plans.step_plans import GemmEstimate
from farm.protocols import Time
from farm.registry import Model, Objective, Prediction


@dataclass
class CardCosts:
    """Costs of GEMMs on one type of card.

    Attributes:
        measured: The fastest measured kernel of each problem.
        model: The model of the type. None: there is none.
        why_no_model: Why there is none.
        load: Which of both times counts.
    """

    device_type: str
    measured: Mapping[Problem, FastestKernel]
    model: Model | None
    why_no_model: str
    load: Time
    # Predictions so far: of the best kernel, or why there is none.
    _predicted: dict[Problem, Prediction | str] = field(default_factory=dict)

    def estimates(self, gemms: Sequence[LayerGemm]) -> tuple[list[GemmEstimate], dict[str, str]]:
        """The estimates, and by `name problem` why a GEMM has none."""
        found, missing = list[GemmEstimate](), dict[str, str]()
        for gemm in gemms:
            row = self.measured.get(gemm.problem)
            if row is not None:
                found.append(self._of_row(gemm, row))
                continue
            prediction = self._prediction(gemm.problem)
            if isinstance(prediction, str):
                missing[f"{gemm.name} {_text_of(gemm.problem)}"] = prediction
            else:
                found.append(self._of_prediction(gemm, prediction))
        return found, missing

    def _of_row(self, gemm: LayerGemm, row: FastestKernel) -> GemmEstimate:
        # Cards of a type differ: a slow one is slow with every kernel, so the spread of rows is no noise.
        mj, energy_measured = None, None
        if row.mj is not None and row.mj_min is not None and row.mj_max is not None:
            noise = row.mj * ((row.power_rse or 0.0) ** 2 + row.rse**2) ** 0.5
            mj, energy_measured = Estimate(value=row.mj, low=row.mj_min, high=row.mj_max, noise=noise), True
        elif (predicted := self._energy_of(row)) is not None:
            mj, energy_measured = predicted, False
        return GemmEstimate(
            name=gemm.name, problem=_text_of(gemm.problem), m=gemm.problem.shape.m, count=gemm.count,
            configuration=row.configuration.canonical,
            ms=Estimate(value=row.ms, low=row.ms_min, high=row.ms_max, noise=row.rse * row.ms),
            mj=mj, measured=True, energy_measured=energy_measured, rows=row.rows, limit_w=row.limit_w,
            power_limited=row.power_limited,
        )  # fmt: skip

    def _of_prediction(self, gemm: LayerGemm, prediction: Prediction) -> GemmEstimate:
        time = prediction.at(self.load)
        assert time is not None, "recommended kernels have that time"
        mj = _energy(prediction)
        return GemmEstimate(
            name=gemm.name, problem=_text_of(gemm.problem), m=gemm.problem.shape.m, count=gemm.count,
            configuration=prediction.configuration,
            ms=Estimate(value=time.ms, low=time.low, high=time.high),
            mj=mj, measured=False, energy_measured=None if mj is None else False, outside=prediction.outside,
        )  # fmt: skip

    def _prediction(self, problem: Problem) -> Prediction | str:
        if problem not in self._predicted:
            self._predicted[problem] = self._predict(problem)
        return self._predicted[problem]

    def _predict(self, problem: Problem) -> Prediction | str:
        if self.model is None:
            return self.why_no_model
        try:
            return registry.recommend(self.model, problem, objective=Objective.TIME, time=self.load, top=1).ranking[0]
        except NotPredictable as error:
            return str(error)

    def _energy_of(self, row: FastestKernel) -> Estimate | None:
        """The predicted energy of a kernel whose power was not measured."""
        if self.model is None:
            return None
        try:
            (prediction,) = registry.predict(self.model, [row.configuration])
        except NotPredictable:
            return None
        return _energy(prediction)


def _energy(prediction: Prediction) -> Estimate | None:
    if prediction.energy_mj is None:
        return None
    return Estimate(value=prediction.energy_mj, low=prediction.energy_mj_low, high=prediction.energy_mj_high)


def _text_of(problem: Problem) -> str:
    """`512x512x512 bf16 nt`."""
    return problem_text(problem_columns(problem))
