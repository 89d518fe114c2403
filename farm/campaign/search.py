"""How a campaign looks for the best kernel of each problem: which kernels are tried, which go on, and how closely (pure).

`grid` tries every kernel under the campaign's own rules, `random` some of them. `halving` is successive halving (Jamieson and
Talwalkar, arXiv 1502.07943): all of them under rules that cost little, the best share of them again under stricter ones,
and so on; the finalists under the campaign's own rules. `learn` measures what teaches a model of the campaign's domain most, round
after round, and a test set that the model never learns from (`trainer.rounds`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from enum import StrEnum
from heapq import heappush, heappushpop, nsmallest
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from farm.gemm import Problem
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.measurement import ALL_FAMILIES, MeasuringRules


class Strategy(StrEnum):
    GRID = "grid"
    RANDOM = "random"
    HALVING = "halving"
    LEARN = "learn"


FIRST_RSE = 0.03
"""Relative standard error that the first of several rounds is content with: a quarter of the kernels goes on, and those that
matter are further apart than that."""

FIRST_SAMPLES = 3
"""Fewest samples of a short round: what a median takes. They are what a slow kernel costs."""

FIRST_SHARE = 0.1
"""Share of the campaign's time budget that the first round has for the samples of a kernel."""

WARM_UP_SHARE = 0.25
"""Share of the campaign's warm-up in a short round."""

BASELINE = Kernel.of("cublaslt")
"""What a search on GPUs is held against: the vendor's library, with the algorithm that its heuristic puts first."""


class Search(BaseModel):
    """The `search` section of a campaign file: the fields of every strategy (`FIELDS_OF` says which reads which)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: Strategy = Field(
        description="all kernels, some at random, many briefly and the best closely, or what teaches a model most"
    )
    problems: int | None = Field(
        default=None, ge=1, le=10_000_000, description="problems drawn from the domain of a campaign that has one"
    )
    kernels: int | None = Field(
        default=None, ge=1, le=10_000_000, description="kernels tried for each problem, drawn at random"
    )
    keep: float = Field(default=0.25, gt=0, le=0.5, description="share of a problem's kernels that a round leaves")
    finalists: int = Field(
        default=4, ge=1, le=10_000, description="kernels of each problem that the last round measures"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the draw")
    test_problems: int = Field(
        default=100, ge=20, le=1_000_000, description="problems of the independent test set, which no model learns from"
    )
    random_share: float = Field(
        default=0.25, ge=0.05, le=1, description="share of a round's problems that are drawn, not chosen"
    )
    budget_seconds: float = Field(
        default=600.0, gt=0, le=10**7, description="device seconds of all rounds and the test set together"
    )
    target: dict[str, float] | None = Field(
        default=None,
        description="mean error in percent on the test set at which to stop: a number, or a mapping by kernel family",
    )

    @field_validator("target", mode="before")
    @classmethod
    def _by_family(cls, written: object) -> object:
        """A number stands for all families together."""
        targets = written if isinstance(written, dict) or written is None else {ALL_FAMILIES: written}
        if targets == {}:
            raise ValueError("it is empty; write an error in percent, such as 3, or {cutlass: 3, cublaslt: 6}")
        for name, pct in (targets or {}).items():
            if name != ALL_FAMILIES and name not in FAMILIES:
                raise ValueError(f"there is no kernel family {name!r}; the families are {', '.join(FAMILIES)}")
            if isinstance(pct, bool) or not isinstance(pct, (int, float)) or not 0 < pct <= 1000:
                raise ValueError(f"{pct!r} is not an error in percent; write a number above 0 up to 1,000, such as 3")
        return targets

    def in_normal_form(self) -> Search:
        """The same with the kernels that `random` draws unless told otherwise."""
        if self.strategy is Strategy.RANDOM and self.kernels is None:
            kernels = RANDOM_KERNELS if self.problems is None else DOMAIN_KERNELS
            return self.model_copy(update={"kernels": kernels})
        if self.strategy is Strategy.LEARN:
            given = {"kernels": self.kernels or DOMAIN_KERNELS, "problems": self.problems or ROUND_PROBLEMS}
            return self.model_copy(update=given)
        return self

    def drawn_problems(self) -> dict[str, int]:
        """How many problems of a domain are drawn before anything was measured, by the field that says so."""
        found = {"search.problems": self.in_normal_form().problems or 0}
        return found | ({"search.test_problems": self.test_problems} if self.strategy is Strategy.LEARN else {})

    def drawn_size(self, kernels: int) -> int:
        """Configurations of the problems that are drawn from a domain, of a campaign with so many kernels."""
        return sum(self.drawn_problems().values()) * min(kernels, self.in_normal_form().kernels or kernels)

    def to_document(self) -> dict[str, Any]:
        """The fields that its strategy reads."""
        names = [name for name, strategies in FIELDS_OF.items() if self.strategy in strategies]
        if self.kernels is None:
            names = [name for name in names if name not in ("kernels", "seed")]
        given = {name: getattr(self, name) for name in names}
        return {"strategy": self.strategy.value} | {name: value for name, value in given.items() if value is not None}

    def going_on(self, kernels: int) -> int:
        """How many of a problem's kernels, the fastest, a short round leaves. Without more than the finalists, all."""
        if kernels <= self.finalists:
            return kernels
        # Rounded first: 0.1 of 30 is 3.0000000000000004.
        return max(self.finalists, math.ceil(round(self.keep * kernels, 9)))

    def goes_to_the_last(self, kernels: int) -> bool:
        """Whether what a short round leaves of so many kernels is few enough for the last round."""
        return self.going_on(kernels) <= self.finalists

    def rounds(self, kernels: int) -> list[int]:
        """How many of a problem's kernels each round measures, where it has so many and all can be measured.

        >>> Search(strategy="halving").rounds(100)
        [100, 25, 7, 4]
        """
        tried = kernels if self.kernels is None else min(kernels, self.kernels)
        found = [tried]
        if self.strategy is Strategy.HALVING:
            while not self.goes_to_the_last(found[-1]):
                found.append(self.going_on(found[-1]))
            found.append(self.going_on(found[-1]))
        return found

    def first_rules(self, full: MeasuringRules) -> MeasuringRules | None:
        """The rules of the first round; None where it is the last as well, which has the campaign's own."""
        return self.short_rules(full, 0) if self.strategy is Strategy.HALVING else None

    def short_rules(self, full: MeasuringRules, number: int) -> MeasuringRules:
        """The rules of a short round, the first has the number 0. None is stricter than the campaign's own.

        What makes a measurement cheap: no power, few samples of a slow kernel, a loose target for a fast one. A round has
        as many times the samples of the one before as that had kernels, so that rounds take about the same time.
        """
        more = (1 / self.keep) ** number
        timing = full.timing
        short = timing.model_copy(
            update={
                "target_rse": max(timing.target_rse, FIRST_RSE / math.sqrt(more)),
                "min_samples": min(timing.min_samples, FIRST_SAMPLES),
                "max_seconds": min(timing.max_seconds, FIRST_SHARE * timing.max_seconds * more),
                "warmup_seconds": WARM_UP_SHARE * timing.warmup_seconds,
                "warm_l2": False,
            }
        )
        return full.model_copy(update={"timing": short, "power": "none"})


