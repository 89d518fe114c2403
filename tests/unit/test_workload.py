"""The time of all GEMMs of a campaign, each as often as a program computes it."""

from __future__ import annotations

import pytest

from farm.campaign import loads
from farm.gemm import ElementTypes, Problem, Shape
from farm.report.best import BestKernel, TimedKernel
from farm.report.workload import workloads


def problem(m: int) -> Problem:
    return Problem(Shape(m, 64, 64), ElementTypes.parse("f32"))


def timed(kernel: str, ms: float) -> TimedKernel:
    return TimedKernel(kernel=kernel, runtime_ms=ms, runtime_q1_ms=ms, runtime_q3_ms=ms, runtime_rse=0.01, rows=1)


def found(m: int, ms: float, baseline_ms: float | None = None, device_type: str = "nvidia-test") -> BestKernel:
    return BestKernel(
        problem=problem(m), device_type=device_type, best=timed("tiled(tile=16)", ms),
        baseline=None if baseline_ms is None else timed("cublaslt(algorithm=0)", baseline_ms),
        tried=1, grid=1, device_s=1.0, baseline_device_s=0.0,
    )  # fmt: skip


COUNTS = {problem(8): 32.0, problem(16): 1.0, problem(24): 4.0}


def test_a_problem_that_runs_often_weighs_more() -> None:
    (one,) = workloads([found(8, 1.0, 2.0), found(16, 8.0, 8.0), found(24, 3.0, 3.0)], COUNTS)
    assert (one.gemms, one.ms, one.baseline_ms) == (37, 32 + 8 + 12, 64 + 8 + 12)
    assert one.speed_up == pytest.approx(84 / 52)
    assert one.sentence == (
        "On nvidia-test, 37 GEMMs of 3 problems take 52 ms with the best kernels, 1.615 times as fast as with cuBLASLt's own choice "
        "(84 ms)."
    )


def test_the_speed_up_is_of_the_problems_whose_baseline_is_known() -> None:
    (one,) = workloads([found(8, 1.0), found(16, 8.0, 16.0), found(24, 3.0)], COUNTS)
    assert (one.ms, one.baseline_ms, one.speed_up, one.with_baseline) == (52, 16, 2, 1)
    assert "(16 ms for 1 of these problems)" in one.sentence


def test_problems_without_a_time_are_named_and_each_type_has_its_own_time() -> None:
    first, second = workloads([found(8, 1.0, device_type="b"), found(8, 2.0, device_type="a"), found(99, 5.0)], COUNTS)
    assert [(one.device_type, one.ms, one.missing) for one in (first, second)] == [("a", 64, 2), ("b", 32, 2)]
    assert first.sentence == (
        "On a, 32 GEMMs of 1 problem take 64 ms with the best kernels. Problems without a time: 2."
    )


def test_counts_are_those_of_listed_gemms_added_up() -> None:
    campaign = loads(
        """
name: counted
problems:
  - gemms: {8x64x64 f32 nn: 32, 16x64x64 f32 nn: 1}
  - gemms: {16x64x64 f32 nn: 2}
  - {shapes: 24x64x64, types: f32}
kernels: {family: blas}
""",
        name="counted.yaml",
        limit=100,
        owner=None,
    )
    assert campaign.counts == {problem(8): 32, problem(16): 3}
    assert workloads([found(24, 1.0)], campaign.counts) == []
