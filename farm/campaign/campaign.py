"""A checked campaign: what is to be measured, in a normal form, and its configurations one after another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.campaign.blocks import KernelBlock, ProblemBlock
from farm.campaign.constraints import PROBLEM_NAMES, Constraint
from farm.campaign.drawing import DomainSource, DrawnBlock, max_without_kernel
from farm.campaign.strategies import Search
from farm.campaign.targets import Target
from farm.errors import CampaignFileError
from farm.expressions.python import compile_all
from farm.gemm import Problem
from farm.kernels import Configuration, Kernel
from farm.measurement import MeasuringRules

_KERNELS_KEPT = 10_000
"""Up to this many kernels of a block are built once and shared by all problems; more are built as they come."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A sweep as its file asks for it. Equal wishes are equal campaigns, however the files are written."""

    name: str
    owner: str
    targets: tuple[Target, ...]
    # Every kernel on every problem; or, where there are none of these, what is listed.
    problems: tuple[ProblemBlock, ...] = ()
    # Instead of problems, what they are drawn from.
    drawn: tuple[DrawnBlock, ...] = ()
    kernels: tuple[KernelBlock, ...] = ()
    # By their canonical form, each once: see `in_order`.
    listed: tuple[Configuration, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    rules: MeasuringRules = field(default_factory=MeasuringRules)
    # None: everything is measured, and nothing is looked for.
    search: Search | None = None
    priority: int = 0
    # The same with another number is another campaign: everything is measured once more.
    repeat: int = 0
    description: str = ""
    # The file it was read from; None where it comes from a stored document.
    path: Path | None = field(default=None, compare=False)

    @property
    def where(self) -> str:
        """What error messages call it: its file, or its name where it has none."""
        return str(self.path) if self.path else f"campaign {self.name}"

    @property
    def size(self) -> int:
        """Configurations before constraints, and before those that two blocks share are counted once.

        Of problems that are drawn from a domain, those that are measured.
        """
        kernels = self.kernel_count
        drawn = self.search.drawn_size(kernels) if self.drawn and self.search is not None else 0
        return drawn + sum(map(len, self.problems)) * kernels + len(self.listed)

    @property
    def kernel_count(self) -> int:
        """Kernels of its blocks, before constraints."""
        return sum(map(len, self.kernels))

    @property
    def _blocks(self) -> tuple[ProblemBlock | DrawnBlock, ...]:
        return (*self.problems, *self.drawn)

    @property
    def requested_problems(self) -> int:
        """Problems that are drawn where the domains have so many, with those of a test set. 0 for a campaign without a domain."""
        return sum(self.search.drawn_problems().values()) if self.drawn and self.search is not None else 0

    @property
    def learns(self) -> bool:
        """Whether a trainer decides its rounds."""
        return self.search is not None and self.search.learns

    @cached_property
    def families(self) -> tuple[str, ...]:
        """The kernel families that it asks for."""
        named = {block.family for block in self.kernels} | {one.kernel.family for one in self.listed}
        return tuple(sorted(named))

    def measures(self, kernel: Kernel) -> bool:
        """Whether it asks for that kernel, on some problem and before constraints."""
        of_blocks = any(block.family == kernel.family and kernel in set(block) for block in self.kernels)
        return of_blocks or any(one.kernel == kernel for one in self.listed)

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it as JSON data in normal form, which is itself a campaign file. See `from_document`."""
        return {
            "name": self.name,
            "description": self.description,
            "owner": self.owner,
            "priority": self.priority,
            "targets": [target.to_document() for target in self.targets],
            **self._what(),
            "measure": self.rules.model_dump(mode="json"),
            **({} if self.search is None else {"search": self.search.to_document()}),
            **({"repeat": self.repeat} if self.repeat else {}),
        }

    def _what(self) -> dict[str, Any]:
        if self.listed:
            return {"configurations": [one.canonical for one in self.listed]}
        return {
            "problems": [block.to_document() for block in self._blocks],
            "kernels": [block.to_document() for block in self.kernels],
            "constraints": [constraint.text for constraint in self.constraints],
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what is asked for; description and priority are not part of that.

        Measuring rules, and what is said of the search, count where they differ from their defaults, so that a later version
        may add some.
        """
        asked = {name: value for name, value in self.document.items() if name not in ("description", "priority")}
        asked["measure"] = self.rules.model_dump(mode="json", exclude_defaults=True)
        if self.search is not None:
            asked["search"] = self.search.to_digest()
        return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Campaign:
        """The campaign of a stored `document`. Raises `CampaignFileError` where this version cannot read it."""
        from farm.campaign.loading import from_document  # loading makes campaigns, so it imports this module

        return from_document(document)

    def configurations(
        self,
        runs: Callable[[Configuration], bool] = lambda _configuration: True,
        *,
        test_set: Sequence[Problem] | None = None,
    ) -> Iterator[Configuration]:
        """Every configuration that the constraints keep: lazily, in an order that depends on the campaign alone.

        Args:
            runs: Whether a configuration can be measured. A problem that is drawn from a domain is replaced by another one
                where none of its configurations can. Nothing else is left out.
            test_set: What `test_set` gives for the same `runs`, where it was drawn already.

        Raises:
            CampaignFileError: a constraint cannot be computed for a configuration, as in a division by zero.
        """
        yield from self.listed
        test = self.test_set(runs) if test_set is None else test_set
        for problem in self._kept_problems(runs, test):
            yield from self.kernels_for(problem)

    def _keeps(self) -> Callable[[Problem], bool]:
        """Whether the constraints on problems keep one."""
        of_problem = [c for c in self.constraints if c.of_problem]
        keeps_values = _Filter(of_problem, PROBLEM_NAMES, self.where)
        return lambda problem: not of_problem or keeps_values(_values_of(problem))

    def kernels_for(self, problem: Problem) -> Iterator[Configuration]:
        """Every kernel of the campaign on that problem that the constraints keep."""
        # Computing flops and bytes costs more than all the rest; without constraints nobody asks for them.
        values = _values_of(problem) if self.constraints else ()
        for stream in self._streams:
            for kernel in stream.kept_for(values):
                yield Configuration(problem, kernel)

    @cached_property
    def _streams(self) -> list[_KernelStream]:
        return [_KernelStream(block, self) for block in self.kernels]

    def _kept_problems(self, runs: Callable[[Configuration], bool], test_set: Sequence[Problem]) -> Iterator[Problem]:
        """Every problem that the constraints on problems keep: those that are listed, or those drawn that can be measured."""
        keeps = self._keeps()
        for block in self.problems:
            yield from filter(keeps, block)
        if self.drawn and self.search is not None:
            yield from self.search.first_problems(self.domain(runs), test_set)

    def domain(self, runs: Callable[[Configuration], bool]) -> DomainSource:
        """What its problems are drawn from: those that constraints keep and that have a kernel of which `runs` is true."""
        return DomainSource(
            blocks=self.drawn,
            keeps=self._keeps(),
            runs=lambda problem: any(map(runs, self.kernels_for(problem))),
            max_without_kernel=max_without_kernel(self.kernel_count),
        )

    def test_set(self, runs: Callable[[Configuration], bool]) -> tuple[Problem, ...]:
        """The problems that its models are tested on and never learn from, in the order of the draw."""
        return () if self.search is None else self.search.test_set(self.domain(runs))


def in_order(configurations: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Each once, by canonical form."""
    by_name = {one.canonical: one for one in configurations}
    return tuple(by_name[name] for name in sorted(by_name))


class _KernelStream:
    """The kernels of one block that the constraints keep, for one problem after another."""

    def __init__(self, block: KernelBlock, campaign: Campaign) -> None:
        applying = [c for c in campaign.constraints if not c.of_problem and c.applies_to(block.family)]
        arguments = (*PROBLEM_NAMES, "family", *(name for name, _ in block.axes))
        self._keeps = _Filter(applying, arguments, campaign.where) if applying else None
        self._kernels = tuple(block) if len(block) <= _KERNELS_KEPT else block

    def kept_for(self, problem_values: tuple[Any, ...]) -> Iterator[Kernel] | Sequence[Kernel]:
        keeps = self._keeps
        if keeps is None:
            return iter(self._kernels)
        return (
            kernel
            for kernel in self._kernels
            if keeps((*problem_values, kernel.family, *(value for _, value in kernel.parameters)))
        )


class _Filter:
    """Whether all of some constraints hold for a tuple of values; one that cannot be computed is named."""

    def __init__(self, constraints: Sequence[Constraint], arguments: tuple[str, ...], where: str) -> None:
        self._constraints = constraints
        self._arguments = arguments
        self._where = where
        self._holds: Callable[..., bool] = compile_all(constraints, arguments)

    def __call__(self, values: tuple[Any, ...]) -> bool:
        try:
            return self._holds(*values)
        except ArithmeticError:
            raise self._cannot_compute(values) from None

    def _cannot_compute(self, values: tuple[Any, ...]) -> CampaignFileError:
        given = dict(zip(self._arguments, values, strict=True))
        for constraint in self._constraints:
            try:
                compile_all([constraint], self._arguments)(*values)
            except ArithmeticError as error:
                named = ", ".join(f"{name}={given[name]}" for name in self._arguments if name in constraint.names)
                return CampaignFileError(
                    problems=f"{self._where}:{constraint.line}: constraints: {constraint.text!r} cannot be computed "
                    f"with {named}: {error}; put a condition before it that excludes this (… and …)"
                )
        raise AssertionError("no constraint fails alone, so none can have failed with the others")


def _values_of(problem: Problem) -> tuple[Any, ...]:
    """A problem's values under `PROBLEM_NAMES`, in their order."""
    s, t, flops, size = problem.shape, problem.types, problem.flops, problem.bytes
    return (s.m, s.n, s.k, problem.alpha, problem.beta, flops, size, flops / size, problem.layout, t.ab, t.cd, t.acc)
