"""Does a plan of a language model say what a chain of its GEMMs takes, in time and energy?

    python -m benchmarks.plan [--tokens 1 32 128 512 2048 8192] [--seconds 1.5] [--tables gemm_perf.parquet]     on a card
    python -m benchmarks.plan --unseen      other models and tokens

For each model and number of tokens, the GEMMs of a step (without those of routed experts) run as one CUDA graph: each layer with
weights of its own, up to `SETS` of them, so that no weight is in the cache. The chain is loaded until its clocks have settled. Then its
time is the mean of replays for `--seconds`, and its energy that time times the power that the farm reads meanwhile. Three plans are
compared with it:

  rows       each GEMM measured alone in the same run, under the protocol `farm` with power
  champion   a model that learned from the committed rows of this type of card alone; none of a GEMM is measured
  tables     times of AIConfigurator (`--tables`), which are burst times of a serving framework; they have no power here

All kernels are cuBLASLt's own choice. FP8 is without scale factors: one for a whole tensor changes no time, and no committed rows have
it. Errors are (plan / chain - 1), in percent. A plan that lacks a GEMM has no error.

Figures: `median_error_pct` and `worst_error_pct` of the time from rows, `energy_median_error_pct` and `energy_worst_error_pct`, and by
plan under `plans`. `bounds_hold_pct` is the share of chains within the 90% bounds of a plan.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from benchmarks.common import first_card, markdown, write
from farm.api.gemm_costs import CardCosts
from farm.devices import DeviceKind
from farm.errors import FarmError
from farm.gemm import ElementType, ElementTypes, Problem
from farm.kernels import BASELINES, Configuration
from farm.language_models.built_in import built_in
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.steps import Step, layer_gemms
from farm.measurement import Measurement, MeasuringRules
from farm.model_plans.fastest_kernel import FastestKernel
from farm.model_plans.step_plans import StepPlan, step_plan
from farm.operands import OperandRules
from farm.registry.loaded_model import Model
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, with_added_columns
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.kernels.base import BoundKernel, Placement
from workers.measure.operands import SetLayout
from workers.measure.power.nvml_power import measure_power
from workers.measure.replay import MIN_REPLAY_MS, ReplayPlan, Replays
from workers.measure.telemetry import TelemetryLog

DATASETS = Path(__file__).parents[1] / "examples" / "datasets"

TOKENS = (1, 32, 128, 512, 2048, 8192)

MAX_SEQUENCES = 128
"""Sequences of a step: its output head has no more rows."""

SETS = 8
"""Layers with weights of their own. The weights of eight layers are some times as large as the cache."""

SETTLING_SECONDS = 1.5
POWER_SECONDS, POWER_RSE = 2.0, 0.01

LEARNED_FROM = ("both-times", "domain", "learn-domain", "problem-kinds")
"""Committed datasets that the champion learns from, where there is one of the card."""

FP8 = ElementTypes.parse("f8e4m3")

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama-3.1-8b": ("llama-3.1-8b", {}),
    "qwen3-30b-a3b, dense part": ("qwen3-30b-a3b", {}),
    "llama-3.1-8b in FP8": ("llama-3.1-8b", {"types": FP8}),
}

UNSEEN_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3-1.7b": ("qwen3-1.7b", {}),
    "gpt-oss-20b, dense part": ("gpt-oss-20b", {}),
    "mimo-7b in FP8": ("mimo-7b-base", {"types": FP8}),
}
UNSEEN_TOKENS = (24, 96, 160, 320, 640, 1280)
"""`--unseen`: models and tokens that nothing of a plan was chosen by when `plan_unseen` was measured. The margins of
`farm/model_plans/step_plans.py` cover its errors since then."""


def gemms_of(model: str, tokens: int) -> list[LayerGemm]:
    """The GEMMs of a step, without groups."""
    name, changes = {**MODELS, **UNSEEN_MODELS}[model]
    step = Step(tokens, min(tokens, MAX_SEQUENCES), **changes)
    return [gemm for gemm in layer_gemms(built_in(name), step) if gemm.problem.groups is None]


def configuration_of(problem: Problem) -> Configuration:
    return Configuration(problem, BASELINES[DeviceKind.CUDA])


# --- the chain ----------------------------------------------------------------------------------------


@dataclass
class Chain:
    """The GEMMs of a step, bound to operands of their own."""

    device: Any
    gemms: Sequence[LayerGemm]
    _bound: list[tuple[int, int, BoundKernel]] = field(default_factory=list)  # runs in a step, operand sets, kernel
    _arenas: list[DeviceArena] = field(default_factory=list)

    def __enter__(self) -> Chain:
        with self.device._stream as stream:
            for gemm in self.gemms:
                self._bind(gemm)
            stream.synchronize()
        return self

    def _bind(self, gemm: LayerGemm) -> None:
        configuration, sets = configuration_of(gemm.problem), min(SETS, round(gemm.count))
        arena = DeviceArena(self.device._cp, 0, self.device.identity.traits.multiprocessors or 1)
        self._arenas.append(arena)
        buffers = arena.buffers(SetLayout.of(gemm.problem, ALIGNMENT), sets, OperandRules())
        family = self.device._families[configuration.kernel.family]
        family.prepare(configuration)
        self._bound.append((round(gemm.count), sets, family.bind(configuration, Placement.of(buffers, sets))))

    def __exit__(self, *_: object) -> None:
        for _count, _sets, kernel in self._bound:
            kernel.close()
        for arena in self._arenas:
            arena.clear()

    def launch(self, _: int) -> None:
        """Queues one step: layer by layer, and in each layer the GEMMs in their order."""
        for layer in range(max(count for count, _, _ in self._bound)):
            for count, sets, kernel in self._bound:
                if layer < count:
                    kernel.launch(layer % sets)

    def measured(self, seconds: float) -> tuple[float, float | None]:
        """Settled ms and J of a step."""
        cp, stream = self.device._cp, self.device._stream
        with stream:
            self.launch(0)
            before = stream.record()
            self.launch(0)
            after = stream.record()
            after.synchronize()
            rough_ms = float(cp.cuda.get_elapsed_time(before, after))
            runs = Replays(cp, stream, self.launch, 1, ReplayPlan(launches=(math.ceil(MIN_REPLAY_MS / rough_ms),)))
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < SETTLING_SECONDS:
                runs.sample(max(1, round(50 / (rough_ms * runs.launches))))
            replays = max(10, round(1e3 * seconds / (rough_ms * runs.launches)))
            ms = statistics.fmean(runs.sample(replays))
            try:
                power = measure_power(
                    self.device.meter, lambda: runs.keep_busy(ms), target_rse=POWER_RSE, max_seconds=POWER_SECONDS,
                    log=TelemetryLog(), ran_s=time.perf_counter() - began_s,
                )  # fmt: skip
            finally:
                runs.drain()
        self.device.tiers.needs_rest()
        return ms, None if power is None else power.columns()["power_w"] * ms / 1e3


# --- plans --------------------------------------------------------------------------------------------


def measured_row(configuration: Configuration, row: Measurement) -> FastestKernel:
    """A row as the farm's database gives it."""
    ms = row.runtime_settled_ms or row.runtime_ms
    mj = None if row.power_w is None else row.power_w * ms
    return FastestKernel(
        configuration=configuration, ms=ms, ms_min=ms, ms_max=ms, rse=row.runtime_settled_rse or row.runtime_rse,
        mj=mj, mj_min=mj, mj_max=mj, power_rse=row.power_rse, rows=1,
        limit_w=row.power_limit_w, power_limited=row.power_limited,
    )  # fmt: skip


