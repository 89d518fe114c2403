"""The summary of a plan: jobs by family and pool, reasons of invalid jobs, and upper estimates of time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import median_low
from typing import TYPE_CHECKING

from farm.campaign.figures import (
    MAX_REASONS,
    SAMPLE_PROBLEMS,
    Drawn,
    DrawnProblem,
    DrawnTypes,
    InvalidGroup,
    NotApplicable,
    PlanCount,
    PlanSummary,
    Quantiles,
    RoundCount,
)
from farm.campaign.strategies import Grid, Search
from farm.devices import DeviceKind
from farm.gemm import Problem
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.kernels.binary import Binary
from farm.measurement import MeasuringRules
from farm.protocols import PROTOCOLS, Protocol, ProtocolName

if TYPE_CHECKING:
    from farm.campaign.planning import Plan, PlannedJob

# Speeds that nearly every device surpasses, because the estimate is an upper one.
_CHECKING_FLOPS = 5e9
_CHECKING_SHARE = 1 / 16
"""Verification sums columns in groups of 32 and computes in a type of twice the width."""
_FILLING_BYTES_PER_S = 0.5e9
_OVERHEAD_S = 0.01


def summarise(plan: Plan) -> PlanSummary:
    """Iterates over the plan once. Raises `NothingToMeasure` if it has no job."""
    offered = _Offered(plan)
    jobs: Counter[tuple[str, str]] = Counter()
    invalid: Counter[tuple[str, str]] = Counter()
    groups = Reasons()
    search = plan.campaign.search
    rounds = _Rounds(plan, search or Grid())
    drawn = _Drawn()
    binaries: set[Binary] = set()
    for job in offered.jobs():
        key = (job.configuration.kernel.family, job.pool.name)
        jobs[key] += 1
        rounds.add(job)
        drawn.add(job)
        binaries.update(job.binaries)
        if job.invalid_reason is not None:
            invalid[key] += 1
            groups.add(job.invalid_reason, job.configuration)
    counted = rounds.counts()
    shown, others = groups.most_frequent(MAX_REASONS)
    campaign, families = plan.campaign, offered.families
    # The size of a campaign with a domain counts the problems that are drawn, not those of the domain.
    candidates = offered.problems * campaign.kernel_count if campaign.draws else campaign.size
    return PlanSummary(
        configurations=families.total(),
        excluded_by_constraints=candidates - families.total(),
        jobs=jobs.total(),
        counts=tuple(PlanCount(*key, jobs[key], invalid[key]) for key in sorted(jobs)),
        invalid=shown,
        invalid_for_other_reasons=others,
        not_applicable=tuple(
            NotApplicable(family, name, count)
            for family, count in sorted(families.items())
            for name in plan.targets_without(FAMILIES[family].kind)
        ),
        binaries=len(binaries),
        rounds=() if search is None else counted,
        estimated_seconds=dict(sorted(rounds.seconds.items())),
        drawn=drawn.figures(plan) if campaign.draws else None,
        protocol=campaign.measure.protocol,
    )


class Meter:
    """Counts the jobs of a plan and estimates their device time while they are iterated, so that this happens once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rounds = _Rounds(plan, plan.campaign.search or Grid())
        self.jobs = 0

    def passing(self) -> Iterator[PlannedJob]:
        """The jobs of the plan."""
        for job in self._plan.jobs():
            self.jobs += 1
            self._rounds.add(job)
            yield job

    def seconds(self) -> float:
        """An upper estimate of the device time of all rounds of a search. All jobs must have been iterated."""
        self._rounds.counts()
        return sum(self._rounds.seconds.values())


