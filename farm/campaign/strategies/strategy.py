"""What a search strategy is: its fields in a campaign file, and every decision in which strategies differ.

A strategy is a subclass of `Search` in a module of its own, registered in `farm.campaign.strategies`. Strategies that draw
kernels are `KernelDraw`s, those that draw problems from a domain `DomainDraw`s, and those that measure some kernels more
than once `ShortRounds`. See docs/extending.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    model_validator,
)
from pydantic_core import CoreSchema

from farm.campaign.axes import shown
from farm.campaign.drawing import DomainSource
from farm.campaign.strategies.draws import Draw, FamilyDraw, KernelSample
from farm.gemm import Problem
from farm.measurement import MeasuringRules

STRATEGIES: dict[str, type[Search]] = {}
"""Every strategy, by the name that a campaign file gives it."""


def _known_strategy(written: object) -> object:
    if written in STRATEGIES:
        return written
    *meanings, last = (strategy.meaning for strategy in STRATEGIES.values())
    names = " or ".join(STRATEGIES)
    raise ValueError(f"{shown(written)} is not known here; write {names} ({', '.join(meanings)}, or {last})")


class Search(BaseModel):
    """The `search` section of a campaign file. Validating it gives an instance of the strategy that it names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    meaning: ClassVar[str] = ""
    """What it measures, in a few words."""

    learns: ClassVar[bool] = False
    """Whether a trainer decides its later rounds; its round 0 is then a test set."""

    draws_domains: ClassVar[bool] = False
    """Whether it draws problems from a domain."""

    short_rounds: ClassVar[bool] = False
    """Whether its first rounds have measuring rules of their own."""

    strategy: Annotated[str, BeforeValidator(_known_strategy)] = Field(examples=["halving"])

    @model_validator(mode="wrap")
    @classmethod
    def _of_strategy(cls, written: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        if cls is not Search or not isinstance(written, dict):
            return handler(written)
        model = search_model(written)
        if model is Search:  # only the name is wrong: without a strategy, the other fields are not known
            return handler({name: value for name, value in written.items() if name == "strategy"})
        return model.model_validate(written)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if cls is not Search:
            return handler(core)
        return {"anyOf": [strategy.model_json_schema() for strategy in STRATEGIES.values()]}

    @classmethod
    def mistakes_written(cls, written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Fields, as written, that do not fit together, and why."""
        yield from ()

    def mistakes_in(self, *, kernels: int, families: Sequence[str], draws: bool) -> Iterator[tuple[str, str]]:
        """Fields that do not fit a campaign with this number of kernels of these families, and why.

        Args:
            draws: Whether the problems of the campaign are drawn from a domain.
        """
        yield from ()

    def in_normal_form(self) -> Self:
        """The same with the defaults that depend on the campaign."""
        return self

    def to_document(self) -> dict[str, Any]:
        """Its fields as JSON data."""
        return self.model_dump(exclude_none=True)

    def to_digest(self) -> dict[str, Any]:
        """What counts for the digest of a campaign: the fields that differ from their defaults."""
        return {"strategy": self.strategy} | self.model_dump(mode="json", exclude_defaults=True)

    # --- what is measured first ------------------------------------------------------------------------

    def drawn_problems(self) -> dict[str, int]:
        """How many problems of a domain are drawn before anything is measured, by the field that sets it."""
        return {}

    def drawn_size(self, kernels: int) -> int:
        """Configurations of the problems that are drawn from a domain, of a campaign with so many kernels."""
        return 0

    def test_set(self, domain: DomainSource) -> tuple[Problem, ...]:
        """Problems that its models are tested on and never learn from, in the order of the draw."""
        return ()

    def first_problems(self, domain: DomainSource, test_set: Sequence[Problem]) -> Iterator[Problem]:
        """The problems that are drawn from a domain before anything was measured; those of the test set come first."""
        yield from ()

    def draw(self, *, from_domain: bool) -> KernelSample | None:
        """A new draw of one problem's kernels; None where all of them are measured."""
        return None

    @property
    def draws_kernels(self) -> bool:
        """Whether only some kernels of a problem are measured."""
        return self.draw(from_domain=False) is not None

    # --- rounds ----------------------------------------------------------------------------------------

    def rounds(self, kernels: int) -> list[int]:
        """How many of a problem's kernels each round measures, where it has so many and all can be measured."""
        return [kernels]

    def first_rules(self, full: MeasuringRules) -> MeasuringRules | None:
        """The rules of the first round; None where it is the last as well, which has the campaign's own."""
        return None

    def samples_factor(self, number: int) -> float:
        """How many times the samples of the first round a short round of this number takes of a kernel."""
        return 1.0


class KernelDraw(Search):
    """A search that may draw a problem's kernels at random."""

    kernels: int | None = Field(
        default=None, ge=1, le=10_000_000, description="kernels tried for each problem, drawn at random"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the draw")

    def to_document(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"seed"} if self.kernels is None else None)

    def draw(self, *, from_domain: bool) -> KernelSample | None:
        if self.kernels is None:
            return None
        return FamilyDraw(self.kernels, self.seed) if from_domain else Draw(self.kernels, self.seed)

    def rounds(self, kernels: int) -> list[int]:
        return [kernels if self.kernels is None else min(kernels, self.kernels)]


class DomainDraw(KernelDraw):
    """A search that may draw problems from a domain, too."""

    draws_domains: ClassVar[bool] = True

    problems: int | None = Field(
        default=None, ge=1, le=10_000_000, description="problems drawn from the domain of a campaign that has one"
    )

    def drawn_problems(self) -> dict[str, int]:
        return {"search.problems": self.in_normal_form().problems or 0}

    def drawn_size(self, kernels: int) -> int:
        return sum(self.drawn_problems().values()) * min(kernels, self.in_normal_form().kernels or kernels)

    def first_problems(self, domain: DomainSource, test_set: Sequence[Problem]) -> Iterator[Problem]:
        yield from islice(domain.random(self.seed), self.problems or 0)


class ShortRounds(KernelDraw):
    """A search that measures briefly first: of each problem, the fastest kernels of a short round go on to the next."""

    short_rounds: ClassVar[bool] = True

    finalists: int = Field(
        default=4, ge=1, le=10_000, description="kernels of each problem that the last round measures"
    )

    @abstractmethod
    def going_on(self, kernels: int) -> int:
        """How many of a problem's kernels, the fastest, a short round leaves. Without more than the finalists, all."""

    @abstractmethod
    def short_rules(self, full: MeasuringRules, number: int) -> MeasuringRules:
        """The rules of a short round, the first has the number 0. None is stricter than the campaign's own."""

    def first_rules(self, full: MeasuringRules) -> MeasuringRules | None:
        return self.short_rules(full, 0)

    def goes_to_the_last(self, kernels: int) -> bool:
        """Whether what a short round leaves of so many kernels is few enough for the last round."""
        return self.going_on(kernels) <= self.finalists

    def rounds(self, kernels: int) -> list[int]:
        sizes = super().rounds(kernels)
        while not self.goes_to_the_last(sizes[-1]):
            sizes.append(self.going_on(sizes[-1]))
        return [*sizes, self.going_on(sizes[-1])]


def register(strategy: type[Search]) -> None:
    """Makes a strategy known under the default of its field `strategy`."""
    STRATEGIES[strategy.model_fields["strategy"].default] = strategy


def search_model(written: object) -> type[Search]:
    """The strategy that a section names; `Search` itself where it names none that is known."""
    named = written.get("strategy") if isinstance(written, dict) else None
    return STRATEGIES.get(named, Search) if isinstance(named, str) else Search


def readers_of(field: str) -> list[str]:
    """The strategies that read a field."""
    return [name for name, strategy in STRATEGIES.items() if field in strategy.model_fields]