def measure_rows(device: Any, problems: Sequence[Problem]) -> dict[Problem, FastestKernel]:
    """Each problem alone. Those that the card refuses are left out."""
    found = dict[Problem, FastestKernel]()
    for problem in dict.fromkeys(problems):
        configuration = configuration_of(problem)
        try:
            found[problem] = measured_row(configuration, device.measure(configuration, MeasuringRules(power="all")))
        except FarmError as error:
            print(f"left out: {configuration}: {error}", file=sys.stderr)
    return found


def champion(device_type: str) -> Model | None:
    """A model of the committed rows of a card. None: there are none."""
    files = [DATASETS / f"{device_type}-{name}.parquet" for name in LEARNED_FROM]
    tables = [pd.read_parquet(file) for file in files if file.is_file()]
    if not tables:
        return None
    table = with_added_columns(pd.concat(tables, ignore_index=True))
    return Model(fit(device_type, configurations(table), ForestSettings()))


def plan_of(
    device_type: str,
    gemms: Sequence[LayerGemm],
    tokens: int,
    *,
    rows: Mapping[Problem, FastestKernel] | None = None,
    model: Model | None = None,
) -> tuple[StepPlan | None, dict[str, str]]:
    """The plan from these rows or from this model, and why GEMMs are missing."""
    costs = CardCosts(
        device_type=device_type, measured=rows or {}, model=model, why_no_model="no model", load="settled"
    )
    found, missing = costs.estimates(gemms)
    return (None if missing else step_plan(device_type, tokens, found)), missing