class _Drawn:
    """Collects the problems and kernels that were drawn from a domain, from the jobs of a plan."""

    def __init__(self) -> None:
        # By element types: the problems, and how many kernels were drawn for all of them.
        self._problems = defaultdict[str, list[Problem]](list)
        self._kernels: Counter[str] = Counter()
        self._sample: list[tuple[Problem, set[Kernel]]] = []
        self._problem: Problem | None = None
        self._of_problem: set[Kernel] = set()

    def add(self, job: PlannedJob) -> None:
        """The next job; those of one problem come together."""
        problem, kernel = job.configuration.problem, job.configuration.kernel
        if problem != self._problem:
            self._problem, self._of_problem = problem, set()
            self._problems[str(problem.types)].append(problem)
            if len(self._sample) < SAMPLE_PROBLEMS:
                self._sample.append((problem, self._of_problem))
        if kernel not in self._of_problem:  # of several pools
            self._of_problem.add(kernel)
            self._kernels[str(problem.types)] += 1

    def figures(self, plan: Plan) -> Drawn:
        campaign = plan.campaign
        named = sorted({str(types) for block in campaign.domain_blocks for types in block.types})
        return Drawn(
            problems=sum(map(len, self._problems.values())),
            requested=campaign.requested_problems,
            configurations=self._kernels.total(),
            by_types=tuple(_drawn_types(types, self._problems[types], self._kernels[types]) for types in named),
            sample=tuple(
                DrawnProblem(
                    str(problem.shape),
                    str(problem.types),
                    problem.layout.value,
                    problem.alpha,
                    problem.beta,
                    tuple(sorted(map(str, kernels))),
                    problem.batch,
                    problem.scale.value,
                    problem.fused.value,
                    problem.sparsity.value,
                )
                for problem, kernels in self._sample
            ),
        )


def _drawn_types(types: str, problems: list[Problem], configurations: int) -> DrawnTypes:
    return DrawnTypes(
        types,
        len(problems),
        configurations,
        m=_quantiles(problem.shape.m for problem in problems),
        n=_quantiles(problem.shape.n for problem in problems),
        k=_quantiles(problem.shape.k for problem in problems),
        flops=_quantiles(problem.flops for problem in problems),
        batch=_quantiles(problem.batch for problem in problems),
        scale=tuple(sorted({problem.scale.value for problem in problems})),
        fused=tuple(sorted({problem.fused.value for problem in problems})),
        sparsity=tuple(sorted({problem.sparsity.value for problem in problems})),
    )


def _quantiles(numbers: Iterable[int]) -> Quantiles | None:
    values = sorted(numbers)
    return Quantiles(values[0], median_low(values), values[-1]) if values else None


class _Rounds:
    """The jobs and the time of each round of a search, from the jobs of its first one. Without halving there is one round.

    The fastest kernels go on, so the mean of a problem's kernels is an upper estimate for each of them.
    """

    def __init__(self, plan: Plan, search: Search) -> None:
        self._plan = plan
        self._search = search
        self._full = plan.campaign.measure
        self._first = search.first_rules(self._full)
        self._problem: Problem | None = None
        # Of the problem in hand, by pool: its kernels, and the seconds of all of them in the first and the last round.
        self._kernels: dict[str, tuple[int, float, float]] = {}
        self._jobs: Counter[int] = Counter()
        self._seconds = defaultdict[int, float](float)
        self._last_jobs, self._last_s = 0, 0.0
        self.seconds: dict[str, float] = {}

    def add(self, job: PlannedJob) -> None:
        """The next job; those of one problem come together."""
        pool, problem = job.pool.name, job.configuration.problem
        self.seconds.setdefault(pool, 0.0)
        if self._first is not None and problem != self._problem:
            self._end_problem()
            self._problem = problem
        if job.invalid_reason is not None:
            return
        full_s = upper_seconds(job.configuration, self._full)
        if self._first is None:
            self._add_last(pool, 1, full_s)
            return
        n, first_s, all_s = self._kernels.get(pool, (0, 0.0, 0.0))
        self._kernels[pool] = n + 1, first_s + upper_seconds(job.configuration, self._first), all_s + full_s

    def counts(self) -> tuple[RoundCount, ...]:
        """The rounds, once every job was added."""
        self._end_problem()
        shorts = [RoundCount(n, jobs, True, self._seconds[n]) for n, jobs in sorted(self._jobs.items())]
        return (*shorts, RoundCount(len(shorts), self._last_jobs, False, self._last_s))

    def _add_last(self, pool: str, jobs: int, seconds: float) -> None:
        self.seconds[pool] = self.seconds.get(pool, 0.0) + seconds
        self._last_jobs += jobs
        self._last_s += seconds

    def _end_problem(self) -> None:
        if self._problem is None:
            return
        for pool, (n, first_s, all_s) in self._kernels.items():
            *shorts, last = self._search.rounds(n)
            for number, jobs in enumerate(shorts):
                seconds = jobs * min(self._search.samples_factor(number) * first_s, all_s) / n
                self._jobs[number] += jobs
                self._seconds[number] += seconds
                self.seconds[pool] += seconds
            self._add_last(pool, last, last * all_s / n)
        for job in self._plan.baselines(self._problem):
            self._add_last(job.pool.name, 1, upper_seconds(job.configuration, self._full))
        self._kernels.clear()
        self._problem = None


