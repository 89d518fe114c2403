"""Plans of steps: sums with intervals, what follows from them, and the cheapest that meets a latency."""

from __future__ import annotations

from functools import partial
from math import sqrt

import pytest

from farm.model_plans.amounts import NORMAL_90, Amount, Estimate, total
from farm.model_plans.step_plans import (
    ENERGY_SUM_ERROR,
    SMALL_SUM_ERROR,
    SUM_ERROR,
    GemmEstimate,
    NotCovered,
    OtherCost,
    StepPlan,
    cheapest,
    most_doubtful,
    step_plan,
)


def gemm(
    name: str = "qkv_proj",
    ms: float = 1.0,
    *,
    m: int = 512,
    count: float = 32,
    time: Estimate | None = None,
    **changes: object,
) -> GemmEstimate:
    columns: dict[str, object] = {
        "name": name, "problem": f"{m}x6144x4096 bf16 nt", "m": m, "count": count, "configuration": "",
        "ms": time or Estimate(value=ms, low=ms, high=ms), "mj": Estimate(value=500 * ms, low=500 * ms, high=500 * ms),
        "measured": True, "energy_measured": True, "rows": 1,
    }  # fmt: skip
    return GemmEstimate(**(columns | changes))  # type: ignore[arg-type]


def test_noise_adds_in_squares_and_bounds_add_as_they_are() -> None:
    noisy = Estimate(value=10, low=10, high=10, noise=0.1)
    found = total([(noisy, 3), (noisy, 4)])
    assert found.value == 70
    assert found.high == pytest.approx(70 + NORMAL_90 * sqrt(0.3**2 + 0.4**2))
    predicted = Estimate(value=10, low=9, high=12)
    assert total([(predicted, 3), (predicted, 4)]) == Amount(value=70, low=63, high=84)
    assert total([(noisy, 1), (Estimate(value=1), 1)]) == Amount(value=11)  # one part without bounds


def joules_of(*gemms: GemmEstimate) -> float:
    found = step_plan("nvidia-h200", 512, gemms).joules
    assert found is not None
    return found.value


def test_gemms_that_the_power_limit_slows_draw_what_others_leave_of_it() -> None:
    """700 W for 1 ms, and 200 W for as long: 700 W for 2 ms would be 1.4 J."""
    held = gemm(count=1, mj=Estimate(value=700.0), limit_w=700.0, power_limited=True)
    low = partial(gemm, "router", count=1, limit_w=700.0, power_limited=False)
    assert joules_of(held, low(mj=Estimate(value=200.0))) == pytest.approx(0.9 + 0.12 * 0.7)
    assert joules_of(held, low(mj=Estimate(value=680.0))) == pytest.approx(1.4), "no more than the limit"
    assert joules_of(held) == pytest.approx(0.7)
    assert joules_of(low(mj=Estimate(value=690.0)), low(mj=Estimate(value=200.0))) == pytest.approx(0.89)
    unknown = gemm(count=1, mj=Estimate(value=700.0), power_limited=True)
    assert joules_of(unknown, gemm(count=1, mj=Estimate(value=200.0))) == pytest.approx(0.9)


def test_a_step_is_the_sum_of_its_gemms_and_what_is_given_besides() -> None:
    plan = step_plan(
        "nvidia-h200", 512, [gemm(ms=1.0, count=32), gemm("lm_head", 4.0, count=1, measured=False)], cards=4,
        others=[OtherCost(name="attention", ms=14.0, joules=2.0), OtherCost(name="attention", ms=99, tokens=1)],
        not_covered=[NotCovered(name="attention", count=32), NotCovered(name="all-reduce", count=64, each="8 MiB")],
        price_per_hour=3.6, grams_per_kwh=360,
    )  # fmt: skip
    assert plan.gemm_ms.value == 36
    assert plan.gemm_ms.high == pytest.approx(36 * (1 + SUM_ERROR))
    assert plan.ms.value == 50
    assert plan.measured_pct == pytest.approx(100 * 32 / 36)
    assert plan.tokens_per_s.value == pytest.approx(512 / 0.050)
    assert plan.tokens_per_s.low == pytest.approx(512e3 / (plan.ms.high or 0))
    # 36 ms at 500 W and 2 J, on each of four cards.
    assert plan.joules is not None
    assert plan.joules.value == pytest.approx(4 * 20)
    assert plan.joules.low == pytest.approx(4 * (18 * (1 - ENERGY_SUM_ERROR) + 2))
    assert plan.power_w == pytest.approx(20 / 0.050)
    assert plan.joules_per_token is not None
    assert plan.joules_per_token.value == pytest.approx(80 / 512)
    # 3.60 an hour is 0.001 a second: four cards for 50 ms.
    assert plan.money_per_mtoken is not None
    assert plan.money_per_mtoken.value == pytest.approx(4 * 0.001 * 0.050 / 512 * 1e6)
    # 360 g/kWh is 0.1 mg/J.
    assert plan.co2_g_per_mtoken is not None
    assert plan.co2_g_per_mtoken.value == pytest.approx(80 * 1e-4 / 512 * 1e6)
    assert [str(one) for one in plan.not_covered] == ["all-reduce (64, 8 MiB each)"]
    assert plan.gemm_pct is None  # the all-reduce is missing


def test_gaps_between_kernels_make_sums_of_small_gemms_less_certain() -> None:
    plan = step_plan("nvidia-h200", 1, [gemm(m=1, count=1)])
    assert plan.ms.high == pytest.approx(1 + SMALL_SUM_ERROR)
    assert plan.gemm_pct == 100


def test_a_part_without_energy_leaves_the_step_without() -> None:
    plan = step_plan("nvidia-h200", 8, [gemm(), gemm("o_proj", mj=None)], grams_per_kwh=100)
    assert (plan.joules, plan.power_w, plan.co2_g_per_mtoken) == (None, None, None)
    assert plan.without_energy == ("o_proj",)
    assert step_plan("nvidia-h200", 8, [gemm()], others=[OtherCost(name="all-reduce", ms=1)]).joules is None


def planned(device_type: str, tokens: int, ms: float, price: float | None = None) -> StepPlan:
    return step_plan(device_type, tokens, [gemm(ms=ms, count=1)], price_per_hour=price)


def test_the_cheapest_is_of_those_whose_upper_bound_meets_the_latency() -> None:
    slow, fast = planned("nvidia-a100", 64, 10, price=1), planned("nvidia-h200", 64, 4, price=3)
    assert cheapest([slow, fast]) is slow
    assert cheapest([slow, fast], max_ms=10.6) is slow
    assert cheapest([slow, fast], max_ms=10.0) is fast  # its bound is above 10 ms
    assert cheapest([slow, fast], max_ms=3) is None
    assert cheapest([planned("x", 8, 5), planned("y", 8, 4)]) == planned("y", 8, 4)  # without prices, by energy


def test_predictions_that_decide_most_are_measured_first() -> None:
    wide = gemm("wide", count=1, measured=False, time=Estimate(value=1, low=0.5, high=1.5))
    often = gemm("often", count=100, measured=False, time=Estimate(value=1, low=0.9, high=1.1))
    unbounded = gemm("unbounded", count=2, measured=False, time=Estimate(value=1))
    found = most_doubtful([wide, gemm(), often, unbounded], 2)
    assert [one.name for one in found] == ["often", "unbounded"]
