"""A campaign: the keys of its file, declared once, and everything that follows from their values.

Values are in a normal form: each once, in one order. Equal campaigns are equal however their files are written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from farm.campaign.axes import shown
from farm.campaign.checks import check_written
from farm.campaign.constraints import PROBLEM_NAMES, Constraint, parse_constraint
from farm.campaign.drawing import DomainSource, max_without_kernel
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.kernel_blocks import KERNELS, KernelBlock
from farm.campaign.messages import PRODUCT_KEYS, add_findings, missing_key
from farm.campaign.problem_blocks import Block, DomainBlock, ListingBlock, with_whole_weights
from farm.campaign.problem_models import PROBLEMS
from farm.campaign.reading import FileProblems, Located
from farm.campaign.shape_files import FileContext
from farm.campaign.source_blocks import SourceBlock
from farm.campaign.strategies import Search
from farm.campaign.targets import ANY, Target, TargetKind
from farm.campaign.values import TEXT, FileModel, Value, Values, ordered
from farm.errors import CampaignFileError, CampaignTooLarge, TooManyCandidates
from farm.expressions.python import compile_all
from farm.gemm import Problem
from farm.kernels import Configuration, Kernel
from farm.kernels.definition import Definition
from farm.measurement import MeasuringRules
from farm.system_account import login_name

_KERNELS_KEPT = 10_000
"""Up to this many kernels of a block are built once and shared by all problems; more are built as they come."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def _name_of(written: object) -> str:
    text = str(written) if isinstance(written, (str, int)) else ""
    if _NAME.fullmatch(text):
        return text
    better = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:100]
    raise ValueError(
        f"{shown(written)} cannot name a campaign; use up to 100 lower-case letters, digits, - _ ."
        + (f", as in {better}" if better else "")
    )


def _owner_of(written: object) -> str:
    text = str(written).strip() if isinstance(written, (str, int)) else ""
    if 0 < len(text) <= 100 and text.isprintable():
        return text
    raise ValueError(f"{shown(written)} cannot be an owner; write a name of up to 100 characters")


def _description_of(written: object) -> str:
    if isinstance(written, (str, int, float)):
        return str(written).strip()
    raise ValueError("a description is text; write it after the colon, or remove the field")


def _configuration_of(written: object) -> Configuration:
    if not isinstance(written, str):
        raise ValueError(f"{shown(written)} is not a configuration; write tiled(tile=16) 512x512x512 f32")  # noqa: TRY004
    return Configuration.parse(written)


