"""The benchmark of searches: what it asks a farm for, and what it makes of the answers."""

from __future__ import annotations

from pathlib import Path

from benchmarks import search as benchmark
from farm.campaign import load
from farm.campaign.strategies import Grid, Halving, Random
from farm.gemm import ElementTypes, Problem, Shape
from farm.report.best import BestKernel, TimedKernel


def found(
    m: int, *, device_s: float, grid: tuple[float, float] | None = None, baseline_ms: float | None = None
) -> BestKernel:
    def timed(kernel: str, ms: float) -> TimedKernel:
        return TimedKernel(kernel=kernel, runtime_ms=ms, runtime_q1_ms=ms, runtime_q3_ms=ms, runtime_rse=0.01, rows=1)

    best_ms, found_ms = grid or (None, None)
    return BestKernel(
        problem=Problem(Shape(m, 64, 64), ElementTypes.parse("f32")),
        device_type="nvidia-test",
        best=timed("tiled(tile=16)", 2.0),
        baseline=None if baseline_ms is None else timed("cublaslt(algorithm=0)", baseline_ms),
        tried=12,
        grid=32,
        device_s=device_s,
        baseline_device_s=100.0,
        grid_best_ms=best_ms,
        grid_found_ms=found_ms,
    )


def test_a_search_is_held_against_the_grid_in_times_and_device_time() -> None:
    search = [
        found(64, device_s=1, grid=(2.0, 2.0)), found(128, device_s=2, grid=(1.5, 2.0)),
        found(192, device_s=1, grid=(1.8, 2.0)), found(256, device_s=1),
    ]  # fmt: skip
    compared = benchmark.compared(search, [found(m, device_s=5) for m in (64, 128, 192, 256)])
    assert compared == {
        "problems": 3,
        "share_of_best_pct": {"median": 90.0, "mean": 88.333, "worst": 75.0},
        "found_the_best": 1,
        "share_of_device_time_pct": 25.0,  # the baseline's time is in neither
        "device_s": 5,
        "kernels_tried": 48,
    }


def test_without_a_share_none_is_told() -> None:
    assert benchmark.compared([found(64, device_s=1)], [found(64, device_s=0)])["share_of_best_pct"] is None
    assert benchmark.baseline_of([found(64, device_s=1)])["median_speed_up_over_baseline"] is None
    told = benchmark.baseline_of([found(64, device_s=1, baseline_ms=ms) for ms in (1, 2, 4)])
    assert told == {"problems_with_baseline": 3, "median_speed_up_over_baseline": 1.0}


def test_the_default_grid_has_a_hundred_problems_and_each_strategy_asks_for_the_same(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(benchmark.TILES)
    campaign = load(tmp_path / "grid.yaml", limit=10**6)
    assert sum(block.size for block in campaign.problems) == 108
    halving = Halving()
    wanted = {strategy: benchmark.asked_for(campaign, strategy, halving) for strategy in benchmark.LISTED}
    assert {(c.problems, c.kernels, c.measure) for c in wanted.values()} == {
        (campaign.problems, campaign.kernels, campaign.measure)
    }
    assert wanted["random"].search == Random(kernels=8 + 4)
    assert wanted["grid"].search == Grid()
    assert len({c.digest for c in wanted.values()}) == 3


def test_a_trial_says_that_it_is_one() -> None:
    one = benchmark.compared([found(64, device_s=1, grid=(1.0, 2.0))], [found(64, device_s=4)])
    figures = {
        "trial": benchmark.TRIALS["recorded"], "kernels": 32, "power": "none",
        "grid": {"problems": 1, "kernels_tried": 32, "device_s": 4.0}, "strategies": {"halving": one},
    }  # fmt: skip
    assert benchmark.table(figures).startswith("A trial: the times are made up")
    assert "| halving | 12 | 50.0 | 50.0 | 0 of 1 | 1 | 25.0 |" in benchmark.table(figures)
    assert benchmark.table({**figures, "trial": None}).startswith("1 problems, 32 kernels each")
