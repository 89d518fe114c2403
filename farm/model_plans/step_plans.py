"""The plan of one step on one type of card: GEMMs with their costs, other operations, and what follows from their sums.

The energy of a GEMM is its power times its time under load, for both loads: no power is measured in the first milliseconds
after a rest. The power of a step is its energy over its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.model_plans.amounts import Amount, Estimate, total

SUM_ERROR = 0.054
"""The share by which a sum of settled times and a chain of the same GEMMs differ at most. Source: chains of six models as one CUDA
graph on H200s, 128 to 8,192 tokens (`benchmarks/plan.py`)."""

SMALL_SUM_ERROR = 0.048
"""The same with fewer than `SMALL_M` rows, where gaps between kernels count. Source: Llama-3.1-8B, 1 and 32 tokens."""

SMALL_M = 128

ENERGY_SUM_ERROR = 0.092
"""The same of energies, for any number of rows."""

MORE_IN_A_MIXTURE = 0.12
"""What GEMMs whose clocks the power limit lowers draw more, at most, where others leave room. The limit is one of the mean power of
milliseconds. Source: 512 and 128 tokens of Qwen3-30B-A3B's dense part, and each pair of its GEMMs, on an H200."""

MS_PER_HOUR = 3.6e6
J_PER_KWH = 3.6e6
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmEstimate:
    """What one GEMM of a step costs, each time that it runs.

    Attributes:
        name: The layer.
        problem: As `512x512x512 bf16 nt`.
        m: The rows of the product.
        count: How often it runs in a step.
        configuration: The chosen kernel with its problem.
        ms: Time, by the load of the plan.
        mj: Energy. None: neither measured nor predicted.
        measured: Whether the time was measured; otherwise it is predicted.
        energy_measured: Whether the power was measured. None without an energy.
        rows: Rows that the time is the median of; 0 for a prediction.
        limit_w: The power limit of the card that was measured. None: not known.
        power_limited: Whether that limit lowered its clocks. None: not known.
        outside: Why a prediction is outside what its model has learned; empty inside.
    """

    name: str
    problem: str
    m: int
    count: float
    configuration: str
    ms: Estimate
    mj: Estimate | None
    measured: bool
    energy_measured: bool | None
    rows: int = 0
    outside: str = ""
    limit_w: float | None = None
    power_limited: bool | None = None

    @property
    def doubt_ms(self) -> float:
        """What measuring it would settle: its share of the step's time times how unsure it is, in ms of a step."""
        return self.count * self.ms.half_width


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCost:
    """An operation that is no GEMM, as the user gives it.

    Attributes:
        ms: Time in one step.
        joules: Energy in one step on one card. None: not known.
        device_type: The card that it is of. None: any.
        tokens: The tokens of a step that it is of. None: any.
    """

    name: str
    ms: float
    joules: float | None = None
    device_type: str | None = None
    tokens: int | None = None

    def is_of(self, device_type: str, tokens: int) -> bool:
        return self.device_type in (None, device_type) and self.tokens in (None, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """An operation of a step whose cost is unknown.

    Attributes:
        count: How often it runs in a step.
        each: The size of one, as `8 MiB`. Empty: not known.
    """

    name: str
    count: float
    each: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.count:g}{f', {self.each} each' if self.each else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step with so many tokens on one type of card.

    Attributes:
        tokens: Tokens of a step of one tensor-parallel group.
        cards: Cards that compute a step together, each with the same GEMMs.
        ms: Time of a step: its GEMMs and the other operations that were given.
        gemm_ms: Time of its GEMMs.
        gemm_pct: Their share of the time. None where operations are not covered.
        measured_pct: Of the time of GEMMs, the share that was measured.
        joules: Energy of a step on all cards. None: part of it is not known.
        power_w: Mean power of a card.
        money_per_mtoken: Money for a million tokens. None without a price.
        co2_g_per_mtoken: Grams of CO2 for a million tokens. None without a carbon intensity or energy.
        gemms: In the order of the model.
        others: Other operations, as given.
        not_covered: Operations whose cost is not part of the plan.
        without_energy: Names of GEMMs and operations without an energy.
    """

    device_type: str
    tokens: int
    cards: int
    ms: Amount
    gemm_ms: Amount
    gemm_pct: float | None
    measured_pct: float
    tokens_per_s: Amount
    joules: Amount | None
    power_w: float | None
    joules_per_token: Amount | None
    money_per_mtoken: Amount | None
    co2_g_per_mtoken: Amount | None
    gemms: tuple[GemmEstimate, ...]
    others: tuple[OtherCost, ...]
    not_covered: tuple[NotCovered, ...]
    without_energy: tuple[str, ...]

    def meets(self, max_ms: float) -> bool:
        """Whether a step takes at most that long: by the upper bound, where there is one."""
        return (self.ms.value if self.ms.high is None else self.ms.high) <= max_ms


def step_plan(
    device_type: str,
    tokens: int,
    gemms: Sequence[GemmEstimate],
    *,
    cards: int = 1,
    replicas: int = 1,
    others: Sequence[OtherCost] = (),
    not_covered: Sequence[NotCovered] = (),
    price_per_hour: float | None = None,
    grams_per_kwh: float | None = None,
) -> StepPlan:
    """Adds up a step.

    Args:
        tokens: Tokens of one tensor-parallel group.
        gemms: The GEMMs of one card, at least one.
        cards: Cards that compute the step together, in all groups.
        replicas: Tensor-parallel groups, each with so many tokens.
        others: Other operations; those of other cards or numbers of tokens are left out.
        not_covered: Operations that are no GEMMs; those that `others` names are left out.
        price_per_hour: Money per hour of a card.
        grams_per_kwh: Carbon intensity of the power.
    """
    of_step = tuple(one for one in others if one.is_of(device_type, tokens))
    given = {one.name for one in of_step}
    left = tuple(one for one in not_covered if one.name not in given)
    gemm_ms = _widened(
        total((one.ms, one.count) for one in gemms),
        sum(one.count * one.ms.value * (SUM_ERROR if one.m >= SMALL_M else SMALL_SUM_ERROR) for one in gemms),
    )
    ms = gemm_ms + Amount.exactly(sum(one.ms for one in of_step))
    without_energy = [one.name for one in gemms if one.mj is None] + [one.name for one in of_step if one.joules is None]
    joules = None if without_energy else _joules(gemms, of_step)
    step_joules = None if joules is None else joules * cards
    per_step = tokens * replicas
    per_million = MILLION / per_step
    return StepPlan(
        device_type=device_type,
        tokens=tokens,
        cards=cards,
        ms=ms,
        gemm_ms=gemm_ms,
        gemm_pct=None if left else 100 * gemm_ms.value / ms.value,
        measured_pct=100 * sum(one.count * one.ms.value for one in gemms if one.measured) / gemm_ms.value,
        tokens_per_s=ms.under(1e3 * per_step),
        joules=step_joules,
        power_w=None if joules is None else 1e3 * joules.value / ms.value,
        joules_per_token=None if step_joules is None else step_joules * (1 / per_step),
        money_per_mtoken=None if price_per_hour is None else ms * (price_per_hour * cards / MS_PER_HOUR * per_million),
        co2_g_per_mtoken=None
        if grams_per_kwh is None or step_joules is None
        else step_joules * (grams_per_kwh / J_PER_KWH * per_million),
        gemms=tuple(gemms),
        others=of_step,
        not_covered=left,
        without_energy=tuple(dict.fromkeys(without_energy)),
    )


def _joules(gemms: Sequence[GemmEstimate], others: Sequence[OtherCost]) -> Amount:
    """Energy of a step on one card, where all parts have one."""
    found = total((one.mj * 1e-3, one.count) for one in gemms if one.mj is not None)
    more = _more_joules(gemms, found.value)
    mixed = Amount(value=found.value + more, low=found.low, high=None if found.high is None else found.high + more)
    widened = _widened(mixed, ENERGY_SUM_ERROR * mixed.value)
    return widened + Amount.exactly(sum(one.joules for one in others if one.joules is not None))


def _more_joules(gemms: Sequence[GemmEstimate], joules: float) -> float:
    """What a step takes more than the sum of its GEMMs, because those below the power limit leave room for those that it slows."""
    limit_w = min((one.limit_w for one in gemms if one.limit_w is not None), default=None)
    if limit_w is None:
        return 0.0
    held_joules = sum(one.count * one.mj.value for one in gemms if one.mj is not None and one.power_limited) / 1e3
    room_joules = limit_w * sum(one.count * one.ms.value for one in gemms) / 1e3 - joules
    return max(0.0, min(room_joules, MORE_IN_A_MIXTURE * held_joules))


def _widened(amount: Amount, by: float) -> Amount:
    return Amount(
        value=amount.value,
        low=None if amount.low is None else max(amount.low - by, 0.0),
        high=None if amount.high is None else amount.high + by,
    )


def cheapest(plans: Sequence[StepPlan], *, max_ms: float | None = None) -> StepPlan | None:
    """The plan of the least money per token, or of the least energy where no plan has a price. None: none meets the latency.

    Plans without the figure are left out.
    """
    by_money = any(one.money_per_mtoken is not None for one in plans)

    def cost(one: StepPlan) -> float | None:
        figure = one.money_per_mtoken if by_money else one.joules_per_token
        return None if figure is None else figure.value

    able = [(cost(one), one) for one in plans if max_ms is None or one.meets(max_ms)]
    known = [(value, one) for value, one in able if value is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def most_doubtful(gemms: Sequence[GemmEstimate], count: int) -> list[GemmEstimate]:
    """The predicted GEMMs to measure first: the largest share of the step's time times how unsure they are."""
    predicted = [one for one in gemms if not one.measured]
    return sorted(predicted, key=lambda one: -one.doubt_ms)[:count]
