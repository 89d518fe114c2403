"""`learn` measures, round after round, the rows that improve a model of the campaign's domain most (`trainer.rounds`).

It also measures a test set that the model never learns from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator

from farm.campaign.drawing import DomainSource
from farm.campaign.strategies.random import DOMAIN_KERNELS
from farm.campaign.strategies.strategy import DomainDraw
from farm.gemm import Problem
from farm.kernels import FAMILIES
from farm.measurement import ALL_FAMILIES

ROUND_PROBLEMS = 100
"""Problems of a round by default: half a minute of one card with four kernels each."""

_TEST_STREAM = 1
"""The stream of the test set; those of its rounds come after it."""


class Learn(DomainDraw):
    """The strategy `learn`."""

    meaning: ClassVar[str] = "what teaches a model most"
    learns: ClassVar[bool] = True

    strategy: Literal["learn"] = "learn"
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

    @field_validator("target", mode="before", json_schema_input_type=float | dict[str, float] | None)
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

    def mistakes_in(self, *, kernels: int, families: Sequence[str], draws: bool) -> Iterator[tuple[str, str]]:
        if not draws:
            yield (
                "strategy",
                "learn chooses problems from a domain; write for example problems: {domain: serving-and-general, types: f16}",
            )
        untrusted = [name for name in families if FAMILIES[name].untrusted]
        if untrusted:
            yield (
                "strategy",
                f"no model learns from kernels of {', '.join(untrusted)}; remove them, or use another strategy",
            )
        # A family without a kernel has no test rows, so that its target is never reached.
        missing = [name for name in self.target or {} if name != ALL_FAMILIES and name not in families]
        if missing:
            yield (
                "target",
                f"the campaign has no kernel of {', '.join(missing)}, only of {', '.join(families)}; remove it, or add one",
            )

    def in_normal_form(self) -> Self:
        given = {"kernels": self.kernels or DOMAIN_KERNELS, "problems": self.problems or ROUND_PROBLEMS}
        return self.model_copy(update=given)

    def drawn_problems(self) -> dict[str, int]:
        return super().drawn_problems() | {"search.test_problems": self.test_problems}

    def test_set(self, domain: DomainSource) -> tuple[Problem, ...]:
        return tuple(islice(domain.random(self.seed, stream=_TEST_STREAM), self.test_problems))

    def first_problems(self, domain: DomainSource, test_set: Sequence[Problem]) -> Iterator[Problem]:
        """Round 1 fills the domain evenly; later rounds are decided by what was learned."""
        yield from test_set
        yield from islice(domain.even(self.seed, without=frozenset(test_set)), self.problems or 0)

    def round_problems(self, domain: DomainSource, number: int) -> Iterator[Problem]:
        """Independent problems for a later round to choose from; each round draws others."""
        return domain.random(self.seed, stream=_TEST_STREAM + number)