class Tables:
    """Times of AIConfigurator's tables.

    Between rows, log(time) is linear in log(m). Between weights, the time for each element of the weight is the mean of the
    `NEAREST` weights, by the inverse square of the distance in log(n) and log(k).
    """

    KINDS: Mapping[ElementType, str] = {ElementType.BF16: "bfloat16", ElementType.F8E4M3: "fp8"}
    NEAREST = 4

    def __init__(self, path: Path) -> None:
        table = pd.read_parquet(path)
        self._curves: dict[str, dict[tuple[int, int], pd.Series[float]]] = {}
        for kind in self.KINDS.values():
            own = table[table["gemm_dtype"] == kind].groupby(["n", "k", "m"])["latency"].median()
            by_weight = own.groupby(level=["n", "k"])
            self._curves[kind] = {cast(tuple[int, int], pair): curve.droplevel(["n", "k"]) for pair, curve in by_weight}

    def ms(self, gemms: Sequence[LayerGemm]) -> float | None:
        """The sum of a step; None where the tables do not have its types."""
        times = [self._one(gemm.problem) for gemm in gemms]
        known = [gemm.count * one for gemm, one in zip(gemms, times, strict=True) if one is not None]
        return sum(known) if len(known) == len(gemms) else None

    def _one(self, problem: Problem) -> float | None:
        curves, s = self._curves.get(self.KINDS.get(problem.types.ab, "")), problem.shape
        if not curves:
            return None
        pairs = np.array(list(curves), np.float64)
        distances = np.hypot(*np.log(pairs / [s.n, s.k]).T)
        nearest = np.argsort(distances)[: self.NEAREST if distances.min() > 0 else 1]
        rates = [self._ms_of(curves[int(pairs[i, 0]), int(pairs[i, 1])], s.m) / pairs[i].prod() for i in nearest]
        weights = 1 / np.maximum(distances[nearest], 1e-9) ** 2
        return float(np.average(rates, weights=weights)) * s.n * s.k

    @staticmethod
    def _ms_of(curve: pd.Series[float], m: int) -> float:
        return float(np.exp(np.interp(np.log(m), np.log(curve.index.to_numpy(np.float64)), np.log(curve.to_numpy()))))


# --- figures ------------------------------------------------------------------------------------------


def off_pct(found: float | None, truth: float | None) -> float | None:
    return None if found is None or truth is None else round(100 * (found / truth - 1), 2)


def line_of(name: str, plan: StepPlan | None, chain_ms: float, chain_j: float | None) -> dict[str, Any]:
    """A plan beside its chain."""
    if plan is None:
        return {"plan": name, "ms": None, "error_pct": None, "joules": None, "energy_error_pct": None, "holds": None}
    low, high = plan.ms.low, plan.ms.high
    joules = None if plan.joules is None else plan.joules.value
    return {
        "plan": name,
        "ms": plan.ms.value,
        "error_pct": off_pct(plan.ms.value, chain_ms),
        "joules": joules,
        "energy_error_pct": off_pct(joules, chain_j),
        "holds": None if low is None or high is None else low <= chain_ms <= high,
    }


def figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one plan over all chains."""

    def errors(name: str) -> list[float]:
        return [abs(one[name]) for one in lines if one[name] is not None]

    time_errors, energy_errors = errors("error_pct"), errors("energy_error_pct")
    holds = [one["holds"] for one in lines if one["holds"] is not None]
    return {
        "chains": len(time_errors),
        "median_error_pct": statistics.median(time_errors) if time_errors else None,
        "worst_error_pct": max(time_errors, default=None),
        "energy_median_error_pct": statistics.median(energy_errors) if energy_errors else None,
        "energy_worst_error_pct": max(energy_errors, default=None),
        "bounds_hold_pct": round(100 * sum(holds) / len(holds), 1) if holds else None,
    }  # fmt: skip


PLANS = ("rows", "champion", "tables")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *UNSEEN_MODELS])
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--unseen", action="store_true", help="other models and tokens; writes plan_unseen")
    parser.add_argument("--seconds", type=float, default=1.5, help="of the settled chain")
    parser.add_argument("--tables", type=Path, help="gemm_perf.parquet of AIConfigurator, of this card")
    asked = parser.parse_args()
    asked.models = asked.models or list(UNSEEN_MODELS if asked.unseen else MODELS)
    asked.tokens = asked.tokens or list(UNSEEN_TOKENS if asked.unseen else TOKENS)
    tables = None if asked.tables is None else Tables(asked.tables)
    began = time.perf_counter()
    chains: list[dict[str, Any]] = []
    with first_card() as device:
        card = device.identity.type
        model = champion(card)
        print(f"champion: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        steps = [(name, tokens, gemms_of(name, tokens)) for name in asked.models for tokens in asked.tokens]
        rows = measure_rows(device, [gemm.problem for _, _, gemms in steps for gemm in gemms])
        device._arena.clear()
        print(f"{len(rows)} rows: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        for name, tokens, gemms in steps:
            if any(gemm.problem not in rows for gemm in gemms):
                continue
            with Chain(device, gemms) as chain:
                ms, joules = chain.measured(asked.seconds)
            from_rows, _ = plan_of(card, gemms, tokens, rows=rows)
            from_model, missing = plan_of(card, gemms, tokens, model=model)
            lines = [line_of("rows", from_rows, ms, joules), line_of("champion", from_model, ms, joules)]
            summed = None if tables is None else tables.ms(gemms)
            lines.append({**line_of("tables", None, ms, joules), "ms": summed, "error_pct": off_pct(summed, ms)})
            chains.append(
                {"model": name, "tokens": tokens, "gemms": round(sum(g.count for g in gemms)), "ms": ms, "joules": joules,
                 "plans": lines, "champion_lacks": missing}
            )  # fmt: skip
            print(f"{name}, {tokens} tokens: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    by_plan = {
        plan: figures([one for chain in chains for one in chain["plans"] if one["plan"] == plan]) for plan in PLANS
    }
    table = markdown(
        ["model", "tokens", "GEMMs", "chain, ms", "chain, J", *(f"{plan}: time, %" for plan in PLANS), *(f"{plan}: energy, %" for plan in PLANS[:2])],
        [
            [one["model"], one["tokens"], one["gemms"], one["ms"], _text(one["joules"]),
             *(_signed(line["error_pct"]) for line in one["plans"]), *(_signed(line["energy_error_pct"]) for line in one["plans"][:2])]
            for one in chains
        ],
    )  # fmt: skip
    found = {
        **by_plan["rows"],
        "plans": by_plan,
        "tables": None if asked.tables is None else asked.tables.name,
        "chains_measured": chains,
    }
    write("plan_unseen" if asked.unseen else "plan", found, table, repetitions=1)


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def _text(value: float | None) -> Any:
    return "" if value is None else value


if __name__ == "__main__":
    main()