FIELDS_OF = {
    "problems": (Strategy.RANDOM, Strategy.LEARN),
    "kernels": (Strategy.RANDOM, Strategy.HALVING, Strategy.LEARN),
    "keep": (Strategy.HALVING,),
    "finalists": (Strategy.HALVING,),
    "seed": (Strategy.RANDOM, Strategy.HALVING, Strategy.LEARN),
    "test_problems": (Strategy.LEARN,),
    "random_share": (Strategy.LEARN,),
    "budget_seconds": (Strategy.LEARN,),
    "target": (Strategy.LEARN,),
}
"""The strategies that read a field."""

ROUND_PROBLEMS = 100
"""Problems of a round of `learn` unless told otherwise: half a minute of one card with four kernels each."""

RANDOM_KERNELS = 60
"""Kernels that `random` draws unless told otherwise: with a probability of 95% one of them is among the best 5%
(1 - 0.95⁶⁰; Bergstra and Bengio, Journal of Machine Learning Research 13, 2012)."""


DOMAIN_KERNELS = 4
"""Kernels that are drawn for each problem of a domain unless told otherwise: operands and reference are made once for all of
them, and a model learns from pairs which of two kernels is faster."""


class Draw:
    """So many of a problem's configurations at random, or all where there are fewer.

    The draw follows from the seed and each configuration's canonical form alone: it is the same on every host, in whatever
    order they come, and a kernel that is drawn stays drawn when others are left out. Only those drawn are kept in memory.
    """

    def __init__(self, most: int, seed: int) -> None:
        self._most = most
        self._seed = seed
        self._drawn: dict[str, Configuration] = {}  # by canonical form
        self._numbers: list[tuple[int, str]] = []  # a heap: the largest of their numbers, negative, comes first

    def add(self, configuration: Configuration) -> None:
        """Offers one. The same again changes nothing."""
        name = configuration.canonical
        if name in self._drawn:
            return
        number = int.from_bytes(hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:16], "big")
        entry = (-number, name)
        if len(self._numbers) < self._most:
            heappush(self._numbers, entry)
        elif entry > self._numbers[0]:
            del self._drawn[heappushpop(self._numbers, entry)[1]]
        else:
            return
        self._drawn[name] = configuration

    def drawn(self) -> list[Configuration]:
        return [self._drawn[name] for _, name in sorted(self._numbers, reverse=True)]


class FamilyDraw:
    """So many of a problem's configurations at random, where each family is as likely as any other.

    Weighted sampling without replacement (Efraimidis and Spirakis, Information Processing Letters 97, 2006): a kernel
    weighs 1 / the number of kernels that its family has for the problem. As with `Draw`, the result follows from the seed
    and the canonical forms alone.
    """

    def __init__(self, most: int, seed: int) -> None:
        self._most = most
        self._seed = seed
        self._offered: dict[str, Configuration] = {}  # by canonical form

    def add(self, configuration: Configuration) -> None:
        """Offers one. The same again changes nothing."""
        self._offered[configuration.canonical] = configuration

    def drawn(self) -> list[Configuration]:
        kernels_of = Counter(one.kernel.family for one in self._offered.values())

        def key(name: str) -> float:
            return -math.log1p(-_share(self._seed, name)) * kernels_of[self._offered[name].kernel.family]

        return [self._offered[name] for name in nsmallest(self._most, self._offered, key=key)]


def _share(seed: int, name: str) -> float:
    """A number from [0, 1) that follows from both."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:6], "big") / 2**48


def baseline_of(problem: Problem) -> Configuration:
    """What the best kernel of a problem is held against."""
    return Configuration(problem, BASELINE)