_TARGET = {
    "anyOf": [
        {"const": "any"},
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
            "properties": {str(kind): TEXT for kind in TargetKind if kind is not TargetKind.ANY},
        },
    ]
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a campaign was read from. Campaigns that differ only in their origin are equal."""

    # None for a stored document.
    path: Path | None = field(default=None, compare=False)
    # The lines of targets and constraints, by their text.
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)


class Campaign(FileModel):
    """A campaign. Its fields are the keys of a campaign file.

    It measures every kernel on every problem that the constraints keep; or, instead, what `configurations` lists.
    """

    name: Annotated[str, Value(_name_of, schema={"type": ["string", "integer"]})] = Field(
        description="lower-case letters, digits, `-` `_` `.`", examples=["my-sweep"]
    )
    description: Annotated[str, Value(_description_of, schema={"type": ["string", "number"]})] = Field(
        default="", description="what it is for"
    )
    owner: Annotated[str, Value(_owner_of)] = Field(
        default_factory=lambda: login_name() or "unknown",
        description="by default your login name, or your token's name. Owners share the devices "
        "([operating.md](operating.md#shares-and-priorities)) and steer their campaigns. A name other than yours needs the role "
        "`operate`",
    )
    priority: int = Field(default=0, ge=-100, le=100, description="higher goes first, for all owners")
    targets: Annotated[
        tuple[Target, ...],
        Values(Target.parse, write=Target.to_document, gather=ordered(str), schema=_TARGET),
    ] = Field(default=(ANY,), description="where to measure")
    problems: Annotated[tuple[Block, ...], PROBLEMS] = Field(
        default=(), description="blocks of problems", examples=[[{"shapes": ["512x512x512"], "types": "f32"}]]
    )
    kernels: Annotated[tuple[KernelBlock, ...], KERNELS] = Field(
        default=(), description="blocks of kernels", examples=[[{"family": "tiled", "tile": [8, 16, 32]}]]
    )
    configurations: Annotated[tuple[Configuration, ...], Values(_configuration_of, write=str)] = Field(
        default=(), description="[a list](#configurations) of what to measure, instead of problems and kernels"
    )
    constraints: Annotated[
        tuple[Constraint, ...],
        Values(parse_constraint, write=str, gather=ordered(str), min_length=0),
    ] = Field(default=(), description="which configurations to keep")
    measure: MeasuringRules = Field(default=MeasuringRules(), description="how to measure")
    search: Search | None = Field(
        default=None, description="search for the best kernel of each problem instead of measuring everything"
    )
    repeat: int = Field(
        default=0, ge=0, le=1_000_000,
        description="another number is another campaign, which measures everything again; `--again` increments it",
    )  # fmt: skip

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @model_validator(mode="after")
    def _in_normal_form(self, info: ValidationInfo) -> Self:
        if info.context is not None:
            self._check_size(info.context)
        listed = {_sort_key(block): block for block in self.problems if not isinstance(block, DomainBlock)}
        drawn = {_sort_key(block): block for block in self.problems if isinstance(block, DomainBlock)}
        kernels = {_sort_key(block): block for block in self.kernels}
        # The model is frozen for everybody else.
        self.__dict__.update(
            problems=(
                *(listed[key] for key in sorted(listed)),
                *sorted(with_whole_weights(list(drawn.values())), key=_sort_key),
            ),
            kernels=tuple(kernels[key] for key in sorted(kernels)),
            configurations=in_order(self.configurations),
            search=None if self.search is None else self.search.in_normal_form(),
        )
        return self

    def _check_size(self, limit: FileContext) -> None:
        """Multiplies the lengths of the axes without expanding one. Raises `CampaignTooLarge`."""
        kernels = [(block.family, block.lengths()) for block in self.kernels]
        kernel_count = sum(math.prod(lengths.values()) for _, lengths in kernels)
        if self.draws and self.search is not None:
            drawn = self.search.drawn_problems()
            candidates = sum(drawn.values()) * kernel_count
            if candidates > limit.max_configurations:
                counts = [f"{name} {count:,}" for name, count in drawn.items()]
                factors = ", ".join([*counts, f"kernels {kernel_count:,} ({_largest_factors([], kernels)})"])
                raise TooManyCandidates(
                    path=limit.path, count=candidates, limit=limit.max_configurations, factors=factors
                )
        problems = [block.lengths() for block in self.listed_blocks]
        count = sum(math.prod(lengths.values()) for lengths in problems) * kernel_count + len(self.configurations)
        if count > limit.max_configurations:
            listed = f"configurations {len(self.configurations):,}"
            factors = listed if self.configurations else _largest_factors(problems, kernels)
            raise CampaignTooLarge(path=limit.path, count=count, limit=limit.max_configurations, factors=factors)

    def changed(self, **fields: Any) -> Campaign:
        """The same campaign with other values, which must be in their normal form."""
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        return self.model_construct(**kept | fields).read_from(self._origin)

    def read_from(self, origin: Origin) -> Campaign:
        """Sets the origin that messages name."""
        self._origin = origin
        return self

    @property
    def counts(self) -> dict[Problem, float]:
        """How often a program computes each problem, of blocks that list problems with their counts."""
        found = defaultdict[Problem, float](float)
        for block in self.problems:
            if isinstance(block, GemmsBlock):
                for problem, count in block.gemms.weight_of.items():
                    found[problem] += count
        return dict(found)

    @property
    def where(self) -> str:
        """Its name in messages: its file, or its own name if it has no file."""
        return str(self._origin.path) if self._origin.path else f"campaign {self.name}"

    def line_of(self, value: Target | Constraint) -> int:
        """The line of a target or constraint in the file; 0 without a file."""
        return self._origin.lines.get(str(value), 0)

    @property
    def listed_blocks(self) -> list[ListingBlock]:
        """Its blocks that list their problems."""
        return [block for block in self.problems if isinstance(block, ListingBlock)]

    @property
    def domain_blocks(self) -> list[DomainBlock]:
        """Its blocks whose problems are drawn from a domain."""
        return [block for block in self.problems if isinstance(block, DomainBlock)]

    @property
    def draws(self) -> bool:
        """Whether problems are drawn from a domain."""
        return bool(self.domain_blocks)

    @property
    def size(self) -> int:
        """Configurations before constraints, and before those that two blocks share are counted once.

        Of problems that are drawn from a domain, those that are measured.
        """
        kernels = self.kernel_count
        drawn = self.search.drawn_size(kernels) if self.draws and self.search is not None else 0
        return drawn + sum(block.size for block in self.listed_blocks) * kernels + len(self.configurations)

    @property
    def kernel_count(self) -> int:
        """Kernels of its blocks, before constraints."""
        return sum(block.size for block in self.kernels)

    @property
    def requested_problems(self) -> int:
        """Problems that are drawn where the domains have so many, with those of a test set. 0 for a campaign without a domain."""
        return sum(self.search.drawn_problems().values()) if self.draws and self.search is not None else 0

    @property
    def learns(self) -> bool:
        """Whether a trainer decides its rounds."""
        return self.search is not None and self.search.learns

    @cached_property
    def families(self) -> tuple[str, ...]:
        """The kernel families that it measures."""
        named = {block.family for block in self.kernels} | {one.kernel.family for one in self.configurations}
        return tuple(sorted(named))

    @property
    def definitions(self) -> dict[int, Definition]:
        """The kernels of users that it measures, by number."""
        found = (block.definition for block in self.kernels if isinstance(block, SourceBlock))
        return {definition.id: definition for definition in found}

    def measures(self, kernel: Kernel) -> bool:
        """Whether it measures that kernel on some problem, before constraints."""
        of_blocks = any(block.family == kernel.family and kernel in set(block.kernels()) for block in self.kernels)
        return of_blocks or any(one.kernel == kernel for one in self.configurations)

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it as JSON data in normal form, which is itself a campaign file. See `from_document`."""
        left_out = PRODUCT_KEYS if self.configurations else {"configurations", "search"}
        data = self.model_dump(mode="json", exclude=left_out | (set() if self.repeat else {"repeat"}))
        return data if self.search is None else data | {"search": self.search.to_document()}

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what is measured. The description and the priority are not part of it.

        Measuring rules and fields of the search count where they differ from their defaults, so that a later version may
        add some.
        """
        counted = {name: value for name, value in self.document.items() if name not in ("description", "priority")}
        counted["measure"] = self.measure.model_dump(mode="json", exclude_defaults=True)
        if self.search is not None:
            counted["search"] = self.search.to_digest()
        return hashlib.sha256(json.dumps(counted, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Campaign:
        """The campaign of a stored `document`. Raises `CampaignFileError` where this version cannot read it."""
        return cls.validated(
            Located(dict(document), {}, FileProblems(f"campaign {document.get('name', 'without a name')}"))
        )

    @classmethod
    def validated(cls, file: Located, *, owner: str | None = None, context: FileContext | None = None) -> Campaign:
        """The campaign of a file that was read.

        Args:
            owner: The owner, if the file names none.
            context: None for a stored document, which is neither limited nor names files.

        Raises:
            CampaignFileError: Everything that is wrong with it.
            CampaignTooLarge: It has more configurations than the context allows.
        """
        data = check_written(file)
        if "configurations" not in data:
            for key in sorted({"problems", "kernels"} - data.keys(), reverse=True):
                file.add((), f"{key}: {missing_key(cls, key)}")
        try:
            campaign = cls.model_validate({**({} if owner is None else {"owner": owner}), **data}, context=context)
        except ValidationError as error:
            add_findings(error, file, cls)
            raise file.problems.as_error() from None
        except CampaignTooLarge:
            file.problems.raise_if_any()
            raise
        file.problems.raise_if_any()
        return campaign

    def expand(
        self,
        runs: Callable[[Configuration], bool] = lambda _configuration: True,
        *,
        test_set: Sequence[Problem] | None = None,
    ) -> Iterator[Configuration]:
        """Every configuration that the constraints keep: lazily, in an order that depends on the campaign alone.

        Args:
            runs: Whether a configuration can be measured. A problem that is drawn from a domain is replaced by another one
                where none of its configurations can. Nothing else is left out.
            test_set: The result of `test_set` for the same `runs`, where it was drawn already.

        Raises:
            CampaignFileError: A constraint cannot be computed for a configuration, as in a division by zero.
        """
        yield from self.configurations
        test = self.test_set(runs) if test_set is None else test_set
        for problem in self._kept_problems(runs, test):
            yield from self.kernels_for(problem)

    def _keeps(self) -> Callable[[Problem], bool]:
        """Whether the constraints on problems keep one."""
        of_problem = [c for c in self.constraints if c.of_problem]
        keeps_values = _Filter(of_problem, PROBLEM_NAMES, self)
        return lambda problem: not of_problem or keeps_values(_values_of(problem))

    def kernels_for(self, problem: Problem) -> Iterator[Configuration]:
        """Every kernel of the campaign on that problem that the constraints keep."""
        # Computing flops and bytes costs more than all the rest; without constraints they are not needed.
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
        for block in self.listed_blocks:
            yield from filter(keeps, block.problems())
        if self.draws and self.search is not None:
            yield from self.search.first_problems(self.domain(runs), test_set)

    def domain(self, runs: Callable[[Configuration], bool]) -> DomainSource:
        """The problems that it can draw: those that the constraints keep and that have a kernel for which `runs` is true."""
        return DomainSource(
            blocks=self.domain_blocks,
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


def _sort_key(block: Block | KernelBlock) -> str:
    return json.dumps(block.model_dump(mode="json"), sort_keys=True)


def _largest_factors(problems: Sequence[dict[str, int]], kernels: Sequence[tuple[str, dict[str, int]]]) -> str:
    """The four longest axes in words: `problems[0].m 4,096, tiled.tile 32`."""
    lengths = [(n, f"problems[{i}].{name}") for i, block in enumerate(problems) for name, n in block.items()]
    lengths += [(n, f"{family}.{name}") for family, block in kernels for name, n in block.items()]
    longest = sorted(lengths, key=lambda factor: -factor[0])[:4]
    return ", ".join(f"{name} {length:,}" for length, name in longest if length > 1) or "the number of blocks"


class _KernelStream:
    """The kernels of one block that the constraints keep, for one problem after another."""

    def __init__(self, block: KernelBlock, campaign: Campaign) -> None:
        applying = [c for c in campaign.constraints if not c.of_problem and c.applies_to(block.family)]
        arguments = (*PROBLEM_NAMES, "family", *(name for name, _ in block.axes))
        self._keeps = _Filter(applying, arguments, campaign) if applying else None
        self._kernels = tuple(block.kernels()) if block.size <= _KERNELS_KEPT else None
        self._block = block

    def kept_for(self, problem_values: tuple[Any, ...]) -> Iterable[Kernel]:
        keeps = self._keeps
        kernels = self._block.kernels() if self._kernels is None else self._kernels
        if keeps is None:
            return kernels
        return (
            kernel
            for kernel in kernels
            if keeps((*problem_values, kernel.family, *(value for _, value in kernel.parameters)))
        )


class _Filter:
    """Whether all of some constraints hold for a tuple of values. The error names a constraint that cannot be computed."""

    def __init__(self, constraints: Sequence[Constraint], arguments: tuple[str, ...], campaign: Campaign) -> None:
        self._constraints = constraints
        self._arguments = arguments
        self._campaign = campaign
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
                    problems=f"{self._campaign.where}:{self._campaign.line_of(constraint)}: constraints: {constraint.text!r} cannot be computed "
                    f"with {named}: {error}; put a condition before it that excludes this (… and …)"
                )
        raise AssertionError("no constraint fails alone, so none can have failed with the others")


def _values_of(problem: Problem) -> tuple[Any, ...]:
    """A problem's values under `PROBLEM_NAMES`, in their order."""
    p, s, t, flops, size = problem, problem.shape, problem.types, problem.flops, problem.bytes
    groups, active = (1, 1) if p.groups is None else (len(p.groups.sizes), p.groups.active)
    sizes = (s.m, s.n, s.k, p.alpha, p.beta, p.batch, flops, size, flops / size, groups, active)
    return (*sizes, p.layout, t.ab, t.cd, t.acc, p.scale, p.fused, p.sparsity)
