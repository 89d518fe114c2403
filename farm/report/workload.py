"""The time of all GEMMs of a workload: each problem's time, times how often a program computes it (pure).

Campaigns of traces and of language models have these counts (`Campaign.counts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farm.formatting import counted
from farm.gemm import Problem
from farm.report.best import BestKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The GEMMs of a campaign that have counts, on one device type.

    Attributes:
        gemms: The sum of the counts of the problems that have a time.
        problems: Problems that have a time.
        missing: Problems that have none. `ms` is without them.
        ms: Time of all GEMMs with the best kernel of each problem.
        with_baseline: Problems that have the baseline's time too.
        baseline_ms: Time of these with cuBLASLt's own choice; None if there are none.
        speed_up: `baseline_ms` over the time of the same GEMMs with the best kernels.
    """

    device_type: str
    gemms: float
    problems: int
    missing: int
    ms: float
    with_baseline: int
    baseline_ms: float | None
    speed_up: float | None

    @property
    def sentence(self) -> str:
        """The figures for people."""
        gemms = f"{self.gemms:,g} GEMMs of {counted(self.problems, 'problem')}"
        text = f"On {self.device_type}, {gemms} take {self.ms:,.4g} ms with the best kernels"
        if self.speed_up is not None and self.baseline_ms is not None:
            which = "" if self.with_baseline == self.problems else f" for {self.with_baseline:,} of these problems"
            text += (
                f", {self.speed_up:.3f} times as fast as with cuBLASLt's own choice ({self.baseline_ms:,.4g} ms{which})"
            )
        return f"{text}." + (f" Problems without a time: {self.missing:,}." if self.missing else "")


def workloads(found: Iterable[BestKernel], counts: Mapping[Problem, float]) -> list[Workload]:
    """The workload on each device type that has a time; none without counts."""
    by_type = dict[str, list[BestKernel]]()
    for one in found:
        if one.problem in counts:
            by_type.setdefault(one.device_type, []).append(one)
    return [_workload(device_type, kernels, counts) for device_type, kernels in sorted(by_type.items())]


def _workload(device_type: str, kernels: list[BestKernel], counts: Mapping[Problem, float]) -> Workload:
    pairs = [
        (counts[one.problem], one.best.runtime_ms, one.baseline.runtime_ms)
        for one in kernels
        if one.baseline is not None
    ]
    baseline_ms = sum(count * baseline for count, _, baseline in pairs)
    return Workload(
        device_type=device_type,
        gemms=sum(counts[one.problem] for one in kernels),
        problems=len(kernels),
        missing=len(counts) - len(kernels),
        ms=sum(counts[one.problem] * one.best.runtime_ms for one in kernels),
        with_baseline=len(pairs),
        baseline_ms=baseline_ms if pairs else None,
        speed_up=baseline_ms / sum(count * best for count, best, _ in pairs) if pairs else None,
    )