class _Offered:
    """Counts the configurations of a plan by family, and their problems, while its jobs are iterated."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.families: Counter[str] = Counter()
        self.problems = 0

    def jobs(self) -> Iterator[PlannedJob]:
        """The jobs of the plan."""
        return self._plan.jobs_of(self._counted())

    def _counted(self) -> Iterator[Configuration]:
        problem: Problem | None = None
        for configuration in self._plan.configurations():
            self.families[configuration.kernel.family] += 1
            self.problems += configuration.problem is not problem  # one object for all of a problem's kernels
            problem = configuration.problem
            yield configuration


_STANDALONE_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*(?!\w)")


class Reasons:
    """Groups reasons by their text without numbers: tiles of different sizes that are too large have one reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, tuple[str, str]] = {}
        self._differ: set[str] = set()

    def add(self, reason: str, configuration: Configuration) -> None:
        pattern = _STANDALONE_NUMBER.sub("…", reason)
        self._counts[pattern] += 1
        first, _ = self._first.setdefault(pattern, (reason, configuration.canonical))
        if first != reason:
            self._differ.add(pattern)

    def most_frequent(self, max_groups: int) -> tuple[tuple[InvalidGroup, ...], int]:
        groups = []
        for pattern, count in self._counts.most_common(max_groups):
            reason, example = self._first[pattern]
            groups.append(InvalidGroup(pattern if pattern in self._differ else reason, count, example, reason))
        return tuple(groups), self._counts.total() - sum(group.count for group in groups)


def upper_seconds(configuration: Configuration, rules: MeasuringRules) -> float:
    """Upper estimate of the device time of measuring a configuration, in seconds, from its size alone."""
    problem, timing, family = configuration.problem, rules.timing, FAMILIES[configuration.kernel.family]
    run_s = problem.flops / family.estimated_flops(dict(configuration.kernel.parameters))
    on_card = family.kind is DeviceKind.CUDA
    if rules.protocol is ProtocolName.FARM:
        timing_s = max(timing.warmup_seconds, run_s) + max(timing.max_seconds, timing.min_samples * run_s)
        timing_s += PROTOCOLS[rules.protocol].rest_s if on_card else 0.0
    else:
        timing_s = _protocol_s(PROTOCOLS[rules.protocol], run_s)
    measures_power = rules.power != "none" and on_card
    power_s = max(rules.power_seconds, run_s) if measures_power else 0.0
    return min(_OVERHEAD_S + _checking_s(problem) + timing_s + power_s, rules.job_seconds)


def _protocol_s(protocol: Protocol, run_s: float) -> float:
    """The rests, the warm-up and the samples of a protocol with fixed rules, for a kernel that takes `run_s`."""
    sample_s = (protocol.launches or 1) * run_s + protocol.gap_s
    warm_up_s = max(protocol.warm_up_s, run_s) + protocol.warm_up_samples * sample_s
    least_s = max(protocol.min_samples * sample_s, protocol.min_launches * run_s)
    # Until the samples are as exact as the protocol asks, they may take its longest time.
    samples_s = max(least_s, protocol.seconds if protocol.rse is None else protocol.max_seconds)
    return protocol.rest_s + warm_up_s + min(samples_s, max(protocol.max_seconds, sample_s)) + protocol.cool_down_s


def _checking_s(problem: Problem) -> float:
    """Filling the operands and verifying the result."""
    return problem.operand_bytes / _FILLING_BYTES_PER_S + problem.flops * _CHECKING_SHARE / _CHECKING_FLOPS
